//! Gives the terminal to the command while it runs, and takes it back afterwards.
//!
//! A process outside of the foreground group that takes the terminal is stopped with SIGTTOU, unless it ignores that signal,
//! which needs unsafe code. So a helper process *inside* the command's group, this program again, gives the terminal back.
//! A process can join that group as long as the command is not reaped.
//!
//! Only a terminal on standard input is passed on, and only by a supervisor in the foreground: a background job stays in the background.

use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{ExitCode, Stdio};

use rustix::process::{Pid, Signal, kill_current_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::group::{ProcessGroup, Stat};
use super::launch::ourselves;

/// How often the helper process is started, because Ctrl-C may end it. Each try takes a few milliseconds, so more presses are unlikely.
const TRIES: usize = 3;

/// The terminal of this process.
pub(super) struct Terminal {
    tty: File,
    /// The process group of this process.
    own: Pid,
}

impl Terminal {
    /// The terminal on standard input, if there is one.
    pub(super) fn own() -> Option<Terminal> {
        if !io::stdin().is_terminal() {
            return None;
        }
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Terminal { tty, own: own_group()? })
    }

    /// Gives the terminal to a group, if this process's group has it.
    pub(super) fn give(&self, group: ProcessGroup) -> io::Result<()> {
        if self.is_with(self.own) {
            tcsetpgrp(&self.tty, group.leader())?;
        }
        Ok(())
    }

    /// Takes the terminal back from a group with an ended leader that is not reaped.
    pub(super) fn take_back(&self, group: ProcessGroup) -> io::Result<()> {
        for _ in 0..TRIES {
            if !self.is_with(group.leader()) {
                return Ok(());
            }
            ourselves()?
                .args(["terminal", &self.own.as_raw_nonzero().to_string()])
                .stdin(Stdio::from(self.tty.try_clone()?))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(group.leader().as_raw_nonzero().get())
                .status()?;
        }
        Ok(())
    }

    /// Stops this process's group after Ctrl-Z has stopped the command, so that the shell shows its prompt. False if no shell would continue it.
    pub(super) fn stop_too(&self) -> bool {
        has_shell() && kill_current_process_group(Signal::TSTP).is_ok()
    }

    fn is_with(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty) == Ok(group)
    }
}

/// The process group of this process. Read from /proc, because `getpgrp` cannot report a group from outside of this pid namespace: it has no number here.
#[cfg(target_os = "linux")]
fn own_group() -> Option<Pid> {
    Stat::parse(&fs::read_to_string("/proc/self/stat").ok()?)?.group
}

#[cfg(not(target_os = "linux"))]
fn own_group() -> Option<Pid> {
    Some(rustix::process::getpgrp())
}

/// Whether the parent is in the same session, as a shell is.
fn has_shell() -> bool {
    let session = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let stat = Stat::parse(&stat)?;
        Some((stat.session?, stat.parent))
    };
    let Some((own, Some(parent))) = session("self") else { return false };
    session(&parent.as_raw_nonzero().to_string()).is_some_and(|(parents, _)| parents == own)
}

/// Runs the helper process that gives the terminal to a group.
pub(crate) fn run(group: i32) -> ExitCode {
    let done = Pid::from_raw(group).map(|group| tcsetpgrp(io::stdin(), group));
    if done == Some(Ok(())) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
