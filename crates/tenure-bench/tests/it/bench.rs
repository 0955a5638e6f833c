//! Each benchmark runs on every engine, prints its format, and removes its keys.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{Ran, assert_clean, assert_measured, objects, open_etcd, run, side};

/// Fields of every measurement.
const FIELDS: [&str; 6] = ["n", "unit", "p50", "p99", "total_s", "ops_s"];

/// The sides that were measured; asserts that each line is a measurement or a verdict.
fn sides(ran: &Ran) -> BTreeSet<String> {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut sides = BTreeSet::new();
    for (line, object) in objects(ran) {
        if object.get("goal").is_some() {
            assert!(object["met"].is_boolean() && object["reference"].is_string(), "{line}");
            continue;
        }
        for field in FIELDS {
            assert!(object.get(field).is_some(), "{field} is missing in {line}");
        }
        sides.insert(side(&object));
    }
    sides
}

/// The same for a benchmark in which every figure is a positive number, compared beside a server
/// only.
fn sides_with_figures(ran: &Ran) -> BTreeSet<String> {
    for (line, object) in objects(ran) {
        let engine = object["engine"].as_str().unwrap();
        if object.get("goal").is_some() {
            assert!(object["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{line}");
            assert_eq!(engine, "etcd", "a reference exists only on a server: {line}");
            continue;
        }
        for field in ["n", "p50", "p99", "total_s", "ops_s"] {
            assert!(object[field].as_f64().is_some_and(|figure| figure > 0.0), "{field} in {line}");
        }
        assert_eq!(object["unit"], "ms", "{line}");
        let is_counted = matches!(engine, "etcd" | "raw" | "raw_unchecked");
        assert_eq!(object.get("requests").is_some(), is_counted, "{line}");
    }
    sides(ran)
}

#[test]
fn store_prints_rows_and_goals() {
    let ran = run(&["store", "--n", "20", "--seconds-max", "1"], None);
    assert!(ran.stderr.contains("etcd was left out"), "{ran:?}");
    let sides = sides(&ran);
    assert_measured(&sides, &["put", "get", "watch", "lease_grant"], &["memory", "file"]);
    let across = ["watch_across_processes", "put_16_processes", "idle_watcher"];
    assert_measured(&sides, &across, &["file"]);
    let verdicts = objects(&ran).filter(|(_, object)| object.get("goal").is_some()).count();
    assert!(verdicts >= 10, "{}", ran.stdout);
}

#[tokio::test]
async fn store_compares_etcd_with_hand_written_calls() {
    let etcd = open_etcd();
    let ran = run(&["store", "--engines", "etcd", "--n", "50", "--seconds-max", "1"], Some(&etcd));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let objects: Vec<Value> = objects(&ran).map(|(_, object)| object).collect();
    let row = |workload: &str, engine: &str| {
        objects
            .iter()
            .find(|row| row["workload"] == workload && row["engine"] == engine && row.get("n").is_some())
            .unwrap_or_else(|| panic!("{workload} {engine} in {}", ran.stdout))
    };
    for workload in [
        "put",
        "put_64",
        "put_256",
        "get",
        "put_10000_in_txns",
        "claims_batch_100",
        "claims_one_by_one",
        "watch",
    ] {
        for engine in ["etcd", "raw"] {
            assert!(row(workload, engine)["requests"].is_u64(), "{workload} {engine}: {}", ran.stdout);
        }
    }
    let (batch, single) = (row("claims_batch_100", "etcd"), row("claims_one_by_one", "etcd"));
    let per_claim = |row: &Value| row["requests"].as_f64().unwrap() / row["n"].as_f64().unwrap();
    assert!(per_claim(batch) < 0.1 && per_claim(single) >= 1.0, "{batch} {single}");
    let mut beside_raw = objects.iter().filter(|object| object["reference"] == "raw");
    assert!(beside_raw.all(|verdict| verdict["met"].is_boolean()), "{}", ran.stdout);
    assert_clean(&etcd).await;
}

#[tokio::test]
async fn session_runs_on_every_engine() {
    let etcd = open_etcd();
    let ran = run(&["session", "--n", "150", "--rounds", "2", "--idle", "1s"], Some(&etcd));
    let sides = sides(&ran);
    for (line, object) in objects(&ran).filter(|(_, object)| object.get("goal").is_none()) {
        assert!(object.get("leases").is_some(), "{line}");
        let is_counted = matches!(object["engine"].as_str(), Some("etcd" | "raw"));
        assert_eq!(object.get("requests").is_some(), is_counted, "{line}");
    }
    let workloads = ["register_100", "register_1000", "register_10000", "back_after_revoke_10000"];
    assert_measured(&sides, &workloads, &["memory", "file", "etcd", "raw"]);
    assert_measured(&sides, &["join_500_seen_by_500"], &["etcd", "raw"]);
    assert_measured(&sides, &["idle_1000_keys"], &["etcd"]);
    assert_clean(&etcd).await;
}

#[tokio::test]
async fn lock_runs_on_every_engine() {
    let etcd = open_etcd();
    let ran = run(&["lock", "--n", "20", "--rounds", "1"], Some(&etcd));
    let sides = sides_with_figures(&ran);
    let handoffs = ["handoff_16", "handoff_64", "handoff_256"];
    assert_measured(&sides, &["lock_1", "lock_16", "lock_64"], &["memory", "file", "etcd", "raw"]);
    assert_measured(&sides, &handoffs, &["memory", "file", "etcd", "raw", "raw_unchecked"]);
    assert_measured(&sides, &["handoff_16_processes"], &["file", "etcd", "raw", "raw_unchecked"]);
    assert_clean(&etcd).await;
}

#[tokio::test]
async fn election_runs_on_every_engine() {
    let etcd = open_etcd();
    let ran = run(&["election", "--n", "5", "--rounds", "2", "--candidates-max", "7"], Some(&etcd));
    let sides = sides_with_figures(&ran);
    let workloads = ["resign_3", "resign_100", "resign_1000"];
    assert_measured(&sides, &workloads, &["memory", "file", "etcd", "raw"]);
    assert_clean(&etcd).await;
}

#[tokio::test]
async fn tasks_run_on_every_engine() {
    let etcd = open_etcd();
    let words = ["tasks", "--n", "60", "--nodes", "3", "--rounds", "1", "--idle", "200ms"];
    let sides = sides(&run(&words, Some(&etcd)));
    assert_measured(&sides, &["claim_60_by_3_nodes"], &["memory", "file", "etcd", "herd"]);
    let workloads = [
        "takeover_from_1_of_3_nodes_with_60",
        "submit_600",
        "claim_and_see_600",
        "release_600",
        "memory_600",
    ];
    assert_measured(&sides, &workloads, &["file", "etcd"]);
    assert!(sides.iter().any(|side| side.starts_with("idle_node_with_")), "{sides:?}");
    assert_clean(&etcd).await;
}

#[test]
fn named_workload_alone_is_measured() {
    let words = ["lock", "--engines", "memory", "--workloads", "lock_16", "--n", "20", "--rounds", "1"];
    let sides = sides_with_figures(&run(&words, None));
    assert_eq!(sides.into_iter().collect::<Vec<_>>(), ["lock_16 memory"]);
}
