//! The HTTP pages of a worker: health, readiness and metrics.

use serde_json::Value;
use tenure_fixture::Etcd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{is, on_etcd};
use crate::sandbox::RUN_DEADLINE;

async fn page(address: &str, path: &str) -> (u16, String) {
    let reading = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    };
    tokio::time::timeout(RUN_DEADLINE, reading).await.unwrap()
}

fn figure(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{page}")).parse().unwrap()
}

#[tokio::test]
async fn pages_report_health_readiness_and_counts() {
    let etcd = Etcd::start();
    let sandbox = on_etcd(&etcd);
    let script = "case $TENURE_TASK_ID in bad) exit 1;; stay) trap 'exit 0' TERM; sleep 25 & wait;; esac";
    let mut worker = sandbox.start(&[
        "worker",
        "--node",
        "w",
        "--exec",
        script,
        "--http",
        "127.0.0.1:0",
        "--json",
        "--ttl",
        "3s",
        "--retries",
        "0",
    ]);
    let joined: Value = serde_json::from_str(&worker.hear(r#""event":"joined""#).await).unwrap();
    let address = joined["http"].as_str().unwrap().to_owned();
    assert_eq!(page(&address, "/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(page(&address, "/elsewhere").await.0, 404);
    for (id, state) in [("good", "completed"), ("bad", "failed")] {
        sandbox.ok(&["submit", id]).await;
        is(&sandbox, id, state).await;
    }
    sandbox.ok(&["submit", "stay"]).await;
    worker.hear(r#""event":"started","task":"stay""#).await;
    assert_eq!(page(&address, "/readyz").await, (200, "ready\n".to_owned()));
    let (code, metrics) = page(&address, "/metrics").await;
    assert_eq!(code, 200);
    for (series, expected) in [
        (r#"tenure_node_tasks{node="w"}"#, 1.0),
        (r#"tenure_node_claims_total{node="w"}"#, 3.0),
        (r#"tenure_node_claim_tries_total{node="w"}"#, 3.0),
        (r#"tenure_node_starts_total{node="w"}"#, 3.0),
        (r#"tenure_node_faults_total{node="w"}"#, 1.0),
        (r#"tenure_node_ends_total{node="w",state="completed"}"#, 1.0),
        (r#"tenure_node_ends_total{node="w",state="failed"}"#, 1.0),
        (r#"tenure_lease_grants_total{result="ok"}"#, 1.0),
    ] {
        assert_eq!(figure(&metrics, series), expected, "{series}\n{metrics}");
    }
    sandbox.ok(&["task", "pause", "stay"]).await;
    // This client can read the new state before the worker has the reply to its write.
    let series = r#"tenure_node_moves_total{node="w",to="paused"}"#;
    let counted = async { while figure(&page(&address, "/metrics").await.1, series) != 1.0 {} };
    tokio::time::timeout(RUN_DEADLINE, counted).await.expect("the pause is not counted");
    // The store is silent for longer than the lease: the worker is healthy and not ready.
    etcd.member(0).pause();
    worker.hear(r#""event":"lost""#).await;
    // The worker loses its node key a moment before or after its tasks.
    let not_ready = async { while page(&address, "/readyz").await.0 != 503 {} };
    tokio::time::timeout(RUN_DEADLINE, not_ready).await.expect("it is ready without its node key");
    assert_eq!(page(&address, "/healthz").await.0, 200);
    etcd.member(0).resume();
    worker.hear(r#""event":"claimed""#).await;
    let ready = async { while page(&address, "/readyz").await.0 != 200 {} };
    tokio::time::timeout(RUN_DEADLINE, ready).await.expect("it is not ready with its node key");
    let (_, metrics) = page(&address, "/metrics").await;
    assert!(metrics.contains("# TYPE tenure_lease_renewals_total counter"), "{metrics}");
    assert!(figure(&metrics, r#"tenure_node_lost_total{node="w",reason="lapsed"}"#) >= 1.0, "{metrics}");
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

/// 300 connections send nothing: when each took one of 32 slots for five seconds, a probe behind them waited for most of a minute.
#[tokio::test]
async fn health_probe_outruns_idle_connections() {
    let sandbox = super::on_file();
    let args = ["worker", "--node", "w", "--exec", "true", "--http", "127.0.0.1:0", "--json"];
    let mut worker = sandbox.start(&args);
    let joined: Value = serde_json::from_str(&worker.hear(r#""event":"joined""#).await).unwrap();
    let address = joined["http"].as_str().unwrap().to_owned();
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(TcpStream::connect(&address).await.unwrap());
    }
    let probe = tokio::time::timeout(std::time::Duration::from_secs(10), page(&address, "/healthz"));
    assert_eq!(probe.await.expect("the probe waits for idle connections"), (200, "ok\n".to_owned()));
    drop(idle);
    worker.interrupt();
    assert_eq!(worker.end().await.0, Some(0));
}

#[tokio::test]
async fn unusable_address_fails_before_any_claim() {
    let sandbox = super::on_file();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (address, code, words) in [
        (address.as_str(), 4, "another process listens"),
        ("9464", 2, "has no port"),
        ("nowhere:x", 2, "--http nowhere:x"),
    ] {
        let ran = sandbox.run(&["worker", "--exec", "true", "--http", address]).await;
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.stderr.contains(words), "{ran:?}");
    }
}
