//! Starting points that must be proven before anything is delivered.

use super::{A, Bench, Saw, TRUST, VersionQuirks, WatchError, WatchFrom, created, events, probe};

#[test]
fn the_first_item_after_a_start_in_the_past_waits_for_the_probe() {
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
fn a_watch_that_stood_at_the_servers_end_needs_a_probe_only_of_old_servers() {
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
fn a_compacted_starting_point_ends_the_watcher_before_anything_is_delivered() {
    let mut bench = Bench::new(WatchFrom::After(5));
    bench.sent();
    bench.router.handle(created(1, 8));
    bench.router.handle(events(1, &[8]));
    bench.router.disproven(A, 1, 5);
    assert_eq!(bench.consumer.saw(), [Saw::Opened(5), Saw::End(WatchError::Compacted { at: 6 })]);
    assert_eq!(bench.sent(), ["cancel 1"]);
}

#[test]
fn a_probe_of_an_earlier_creation_proves_nothing() {
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
fn the_beginning_of_history_needs_no_probe() {
    let mut bench = Bench::new(WatchFrom::After(0));
    assert_eq!(bench.sent(), ["create 1 @1"]);
    bench.router.handle(created(1, 3));
    bench.router.handle(events(1, &[2, 3]));
    assert_eq!(bench.consumer.saw(), [Saw::Opened(0), Saw::Batch(2, 1), Saw::Batch(3, 1)]);
    assert_eq!(bench.actions(), []);
}
