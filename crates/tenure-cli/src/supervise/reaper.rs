//! The reaper: the parent of one command, and the process to which every orphan of the command's tree goes.
//!
//! A process group ends where a command calls `setsid` or `setpgid`, as `timeout`, `bash -m` and daemons do.
//! The reaper is a child subreaper: whatever the command starts stays below it, however often it forks.
//! It reports how the command ended, ends itself when no process of the tree is left, and kills the tree when the supervisor's end of the socket
//! is closed. It has its own process group, so that no signal to the command's group ends it.
//!
//! **Invariant**: the reaper ends after the last process of its tree.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, wait, waitid};

use super::outcome::ProcessEnd;
use super::{descendants, launch, signals};

/// A report of the reaper to the supervisor.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum ReaperReport {
    /// The launcher was started, as leader of a group of its own.
    Started(Pid),
    /// The launcher could not be started, with this error number.
    Failed(i32),
    /// The command was stopped.
    Stopped(Signal),
    /// The command has ended. It is reaped on request.
    Ended(ProcessEnd),
    /// These processes are left after it.
    Left(String),
}

/// A request of the supervisor. The end of the socket means [`ReaperRequest::Kill`].
#[derive(PartialEq, Eq, Debug)]
pub(super) enum ReaperRequest {
    /// Reap the command.
    Reap,
    /// Send a signal to the tree, except to one group.
    Signal { signal: Signal, but: Option<Pid> },
    /// Kill the tree, until no process of it is left.
    Kill,
}

/// Runs the reaper's process.
pub(crate) fn run(path: &Path, command: &[OsString], open_files: Option<u64>) -> ExitCode {
    let handlers = signals::ignore_requests();
    let Ok((mut socket, launcher)) = launch::receive() else { return ExitCode::from(125) };
    let leader = match start(path, command, open_files, launcher) {
        Ok(leader) => leader,
        Err(error) => {
            let report = ReaperReport::Failed(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()));
            let _ = socket.write_all(report.to_string().as_bytes());
            return ExitCode::from(125);
        }
    };
    let Ok(requests) = socket.try_clone() else { return ExitCode::from(125) };
    let (reap, may_reap) = channel();
    // Not joined: the thread ends with the process.
    std::thread::spawn(move || serve(leader, requests, reap));
    CommandParent { leader, socket, may_reap }.watch();
    drop(handlers);
    ExitCode::SUCCESS
}

fn start(path: &Path, command: &[OsString], open_files: Option<u64>, launcher: OwnedFd) -> io::Result<Pid> {
    // Set before the first child is started, so that no orphan can escape.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut process = launch::command(path, open_files, command)?;
    let child = process.stdin(Stdio::from(launcher)).process_group(0).spawn()?;
    // This process may outlive the command. It must not keep the command's output open, or a reader would not see its end.
    let null = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| Errno::SRCH.into())
}

/// Serves requests until the tree is gone.
fn serve(leader: Pid, requests: UnixStream, reap: Sender<()>) {
    for line in BufReader::new(requests).lines() {
        match line.ok().as_deref().and_then(ReaperRequest::parse) {
            // The receiver lives as long as the process.
            Some(ReaperRequest::Reap) => drop(reap.send(())),
            Some(ReaperRequest::Signal { signal, but }) => {
                let own = rustix::process::getpid();
                // Without /proc only the group can be signalled, and the supervisor has done that.
                let _ = descendants::signal(own, signal, |process| but.is_none() || process.group != but);
            }
            Some(ReaperRequest::Kill) => break,
            // Both ends are the same program, so an unknown request means a broken socket.
            None => break,
        }
    }
    // Dropping the sender permits the reaping: a supervisor that is gone will not request it.
    drop(reap);
    kill_all(leader)
}

/// Kills in rounds until this process ends, after the last process of its tree.
fn kill_all(leader: Pid) -> ! {
    let own = rustix::process::getpid();
    loop {
        if descendants::signal(own, Signal::KILL, |_| true).is_err() {
            let _ = kill_process_group(leader, Signal::KILL);
        }
        std::thread::sleep(descendants::ROUND_EVERY);
    }
}

/// The parent of the command, which waits for it.
struct CommandParent {
    leader: Pid,
    socket: UnixStream,
    may_reap: Receiver<()>,
}

impl CommandParent {
    /// Waits for children until none is left.
    fn watch(mut self) {
        self.report(&ReaperReport::Started(self.leader));
        let any = WaitIdOptions::EXITED | WaitIdOptions::STOPPED;
        loop {
            match waitid(WaitId::All, any | WaitIdOptions::NOWAIT) {
                Err(Errno::INTR) => continue,
                Err(_) => return,
                Ok(_) => {}
            }
            let leader = |options| waitid(WaitId::Pid(self.leader), options | WaitIdOptions::NOHANG);
            let stopped = leader(WaitIdOptions::STOPPED).ok().flatten();
            let signal = stopped.and_then(|status| status.stopping_signal()).and_then(Signal::from_named_raw);
            if let Some(signal) = signal {
                self.report(&ReaperReport::Stopped(signal));
                continue;
            }
            match leader(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Ok(Some(status)) => {
                    self.report(&ReaperReport::Ended(ProcessEnd::of(&status)));
                    break;
                }
                Ok(None) => reap_adopted(self.leader),
                Err(_) => break,
            }
        }
        self.finish();
    }

