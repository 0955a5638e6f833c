//! Queues in known cases, and in random worlds.

mod batches;
mod first_holder;
mod replies;
mod requests;
mod settling;
mod shareable;
mod world;

use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::error::StoreError;
use world::{QueueFault, QueueWorld};

const NOW: Moment = Moment::ORIGIN;

fn lease(id: i64) -> LeaseId {
    LeaseId::new(id).unwrap()
}

#[test]
fn uncontended_hold_needs_two_requests() {
    let mut world = QueueWorld::new(1);
    let id = world.enter(0, LockMode::Exclusive);
    world.settle();
    assert!(world.holds(0, id));
    world.leave(0, id);
    world.settle();
    assert_eq!(world.requests, ["enter", "leave"]);
    assert_eq!((world.queue_keys(), world.queues[0].is_empty()), (0, true));
}

#[test]
fn local_waiters_hand_off_with_one_request() {
    let mut world = QueueWorld::new(1);
    let waiters: Vec<WaiterId> = (0..5).map(|_| world.enter(0, LockMode::Exclusive)).collect();
    world.settle();
    world.requests.clear();
    for &id in &waiters {
        assert!(world.holds(0, id));
        assert_eq!(world.queues[0].watched_predecessor(), None);
        world.leave(0, id);
        world.settle();
    }
    let next = "leave to the next";
    assert_eq!(world.requests, [next, next, next, next, "leave"]);
}

/// A read of the queue costs the store time in proportion to its length, so one read serves many
/// hand-offs.
#[test]
fn one_read_serves_many_handoffs() {
    let mut world = QueueWorld::new(1);
    let mut waiters = vec![world.enter(0, LockMode::Exclusive)];
    world.settle();
    waiters.extend((0..4).map(|_| world.enter(0, LockMode::Exclusive)));
    world.settle();
    world.requests.clear();
    for &id in &waiters {
        assert!(world.holds(0, id));
        world.leave(0, id);
        world.settle();
    }
    let next = "leave to the next";
    // One read returns three keys in tests.
    assert_eq!(world.requests, ["leave and read", next, next, "leave and read", "leave"]);
}

#[test]
fn only_first_local_waiter_reads_predecessor() {
    let mut world = QueueWorld::new(1);
    world.enter(0, LockMode::Exclusive);
    world.settle();
    for _ in 0..3 {
        world.enter(0, LockMode::Exclusive);
    }
    world.settle();
    assert_eq!(world.requests, ["enter", "join", "join", "join"]);
}

#[test]
fn successor_of_marked_holder_reads_own_key() {
    let mut world = QueueWorld::new(3);
    let first = world.enter(0, LockMode::Exclusive);
    world.settle();
    let second = world.enter(1, LockMode::Exclusive);
    let third = world.enter(2, LockMode::Exclusive);
    world.settle();
    world.leave(0, first);
    world.settle();
    assert!(world.holds(1, second));
    world.mark_holder(1);
    world.settle();
    world.requests.clear();
    world.leave(1, second);
    world.settle();
    assert!(world.holds(2, third));
    assert_eq!(world.requests, ["leave", "read own key"]);
}

/// Keys are reused. The predecessor was marked as holder in an earlier hold; in this one it waits
/// too, and leaves.
#[test]
fn holder_mark_of_earlier_hold_is_ignored() {
    let mut queue = WaitQueue::new(7);
    let id = queue.enter(lease(1), LockMode::Exclusive);
    let Some(QueueOutput::Enter { epoch, .. }) = queue.poll_output() else { panic!("an enter") };
    let predecessor = QueueKey { lease: lease(2), nonce: 1 };
    let stored = EnterReply::Stored { token: Token(Revision(9)), predecessor: Some(predecessor) };
    queue.handle_entered(id, epoch, stored, 0.5, NOW);
    queue.handle_holder(predecessor, Token(Revision(3)), Revision(4));
    queue.handle_gone(predecessor, Revision(10), NOW);
    let output = queue.poll_output();
    assert!(
        matches!(output, Some(QueueOutput::ReadPredecessor { predecessor: Predecessor::Nearest(_), .. })),
        "{output:?}"
    );
}

