//! One sentinel for all commands of a worker, replaced when it dies.
//!
//! A sentinel per command would cost one process and two pipes each. With a thousand tasks, that exceeds most limits of open files, and each renewal of
//! the shared lease would need a thousand messages.
//! The end of the one sentinel would leave every command unguarded. So this module keeps what the sentinel knows, starts another one immediately, and
//! kills all commands if that fails.
//!
//! **Invariant**: after `guard` has returned success, the tree is guarded or killed.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::Arc;

use rustix::process::Signal;
use tenure_core::time::Moment;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::process_tree::TreeId;
use super::sentinel::{GroupLease, Sentinel};
use super::{descendants, in_time};

/// Guards the commands of a worker. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SentinelPool {
    requests: mpsc::UnboundedSender<SentinelRequest>,
    task: Arc<tokio::sync::Mutex<Option<JoinHandle<()>>>>,
}

enum SentinelRequest {
    Guard { tree: TreeId, hold: GroupLease, kill: Moment, reply: oneshot::Sender<io::Result<()>> },
    Until { hold: GroupLease, kill: Moment },
    Leave { tree: TreeId },
    Close,
}

impl SentinelPool {
    /// Starts the sentinel. Called before the worker joins, so that a host without free processes claims no task.
    pub(crate) fn start() -> io::Result<SentinelPool> {
        let (requests, received) = mpsc::unbounded_channel();
        let restarter = SentinelRestarter {
            sentinel: Some(Sentinel::start()?),
            trees: BTreeMap::new(),
            holds: BTreeMap::new(),
        };
        let task = tokio::spawn(restarter.run(received));
        Ok(SentinelPool { requests, task: Arc::new(tokio::sync::Mutex::new(Some(task))) })
    }

    /// Guards a tree until a deadline, and returns once it is guarded. [`SentinelPool::until`] moves the deadline of all trees with the same lease.
    pub(super) async fn guard(&self, tree: TreeId, hold: GroupLease, kill: Moment) -> io::Result<()> {
        let (reply, replied) = oneshot::channel();
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.requests
            .send(SentinelRequest::Guard { tree, hold, kill, reply })
            .map_err(|_| io::ErrorKind::BrokenPipe)?;
        replied.await.map_err(gone)?
    }

    /// Moves the deadline of a lease.
    pub(super) fn until(&self, hold: GroupLease, kill: Moment) {
        // After the end of the pool no tree is left.
        let _ = self.requests.send(SentinelRequest::Until { hold, kill });
    }

    /// Ends the guarding of a tree without processes.
    pub(super) fn leave(&self, tree: TreeId) {
        let _ = self.requests.send(SentinelRequest::Leave { tree });
    }

    /// Ends the sentinel. Trees that are still guarded are killed.
    pub(crate) async fn close(&self) {
        let _ = self.requests.send(SentinelRequest::Close);
        if let Some(task) = self.task.lock().await.take() {
            let _ = task.await;
        }
    }
}

/// The state of the sentinel, from which another one can be started.
struct SentinelRestarter {
    /// `None` once it was killed and could not be replaced.
    sentinel: Option<Sentinel>,
    trees: BTreeMap<i32, (TreeId, GroupLease)>,
    holds: BTreeMap<GroupLease, Moment>,
}

impl SentinelRestarter {
    async fn run(mut self, mut received: mpsc::UnboundedReceiver<SentinelRequest>) {
        loop {
            let gone = async {
                match &mut self.sentinel {
                    Some(sentinel) => sentinel.gone().await,
                    None => std::future::pending().await,
                }
            };
            let request = tokio::select! {
                biased;
                () = gone => None,
                request = received.recv() => Some(request.unwrap_or(SentinelRequest::Close)),
            };
            match request {
                None => self.replace().await,
                Some(SentinelRequest::Guard { tree, hold, kill, reply }) => {
                    let done = self.guard(tree, hold, kill).await;
                    // A caller that no longer waits has ended its tree itself.
                    let _ = reply.send(done);
                }
                Some(SentinelRequest::Until { hold, kill }) => self.until(hold, kill),
                Some(SentinelRequest::Leave { tree }) => self.leave(tree).await,
                Some(SentinelRequest::Close) => break,
            }
        }
        if let Some(sentinel) = self.sentinel.take() {
            self.kill_all();
            sentinel.dismiss().await;
        }
    }

    async fn guard(&mut self, tree: TreeId, hold: GroupLease, kill: Moment) -> io::Result<()> {
        if self.sentinel.is_none() {
            self.replace().await;
        }
        let kill = self.holds.get(&hold).map_or(kill, |before| kill.max(*before));
        let Some(sentinel) = &mut self.sentinel else { return Err(io::ErrorKind::BrokenPipe.into()) };
        in_time(sentinel.guard(tree, hold, Some(kill))).await?;
        self.holds.insert(hold, kill);
        self.trees.insert(number(tree), (tree, hold));
        Ok(())
    }

    fn until(&mut self, hold: GroupLease, kill: Moment) {
        // A thousand tasks with one lease send the same deadline.
        let Some(before) = self.holds.get_mut(&hold).filter(|before| **before < kill) else { return };
        *before = kill;
        if let Some(sentinel) = &mut self.sentinel
            && let Err(error) = sentinel.until(hold, Some(kill))
        {
            tracing::warn!(%error, "sentinel deadline not sent");
        }
    }

    async fn leave(&mut self, tree: TreeId) {
        let Some((_, hold)) = self.trees.remove(&number(tree)) else { return };
        if !self.trees.values().any(|(_, other)| *other == hold) {
            self.holds.remove(&hold);
        }
        let sent = async {
            match &mut self.sentinel {
                Some(sentinel) => sentinel.leave(tree).await,
                None => Ok(()),
            }
        };
        if let Err(error) = in_time(sent).await {
            // It would go on guarding a pid that another process may get soon.
            tracing::warn!(%error, "sentinel does not read");
            self.replace().await;
        }
    }

    /// Replaces a sentinel that has ended or does not read.
    async fn replace(&mut self) {
        if let Some(mut gone) = self.sentinel.take() {
            gone.end();
        }
        match self.successor().await {
            Ok(sentinel) => {
                tracing::warn!("sentinel replaced");
                self.sentinel = Some(sentinel);
            }
            Err(error) => {
                // Without a sentinel no process would kill the commands after this one, so they must not go on.
                tracing::error!(%error, "sentinel not replaced, killing all commands");
                self.kill_all();
            }
        }
    }

    fn successor(&self) -> impl Future<Output = io::Result<Sentinel>> + Send {
        let guarded: Vec<(TreeId, GroupLease, Option<Moment>)> =
            self.trees.values().map(|(tree, hold)| (*tree, *hold, self.holds.get(hold).copied())).collect();
        async move {
            let mut sentinel = Sentinel::start()?;
            for (tree, hold, kill) in guarded {
                in_time(sentinel.guard(tree, hold, kill)).await?;
            }
            Ok(sentinel)
        }
    }

    fn kill_all(&self) {
        for (tree, _) in self.trees.values() {
            // One round is enough: the reapers kill the rest when this process ends.
            if descendants::signal(tree.reaper, Signal::KILL, |_| true).is_err() {
                let _ = tree.group.signal(Signal::KILL);
            }
        }
    }
}

fn number(tree: TreeId) -> i32 {
    tree.reaper.as_raw_nonzero().get()
}
