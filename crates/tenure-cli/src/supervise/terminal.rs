//! The terminal: the command has it while it runs, and we give it back to our own group afterwards.
//!
//! A process outside the foreground group that takes the terminal is stopped with SIGTTOU, unless it ignores that signal,
//! which needs unsafe code. So whoever takes it back for us is a process *inside* the command's group: this program once more,
//! for a moment. That is possible as long as the command is not reaped.
//!
//! Only a terminal on our standard input is handed over, and only if we have it: a job in the background stays there.

use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{ExitCode, Stdio};

use rustix::process::{Pid, Signal, kill_current_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::group::{ProcessGroup, Stat};
use super::launch::ourselves;

/// Ctrl-C may end the process that takes the terminal back; whoever presses it more often than this means it.
const TRIES: usize = 3;

/// The terminal that we run on.
pub(super) struct Terminal {
    tty: File,
    /// Our own group.
    ours: Pid,
}

impl Terminal {
    /// Ours, if there is one.
    pub(super) fn own() -> Option<Terminal> {
        if !io::stdin().is_terminal() {
            return None;
        }
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Terminal { tty, ours: our_group()? })
    }

    /// Hands it to a group, if it is ours to give.
    pub(super) fn give(&self, group: ProcessGroup) -> io::Result<()> {
        if self.is_with(self.ours) {
            tcsetpgrp(&self.tty, group.leader())?;
        }
        Ok(())
    }

    /// Takes it back from a group whose leader has ended and is not reaped.
    pub(super) fn take_back(&self, group: ProcessGroup) -> io::Result<()> {
        for _ in 0..TRIES {
            if !self.is_with(group.leader()) {
                return Ok(());
            }
            ourselves()?
                .args(["terminal", &self.ours.as_raw_nonzero().to_string()])
                .stdin(Stdio::from(self.tty.try_clone()?))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(group.leader().as_raw_nonzero().get())
                .status()?;
        }
        Ok(())
    }

    /// The command was stopped, as by Ctrl-Z: so do we, and the shell has its prompt again. False if no shell would wake us.
    pub(super) fn stop_too(&self) -> bool {
        has_shell() && kill_current_process_group(Signal::TSTP).is_ok()
    }

    fn is_with(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty) == Ok(group)
    }
}

/// Not asked of the kernel directly: a group from outside our namespace has no number, and the call has no way to say so.
#[cfg(target_os = "linux")]
fn our_group() -> Option<Pid> {
    Stat::parse(&fs::read_to_string("/proc/self/stat").ok()?)?.group
}

#[cfg(not(target_os = "linux"))]
fn our_group() -> Option<Pid> {
    Some(rustix::process::getpgrp())
}

/// Whether our parent is of our session, as a shell is.
fn has_shell() -> bool {
    let session = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let stat = Stat::parse(&stat)?;
        Some((stat.session?, stat.parent))
    };
    let Some((ours, Some(parent))) = session("self") else { return false };
    session(&parent.as_raw_nonzero().to_string()).is_some_and(|(theirs, _)| theirs == ours)
}

/// The part of the one who takes the terminal back.
pub(crate) fn run(group: i32) -> ExitCode {
    let done = Pid::from_raw(group).map(|group| tcsetpgrp(io::stdin(), group));
    if done == Some(Ok(())) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