/// It did not read its predecessor, because a local waiter was before it. That waiter left before
/// the reply arrived.
#[test]
fn joined_waiter_reads_after_local_predecessor_left() {
    let mut queue = WaitQueue::new(7);
    let first = queue.enter(lease(1), LockMode::Exclusive);
    let Some(QueueOutput::Enter { epoch, .. }) = queue.poll_output() else { panic!("an enter") };
    queue.handle_entered(
        first,
        epoch,
        EnterReply::Stored { token: Token(Revision(5)), predecessor: None },
        0.5,
        NOW,
    );
    let second = queue.enter(lease(1), LockMode::Exclusive);
    let Some(QueueOutput::Enter { epoch, lookup: PredecessorLookup::Skip, .. }) = queue.poll_output() else {
        panic!("an enter that skips the read")
    };
    queue.leave(first, NOW);
    let Some(QueueOutput::Leave { epoch: leaving, .. }) = queue.poll_output() else { panic!("a leave") };
    queue.handle_left(
        first,
        leaving,
        LeaveReply::Gone { was_there: true, first: Vec::new(), guard: None },
        0.5,
        NOW,
    );
    assert!(queue.poll_output().is_none());
    queue.handle_entered(second, epoch, EnterReply::Joined { token: Token(Revision(6)) }, 0.5, NOW);
    assert!(matches!(
        queue.poll_output(),
        Some(QueueOutput::ReadPredecessor { predecessor: Predecessor::Unknown, .. })
    ));
}

/// Holds alone, and leaves with this reply to the first request. Returns the key.
fn hold_once(queue: &mut WaitQueue, reply: LeaveReply) -> QueueKey {
    let id = queue.enter(lease(1), LockMode::Exclusive);
    let Some(QueueOutput::Enter { epoch, queue_key, .. }) = queue.poll_output() else { panic!("an enter") };
    queue.handle_entered(
        id,
        epoch,
        EnterReply::Stored { token: Token(Revision(5)), predecessor: None },
        0.5,
        NOW,
    );
    queue.leave(id, NOW);
    let mut reply = Some(reply);
    while let Some(QueueOutput::Leave { epoch, .. }) = queue.poll_output() {
        let gone = LeaveReply::Gone { was_there: true, first: Vec::new(), guard: None };
        queue.handle_left(id, epoch, reply.take().unwrap_or(gone), 0.0, NOW);
        queue.handle_time(NOW);
    }
    assert!(queue.is_empty());
    queue_key
}

/// Each key that was ever stored costs etcd time until its history is compacted.
#[test]
fn key_is_reused_after_certain_replies() {
    let gone = || LeaveReply::Gone { was_there: true, first: Vec::new(), guard: None };
    let mut queue = WaitQueue::new(0);
    let first = hold_once(&mut queue, gone());
    assert_eq!(hold_once(&mut queue, gone()), first);
    assert_eq!(hold_once(&mut queue, LeaveReply::NotDone), first, "no request is in flight");
    assert_eq!(hold_once(&mut queue, LeaveReply::Unknown), first);
    let second = hold_once(&mut queue, gone());
    assert_ne!(second, first, "the lost request would delete it");
    let mut next = WaitQueue::default();
    next.begin(queue.nonce_floor(), queue.counter(), queue.guards());
    assert_eq!(hold_once(&mut next, gone()), second);
}

/// Found by the simulator. All keys of a queue were lost with their lease while one was being
/// entered. The next queue of that name counted its waiters from the same number, and the late
/// reply made a waiter hold with the token of a deleted key.
#[test]
fn late_reply_of_former_queue_is_ignored() {
    let mut former = WaitQueue::new(7);
    let lost = former.enter(lease(1), LockMode::Exclusive);
    let Some(QueueOutput::Enter { epoch, .. }) = former.poll_output() else { panic!("an enter") };
    former.handle_lease_lost(lease(1), NOW);
    assert!(former.is_empty());
    let mut next = WaitQueue::default();
    next.begin(former.nonce_floor(), former.counter(), former.guards());
    next.enter(lease(2), LockMode::Exclusive);
    next.handle_entered(
        lost,
        epoch,
        EnterReply::Stored { token: Token(Revision(5)), predecessor: None },
        0.5,
        NOW,
    );
    assert!(next.poll_event().is_none(), "no waiter holds");
}

