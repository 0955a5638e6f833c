//! The benchmark runs and speaks its format; its figures are no test's business.

use std::collections::BTreeSet;

use serde_json::Value;
use tenure_fixture::Etcd;

use crate::machine::Machine;

#[tokio::test]
async fn every_line_is_a_row_or_a_verdict() {
    let machine = Machine::new().with("CI", "true");
    let ran = machine.run(&["bench", "store", "--n", "20", "--seconds-max", "1"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("etcd was left out"), "{ran:?}");
    let mut verdicts = 0;
    for line in ran.stdout.lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        assert!(object["workload"].is_string() && object["engine"].is_string(), "{line}");
        if object.get("goal").is_some() {
            assert!(object["met"].is_boolean() && object["reference"].is_string(), "{line}");
            verdicts += 1;
            continue;
        }
        for field in ["n", "unit", "p50", "p99", "total_s", "ops_s"] {
            assert!(object.get(field).is_some(), "{field} is missing in {line}");
        }
    }
    assert!(verdicts >= 10, "{}", ran.stdout);
}

#[tokio::test]
async fn an_etcd_that_is_asked_for_by_name_must_be_configured() {
    let ran = Machine::new().run(&["bench", "store", "--engines", "etcd"]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("TENURE_ENDPOINTS"), "{ran:?}");
}

