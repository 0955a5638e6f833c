//! A node with handlers that wait until they are stopped, for workloads that kill it or measure its
//! cost.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::session::Session;
use tenure::store::{Store, StoreUrl};
use tenure::{Outcome, Task, TaskError, Tenure};
use tenure_core::id::{Namespace, NodeId};
use tokio::sync::mpsc;

use super::{Ready, cpu_time, go_on, now_ns};
use crate::failure::BenchFailure;
use crate::report::print;

/// The state of a node in another process.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Footprint {
    /// How many tasks it owns.
    pub(crate) tasks: usize,
    /// How many changes of tasks it has processed.
    pub(crate) changes: u64,
    /// The resident memory; `None` where the system does not report it.
    pub(crate) rss_kib: Option<u64>,
    /// The CPU time of the process so far.
    cpu_ns: u64,
    /// On the boot clock.
    at_ns: u64,
}

impl Footprint {
    /// The share of one core that it has used since.
    pub(crate) fn cpu_percent_since(&self, before: &Footprint) -> f64 {
        let span = |from: u64, to: u64| Duration::from_nanos(to.saturating_sub(from)).as_secs_f64();
        span(before.cpu_ns, self.cpu_ns) / span(before.at_ns, self.at_ns).max(1e-9) * 100.0
    }
}

/// Joins, and prints its state at each line on stdin.
pub(super) async fn run(
    (url, namespace, id): (&StoreUrl, &Namespace, &NodeId),
    ttl: Duration,
    told: &mut mpsc::Receiver<()>,
) -> Result<(), BenchFailure> {
    let session = Session::options().ttl(ttl).open(Store::open(url).await?);
    let session = session.map_err(|error| BenchFailure::new(error.to_string()))?;
    let handler = |task: Task| async move {
        task.stopped().await;
        Ok::<_, TaskError>(Outcome::Release)
    };
    let tenure =
        Tenure::on_session(&session, namespace).map_err(|error| BenchFailure::new(error.to_string()))?;
    let joined = tenure.worker(id).handle_any(handler).start().await;
    let node = joined.map_err(|error| BenchFailure::new(error.to_string()))?;
    print(&Ready { ready: true })?;
    loop {
        go_on(told).await?;
        print(&Footprint {
            tasks: node.status().borrow().tasks,
            changes: node.stats().changes,
            rss_kib: rss_kib(),
            cpu_ns: u64::try_from(cpu_time().as_nanos()).unwrap_or(u64::MAX),
            at_ns: now_ns(),
        })?;
    }
}

/// The resident memory of this process.
fn rss_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}
