//! A rule is broken in real processes, and the rig finds it.

use std::time::Duration;

use tenure_core::sabotage::SabotageRule;
use tenure_nemesis::options::{EngineKind, LockUnderTest, Options};

use super::{options, play};

/// A negative control of this lock: a waiter that does not read its key again holds beside another holder. One run may
/// miss it, so a few are tried; each is over as soon as it is found.
#[test]
fn a_lock_that_does_not_read_its_own_place_again_is_found_out_on_etcd() {
    for seed in 1..=4 {
        let folder = tempfile::tempdir().unwrap();
        let report = play(&Options {
            against: LockUnderTest::Broken(SabotageRule::OwnPlace),
            faults_for: Duration::from_secs(20),
            seed,
            ..options(EngineKind::Etcd, folder.path())
        });
        if report.violations.iter().any(|violation| violation.promise == "one holder") {
            return;
        }
    }
    panic!("somebody held without a place, and nobody noticed");
}
