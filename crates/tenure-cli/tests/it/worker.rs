//! `tenure worker`: tasks as child processes, their input, the meaning of their end, how they are stopped, and what is refused.
//!
//! Every script ends within half a minute, so a failing test leaves no process.

mod checkpoint;
mod exclusion;
mod exit_codes;
mod http;
mod refused;
mod retry;
mod stopping;

use std::time::{Duration, Instant};

use serde_json::Value;
use tenure_fixture::Etcd;

use crate::sandbox::{RUN_DEADLINE, Running, Sandbox};

/// Far less than the half minute after which every script ends, and far more than any step here takes.
const SOON: Duration = Duration::from_secs(15);

/// A sandbox with a temporary folder of its own, because a killed worker leaves its checkpoint files there.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new().with("PATH", "/usr/bin:/bin");
    let temporary = sandbox.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    sandbox.with("TMPDIR", temporary)
}

fn on_file() -> Sandbox {
    let sandbox = sandbox();
    let url = format!("file://{}", sandbox.path("worker.db"));
    sandbox.with("TENURE_STORE", url)
}

fn on_etcd(etcd: &Etcd) -> Sandbox {
    sandbox().with("TENURE_ENDPOINTS", etcd.endpoints())
}

/// Checks a claim on a store file, then on real etcd.
async fn on_both(claim: impl AsyncFn(Sandbox)) {
    claim(on_file()).await;
    let etcd = Etcd::start();
    claim(on_etcd(&etcd)).await;
}

/// Starts a worker and waits until it claims tasks.
async fn start(sandbox: &Sandbox, node: &str, script: &str, flags: &[&str]) -> Running {
    let ttl: &[&str] = if flags.contains(&"--ttl") { &[] } else { &["--ttl", "10s"] };
    // The default is the number of cores, of which a test host may have one.
    let capacity: &[&str] = if flags.contains(&"--capacity") { &[] } else { &["--capacity", "unlimited"] };
    let worker = ["worker", "--node", node, "--exec", script];
    let mut running = sandbox.start(&[&worker, ttl, capacity, flags].concat());
    running.hear("takes tasks").await;
    running
}

async fn shown(sandbox: &Sandbox, task: &str) -> Value {
    sandbox.json(&["task", "show", task]).await
}

/// Waits until the JSON of a task satisfies a condition.
async fn until(sandbox: &Sandbox, task: &str, is: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let shown = shown(sandbox, task).await;
        if is(&shown) {
            return shown;
        }
        assert!(begin.elapsed() < RUN_DEADLINE, "{shown}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn is(sandbox: &Sandbox, task: &str, state: &str) -> Value {
    until(sandbox, task, |shown| shown["state"] == state).await
}
