//! A rule is broken in real processes, and the rig finds it.

use std::time::Duration;

use tenure_core::sabotage::SabotageRule;
use tenure_nemesis::options::{EngineKind, LockUnderTest, Options};

use super::{options, run_rig};

/// A negative control of this lock: a waiter that does not read its key again holds beside another holder. One run may
/// miss it, so a few are tried; each is over as soon as it is found.
#[test]
fn skipped_own_key_check_is_found_on_etcd() {
    for seed in 1..=4 {
        let folder = tempfile::tempdir().unwrap();
        let report = run_rig(&Options {
            against: LockUnderTest::Broken(SabotageRule::OwnPlace),
            faults_for: Duration::from_secs(20),
            seed,
            ..options(EngineKind::Etcd, folder.path())
        });
        if report.violations.iter().any(|violation| violation.promise == "one holder") {
            return;
        }
    }
    panic!("a client held without a queue key, and no check reported it");
}
