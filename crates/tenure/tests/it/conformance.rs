//! Every engine passes the suite.

use tenure::conformance;
use tenure::store::Store;

use crate::tokio_clock::TokioClock;

#[tokio::test]
async fn memory_conformance() {
    conformance::run(|| async { Store::memory() }).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_conformance_on_many_threads() {
    conformance::run(|| async { Store::memory() }).await.assert_passed();
}

#[tokio::test(start_paused = true)]
async fn memory_conformance_in_virtual_time() {
    conformance::run(|| async { TokioClock::store() }).await.assert_passed();
}

#[test]
fn ids_are_unique_and_claims_are_sentences() {
    let mut ids = std::collections::BTreeSet::new();
    for case in conformance::cases() {
        assert!(ids.insert(case.id), "{} twice", case.id);
        assert!(case.claim.ends_with('.'), "{}", case.id);
    }
}

#[test]
fn every_difference_belongs_to_a_case() {
    let cases = conformance::cases();
    for difference in conformance::differences() {
        assert!(cases.iter().any(|case| case.id == difference.case), "{difference:?}");
    }
}