    /// Waits for the other processes after the command has ended.
    fn finish(mut self) {
        // Until the command is reaped, its group's number stays valid. The supervisor needs it to take the terminal back.
        let _ = self.may_reap.recv();
        let _ = waitid(WaitId::Pid(self.leader), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        let left = descendants::of(rustix::process::getpid()).unwrap_or_default();
        if !left.is_empty() {
            let names: Vec<String> = left.iter().map(ToString::to_string).collect();
            self.report(&ReaperReport::Left(names.join(", ")));
        }
        loop {
            match wait(WaitOptions::UNTRACED) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn report(&mut self, report: &ReaperReport) {
        // If the supervisor is gone, the other thread kills the tree.
        let _ = self.socket.write_all(report.to_string().as_bytes());
    }
}

/// Reaps ended orphans while the command runs.
fn reap_adopted(leader: Pid) {
    let mut has_reaped = false;
    for pid in descendants::children_of(rustix::process::getpid()).into_iter().filter(|pid| *pid != leader) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        has_reaped |= matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_)));
    }
    if !has_reaped {
        // `waitid` returns immediately for a zombie that /proc does not list. The pause keeps this loop from using a core until the command ends.
        std::thread::sleep(descendants::ROUND_EVERY);
    }
}

impl fmt::Display for ReaperReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReaperReport::Started(pid) => writeln!(f, "started {}", pid.as_raw_nonzero()),
            ReaperReport::Failed(errno) => writeln!(f, "failed {errno}"),
            ReaperReport::Stopped(signal) => writeln!(f, "stopped {}", signal.as_raw()),
            ReaperReport::Ended(ProcessEnd::Exited(code)) => writeln!(f, "exited {code}"),
            ReaperReport::Ended(ProcessEnd::Killed(signal)) => writeln!(f, "killed {signal}"),
            // A process chooses its name. A line break in it would end the report.
            ReaperReport::Left(names) => writeln!(f, "left {}", names.replace('\n', "?")),
        }
    }
}

impl ReaperReport {
    /// Parses one line; `None` if it is not a report.
    pub(super) fn parse(line: &str) -> Option<ReaperReport> {
        let (name, rest) = line.strip_suffix('\n')?.split_once(' ')?;
        Some(match name {
            "started" => ReaperReport::Started(Pid::from_raw(rest.parse().ok()?)?),
            "failed" => ReaperReport::Failed(rest.parse().ok()?),
            "stopped" => ReaperReport::Stopped(Signal::from_named_raw(rest.parse().ok()?)?),
            "exited" => ReaperReport::Ended(ProcessEnd::Exited(rest.parse().ok()?)),
            "killed" => ReaperReport::Ended(ProcessEnd::Killed(rest.parse().ok()?)),
            "left" => ReaperReport::Left(rest.to_owned()),
            _ => return None,
        })
    }
}

impl fmt::Display for ReaperRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReaperRequest::Reap => writeln!(f, "reap"),
            ReaperRequest::Signal { signal, but: Some(but) } => {
                writeln!(f, "signal {} {}", signal.as_raw(), but.as_raw_nonzero())
            }
            ReaperRequest::Signal { signal, but: None } => writeln!(f, "signal {}", signal.as_raw()),
            ReaperRequest::Kill => writeln!(f, "kill"),
        }
    }
}

impl ReaperRequest {
    fn parse(line: &str) -> Option<ReaperRequest> {
        let fields: Vec<&str> = line.split(' ').collect();
        let signal = |text: &str| Signal::from_named_raw(text.parse().ok()?);
        match fields[..] {
            ["reap"] => Some(ReaperRequest::Reap),
            ["kill"] => Some(ReaperRequest::Kill),
            ["signal", number] => Some(ReaperRequest::Signal { signal: signal(number)?, but: None }),
            ["signal", number, but] => {
                let but = Some(Pid::from_raw(but.parse().ok()?)?);
                Some(ReaperRequest::Signal { signal: signal(number)?, but })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_and_requests_are_parsed_as_written() {
        let pid = Pid::from_raw(4121).unwrap();
        for report in [
            ReaperReport::Started(pid),
            ReaperReport::Failed(11),
            ReaperReport::Stopped(Signal::TSTP),
            ReaperReport::Ended(ProcessEnd::Exited(7)),
            ReaperReport::Ended(ProcessEnd::Killed(9)),
            ReaperReport::Left("4122 (sleep), 4123 (a b)".to_owned()),
        ] {
            assert_eq!(ReaperReport::parse(&report.to_string()), Some(report));
        }
        for request in [
            ReaperRequest::Reap,
            ReaperRequest::Kill,
            ReaperRequest::Signal { signal: Signal::TERM, but: None },
            ReaperRequest::Signal { signal: Signal::TERM, but: Some(pid) },
        ] {
            assert_eq!(ReaperRequest::parse(request.to_string().trim_end()), Some(request));
        }
        for odd in ["", "\n", "started\n", "started 0\n", "exited 300\n", "exited 7"] {
            assert_eq!(ReaperReport::parse(odd), None, "{odd:?}");
        }
        assert_eq!(ReaperRequest::parse("signal 15 0"), None);
    }

    #[test]
    fn process_name_with_line_break_stays_one_report() {
        let report = ReaperReport::Left("7 (a\nexited 0)".to_owned()).to_string();
        assert_eq!(ReaperReport::parse(&report), Some(ReaperReport::Left("7 (a?exited 0)".to_owned())));
    }
}
