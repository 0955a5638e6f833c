//! Nodes in this process: each with a connection and a session of its own, and with handlers that
//! wait until they are stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use tenure::session::Session;
use tenure::worker::WorkerStats;
use tenure::{Outcome, Task, TaskError, Tenure, Worker};
use tenure_core::id::NodeId;
use tokio::sync::Notify;

use super::TaskStore;
use super::context::TaskContext;
use crate::failure::BenchFailure;
use crate::workload::wrong;

/// What is not done after this long never will be.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Nodes that work together.
pub(super) struct BenchWorkers {
    members: Vec<WorkerEntry>,
    begun: Arc<BegunCount>,
}

struct WorkerEntry {
    node: Worker,
    session: Session,
}

/// How many handlers have begun.
#[derive(Default)]
struct BegunCount {
    count: AtomicUsize,
    news: Notify,
}

impl BenchWorkers {
    /// These nodes join, all at once.
    pub(super) async fn join(
        place: &TaskStore,
        context: &TaskContext,
        nodes: &[NodeId],
        ttl: Duration,
    ) -> Result<BenchWorkers, BenchFailure> {
        let begun = Arc::new(BegunCount::default());
        let joining = nodes.iter().map(|id| WorkerEntry::join(place, context, id, ttl, begun.clone()));
        Ok(BenchWorkers { members: try_join_all(joining).await?, begun })
    }

    /// Waits until every node has seen this many tasks: then the snapshot of each is complete.
    pub(super) async fn have_seen(&self, tasks: usize) -> Result<(), BenchFailure> {
        let begin = Instant::now();
        for member in &self.members {
            while member.node.stats().changes < tasks as u64 {
                if begin.elapsed() > PATIENCE {
                    return Err(wrong(format!("not every node saw every task within {PATIENCE:?}")));
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Ok(())
    }

    /// Waits until so many handlers have begun.
    pub(super) async fn have_begun(&self, tasks: usize) -> Result<(), BenchFailure> {
        let waiting = async {
            loop {
                let news = self.begun.news.notified();
                if self.begun.count.load(Ordering::Relaxed) >= tasks {
                    return;
                }
                news.await;
            }
        };
        let late = || {
            let count = self.begun.count.load(Ordering::Relaxed);
            wrong(format!("{count} of {tasks} tasks have begun within {PATIENCE:?}"))
        };
        tokio::time::timeout(PATIENCE, waiting).await.map_err(|_| late())
    }

    /// How much all of them have worked together.
    pub(super) fn stats(&self) -> WorkerStats {
        self.members.iter().map(|member| member.node.stats()).fold(WorkerStats::default(), |sum, one| {
            WorkerStats {
                considered: sum.considered + one.considered,
                claims_sent: sum.claims_sent + one.claims_sent,
                won: sum.won + one.won,
                timers: sum.timers + one.timers,
                changes: sum.changes + one.changes,
            }
        })
    }

    /// How many leases their claims are attached to.
    pub(super) fn leases(&self) -> usize {
        self.members.iter().map(|member| member.session.leases().len()).sum()
    }

    /// All of them give everything back and go.
    pub(super) async fn end(self) -> Result<(), BenchFailure> {
        join_all(self.members.iter().map(WorkerEntry::end)).await.into_iter().collect()
    }
}

impl WorkerEntry {
    async fn join(
        place: &TaskStore,
        context: &TaskContext,
        id: &NodeId,
        ttl: Duration,
        begun: Arc<BegunCount>,
    ) -> Result<WorkerEntry, BenchFailure> {
        let session = Session::options().ttl(ttl).open(place.open().await?);
        let session = session.map_err(|error| wrong(format!("no session can be opened: {error}")))?;
        let handler = move |task: Task| {
            begun.count.fetch_add(1, Ordering::Relaxed);
            begun.news.notify_waiters();
            async move {
                task.stopped().await;
                Ok::<_, TaskError>(Outcome::Release)
            }
        };
        let tenure =
            Tenure::on_session(&session, &context.namespace).map_err(|error| wrong(error.to_string()))?;
        let joined = tenure.worker(id).handle_any(handler).start().await;
        let node = joined.map_err(|error| wrong(format!("{id} did not join: {error}")))?;
        Ok(WorkerEntry { node, session })
    }

    async fn end(&self) -> Result<(), BenchFailure> {
        self.node.shutdown().timeout(PATIENCE).await.map_err(|error| wrong(error.to_string()))?;
        self.session.close().await.map_err(|left| wrong(left.to_string()))?;
        Ok(())
    }
}
