//! Starting points that must be proven before anything is delivered.

use super::{A, Bench, Saw, TRUST, VersionQuirks, WatchError, WatchFrom, created, events, probe};

#[test]
fn past_start_waits_for_probe() {
    let mut bench = Bench::new(WatchFrom::After(5));
    bench.sent();
    bench.router.handle(created(1, 8));
    bench.router.handle(events(1, &[6, 7]));
    bench.router.handle(events(1, &[8]));
    assert_eq!(bench.consumer.saw(), [Saw::Opened(5)]);
    assert_eq!(bench.actions(), [probe(A, 1, 5)], "one probe, not one per item");
    bench.router.proven(A, 1);
    bench.router.handle(events(1, &[9]));
    let wanted = [Saw::Opened(5), Saw::Batch(6, 1), Saw::Batch(7, 1), Saw::Batch(8, 1), Saw::Batch(9, 1)];
    assert_eq!(bench.consumer.saw(), wanted);
    assert_eq!(bench.actions(), []);
}

#[test]
fn start_at_server_end_probes_old_servers() {
    for history in [true, false] {
        let mut bench = Bench::new(WatchFrom::After(8));
        bench.router.trust(VersionQuirks { history, ..TRUST });
        bench.sent();
        bench.router.handle(created(1, 8));
        bench.router.handle(events(1, &[9]));
        if !history {
            assert_eq!(bench.consumer.saw(), [Saw::Opened(8)]);
            assert_eq!(bench.actions(), [probe(A, 1, 8)]);
            bench.router.proven(A, 1);
        }
        assert_eq!(bench.consumer.saw(), [Saw::Opened(8), Saw::Batch(9, 1)]);
        assert_eq!(bench.actions(), []);
    }
}

#[test]
fn compacted_start_ends_watcher_without_items() {
    let mut bench = Bench::new(WatchFrom::After(5));
    bench.sent();
    bench.router.handle(created(1, 8));
    bench.router.handle(events(1, &[8]));
    bench.router.disproven(A, 1, 5);
    assert_eq!(bench.consumer.saw(), [Saw::Opened(5), Saw::End(WatchError::Compacted { at: 6 })]);
    assert_eq!(bench.sent(), ["cancel 1"]);
}

#[test]
fn probe_of_earlier_creation_is_ignored() {
    let mut bench = Bench::new(WatchFrom::After(5));
    bench.sent();
    bench.router.handle(created(1, 8));
    bench.router.handle(events(1, &[8]));
    bench.router.lost();
    bench.reconnect();
    bench.sent();
    bench.router.handle(created(2, 8));
    bench.router.handle(events(2, &[8]));
    bench.router.proven(A, 1);
    bench.router.disproven(A, 1, 5);
    assert_eq!(bench.consumer.saw(), [Saw::Opened(5)]);
    bench.router.proven(A, 2);
    assert_eq!(bench.consumer.saw(), [Saw::Opened(5), Saw::Batch(8, 1)]);
}

#[test]
fn start_at_first_revision_needs_no_probe() {
    let mut bench = Bench::new(WatchFrom::After(0));
    assert_eq!(bench.sent(), ["create 1 @1"]);
    bench.router.handle(created(1, 3));
    bench.router.handle(events(1, &[2, 3]));
    assert_eq!(bench.consumer.saw(), [Saw::Opened(0), Saw::Batch(2, 1), Saw::Batch(3, 1)]);
    assert_eq!(bench.actions(), []);
}