/// Another client's key between two local ones: the second must not hold when the first leaves.
#[test]
fn waiter_behind_unknown_foreign_key_waits() {
    let mut world = QueueWorld::new(2);
    let first = world.enter(0, LockMode::Exclusive);
    world.settle();
    let foreign = world.enter(1, LockMode::Exclusive);
    world.settle();
    let second = world.enter(0, LockMode::Exclusive);
    world.settle();
    assert_eq!(world.requests.last(), Some(&"join"));
    world.leave(0, first);
    world.settle();
    assert!(world.holds(1, foreign) && !world.holds(0, second));
    world.leave(1, foreign);
    world.settle();
    assert!(world.holds(0, second));
}

#[test]
fn release_wakes_one_process_of_hundred() {
    let mut world = QueueWorld::new(100);
    let waiters: Vec<WaiterId> = (0..100).map(|process| world.enter(process, LockMode::Exclusive)).collect();
    world.settle();
    assert_eq!(world.queue_keys(), 100);
    for process in [0, 1, 2] {
        world.requests.clear();
        world.leave(process, waiters[process]);
        world.settle();
        assert_eq!(world.requests, ["leave", "read"], "one leaves, one reads");
        assert!(world.holds(process + 1, waiters[process + 1]));
    }
}

#[test]
fn waiter_with_revoked_lease_never_holds() {
    let mut world = QueueWorld::new(2);
    let first = world.enter(0, LockMode::Exclusive);
    let second = world.enter(1, LockMode::Exclusive);
    world.settle();
    world.revoke(1);
    world.settle();
    assert!(world.is_lost(1, second), "before the holder leaves");
    world.leave(0, first);
    world.settle();
    assert!(!world.holds(1, second));
    assert_eq!(world.queue_keys(), 0);
}

#[test]
fn waiter_with_deleted_key_enters_again() {
    let mut world = QueueWorld::new(2);
    let first = world.enter(0, LockMode::Exclusive);
    let second = world.enter(1, LockMode::Exclusive);
    world.settle();
    world.delete_key_of(1, second);
    world.settle();
    assert_eq!(world.queue_keys(), 2);
    world.leave(0, first);
    world.settle();
    assert!(world.holds(1, second));
}

#[test]
fn holder_with_deleted_key_is_lost() {
    let mut world = QueueWorld::new(1);
    let id = world.enter(0, LockMode::Exclusive);
    world.settle();
    world.delete_key_of(0, id);
    world.settle();
    assert!(world.is_lost(0, id));
}

#[test]
fn ambiguous_enter_keeps_one_key() {
    let mut world = QueueWorld::new(1);
    world.fault = QueueFault::LosesReply;
    let id = world.enter(0, LockMode::Exclusive);
    world.settle();
    world.fault = QueueFault::Works;
    world.pass(Duration::from_secs(3));
    assert!(world.holds(0, id));
    assert_eq!(world.queue_keys(), 1);
    world.leave(0, id);
    world.settle();
    assert_eq!(world.queue_keys(), 0);
    world.pass(Duration::from_secs(30));
    assert!(world.queues[0].is_empty(), "reads end with the waiter");
}

#[test]
fn key_left_during_enter_is_deleted() {
    for fault in [QueueFault::Works, QueueFault::NotDone, QueueFault::LosesReply, QueueFault::Late] {
        let mut world = QueueWorld::new(1);
        world.fault = fault;
        let id = world.enter(0, LockMode::Exclusive);
        world.leave(0, id);
        world.settle();
        world.fault = QueueFault::Works;
        world.apply_late();
        world.pass(Duration::from_secs(30));
        assert_eq!(world.queue_keys(), 0, "{fault:?}");
        assert!(world.queues[0].is_empty() && !world.holds(0, id), "{fault:?}");
    }
}

/// Otherwise a release during a change of etcd's leader would look like a lost lock.
#[test]
fn missing_key_after_ambiguous_leave_counts_released() {
    for (first, was_there) in [(LeaveReply::Unknown, true), (LeaveReply::NotDone, false)] {
        let mut queue = WaitQueue::new(7);
        let id = queue.enter(lease(1), LockMode::Exclusive);
        let Some(QueueOutput::Enter { epoch, .. }) = queue.poll_output() else { panic!("an enter") };
        let token = Token(Revision(5));
        queue.handle_entered(id, epoch, EnterReply::Stored { token, predecessor: None }, 0.5, NOW);
        queue.leave(id, NOW);
        let Some(QueueOutput::Leave { epoch, .. }) = queue.poll_output() else { panic!("a leave") };
        queue.handle_left(id, epoch, first, 0.5, NOW);
        queue.handle_time(NOW + Duration::from_secs(60));
        let Some(QueueOutput::Leave { epoch, .. }) = queue.poll_output() else { panic!("a second leave") };
        queue.handle_left(
            id,
            epoch,
            LeaveReply::Gone { was_there: false, first: Vec::new(), guard: None },
            0.5,
            NOW,
        );
        let event = std::iter::from_fn(|| queue.poll_event()).last();
        assert!(
            matches!(event, Some(QueueEvent::Released { was_there: reported, .. }) if reported == was_there),
            "{event:?}"
        );
    }
}

