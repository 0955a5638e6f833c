//! The same work through `etcdctl lock`, which runs a command while it holds: how others do, under the same faults.
//!
//! The command is this program again, in the role `inside`: it relies on the lock from its first
//! moment to its last, as every command under `etcdctl lock` must, because `etcdctl` does not
//! notify it.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::StoreUrl;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ClientSignals;
use super::holder::RecordedHold;
use super::lock::thinking;
use crate::history::{HistoryEvent, HistoryWriter, HoldEnd, OperationKind, OperationOutcome, now};
use crate::ledger::{LedgerClient, LedgerReply};
use crate::options::ClientOptions;
use crate::rng::NemesisRng;

const TASKS: usize = 2;
const LINE: &str = "lock:etcdctl";

/// How long one run may take: it waits for the lock as long as others hold it, and etcdctl itself hangs when it is cut off.
const RUN: Duration = Duration::from_secs(20);

/// Runs commands under `etcdctl lock` until it must exit.
pub(super) async fn live(
    options: &ClientOptions,
    history: &Arc<HistoryWriter>,
    mut signals: ClientSignals,
) -> Option<String> {
    let StoreUrl::Etcd { endpoints, .. } = &options.store else {
        return Some("etcdctl speaks to etcd alone".to_owned());
    };
    let (calm, actors) = (CancellationToken::new(), TaskTracker::new());
    let mut rng = NemesisRng::new(options.seed);
    for _ in 0..TASKS {
        let runs = EtcdctlRuns {
            options: options.clone(),
            endpoints: endpoints.join(","),
            history: history.clone(),
            calm: calm.clone(),
            rng: rng.split(),
        };
        actors.spawn(runs.repeat());
    }
    signals.calm_or_go().await;
    calm.cancel();
    actors.close();
    actors.wait().await;
    history.record(HistoryEvent::Settled);
    signals.go().await;
    None
}

struct EtcdctlRuns {
    options: ClientOptions,
    endpoints: String,
    history: Arc<HistoryWriter>,
    calm: CancellationToken,
    rng: NemesisRng,
}

impl EtcdctlRuns {
    async fn repeat(mut self) {
        let Ok(program) = std::env::current_exe() else { return };
        while !self.calm.is_cancelled() {
            tokio::time::sleep(self.rng.ms(2, 40)).await;
            let op = self.history.begin(OperationKind::Lock, LINE, None);
            let outcome = match tokio::time::timeout(RUN, self.once(&program)).await {
                Ok(Ok(status)) if status.success() => OperationOutcome::Ok,
                Ok(Ok(_) | Err(_)) => OperationOutcome::No,
                Err(_) => OperationOutcome::Unknown,
            };
            self.history.end(op, outcome, None, None);
        }
    }

    async fn once(&mut self, program: &Path) -> std::io::Result<std::process::ExitStatus> {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", self.endpoints))
            .args([
                "lock",
                "nemesis-etcdctl",
                &format!("--ttl={}", self.options.against.ttl().as_secs()),
                "--",
            ])
            .arg(program)
            .args(["inside", "--ledger", &self.options.ledger.to_string()])
            .args(["--history", &self.options.history.display().to_string()])
            .args(["--seed", &self.rng.number().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        command.status().await
    }
}

/// What runs under `etcdctl lock`: reads the counter, thinks, writes one more.
///
/// # Errors
///
/// What cannot even begin.
pub fn inside(ledger: std::net::SocketAddr, history: &Path, seed: u64) -> Result<(), String> {
    let history = HistoryWriter::open(history).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    // Its number and its beginning: no two commands of a run have both.
    let token = i64::try_from(now()).unwrap_or(i64::MAX);
    let belief = RecordedHold::new(&history, LINE, token);
    let look = || {
        let at = now();
        belief.believed(at, at, at, None);
    };
    look();
    let counted = runtime.block_on(async {
        let mut ledger_client = LedgerClient::to(ledger).await.map_err(|error| error.to_string())?;
        let Ok(LedgerReply::Ok(value)) = ledger_client.read(LINE, None).await else {
            return Err("not read".to_owned());
        };
        tokio::time::sleep(thinking(&mut NemesisRng::new(seed))).await;
        look();
        match ledger_client.write(LINE, None, value + 1).await {
            Ok(LedgerReply::Ok(_)) => Ok(()),
            Ok(LedgerReply::Stale) | Err(_) => Err("not written".to_owned()),
        }
    });
    look();
    belief.ended(HoldEnd::GivenUp);
    counted
}
