//! A worker process of the demo: runs tasks that only record when they ran, and is a candidate in the demo's election.

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

/// The election in which all workers of a demo are candidates.
pub(super) const ELECTION: &str = "demo";

/// The interval of the balancer. The default of a quarter of an hour is longer than the whole demo.
const BALANCE_EVERY: Duration = Duration::from_secs(1);

/// A worker releases what exceeds this part of its share: with 100 %, no worker keeps more than the ceiling of the mean.
const THRESHOLD_PERCENT: u64 = 100;

/// The time limit of the shutdown.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);

/// The first line of output: the worker claims tasks.
#[derive(Serialize, Deserialize)]
pub(super) struct WorkerJoined {
    pub(super) joined: bool,
}

/// Runs the worker until stdin ends.
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
    let writer =
        LedgerWriter::open(ledger).map_err(|error| failed(format!("cannot write the ledger: {error}")))?;
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
        // The demo kills workers on purpose, so a lost claim is no fault of its task.
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
        end = worker.finished() => return Err(failed(format!("the worker has ended: {end:?}"))),
        led = leading => return Err(failed(format!("the campaign has ended: {led:?}"))),
    }
    worker.shutdown().timeout(LEAVE_WITHIN).await.map_err(|error| failed(error.to_string()))?;
    let _ = tokio::time::timeout(LEAVE_WITHIN, session.close()).await;
    store.close().await;
    Ok(())
}

/// [`Fair`] without its memory of released tasks that no peer claimed. In the demo every worker can run every task, so such a peer was only slow:
/// the host is busy with all the workers.
struct EvenBalancer {
    claims: Fair,
    releases: Fair,
}

impl EvenBalancer {
    fn new() -> Result<EvenBalancer, InvalidThreshold> {
        let releases = Fair::new().threshold_percent(THRESHOLD_PERCENT)?;
        Ok(EvenBalancer { claims: releases.clone(), releases })
    }
}

impl Balancer for EvenBalancer {
    fn claim(&mut self, offer: &Claimable<'_>, cluster: &ClusterLoad<'_>) -> ClaimDecision {
        self.claims.claim(offer, cluster)
    }

    fn release(&mut self, cluster: &ClusterLoad<'_>) -> Vec<Release> {
        // A copy forgets what it released, so each decision starts without history.
        self.releases.clone().release(cluster)
    }

    fn name(&self) -> &'static str {
        "even"
    }
}

/// Runs until the task is stopped, and records the begin and the end.
async fn run_task(task: &Task, writer: &LedgerWriter) -> Result<Outcome, TaskError> {
    let entry =
        |mark| LedgerEntry { mark, task: task.id().to_string(), token: task.token().0.0, at_ns: now_ns() };
    let not_written = |error| format!("cannot write the ledger: {error}");
    writer.write(&entry(LedgerMark::Begin)).map_err(not_written)?;
    task.stopped().await;
    writer.write(&entry(LedgerMark::End)).map_err(not_written)?;
    Ok(Outcome::Release)
}
