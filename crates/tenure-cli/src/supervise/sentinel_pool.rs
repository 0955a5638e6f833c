//! One sentinel for all commands of a worker, and what it was told, so that another can take its place.
//!
//! One for each command would be as many more processes and twice as many pipes as there are commands: with a thousand tasks that is a thousand
//! copies of this program and more open files than most limits allow, and every renewal of the one lease they share would have to be told a thousand times.
//! One has a single weakness, that its end is everybody's: so it is replaced at once, and if that is not possible everybody is killed.
//!
//! **Invariant**: whoever was answered is guarded, or killed.

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

/// Where commands are given into guard. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SentinelPool {
    asks: mpsc::UnboundedSender<SentinelRequest>,
    task: Arc<tokio::sync::Mutex<Option<JoinHandle<()>>>>,
}

enum SentinelRequest {
    Guard { tree: TreeId, hold: GroupLease, kill: Moment, answer: oneshot::Sender<io::Result<()>> },
    Until { hold: GroupLease, kill: Moment },
    Leave { tree: TreeId },
    Close,
}

impl SentinelPool {
    /// Starts the sentinel, so that nothing is claimed where none can be had.
    pub(crate) fn start() -> io::Result<SentinelPool> {
        let (asks, asked) = mpsc::unbounded_channel();
        let keeper = SentinelRestarter {
            sentinel: Some(Sentinel::start()?),
            trees: BTreeMap::new(),
            holds: BTreeMap::new(),
        };
        let task = tokio::spawn(keeper.keep(asked));
        Ok(SentinelPool { asks, task: Arc::new(tokio::sync::Mutex::new(Some(task))) })
    }

    /// Has a tree guarded until a moment, which [`SentinelPool::until`] moves for all that hang on the same; returns when it is.
    pub(super) async fn guard(&self, tree: TreeId, hold: GroupLease, kill: Moment) -> io::Result<()> {
        let (answer, answered) = oneshot::channel();
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.asks
            .send(SentinelRequest::Guard { tree, hold, kill, answer })
            .map_err(|_| io::ErrorKind::BrokenPipe)?;
        answered.await.map_err(gone)?
    }

    /// What these trees rely on lasts longer.
    pub(super) fn until(&self, hold: GroupLease, kill: Moment) {
        // After the end there is nobody to guard.
        let _ = self.asks.send(SentinelRequest::Until { hold, kill });
    }

    /// No process of a tree is left.
    pub(super) fn leave(&self, tree: TreeId) {
        let _ = self.asks.send(SentinelRequest::Leave { tree });
    }

    /// Says goodbye to the sentinel. Whoever is still guarded is killed.
    pub(crate) async fn close(&self) {
        let _ = self.asks.send(SentinelRequest::Close);
        if let Some(task) = self.task.lock().await.take() {
            let _ = task.await;
        }
    }
}

/// What the sentinel knows.
struct SentinelRestarter {
    /// None once it was ended by somebody and no other could be started.
    sentinel: Option<Sentinel>,
    trees: BTreeMap<i32, (TreeId, GroupLease)>,
    holds: BTreeMap<GroupLease, Moment>,
}

impl SentinelRestarter {
    async fn keep(mut self, mut asked: mpsc::UnboundedReceiver<SentinelRequest>) {
        loop {
            let gone = async {
                match &mut self.sentinel {
                    Some(sentinel) => sentinel.gone().await,
                    None => std::future::pending().await,
                }
            };
            let ask = tokio::select! {
                biased;
                () = gone => None,
                ask = asked.recv() => Some(ask.unwrap_or(SentinelRequest::Close)),
            };
            match ask {
                None => self.replace().await,
                Some(SentinelRequest::Guard { tree, hold, kill, answer }) => {
                    let done = self.guard(tree, hold, kill).await;
                    // Whoever does not wait any more has ended its group itself.
                    let _ = answer.send(done);
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
        // A thousand tasks on one lease tell the same.
        let Some(before) = self.holds.get_mut(&hold).filter(|before| **before < kill) else { return };
        *before = kill;
        if let Some(sentinel) = &mut self.sentinel
            && let Err(error) = sentinel.until(hold, Some(kill))
        {
            tracing::warn!(%error, "the sentinel cannot be told");
        }
    }

    async fn leave(&mut self, tree: TreeId) {
        let Some((_, hold)) = self.trees.remove(&number(tree)) else { return };
        if !self.trees.values().any(|(_, other)| *other == hold) {
            self.holds.remove(&hold);
        }
        let told = async {
            match &mut self.sentinel {
                Some(sentinel) => sentinel.leave(tree).await,
                None => Ok(()),
            }
        };
        if let Err(error) = in_time(told).await {
            // It would go on guarding a number that may be a stranger's soon.
            tracing::warn!(%error, "the sentinel does not listen");
            self.replace().await;
        }
    }

    /// A sentinel is gone that should not be, or does not listen: another one takes its place.
    async fn replace(&mut self) {
        if let Some(mut gone) = self.sentinel.take() {
            gone.end();
        }
        match self.successor().await {
            Ok(sentinel) => {
                tracing::warn!("the sentinel was ended by somebody; another one guards the commands now");
                self.sentinel = Some(sentinel);
            }
            Err(error) => {
                // Nobody would end the commands after us, so they must not go on.
                tracing::error!(%error, "the sentinel was ended and no other can be started: everybody is killed");
                self.kill_all();
            }
        }
    }

    fn successor(&self) -> impl Future<Output = io::Result<Sentinel>> + Send {
        let told: Vec<(TreeId, GroupLease, Option<Moment>)> =
            self.trees.values().map(|(tree, hold)| (*tree, *hold, self.holds.get(hold).copied())).collect();
        async move {
            let mut sentinel = Sentinel::start()?;
            for (tree, hold, kill) in told {
                in_time(sentinel.guard(tree, hold, kill)).await?;
            }
            Ok(sentinel)
        }
    }

    fn kill_all(&self) {
        for (tree, _) in self.trees.values() {
            // One round; the reapers repeat it when this process ends.
            if descendants::signal(tree.reaper, Signal::KILL, |_| true).is_err() {
                let _ = tree.group.signal(Signal::KILL);
            }
        }
    }
}

fn number(tree: TreeId) -> i32 {
    tree.reaper.as_raw_nonzero().get()
}
