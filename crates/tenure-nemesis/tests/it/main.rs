//! The rig itself, for a few seconds: faults on both stores break nothing, and a lock that is broken is found.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[cfg(tenure_sabotage)]
mod broken_rules;
mod own_network;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_core::sabotage::SabotageRule;
use tenure_nemesis::options::{EngineKind, LockUnderTest, NetworkKind, Options};
use tenure_nemesis::rig::{Fault, NemesisReport, run};

fn options(kind: EngineKind, folder: &Path) -> Options {
    Options {
        faults_for: Duration::from_secs(10),
        kind,
        network: NetworkKind::Loopback,
        against: LockUnderTest::Tenure,
        seed: 3,
        clients: 3,
        auth: false,
        faults: None,
        folder: folder.to_owned(),
        program: PathBuf::from(env!("CARGO_BIN_EXE_tenure-nemesis")),
    }
}

/// Runs the rig, and keeps all histories if a check failed.
fn run_rig(options: &Options) -> NemesisReport {
    run(options).unwrap_or_else(|error| panic!("the rig did not run: {error}"))
}

fn nothing_breaks(kind: EngineKind) {
    let folder = tempfile::tempdir().unwrap();
    let report = run_rig(&options(kind, folder.path()));
    if !report.violations.is_empty() {
        let kept = folder.keep();
        panic!("kept in {}:\n{report}", kept.display());
    }
    assert!(report.faults_done() >= 3 && report.operations_begun() >= 100, "{report}");
}

#[test]
fn faults_break_nothing_on_etcd() {
    nothing_breaks(EngineKind::Etcd);
}

#[test]
fn faults_break_nothing_on_file() {
    nothing_breaks(EngineKind::File);
}

/// The negative control: processes that are stopped for longer than the TTL, and a lock that does not care. One run finds it in about
/// nineteen of twenty cases, so a few are tried; each is over as soon as it is found.
#[test]
fn plain_lock_is_found_broken_on_file() {
    let promises = |report: &NemesisReport| -> Vec<&str> {
        report.violations.iter().map(|violation| violation.promise).collect()
    };
    for seed in 1..=6 {
        let folder = tempfile::tempdir().unwrap();
        let report = run_rig(&Options {
            against: LockUnderTest::Plain,
            clients: 2,
            seed,
            faults: Some(vec![Fault::StopClient]),
            ..options(EngineKind::File, folder.path())
        });
        if promises(&report).contains(&"one holder") {
            return;
        }
    }
    panic!("two clients held at once, and no check reported it");
}

#[test]
fn simulation_only_rule_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = run(&Options {
        against: LockUnderTest::Broken(SabotageRule::Margin),
        ..options(EngineKind::Etcd, folder.path())
    });
    assert!(refused.unwrap_err().contains("Margin is found by the simulation alone"));
}

/// A build without the cfg has no rule that can be broken, whatever its features are.
#[cfg(not(tenure_sabotage))]
#[test]
fn build_without_cfg_refuses_broken_rule() {
    let folder = tempfile::tempdir().unwrap();
    let refused = run(&Options {
        against: LockUnderTest::Broken(SabotageRule::OwnPlace),
        ..options(EngineKind::File, folder.path())
    });
    assert!(refused.unwrap_err().contains("only in a build with `--cfg tenure_sabotage`"));
}
