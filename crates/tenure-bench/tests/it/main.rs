//! The real binary, run as `cargo xtask bench` runs it. The figures themselves are not tested.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere, with the place and the error")]

mod bench;
mod refused;

use std::collections::BTreeSet;
use std::process::{Command, Output};

use serde_json::Value;
use tenure::store::{Selection, Store};
use tenure_fixture::Etcd;

/// A run that has ended.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs the benchmark to its end, with an etcd if one is given. The test runner limits the time.
fn run(args: &[&str], etcd: Option<&Etcd>) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-bench"));
    command.args(args).env_remove("TENURE_ENDPOINTS");
    if let Some(etcd) = etcd {
        command.env("TENURE_ENDPOINTS", etcd.endpoints());
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// An etcd that hand-written calls can reach.
fn open_etcd() -> Etcd {
    Etcd::builder().without_auth().start()
}

/// Asserts that a run left no keys behind.
async fn assert_clean(etcd: &Etcd) {
    let store = Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap();
    let left = store.list(Selection::prefix("/tenure-bench/")).await.unwrap();
    assert!(left.pairs.is_empty(), "{:?}", left.pairs);
    store.close().await;
}

/// The lines of stdout, each with its object.
fn objects(ran: &Ran) -> impl Iterator<Item = (&str, Value)> {
    ran.stdout.lines().map(|line| (line, serde_json::from_str(line).unwrap()))
}

/// `workload engine` of an object.
fn side(object: &Value) -> String {
    format!("{} {}", object["workload"].as_str().unwrap(), object["engine"].as_str().unwrap())
}

/// Asserts that `workload engine` was measured for each combination.
fn assert_measured(sides: &BTreeSet<String>, workloads: &[&str], engines: &[&str]) {
    for workload in workloads {
        for engine in engines {
            assert!(sides.contains(&format!("{workload} {engine}")), "{workload} {engine}: {sides:?}");
        }
    }
}
