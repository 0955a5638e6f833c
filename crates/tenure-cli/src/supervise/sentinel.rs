//! The sentinel: a second process that ends commands when we no longer can.
//!
//! It reads a pipe that only we hold. While messages come, it does nothing. When the pipe ends without a goodbye, we are dead; when the last
//! moment that it received has passed, we are stopped or starved. In both cases it kills the process trees, and repeats that until none is left.
//! It guards any number of trees, each until the moment of what that tree relies on: a worker has one sentinel for all its commands.
//! Processes of another user are out of its reach.

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

/// What it answers when it has understood which group is meant.
const GUARDING: &[u8] = b"guarding\n";

/// How long it may take to leave: it has nothing to do but to hear a word.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// What the life of a group hangs on, as a number of our choice: all that hang on one thing end at one moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct GroupLease(pub(crate) u64);

/// Our end of it. Dropped without `dismiss`, it kills everybody it guards.
pub(super) struct Sentinel {
    process: Child,
    to: pipe::Sender,
    from: pipe::Receiver,
}

impl Sentinel {
    /// Starts one that guards nobody yet. In a group of its own, so that a signal to ours cannot end it first.
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

    /// Tells it which tree to guard, and until when; returns when it does.
    pub(super) async fn guard(
        &mut self,
        tree: TreeId,
        hold: GroupLease,
        until: Option<Moment>,
    ) -> io::Result<()> {
        let (reaper, group) = (tree.reaper.as_raw_nonzero(), tree.group.leader().as_raw_nonzero());
        let words = format!("{}guard {reaper} {group} {}\n", until_message(hold, until), hold.0);
        self.to.write_all(words.as_bytes()).await?;
        let mut answer = [0; GUARDING.len()];
        self.from.read_exact(&mut answer).await?;
        if answer == GUARDING { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Tells it when to kill, if it hears nothing more; none: not before our end.
    ///
    /// Never waits: a sentinel that does not read has the old moment, which is the earlier one.
    pub(super) fn until(&mut self, hold: GroupLease, kill: Option<Moment>) -> io::Result<()> {
        match self.to.try_write(until_message(hold, kill).as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            // Words are far shorter than what a pipe takes in one piece.
            done => done.map(drop),
        }
    }

    /// Tells it that no process of a tree is left.
    pub(super) async fn leave(&mut self, tree: TreeId) -> io::Result<()> {
        self.to.write_all(format!("leave {}\n", tree.reaper.as_raw_nonzero()).as_bytes()).await
    }

    /// Waits until it is gone, which it should not be.
    pub(super) async fn gone(&mut self) {
        let mut nothing = [0; 16];
        // It says nothing more, so whatever comes is its end.
        while self.from.read(&mut nothing).await.is_ok_and(|len| len > 0) {}
    }

    /// Says goodbye: there is nobody left to guard.
    pub(super) async fn dismiss(mut self) {
        // One that is gone already needs no goodbye.
        let goodbye = async {
            let _ = self.to.write_all(b"done\n").await;
            self.gone().await;
        };
        if tokio::time::timeout(LEAVE_WITHIN, goodbye).await.is_err() {
            // Somebody has stopped it; nobody needs it any more.
            let _ = self.process.kill();
        }
        self.reap();
    }

    /// Ends one that is not needed any more, or of no use.
    pub(super) fn end(&mut self) {
        // One that is gone already is what we want.
        let _ = self.process.kill();
        self.reap();
    }

    /// Takes leave of one that is gone.
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
