//! The sentinel: a second process that kills commands when the supervisor no longer can.
//!
//! It reads a pipe to which only the supervisor writes. An end of the pipe without a final message means that the supervisor is dead. A deadline that
//! passes without a later one means that the supervisor is stopped or starved. In both cases the sentinel kills the process trees in rounds until
//! none is left.
//! It guards any number of trees, each until the deadline of its lease: a worker has one sentinel for all its commands.
//! It cannot kill processes of another user.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use tenure_core::time::Moment;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

use super::launch::ourselves;
use super::process_tree::TreeId;

mod killing;
mod process;
mod timer;

pub(crate) use process::run;

/// The sentinel's reply once it guards a tree.
const GUARDING: &[u8] = b"guarding\n";

/// The time limit of its end after the final message, which needs no work.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// The number of a lease. All trees with the same number have the same deadline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct GroupLease(pub(crate) u64);

/// The supervisor's end. If it is dropped without `dismiss`, the sentinel kills every tree that it guards.
pub(super) struct Sentinel {
    process: Child,
    to: pipe::Sender,
    from: pipe::Receiver,
}

impl Sentinel {
    /// Starts a sentinel without trees. It has its own process group, so that a signal to the supervisor's group does not end it first.
    pub(super) fn start() -> io::Result<Sentinel> {
        let mut process = ourselves()?
            .arg("sentinel")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let stdin = process.stdin.take().map(OwnedFd::from);
        let stdout = process.stdout.take().map(OwnedFd::from);
        let (Some(stdin), Some(stdout)) = (stdin, stdout) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Sentinel {
            process,
            to: pipe::Sender::from_owned_fd(stdin)?,
            from: pipe::Receiver::from_owned_fd(stdout)?,
        })
    }

    /// Sends a tree and its deadline, and returns once the sentinel guards the tree.
    pub(super) async fn guard(
        &mut self,
        tree: TreeId,
        hold: GroupLease,
        until: Option<Moment>,
    ) -> io::Result<()> {
        let (reaper, group) = (tree.reaper.as_raw_nonzero(), tree.group.leader().as_raw_nonzero());
        let messages = format!("{}guard {reaper} {group} {}\n", until_message(hold, until), hold.0);
        self.to.write_all(messages.as_bytes()).await?;
        let mut reply = [0; GUARDING.len()];
        self.from.read_exact(&mut reply).await?;
        if reply == GUARDING { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Sends a new deadline; `None` to kill only when the supervisor is dead.
    ///
    /// Never waits: a sentinel that does not read keeps the old deadline, which is earlier.
    pub(super) fn until(&mut self, hold: GroupLease, kill: Option<Moment>) -> io::Result<()> {
        match self.to.try_write(until_message(hold, kill).as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            // A message is far shorter than PIPE_BUF, so the pipe takes it whole.
            done => done.map(drop),
        }
    }

    /// Ends the guarding of a tree without processes.
    pub(super) async fn leave(&mut self, tree: TreeId) -> io::Result<()> {
        self.to.write_all(format!("leave {}\n", tree.reaper.as_raw_nonzero()).as_bytes()).await
    }

    /// Waits until the sentinel has ended unexpectedly.
    pub(super) async fn gone(&mut self) {
        let mut nothing = [0; 16];
        // It sends nothing here, so a read returns only at its end.
        while self.from.read(&mut nothing).await.is_ok_and(|len| len > 0) {}
    }

    /// Ends a sentinel without trees.
    pub(super) async fn dismiss(mut self) {
        // A sentinel that has ended already makes the write fail, which is fine.
        let end = async {
            let _ = self.to.write_all(b"done\n").await;
            self.gone().await;
        };
        if tokio::time::timeout(LEAVE_WITHIN, end).await.is_err() {
            // It was stopped, as by SIGSTOP, and guards nothing.
            let _ = self.process.kill();
        }
        self.reap();
    }

    /// Kills a sentinel that is being replaced.
    pub(super) fn end(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        self.reap();
    }

    /// Reaps a sentinel that has ended.
    pub(super) fn reap(&mut self) {
        let _ = self.process.wait();
    }
}

fn until_message(GroupLease(hold): GroupLease, kill: Option<Moment>) -> String {
    match kill {
        Some(kill) => format!("until {hold} {}\n", kill.since_origin().as_nanos()),
        None => format!("until {hold} never\n"),
    }
}
