//! A command and everything it started: how it is, and when nobody is left.

use std::process::Child;

use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use tokio::task::JoinHandle;

use super::group::{self, Group, Member};
use super::outcome::End;
use crate::failure::{Code, Failure};

/// A command that runs, or its group after it.
pub(super) struct Family {
    child: Child,
    pub(super) group: Group,
    /// How the command itself ended.
    pub(super) end: Option<End>,
    /// The end of somebody else of the group, which is waited for after that.
    awaited: Option<JoinHandle<()>>,
    is_reaped: bool,
}

/// What a look at the command shows.
pub(super) enum Seen {
    /// It runs.
    Running,
    /// It was stopped by this signal, as by Ctrl-Z.
    Stopped(Signal),
    /// It has ended.
    Ended,
}

/// Who is left when the command has ended.
pub(super) enum Left {
    Nobody,
    /// These, and that is news.
    Somebody(Vec<Member>),
    /// Some of those who were left before.
    Still,
}

impl Family {
    pub(super) fn new(child: Child, group: Group) -> Family {
        Family { child, group, end: None, awaited: None, is_reaped: false }
    }

    /// Waits until somebody else of the group is gone, once the command has ended; never comes before that.
    pub(super) async fn changed(&mut self) {
        match &mut self.awaited {
            Some(other) => drop(other.await),
            None => std::future::pending().await,
        }
    }

    /// Whether somebody else of the group is waited for; before that, the end of the command is a SIGCHLD.
    pub(super) fn awaits_others(&self) -> bool {
        self.awaited.is_some()
    }

    /// Looks how the command is; once it has ended, [`Family::judge`] says whether everybody has.
    pub(super) fn look(&mut self) -> Result<Seen, Failure> {
        if self.end.is_some() {
            return Ok(Seen::Ended);
        }
        let leader = WaitId::Pid(self.group.leader());
        let ask = |options| waitid(leader.clone(), options | WaitIdOptions::NOHANG);
        let stopped = ask(WaitIdOptions::STOPPED).ok().flatten().and_then(|status| status.stopping_signal());
        if let Some(signal) = stopped.and_then(Signal::from_named_raw) {
            return Ok(Seen::Stopped(signal));
        }
        let ended = ask(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).map_err(|error| {
            Failure::new(Code::Failed, format!("the command cannot be waited for: {error}"))
        })?;
        let Some(status) = ended else { return Ok(Seen::Running) };
        self.end = Some(End::of(&status));
        Ok(Seen::Ended)
    }

    /// Whether everybody has ended, from those who were just seen beside the command. `before_reaping` is called at the last moment at which its
    /// group certainly is its own.
    pub(super) fn judge(&mut self, mut others: Vec<Member>, before_reaping: impl FnOnce()) -> Left {
        if others.is_empty() {
            if self.is_over(before_reaping) {
                return Left::Nobody;
            }
            others = self.group.others();
        }
        let is_first = self.awaited.is_none();
        // One that ended since it was listed is found to be gone at once.
        self.awaited = Some(group::gone(others.first().map_or(self.group.leader(), |other| other.pid)));
        if is_first { Left::Somebody(others) } else { Left::Still }
    }

    /// Whether really nobody is left. The listing of processes is not made at one moment, so the kernel has the last word; but it
    /// counts the leader until that is reaped, and others that only wait to be reaped by their parents.
    fn is_over(&mut self, before_reaping: impl FnOnce()) -> bool {
        if !self.is_reaped {
            before_reaping();
            self.is_reaped = self.child.wait().is_ok();
        }
        self.group.is_empty() || self.group.others().is_empty()
    }
}

/// What is said of those whom a command leaves behind.
pub(super) fn left_running(others: &[Member]) -> String {
    let names: Vec<String> = others.iter().map(ToString::to_string).collect();
    format!("the command has ended, waiting for what it left running: {}", names.join(", "))
}