#[tokio::test]
async fn sessions_are_measured_on_every_engine_beside_a_program_written_by_hand() {
    let etcd = Etcd::start();
    let machine = Machine::new().with("TENURE_ENDPOINTS", etcd.endpoints());
    let ran = machine.run(&["bench", "session", "--n", "150", "--rounds", "2", "--idle", "1s"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut sides = BTreeSet::new();
    for line in ran.stdout.lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        let (workload, engine) = (object["workload"].as_str().unwrap(), object["engine"].as_str().unwrap());
        if object.get("goal").is_some() {
            assert!(object["met"].is_boolean() && object["reference"].is_string(), "{line}");
            continue;
        }
        for field in ["n", "unit", "p50", "p99", "total_s", "ops_s", "leases"] {
            assert!(object.get(field).is_some(), "{field} is missing in {line}");
        }
        assert_eq!(object.get("requests").is_some(), matches!(engine, "etcd" | "raw"), "{line}");
        sides.insert(format!("{workload} {engine}"));
    }
    for workload in ["register_100", "register_1000", "register_10000", "back_after_revoke_10000"] {
        for engine in ["memory", "file", "etcd", "raw"] {
            assert!(sides.contains(&format!("{workload} {engine}")), "{workload} {engine}: {}", ran.stdout);
        }
    }
    for side in ["idle_1000_keys etcd", "join_500_seen_by_500 etcd", "join_500_seen_by_500 raw"] {
        assert!(sides.contains(side), "{side}: {}", ran.stdout);
    }
    let left = machine.run(&["kv", "range", "/tenure-bench/", "--json"]).await;
    assert!(left.code == Some(0) && !left.stdout.contains("/tenure-bench/"), "{left:?}");
}

/// What every line of a benchmark of two sides must have; gives `workload engine` of its measurements.
fn sides(stdout: &str) -> BTreeSet<String> {
    let mut sides = BTreeSet::new();
    for line in stdout.lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        let (workload, engine) = (object["workload"].as_str().unwrap(), object["engine"].as_str().unwrap());
        if object.get("goal").is_some() {
            assert!(object["met"].is_boolean() && object["reference"].is_string(), "{line}");
            assert!(object["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{line}");
            assert_eq!(engine, "etcd", "only beside a server there is something to compare with: {line}");
            continue;
        }
        for field in ["n", "p50", "p99", "total_s", "ops_s"] {
            assert!(object[field].as_f64().is_some_and(|figure| figure > 0.0), "{field} in {line}");
        }
        assert_eq!(object["unit"], "ms", "{line}");
        let is_counted = matches!(engine, "etcd" | "raw" | "raw_unchecked");
        assert_eq!(object.get("requests").is_some(), is_counted, "{line}");
        sides.insert(format!("{workload} {engine}"));
    }
    sides
}

#[tokio::test]
async fn locks_are_measured_on_every_engine_beside_a_program_written_by_hand() {
    let etcd = Etcd::start();
    let machine = Machine::new().with("TENURE_ENDPOINTS", etcd.endpoints());
    let ran = machine.run(&["bench", "lock", "--n", "20", "--rounds", "1"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let sides = sides(&ran.stdout);
    for workload in ["lock_1", "lock_16", "lock_64", "handoff_16", "handoff_64", "handoff_256"] {
        for engine in ["memory", "file", "etcd", "raw"] {
            assert!(sides.contains(&format!("{workload} {engine}")), "{workload} {engine}: {}", ran.stdout);
        }
    }
    for workload in ["handoff_16", "handoff_64", "handoff_256", "handoff_16_processes"] {
        for engine in ["file", "etcd", "raw", "raw_unchecked"] {
            assert!(sides.contains(&format!("{workload} {engine}")), "{workload} {engine}: {}", ran.stdout);
        }
    }
    let left = machine.run(&["kv", "range", "/tenure-bench/", "--json"]).await;
    assert!(left.code == Some(0) && !left.stdout.contains("/tenure-bench/"), "{left:?}");
}

#[tokio::test]
async fn elections_are_measured_on_every_engine_beside_a_program_written_by_hand() {
    let etcd = Etcd::start();
    let machine = Machine::new().with("TENURE_ENDPOINTS", etcd.endpoints());
    let words = ["bench", "election", "--n", "5", "--rounds", "2", "--candidates-max", "7"];
    let ran = machine.run(&words).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let sides = sides(&ran.stdout);
    for workload in ["resign_3", "resign_100", "resign_1000"] {
        for engine in ["memory", "file", "etcd", "raw"] {
            assert!(sides.contains(&format!("{workload} {engine}")), "{workload} {engine}: {}", ran.stdout);
        }
    }
    let left = machine.run(&["kv", "range", "/tenure-bench/", "--json"]).await;
    assert!(left.code == Some(0) && !left.stdout.contains("/tenure-bench/"), "{left:?}");
}

#[tokio::test]
async fn only_what_is_asked_for_is_measured() {
    let machine = Machine::new();
    let words =
        ["bench", "lock", "--engines", "memory", "--workloads", "lock_16", "--n", "20", "--rounds", "1"];
    let ran = machine.run(&words).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(sides(&ran.stdout).into_iter().collect::<Vec<_>>(), ["lock_16 memory"]);
}

#[tokio::test]
async fn what_cannot_be_measured_is_refused_before_anything_is() {
    for which in ["lock", "election"] {
        for (words, said) in [
            (["--n", "0"], "must be at least 1"),
            (["--n", "many"], "not a number"),
            (["--rounds", "0"], "must be at least 1"),
            (["--engines", "etc"], "etcd"),
            (["--workloads", "nothing"], "there are"),
            (["--engines", "etcd"], "TENURE_ENDPOINTS"),
        ] {
            let ran = Machine::new().run(&["bench", which, words[0], words[1]]).await;
            assert_eq!(ran.code, Some(2), "{ran:?}");
            assert!(ran.stderr.contains(said) && ran.stdout.is_empty(), "{said}: {ran:?}");
        }
    }
}

#[tokio::test]
async fn tasks_are_claimed_beside_the_herd_taken_over_and_held() {
    let etcd = Etcd::start();
    let machine = Machine::new().with("TENURE_ENDPOINTS", etcd.endpoints());
    let ran = machine
        .run(&["bench", "tasks", "--n", "60", "--nodes", "3", "--rounds", "1", "--idle", "200ms"])
        .await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut sides = BTreeSet::new();
    for line in ran.stdout.lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        let (workload, engine) = (object["workload"].as_str().unwrap(), object["engine"].as_str().unwrap());
        if object.get("goal").is_some() {
            assert!(object["met"].is_boolean() && object["reference"].is_string(), "{line}");
            continue;
        }
        for field in ["n", "unit", "p50", "p99", "total_s", "ops_s"] {
            assert!(object.get(field).is_some(), "{field} is missing in {line}");
        }
        sides.insert(format!("{workload} {engine}"));
    }
    let has = |side: &str| assert!(sides.contains(side), "{side}: {}", ran.stdout);
    for engine in ["memory", "file", "etcd", "herd"] {
        has(&format!("claim_60_by_3_nodes {engine}"));
    }
    for engine in ["file", "etcd"] {
        has(&format!("takeover_from_1_of_3_nodes_with_60 {engine}"));
        for workload in ["submit_600", "claim_and_see_600", "release_600", "memory_600"] {
            has(&format!("{workload} {engine}"));
        }
        assert!(sides.iter().any(|side| side.starts_with("idle_node_with_")), "{}", ran.stdout);
    }
    let left = machine.run(&["kv", "range", "/tenure-bench/", "--json"]).await;
    assert!(left.code == Some(0) && !left.stdout.contains("/tenure-bench/"), "{left:?}");
}