#[test]
fn leave_is_retried_until_confirmed() {
    let mut world = QueueWorld::new(2);
    let first = world.enter(0, LockMode::Exclusive);
    let second = world.enter(1, LockMode::Exclusive);
    world.settle();
    world.fault = QueueFault::NotDone;
    world.leave(0, first);
    world.pass(Duration::from_secs(5));
    assert!(!world.holds(1, second) && world.queue_keys() == 2);
    world.fault = QueueFault::Works;
    world.pass(Duration::from_secs(3));
    assert!(world.holds(1, second));
}

#[test]
fn refused_enter_is_reported_and_removed() {
    let mut queue = WaitQueue::new(0);
    let id = queue.enter(lease(1), LockMode::Exclusive);
    let Some(QueueOutput::Enter { epoch, .. }) = queue.poll_output() else { panic!() };
    let why = StoreError::Denied("no".into());
    queue.handle_entered(id, epoch, EnterReply::Refused(why), 0.0, NOW);
    assert!(matches!(queue.poll_event(), Some(QueueEvent::Refused { .. })));
    assert!(queue.is_empty());
}

#[test]
fn reply_to_older_request_changes_nothing() {
    let mut queue = WaitQueue::new(0);
    let id = queue.enter(lease(1), LockMode::Exclusive);
    let stored = EnterReply::Stored { token: Token(Revision(5)), predecessor: None };
    queue.handle_entered(id, RequestId(999), stored, 0.0, NOW);
    assert!(queue.poll_event().is_none());
}

#[test]
fn readers_share_and_writer_waits() {
    let mut world = QueueWorld::new(4);
    let readers: Vec<WaiterId> = (0..2).map(|process| world.enter(process, LockMode::Shared)).collect();
    world.settle();
    let writer = world.enter(2, LockMode::Exclusive);
    world.settle();
    let late = world.enter(3, LockMode::Shared);
    world.settle();
    assert!(world.holds(0, readers[0]) && world.holds(1, readers[1]));
    assert!(!world.holds(2, writer) && !world.holds(3, late), "a reader does not overtake a writer");
    world.leave(1, readers[1]);
    world.settle();
    assert!(!world.holds(2, writer));
    world.leave(0, readers[0]);
    world.settle();
    assert!(world.holds(2, writer) && !world.holds(3, late));
    world.leave(2, writer);
    world.settle();
    assert!(world.holds(3, late));
}

#[test]
fn permits_pass_in_queue_order() {
    let mode = LockMode::Permit { of: NonZeroU32::new(3).unwrap() };
    let mut world = QueueWorld::new(6);
    let waiters: Vec<WaiterId> = (0..6)
        .map(|process| {
            let id = world.enter(process, mode);
            world.settle();
            id
        })
        .collect();
    let holding = |world: &QueueWorld| (0..6).filter(|&n| world.holds(n, waiters[n])).collect::<Vec<_>>();
    assert_eq!(holding(&world), [0, 1, 2]);
    world.leave(1, waiters[1]);
    world.settle();
    assert_eq!(holding(&world), [0, 2, 3]);
    world.leave(4, waiters[4]);
    world.leave(0, waiters[0]);
    world.settle();
    assert_eq!(holding(&world), [2, 3, 5]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Lost, late and failed requests, replies out of order, keys deleted and leases revoked by
    /// other clients.
    #[test]
    fn random_faults_keep_one_holder(
        processes in 1..4_usize,
        script in prop::collection::vec(any::<u16>(), 1..250),
    ) {
        let mut world = QueueWorld::new(processes);
        for random in script {
            world.step(random);
            world.check_holders();
        }
        world.run_to_end();
    }
}
