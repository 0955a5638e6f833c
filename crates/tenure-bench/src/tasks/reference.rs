//! The reference: every node tries every task, with one transaction each.
//!
//! This is the usual first implementation. It gets every advantage: a connection for each node,
//! many transactions in flight on each, leases of at most a thousand keys, the list of tasks
//! beforehand, and no claim has to read or run anything. It is done when every task has an owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::{StreamExt, stream};
use tenure_core::layout::{Key, Layout};

use super::context::{TaskContext, task_id};
use crate::failure::BenchFailure;
use crate::raw::{BoxError, Raw};
use crate::workload::wrong;

/// Transactions in flight on each connection. Half as many leave the server idle now and then;
/// twice as many gained nothing.
const IN_FLIGHT: usize = 32;

/// As many keys on one lease as a session attaches: more would make every put slower.
const KEYS_PER_LEASE: usize = 1_000;

/// Longer than any turn.
const TTL_S: i64 = 120;

/// The nodes of the reference.
pub(super) struct ReferenceNodes {
    nodes: Vec<ReferenceNode>,
    tasks: Arc<Vec<TaskKeys>>,
}

struct ReferenceNode {
    raw: Raw,
    leases: Vec<i64>,
    value: Bytes,
}

/// The two keys of a task.
struct TaskKeys {
    task: Bytes,
    owner: Bytes,
}

/// The result of a race.
pub(super) struct ClaimRace {
    pub(super) took: Duration,
    pub(super) tries: usize,
}

impl ReferenceNodes {
    pub(super) async fn gather(
        url: &str,
        context: &TaskContext,
        nodes: usize,
        tasks: usize,
    ) -> Result<ReferenceNodes, BenchFailure> {
        let targets =
            (0..tasks).map(|n| TaskKeys::of(&context.layout, n)).collect::<Result<_, BenchFailure>>()?;
        let nodes = (0..nodes).map(|n| ReferenceNode::connect(url, n, tasks.div_ceil(KEYS_PER_LEASE)));
        Ok(ReferenceNodes { nodes: try_join_all(nodes).await.map_err(failed)?, tasks: Arc::new(targets) })
    }

    /// All nodes try to claim all tasks, until every task has an owner.
    pub(super) async fn run(&self) -> Result<ClaimRace, BenchFailure> {
        let (won, tries) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let begin = Instant::now();
        // In tasks of their own, as Tenure's nodes are.
        let nodes = self.nodes.iter().map(|node| {
            let ReferenceNode { raw, leases, value } = node;
            let (raw, leases, value) = (raw.clone(), leases.clone(), value.clone());
            let (tasks, won, tries) = (self.tasks.clone(), won.clone(), tries.clone());
            tokio::spawn(async move {
                let claims = (0..tasks.len()).map(|n| {
                    let TaskKeys { task, owner } = &tasks[n];
                    tries.fetch_add(1, Ordering::Relaxed);
                    raw.claim_task(task.clone(), owner.clone(), value.clone(), leases[n / KEYS_PER_LEASE])
                });
                let mut claims = stream::iter(claims).buffer_unordered(IN_FLIGHT);
                while let Some(claimed) = claims.next().await {
                    if claimed? && won.fetch_add(1, Ordering::Relaxed) + 1 == tasks.len() {
                        return Ok(Some(Instant::now()));
                    }
                    if won.load(Ordering::Relaxed) == tasks.len() {
                        break;
                    }
                }
                Ok::<_, BoxError>(None)
            })
        });
        let mut last = None;
        for done in try_join_all(nodes).await.map_err(|error| wrong(error.to_string()))? {
            last = last.max(done.map_err(failed)?);
        }
        let last = last.ok_or_else(|| wrong("the herd did not get everything"))?;
        Ok(ClaimRace { took: last.duration_since(begin), tries: tries.load(Ordering::Relaxed) })
    }

    /// Everything it owns is deleted with its leases.
    pub(super) async fn end(self) -> Result<(), BenchFailure> {
        for node in &self.nodes {
            try_join_all(node.leases.iter().map(|lease| node.raw.revoke(*lease))).await.map_err(failed)?;
        }
        Ok(())
    }
}

impl ReferenceNode {
    async fn connect(url: &str, n: usize, leases: usize) -> Result<ReferenceNode, BoxError> {
        let raw = Raw::connect(url).await?;
        let leases = try_join_all((0..leases).map(|_| raw.grant(TTL_S))).await?;
        Ok(ReferenceNode { raw, leases, value: format!(r#"{{"v":1,"node":"node-{n}"}}"#).into() })
    }
}

impl TaskKeys {
    fn of(layout: &Layout, n: usize) -> Result<TaskKeys, BenchFailure> {
        let task = task_id(n)?;
        let owner = layout.encode(&Key::TaskOwner(task.clone()));
        Ok(TaskKeys { task: layout.encode(&Key::Task(task)), owner })
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn failed(error: BoxError) -> BenchFailure {
    wrong(format!("the herd failed: {error}"))
}
