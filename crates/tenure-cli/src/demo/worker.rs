//! A worker of the demo, in a process of its own: runs tasks that do nothing but write down when they ran, and stands for election.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::election::Elections;
use tenure::session::Session;
use tenure::{Outcome, Task, TaskError, Tenure};
use tenure_core::balance::{
    Balancer, ClaimDecision, Claimable, ClusterLoad, Fair, InvalidThreshold, Release,
};
use tenure_core::id::NodeId;

use super::ledger::{LedgerEntry, LedgerMark, LedgerWriter, now_ns};
use crate::cli::Global;
use crate::connect;
use crate::failure::{Code, Failure};
use crate::output::Output;

/// What all workers of a demo are candidates for.
pub(super) const ELECTION: &str = "demo";

/// How often a worker looks whether it has more than its share. The usual quarter of an hour is longer than anybody watches.
const BALANCE_EVERY: Duration = Duration::from_secs(1);

/// More than this part of the share is given away: nobody is to have more than the ceiling of the mean.
const THRESHOLD_PERCENT: u64 = 100;

/// How long its end may take.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);

/// Printed when it takes tasks.
#[derive(Serialize, Deserialize)]
pub(super) struct WorkerJoined {
    pub(super) joined: bool,
}

/// Works until stdin ends.
pub(crate) async fn run(
    node: &str,
    ledger: &Path,
    ttl: Duration,
    global: &Global,
    output: &Output,
) -> Result<(), Failure> {
    let failed = |why: String| Failure::new(Code::Failed, why);
    let settings = connect::decide(global)?;
    let namespace = settings.namespace.value.clone();
    let id = NodeId::parse(node).map_err(|error| failed(error.to_string()))?;
    let writer = LedgerWriter::open(ledger)
        .map_err(|error| failed(format!("the ledger cannot be written: {error}")))?;
    let store = connect::open(&settings, output).await?;
    let session =
        Session::options().ttl(ttl).open(store.clone()).map_err(|error| Failure::usage(error.to_string()))?;
    let even = EvenBalancer::new().map_err(|error| failed(error.to_string()))?;
    let writer = Arc::new(writer);
    let handler = move |task: Task| {
        let writer = writer.clone();
        async move { run_task(&task, &writer).await }
    };
    let tenure = Tenure::on_session(&session, &namespace).map_err(|error| failed(error.to_string()))?;
    let worker = tenure
        .worker(id)
        .handle_any(handler)
        // The demo kills workers, and no task is to blame for it.
        .lost_claims_max(None)
        .balancer(even)
        .rebalance_every(BALANCE_EVERY)
        .start()
        .try_now()
        .await
        .map_err(|error| failed(error.to_string()))?;
    let elections = Elections::new(&session, &namespace).identity(node);
    let election = elections.election(ELECTION);
    let leading = election.campaign().value(node).lead(|_| std::future::pending::<()>());
    output.object(&WorkerJoined { joined: true })?;
    let stdin_ended = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink()));
    tokio::select! {
        biased;
        _ = stdin_ended => {}
        end = worker.finished() => return Err(failed(format!("the node has ended: {end:?}"))),
        led = leading => return Err(failed(format!("nobody leads any more: {led:?}"))),
    }
    worker.shutdown().timeout(LEAVE_WITHIN).await.map_err(|error| failed(error.to_string()))?;
    let _ = tokio::time::timeout(LEAVE_WITHIN, session.close()).await;
    store.close().await;
    Ok(())
}

/// As [`Fair`], but nothing is kept because nobody else took it for a while: here everybody can run everything, so whoever left a task was only
/// slow, as processes are on a machine that has other things to do.
struct EvenBalancer {
    taking: Fair,
    fresh: Fair,
}

impl EvenBalancer {
    fn new() -> Result<EvenBalancer, InvalidThreshold> {
        let fresh = Fair::new().threshold_percent(THRESHOLD_PERCENT)?;
        Ok(EvenBalancer { taking: fresh.clone(), fresh })
    }
}

impl Balancer for EvenBalancer {
    fn claim(&mut self, offer: &Claimable<'_>, cluster: &ClusterLoad<'_>) -> ClaimDecision {
        self.taking.claim(offer, cluster)
    }

    fn release(&mut self, cluster: &ClusterLoad<'_>) -> Vec<Release> {
        self.fresh.clone().release(cluster)
    }

    fn name(&self) -> &'static str {
        "even"
    }
}

/// Runs until it is told to stop, and writes down both.
async fn run_task(task: &Task, writer: &LedgerWriter) -> Result<Outcome, TaskError> {
    let entry =
        |mark| LedgerEntry { mark, task: task.id().to_string(), token: task.token().0.0, at_ns: now_ns() };
    let unwritten = |error| format!("the ledger cannot be written: {error}");
    writer.write(&entry(LedgerMark::Begin)).map_err(unwritten)?;
    task.stopped().await;
    writer.write(&entry(LedgerMark::End)).map_err(unwritten)?;
    Ok(Outcome::Release)
}
