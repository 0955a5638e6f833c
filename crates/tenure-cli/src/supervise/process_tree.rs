//! The process tree of a command: the command, everything that it started, and the reaper at its root.
//!
//! This is the supervisor's end; [`reaper`](super::reaper) is the process at the other end of the socket.
//! The reaper kills the whole tree when the socket closes, so a dropped `ProcessTree` leaves no process running.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixStream;

use super::descendants;
use super::group::ProcessGroup;
use super::outcome::ProcessEnd;
use super::reaper::{ReaperReport, ReaperRequest};

/// The pids with which the sentinel finds a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TreeId {
    /// The ancestor of all other processes of the tree.
    pub(super) reaper: Pid,
    /// The command's own process group.
    pub(super) group: ProcessGroup,
}

/// A running command, or the processes that it left running.
pub(super) struct ProcessTree {
    reaper: Child,
    socket: UnixStream,
    /// The received beginning of a report.
    rest: Vec<u8>,
    pub(super) id: TreeId,
    /// How the command itself ended.
    end: Option<ProcessEnd>,
    /// Whether the command is reaped, so that its group's number may belong to another process.
    is_reaped: bool,
}

/// What happened in the tree.
pub(super) enum TreeChange {
    /// The command was stopped by this signal, as by Ctrl-Z.
    Stopped(Signal),
    /// The command has ended and is not reaped yet.
    Ended,
    /// The command has ended, and these are left.
    Left(String),
    /// No process of the tree is left.
    Gone,
}

impl ProcessTree {
    /// Starts a reaper, which starts the command's launcher with `launcher` as its standard input.
    ///
    /// # Errors
    ///
    /// If a process cannot be started; none is left then.
    pub(super) async fn start(mut reaper: Command, launcher: OwnedFd) -> io::Result<ProcessTree> {
        let (socket, reaper_end) = StdUnixStream::pair()?;
        let child = reaper.stdin(Stdio::from(OwnedFd::from(reaper_end))).spawn()?;
        // Closes this process's copy of the reaper's end; otherwise the socket would stay open after the reaper has died.
        drop(reaper);
        let number = |number: u32| i32::try_from(number).ok().and_then(Pid::from_raw);
        let pid = number(child.id()).ok_or_else(|| io::Error::other("a child without a pid"))?;
        super::launch::send_descriptor(&socket, &launcher)?;
        drop(launcher);
        socket.set_nonblocking(true)?;
        let socket = UnixStream::from_std(socket)?;
        let id = TreeId { reaper: pid, group: ProcessGroup::led_by(pid) };
        let mut tree =
            ProcessTree { reaper: child, socket, rest: Vec::new(), id, end: None, is_reaped: false };
        match tree.report().await {
            Some(ReaperReport::Started(leader)) => {
                tree.id.group = ProcessGroup::led_by(leader);
                Ok(tree)
            }
            Some(ReaperReport::Failed(errno)) => {
                tree.abandon();
                Err(io::Error::from_raw_os_error(errno))
            }
            _ => {
                tree.abandon();
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
    }

    /// Waits for the next change. Cancelling loses none.
    pub(super) async fn next(&mut self) -> TreeChange {
        match self.report().await {
            Some(ReaperReport::Stopped(signal)) => TreeChange::Stopped(signal),
            Some(ReaperReport::Ended(end)) => {
                self.end = Some(end);
                TreeChange::Ended
            }
            Some(ReaperReport::Left(names)) => TreeChange::Left(names),
            Some(ReaperReport::Started(_) | ReaperReport::Failed(_)) | None => self.gone(),
        }
    }

    /// How the command ended, once it has. A tree that ended without a report was killed with its reaper.
    pub(super) fn end(&self) -> ProcessEnd {
        self.end.unwrap_or(ProcessEnd::Killed(u8::try_from(Signal::KILL.as_raw()).unwrap_or(u8::MAX)))
    }

    /// Whether the command itself has ended, also if its reaper has not reported that yet.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some() || self.id.group.has_leader_ended()
    }

    /// Lets the reaper reap the ended command. From then on another process may get the group's number.
    pub(super) fn reap_command(&mut self) {
        self.is_reaped = true;
        self.request(&ReaperRequest::Reap);
    }

    /// Sends a signal: TERM, KILL and CONT to the whole tree, any other to the command's group, as a terminal does.
    pub(super) fn signal(&self, signal: Signal) -> Result<(), Errno> {
        let is_for_all = matches!(signal, Signal::TERM | Signal::KILL | Signal::CONT) || self.is_reaped;
        if signal == Signal::KILL {
            self.request(&ReaperRequest::Kill);
            // A stopped reaper could not kill. It is not reaped yet, so the pid is still its own.
            let _ = kill_process(self.id.reaper, Signal::CONT);
        } else if is_for_all {
            let but = (!self.is_reaped).then_some(self.id.group.leader());
            self.request(&ReaperRequest::Signal { signal, but });
        }
        if self.is_reaped { Ok(()) } else { self.id.group.signal(signal) }
    }

    /// Sends a signal to the processes of the tree that handle it: a checkpoint request must not end a process.
    pub(super) fn signal_catching(&self, signal: Signal) {
        let sent = descendants::signal(self.id.reaper, signal, |process| process.catches(signal));
        if let Err(error) = sent {
            tracing::debug!(%error, "command processes not listed");
        }
    }

    /// Ends a tree before its command was started.
    pub(super) fn abandon(self) {
        let ProcessTree { mut reaper, socket, .. } = self;
        drop(socket);
        let _ = reaper.wait();
    }

    fn gone(&mut self) -> TreeChange {
        let _ = self.reaper.wait();
        if self.end.is_none() {
            // The reaper itself was killed. Only the command's group can still be found, not the rest of the tree.
            let _ = self.id.group.signal(Signal::KILL);
        }
        TreeChange::Gone
    }

    /// Sends a request without waiting: a reaper that does not read is stopped, and the sentinel kills its tree in time.
    fn request(&self, request: &ReaperRequest) {
        if let Err(error) = self.socket.try_write(request.to_string().as_bytes()) {
            tracing::debug!(%error, "reaper request not sent");
        }
    }

    /// The next report; `None` after the reaper has ended.
    async fn report(&mut self) -> Option<ReaperReport> {
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return ReaperReport::parse(&String::from_utf8_lossy(&line));
            }
            self.socket.readable().await.ok()?;
            let mut bytes = [0; 1_024];
            match self.socket.try_read(&mut bytes) {
                Ok(0) => return None,
                Ok(len) => self.rest.extend_from_slice(&bytes[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
    }
}

/// The note about processes that a command left running.
pub(super) fn left_running(names: &str) -> String {
    format!("the command has ended, waiting for the processes that it left running: {names}")
}
