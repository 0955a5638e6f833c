//! Tasks as child processes, as scripts see them: what they are given, what their end means, how they are stopped, and what is refused.
//!
//! Every script ends by itself within half a minute, so that a failing test leaves nothing behind either.

mod ends;
mod exclusion;
mod progress;
mod refused;
mod retry;
mod stops;
mod watched;

use std::time::{Duration, Instant};

use serde_json::Value;
use tenure_fixture::Etcd;

use crate::machine::{Machine, PATIENCE, Running};

/// Far less than the scripts' own half minute, and far more than anything here takes.
const SOON: Duration = Duration::from_secs(15);

/// A machine whose temporary folder is its own: a worker that is killed leaves its checkpoint files there.
fn machine() -> Machine {
    let machine = Machine::new().with("PATH", "/usr/bin:/bin");
    let temporary = machine.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    machine.with("TMPDIR", temporary)
}

fn on_file() -> Machine {
    let machine = machine();
    let url = format!("file://{}", machine.path("worker.db"));
    machine.with("TENURE_STORE", url)
}

fn on_etcd(etcd: &Etcd) -> Machine {
    machine().with("TENURE_ENDPOINTS", etcd.endpoints())
}

/// What must be so on a store file and on real etcd.
async fn on_both(claim: impl AsyncFn(Machine)) {
    claim(on_file()).await;
    let etcd = Etcd::start();
    claim(on_etcd(&etcd)).await;
}

/// A worker that takes tasks.
async fn start(machine: &Machine, node: &str, script: &str, flags: &[&str]) -> Running {
    let ttl: &[&str] = if flags.contains(&"--ttl") { &[] } else { &["--ttl", "10s"] };
    // The default is the number of cores, of which a test machine may have one.
    let capacity: &[&str] = if flags.contains(&"--capacity") { &[] } else { &["--capacity", "unlimited"] };
    let worker = ["worker", "--node", node, "--exec", script];
    let mut running = machine.start(&[&worker, ttl, capacity, flags].concat());
    running.hear("takes tasks").await;
    running
}

async fn shown(machine: &Machine, task: &str) -> Value {
    machine.json(&["task", "show", task]).await
}

/// Waits until a task is as it should be.
async fn until(machine: &Machine, task: &str, is: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let shown = shown(machine, task).await;
        if is(&shown) {
            return shown;
        }
        assert!(begin.elapsed() < PATIENCE, "{shown}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn is(machine: &Machine, task: &str, state: &str) -> Value {
    until(machine, task, |shown| shown["state"] == state).await
}
