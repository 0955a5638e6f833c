//! Stories of queues, and queues in random worlds.

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
use world::{QueueWorld, RequestFault};

const NOW: Moment = Moment::ORIGIN;

fn lease(id: i64) -> LeaseId {
    LeaseId::new(id).unwrap()
}

#[test]
fn an_uncontended_place_holds_after_one_request_and_leaves_with_one() {
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
fn the_places_of_one_process_follow_each_other_with_one_request_each_and_no_watch() {
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

/// Reading a queue costs the store time in proportion to its length, so it is read for many hand-offs at once.
#[test]
fn a_line_that_was_read_once_says_for_many_hand_offs_who_is_next() {
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
    // Three are shown at a time.
    assert_eq!(world.requests, ["leave and read", next, next, "leave and read", "leave"]);
}

#[test]
fn only_the_first_of_a_process_asks_who_is_before_it() {
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
fn whoever_stands_behind_one_that_said_it_holds_reads_only_its_own_place_when_that_is_gone() {
    let mut world = QueueWorld::new(3);
    let first = world.enter(0, LockMode::Exclusive);
    world.settle();
    let second = world.enter(1, LockMode::Exclusive);
    let third = world.enter(2, LockMode::Exclusive);
    world.settle();
    world.leave(0, first);
    world.settle();
    assert!(world.holds(1, second));
    world.say_holding(1);
    world.settle();
    world.requests.clear();
    world.leave(1, second);
    world.settle();
    assert!(world.holds(2, third));
    assert_eq!(world.requests, ["leave", "look for itself"]);
}

/// The key of a key is used again. It said that it holds in a turn that is over; in this one it waits like we do, and leaves.
#[test]
fn what_a_place_said_in_an_earlier_turn_says_nothing_of_this_one() {
    let mut queue = WaitQueue::new(7);
    let id = queue.enter(lease(1), LockMode::Exclusive);
    let Some(QueueOutput::Enter { epoch, .. }) = queue.poll_output() else { panic!("it lookup to enter") };
    let predecessor = QueueKey { lease: lease(2), nonce: 1 };
    let stands = EnterReply::Stored { token: Token(Revision(9)), predecessor: Some(predecessor) };
    queue.handle_entered(id, epoch, stands, 0.5, NOW);
    queue.handle_holder(predecessor, Token(Revision(3)), Revision(4));
    queue.handle_gone(predecessor, Revision(10), NOW);
    let asked = queue.poll_output();
    assert!(
        matches!(asked, Some(QueueOutput::ReadPredecessor { predecessor: Predecessor::Nearest(_), .. })),
        "{asked:?}"
    );
}

/// It was not asked who is before it, because one of ours was; that one has left before the answer came.
#[test]
fn a_place_whose_company_has_left_looks_for_itself() {
    let mut queue = WaitQueue::new(7);
    let first = queue.enter(lease(1), LockMode::Exclusive);
    let Some(QueueOutput::Enter { epoch, .. }) = queue.poll_output() else { panic!("it lookup to enter") };
    queue.handle_entered(
        first,
        epoch,
        EnterReply::Stored { token: Token(Revision(5)), predecessor: None },
        0.5,
        NOW,
    );
    let second = queue.enter(lease(1), LockMode::Exclusive);
    let Some(QueueOutput::Enter { epoch, lookup: PredecessorLookup::Skip, .. }) = queue.poll_output() else {
        panic!("it lookup to enter beside the first")
    };
    queue.leave(first, NOW);
    let Some(QueueOutput::Leave { epoch: leaving, .. }) = queue.poll_output() else {
        panic!("it lookup to leave")
    };
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

/// Stands alone, and leaves with this answer to the first request; says which key it had.
fn a_turn(queue: &mut WaitQueue, answer: LeaveReply) -> QueueKey {
    let id = queue.enter(lease(1), LockMode::Exclusive);
    let Some(QueueOutput::Enter { epoch, queue_key, .. }) = queue.poll_output() else {
        panic!("it lookup to enter")
    };
    queue.handle_entered(
        id,
        epoch,
        EnterReply::Stored { token: Token(Revision(5)), predecessor: None },
        0.5,
        NOW,
    );
    queue.leave(id, NOW);
    let mut answer = Some(answer);
    while let Some(QueueOutput::Leave { epoch, .. }) = queue.poll_output() {
        let gone = LeaveReply::Gone { was_there: true, first: Vec::new(), guard: None };
        queue.handle_left(id, epoch, answer.take().unwrap_or(gone), 0.0, NOW);
        queue.handle_time(NOW);
    }
    assert!(queue.is_empty());
    queue_key
}

/// Each key that was ever there costs etcd time, until its history is compacted.
#[test]
fn who_locks_again_and_again_has_the_same_key_as_long_as_every_answer_is_certain() {
    let gone = || LeaveReply::Gone { was_there: true, first: Vec::new(), guard: None };
    let mut queue = WaitQueue::new(0);
    let first = a_turn(&mut queue, gone());
    assert_eq!(a_turn(&mut queue, gone()), first);
    assert_eq!(a_turn(&mut queue, LeaveReply::NotDone), first, "nothing is under way");
    assert_eq!(a_turn(&mut queue, LeaveReply::Unknown), first);
    let second = a_turn(&mut queue, gone());
    assert_ne!(second, first, "the lost request would delete it");
    let mut next = WaitQueue::default();
    next.begin(queue.nonce_floor(), queue.counter(), queue.guards());
    assert_eq!(a_turn(&mut next, gone()), second);
}

/// Found by the simulator: all keys of a queue were lost with their lease while one was being entered, the next queue of that name counted
/// its waiters from the same number, and the late reply made a waiter hold with the token of a key that was gone.
#[test]
fn a_late_answer_to_a_former_line_is_no_answer_to_the_next() {
    let mut former = WaitQueue::new(7);
    let lost = former.enter(lease(1), LockMode::Exclusive);
    let Some(QueueOutput::Enter { epoch, .. }) = former.poll_output() else { panic!("it lookup to enter") };
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
    assert!(next.poll_event().is_none(), "nobody was told that it holds");
}

/// A stranger's key between two of ours: the second must not hold when the first leaves.
#[test]
fn a_place_behind_a_stranger_of_whom_it_does_not_know_waits_for_him() {
    let mut world = QueueWorld::new(2);
    let first = world.enter(0, LockMode::Exclusive);
    world.settle();
    let stranger = world.enter(1, LockMode::Exclusive);
    world.settle();
    let second = world.enter(0, LockMode::Exclusive);
    world.settle();
    assert_eq!(world.requests.last(), Some(&"join"));
    world.leave(0, first);
    world.settle();
    assert!(world.holds(1, stranger) && !world.holds(0, second));
    world.leave(1, stranger);
    world.settle();
    assert!(world.holds(0, second));
}

#[test]
fn a_release_wakes_exactly_one_of_a_hundred_processes() {
    let mut world = QueueWorld::new(100);
    let waiters: Vec<WaiterId> = (0..100).map(|process| world.enter(process, LockMode::Exclusive)).collect();
    world.settle();
    assert_eq!(world.queue_keys(), 100);
    for process in [0, 1, 2] {
        world.requests.clear();
        world.leave(process, waiters[process]);
        world.settle();
        assert_eq!(world.requests, ["leave", "look"], "one leaves, one reads");
        assert!(world.holds(process + 1, waiters[process + 1]));
    }
}

#[test]
fn a_waiter_whose_lease_is_revoked_is_told_at_once_and_never_holds() {
    let mut world = QueueWorld::new(2);
    let first = world.enter(0, LockMode::Exclusive);
    let second = world.enter(1, LockMode::Exclusive);
    world.settle();
    world.revoke(1);
    world.settle();
    assert!(world.is_lost(1, second), "its holder has not moved");
    world.leave(0, first);
    world.settle();
    assert!(!world.holds(1, second));
    assert_eq!(world.queue_keys(), 0);
}

#[test]
fn a_waiter_whose_place_is_deleted_stands_in_line_again() {
    let mut world = QueueWorld::new(2);
    let first = world.enter(0, LockMode::Exclusive);
    let second = world.enter(1, LockMode::Exclusive);
    world.settle();
    world.delete_place_of(1, second);
    world.settle();
    assert_eq!(world.queue_keys(), 2);
    world.leave(0, first);
    world.settle();
    assert!(world.holds(1, second));
}

#[test]
fn a_holder_whose_place_is_deleted_is_told() {
    let mut world = QueueWorld::new(1);
    let id = world.enter(0, LockMode::Exclusive);
    world.settle();
    world.delete_place_of(0, id);
    world.settle();
    assert!(world.is_lost(0, id));
}

#[test]
fn an_enter_whose_answer_is_lost_holds_one_place_and_leaves_none() {
    let mut world = QueueWorld::new(1);
    world.fate = RequestFault::LosesAnswer;
    let id = world.enter(0, LockMode::Exclusive);
    world.settle();
    world.fate = RequestFault::Works;
    world.pass(Duration::from_secs(3));
    assert!(world.holds(0, id));
    assert_eq!(world.queue_keys(), 1);
    world.leave(0, id);
    world.settle();
    assert_eq!(world.queue_keys(), 0);
    world.pass(Duration::from_secs(30));
    assert!(world.queues[0].is_empty(), "nobody reads after it for ever");
}

#[test]
fn a_place_that_was_given_up_while_it_was_asked_for_leaves_nothing() {
    for fate in [RequestFault::Works, RequestFault::NotDone, RequestFault::LosesAnswer, RequestFault::Late] {
        let mut world = QueueWorld::new(1);
        world.fate = fate;
        let id = world.enter(0, LockMode::Exclusive);
        world.leave(0, id);
        world.settle();
        world.fate = RequestFault::Works;
        world.arrive();
        world.pass(Duration::from_secs(30));
        assert_eq!(world.queue_keys(), 0, "{fate:?}");
        assert!(world.queues[0].is_empty() && !world.holds(0, id), "{fate:?}");
    }
}

/// Otherwise a release during a change of leader would look like a lock that was taken away.
#[test]
fn a_place_that_is_gone_after_a_leave_without_an_answer_counts_as_left() {
    for (first, was_there) in [(LeaveReply::Unknown, true), (LeaveReply::NotDone, false)] {
        let mut queue = WaitQueue::new(7);
        let id = queue.enter(lease(1), LockMode::Exclusive);
        let Some(QueueOutput::Enter { epoch, .. }) = queue.poll_output() else {
            panic!("it lookup to enter")
        };
        let token = Token(Revision(5));
        queue.handle_entered(id, epoch, EnterReply::Stored { token, predecessor: None }, 0.5, NOW);
        queue.leave(id, NOW);
        let Some(QueueOutput::Leave { epoch, .. }) = queue.poll_output() else {
            panic!("it lookup to leave")
        };
        queue.handle_left(id, epoch, first, 0.5, NOW);
        queue.handle_time(NOW + Duration::from_secs(60));
        let Some(QueueOutput::Leave { epoch, .. }) = queue.poll_output() else { panic!("it lookup again") };
        queue.handle_left(
            id,
            epoch,
            LeaveReply::Gone { was_there: false, first: Vec::new(), guard: None },
            0.5,
            NOW,
        );
        let told = std::iter::from_fn(|| queue.poll_event()).last();
        assert!(
            matches!(told, Some(QueueEvent::Released { was_there: told, .. }) if told == was_there),
            "{told:?}"
        );
    }
}

#[test]
fn a_leave_is_asked_again_until_the_store_has_said_that_the_place_is_gone() {
    let mut world = QueueWorld::new(2);
    let first = world.enter(0, LockMode::Exclusive);
    let second = world.enter(1, LockMode::Exclusive);
    world.settle();
    world.fate = RequestFault::NotDone;
    world.leave(0, first);
    world.pass(Duration::from_secs(5));
    assert!(!world.holds(1, second) && world.queue_keys() == 2);
    world.fate = RequestFault::Works;
    world.pass(Duration::from_secs(3));
    assert!(world.holds(1, second));
}

#[test]
fn what_the_store_refuses_is_told_and_forgotten() {
    let mut queue = WaitQueue::new(0);
    let id = queue.enter(lease(1), LockMode::Exclusive);
    let Some(QueueOutput::Enter { epoch, .. }) = queue.poll_output() else { panic!() };
    let why = StoreError::Denied("no".into());
    queue.handle_entered(id, epoch, EnterReply::Refused(why), 0.0, NOW);
    assert!(matches!(queue.poll_event(), Some(QueueEvent::Refused { .. })));
    assert!(queue.is_empty());
}

#[test]
fn an_answer_to_an_older_question_changes_nothing() {
    let mut queue = WaitQueue::new(0);
    let id = queue.enter(lease(1), LockMode::Exclusive);
    let stands = EnterReply::Stored { token: Token(Revision(5)), predecessor: None };
    queue.handle_entered(id, RequestId(999), stands, 0.0, NOW);
    assert!(queue.poll_event().is_none());
}

#[test]
fn readers_hold_together_and_a_writer_waits_for_all_of_them() {
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
fn three_permits_are_held_by_three_and_passed_on_in_order() {
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

    /// Lost, late and failed requests, answers out of order, keys deleted and leases revoked by strangers.
    #[test]
    fn in_random_worlds_one_holds_and_everybody_comes_to_an_end(
        processes in 1..4_usize,
        script in prop::collection::vec(any::<u16>(), 1..250),
    ) {
        let mut world = QueueWorld::new(processes);
        for throw in script {
            world.happen(throw);
            world.check_holders();
        }
        world.come_to_an_end();
    }
}
