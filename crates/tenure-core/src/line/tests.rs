//! Stories of lines, and lines in random worlds.

mod replies;
mod settling;
mod shareable;
mod world;

use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::error::StoreError;
use world::{Fate, World};

const NOW: Moment = Moment::ORIGIN;

fn lease(id: i64) -> LeaseId {
    LeaseId::new(id).unwrap()
}

#[test]
fn an_uncontended_place_holds_after_one_request_and_leaves_with_one() {
    let mut world = World::new(1);
    let ticket = world.stand(0, Mode::Exclusive);
    world.settle();
    assert!(world.holds(0, ticket));
    world.leave(0, ticket);
    world.settle();
    assert_eq!(world.requests, ["enter", "leave"]);
    assert_eq!((world.places(), world.lines[0].is_empty()), (0, true));
}

#[test]
fn the_places_of_one_process_follow_each_other_with_one_request_each_and_no_watch() {
    let mut world = World::new(1);
    let tickets: Vec<Ticket> = (0..5).map(|_| world.stand(0, Mode::Exclusive)).collect();
    world.settle();
    world.requests.clear();
    for &ticket in &tickets {
        assert!(world.holds(0, ticket));
        assert_eq!(world.lines[0].place_before(), None);
        world.leave(0, ticket);
        world.settle();
    }
    let next = "leave to the next";
    assert_eq!(world.requests, [next, next, next, next, "leave"]);
}

/// Reading a line costs the store time in proportion to its length, so it is read for many hand-offs at once.
#[test]
fn a_line_that_was_read_once_says_for_many_hand_offs_who_is_next() {
    let mut world = World::new(1);
    let mut tickets = vec![world.stand(0, Mode::Exclusive)];
    world.settle();
    tickets.extend((0..4).map(|_| world.stand(0, Mode::Exclusive)));
    world.settle();
    world.requests.clear();
    for &ticket in &tickets {
        assert!(world.holds(0, ticket));
        world.leave(0, ticket);
        world.settle();
    }
    let next = "leave to the next";
    // Three are shown at a time.
    assert_eq!(world.requests, ["leave and read", next, next, "leave and read", "leave"]);
}

#[test]
fn only_the_first_of_a_process_asks_who_is_before_it() {
    let mut world = World::new(1);
    world.stand(0, Mode::Exclusive);
    world.settle();
    for _ in 0..3 {
        world.stand(0, Mode::Exclusive);
    }
    world.settle();
    assert_eq!(world.requests, ["enter", "join", "join", "join"]);
}

#[test]
fn whoever_stands_behind_one_that_said_it_holds_reads_only_its_own_place_when_that_is_gone() {
    let mut world = World::new(3);
    let first = world.stand(0, Mode::Exclusive);
    world.settle();
    let second = world.stand(1, Mode::Exclusive);
    let third = world.stand(2, Mode::Exclusive);
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

/// The key of a place is used again. It said that it holds in a turn that is over; in this one it waits like we do, and leaves.
#[test]
fn what_a_place_said_in_an_earlier_turn_says_nothing_of_this_one() {
    let mut line = Line::new(7);
    let ticket = line.stand(lease(1), Mode::Exclusive);
    let Some(Action::Enter { epoch, .. }) = line.poll_action() else { panic!("it asks to enter") };
    let before = Place { lease: lease(2), nonce: 1 };
    let stands = Entered::Stands { token: Token(Revision(9)), before: Some(before) };
    line.handle_entered(ticket, epoch, stands, 0.5, NOW);
    line.handle_holder(before, Token(Revision(3)), Revision(4));
    line.handle_gone(before, Revision(10), NOW);
    let asked = line.poll_action();
    assert!(matches!(asked, Some(Action::Look { before: Before::Nearest(_), .. })), "{asked:?}");
}

/// It was not asked who is before it, because one of ours was; that one has left before the answer came.
#[test]
fn a_place_whose_company_has_left_looks_for_itself() {
    let mut line = Line::new(7);
    let first = line.stand(lease(1), Mode::Exclusive);
    let Some(Action::Enter { epoch, .. }) = line.poll_action() else { panic!("it asks to enter") };
    line.handle_entered(first, epoch, Entered::Stands { token: Token(Revision(5)), before: None }, 0.5, NOW);
    let second = line.stand(lease(1), Mode::Exclusive);
    let Some(Action::Enter { epoch, asks: Asks::Nobody, .. }) = line.poll_action() else {
        panic!("it asks to enter beside the first")
    };
    line.leave(first, NOW);
    let Some(Action::Leave { epoch: leaving, .. }) = line.poll_action() else { panic!("it asks to leave") };
    line.handle_left(
        first,
        leaving,
        Left::Gone { was_there: true, first: Vec::new(), guard: None },
        0.5,
        NOW,
    );
    assert!(line.poll_action().is_none());
    line.handle_entered(second, epoch, Entered::Joined { token: Token(Revision(6)) }, 0.5, NOW);
    assert!(matches!(line.poll_action(), Some(Action::Look { before: Before::Unknown, .. })));
}

/// Stands alone, and leaves with this answer to the first request; says which place it had.
fn a_turn(line: &mut Line, answer: Left) -> Place {
    let ticket = line.stand(lease(1), Mode::Exclusive);
    let Some(Action::Enter { epoch, place, .. }) = line.poll_action() else { panic!("it asks to enter") };
    line.handle_entered(ticket, epoch, Entered::Stands { token: Token(Revision(5)), before: None }, 0.5, NOW);
    line.leave(ticket, NOW);
    let mut answer = Some(answer);
    while let Some(Action::Leave { epoch, .. }) = line.poll_action() {
        let gone = Left::Gone { was_there: true, first: Vec::new(), guard: None };
        line.handle_left(ticket, epoch, answer.take().unwrap_or(gone), 0.0, NOW);
        line.handle_time(NOW);
    }
    assert!(line.is_empty());
    place
}

/// Each key that was ever there costs etcd time, until its history is compacted.
#[test]
fn who_locks_again_and_again_has_the_same_key_as_long_as_every_answer_is_certain() {
    let gone = || Left::Gone { was_there: true, first: Vec::new(), guard: None };
    let mut line = Line::new(0);
    let first = a_turn(&mut line, gone());
    assert_eq!(a_turn(&mut line, gone()), first);
    assert_eq!(a_turn(&mut line, Left::NotDone), first, "nothing is under way");
    assert_eq!(a_turn(&mut line, Left::Unknown), first);
    let second = a_turn(&mut line, gone());
    assert_ne!(second, first, "the lost request would delete it");
    let mut next = Line::default();
    next.begin(line.nonce_floor(), line.counter(), line.guards());
    assert_eq!(a_turn(&mut next, gone()), second);
}

/// Found by the simulator: all places of a line were lost with their lease while one was being entered, the next line of that name counted
/// its tickets from the same number, and the late answer made somebody hold with the token of a place that was gone.
#[test]
fn a_late_answer_to_a_former_line_is_no_answer_to_the_next() {
    let mut former = Line::new(7);
    let lost = former.stand(lease(1), Mode::Exclusive);
    let Some(Action::Enter { epoch, .. }) = former.poll_action() else { panic!("it asks to enter") };
    former.handle_lease_lost(lease(1), NOW);
    assert!(former.is_empty());
    let mut next = Line::default();
    next.begin(former.nonce_floor(), former.counter(), former.guards());
    next.stand(lease(2), Mode::Exclusive);
    next.handle_entered(lost, epoch, Entered::Stands { token: Token(Revision(5)), before: None }, 0.5, NOW);
    assert!(next.poll_notice().is_none(), "nobody was told that it holds");
}

/// A stranger's place between two of ours: the second must not hold when the first leaves.
#[test]
fn a_place_behind_a_stranger_of_whom_it_does_not_know_waits_for_him() {
    let mut world = World::new(2);
    let first = world.stand(0, Mode::Exclusive);
    world.settle();
    let stranger = world.stand(1, Mode::Exclusive);
    world.settle();
    let second = world.stand(0, Mode::Exclusive);
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
    let mut world = World::new(100);
    let tickets: Vec<Ticket> = (0..100).map(|process| world.stand(process, Mode::Exclusive)).collect();
    world.settle();
    assert_eq!(world.places(), 100);
    for process in [0, 1, 2] {
        world.requests.clear();
        world.leave(process, tickets[process]);
        world.settle();
        assert_eq!(world.requests, ["leave", "look"], "one leaves, one looks");
        assert!(world.holds(process + 1, tickets[process + 1]));
    }
}

#[test]
fn a_waiter_whose_lease_is_revoked_is_told_at_once_and_never_holds() {
    let mut world = World::new(2);
    let first = world.stand(0, Mode::Exclusive);
    let second = world.stand(1, Mode::Exclusive);
    world.settle();
    world.revoke(1);
    world.settle();
    assert!(world.is_lost(1, second), "its holder has not moved");
    world.leave(0, first);
    world.settle();
    assert!(!world.holds(1, second));
    assert_eq!(world.places(), 0);
}

#[test]
fn a_waiter_whose_place_is_deleted_stands_in_line_again() {
    let mut world = World::new(2);
    let first = world.stand(0, Mode::Exclusive);
    let second = world.stand(1, Mode::Exclusive);
    world.settle();
    world.delete_place_of(1, second);
    world.settle();
    assert_eq!(world.places(), 2);
    world.leave(0, first);
    world.settle();
    assert!(world.holds(1, second));
}

#[test]
fn a_holder_whose_place_is_deleted_is_told() {
    let mut world = World::new(1);
    let ticket = world.stand(0, Mode::Exclusive);
    world.settle();
    world.delete_place_of(0, ticket);
    world.settle();
    assert!(world.is_lost(0, ticket));
}

#[test]
fn an_enter_whose_answer_is_lost_holds_one_place_and_leaves_none() {
    let mut world = World::new(1);
    world.fate = Fate::LosesAnswer;
    let ticket = world.stand(0, Mode::Exclusive);
    world.settle();
    world.fate = Fate::Works;
    world.pass(Duration::from_secs(3));
    assert!(world.holds(0, ticket));
    assert_eq!(world.places(), 1);
    world.leave(0, ticket);
    world.settle();
    assert_eq!(world.places(), 0);
    world.pass(Duration::from_secs(30));
    assert!(world.lines[0].is_empty(), "nobody looks after it for ever");
}

#[test]
fn a_place_that_was_given_up_while_it_was_asked_for_leaves_nothing() {
    for fate in [Fate::Works, Fate::NotDone, Fate::LosesAnswer, Fate::Late] {
        let mut world = World::new(1);
        world.fate = fate;
        let ticket = world.stand(0, Mode::Exclusive);
        world.leave(0, ticket);
        world.settle();
        world.fate = Fate::Works;
        world.arrive();
        world.pass(Duration::from_secs(30));
        assert_eq!(world.places(), 0, "{fate:?}");
        assert!(world.lines[0].is_empty() && !world.holds(0, ticket), "{fate:?}");
    }
}

/// Otherwise a release during a change of leader would look like a lock that was taken away.
#[test]
fn a_place_that_is_gone_after_a_leave_without_an_answer_counts_as_left() {
    for (first, was_there) in [(Left::Unknown, true), (Left::NotDone, false)] {
        let mut line = Line::new(7);
        let ticket = line.stand(lease(1), Mode::Exclusive);
        let Some(Action::Enter { epoch, .. }) = line.poll_action() else { panic!("it asks to enter") };
        let token = Token(Revision(5));
        line.handle_entered(ticket, epoch, Entered::Stands { token, before: None }, 0.5, NOW);
        line.leave(ticket, NOW);
        let Some(Action::Leave { epoch, .. }) = line.poll_action() else { panic!("it asks to leave") };
        line.handle_left(ticket, epoch, first, 0.5, NOW);
        line.handle_time(NOW + Duration::from_secs(60));
        let Some(Action::Leave { epoch, .. }) = line.poll_action() else { panic!("it asks again") };
        line.handle_left(
            ticket,
            epoch,
            Left::Gone { was_there: false, first: Vec::new(), guard: None },
            0.5,
            NOW,
        );
        let told = std::iter::from_fn(|| line.poll_notice()).last();
        assert!(matches!(told, Some(Notice::Left { was_there: told, .. }) if told == was_there), "{told:?}");
    }
}

#[test]
fn a_leave_is_asked_again_until_the_store_has_said_that_the_place_is_gone() {
    let mut world = World::new(2);
    let first = world.stand(0, Mode::Exclusive);
    let second = world.stand(1, Mode::Exclusive);
    world.settle();
    world.fate = Fate::NotDone;
    world.leave(0, first);
    world.pass(Duration::from_secs(5));
    assert!(!world.holds(1, second) && world.places() == 2);
    world.fate = Fate::Works;
    world.pass(Duration::from_secs(3));
    assert!(world.holds(1, second));
}

#[test]
fn what_the_store_refuses_is_told_and_forgotten() {
    let mut line = Line::new(0);
    let ticket = line.stand(lease(1), Mode::Exclusive);
    let Some(Action::Enter { epoch, .. }) = line.poll_action() else { panic!() };
    let why = StoreError::Denied("no".into());
    line.handle_entered(ticket, epoch, Entered::Refused(why), 0.0, NOW);
    assert!(matches!(line.poll_notice(), Some(Notice::Refused { .. })));
    assert!(line.is_empty());
}

#[test]
fn an_answer_to_an_older_question_changes_nothing() {
    let mut line = Line::new(0);
    let ticket = line.stand(lease(1), Mode::Exclusive);
    let stands = Entered::Stands { token: Token(Revision(5)), before: None };
    line.handle_entered(ticket, Epoch(999), stands, 0.0, NOW);
    assert!(line.poll_notice().is_none());
}

#[test]
fn readers_hold_together_and_a_writer_waits_for_all_of_them() {
    let mut world = World::new(4);
    let readers: Vec<Ticket> = (0..2).map(|process| world.stand(process, Mode::Shared)).collect();
    world.settle();
    let writer = world.stand(2, Mode::Exclusive);
    world.settle();
    let late = world.stand(3, Mode::Shared);
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
    let mode = Mode::Permit { of: NonZeroU32::new(3).unwrap() };
    let mut world = World::new(6);
    let tickets: Vec<Ticket> = (0..6)
        .map(|process| {
            let ticket = world.stand(process, mode);
            world.settle();
            ticket
        })
        .collect();
    let holding = |world: &World| (0..6).filter(|&n| world.holds(n, tickets[n])).collect::<Vec<_>>();
    assert_eq!(holding(&world), [0, 1, 2]);
    world.leave(1, tickets[1]);
    world.settle();
    assert_eq!(holding(&world), [0, 2, 3]);
    world.leave(4, tickets[4]);
    world.leave(0, tickets[0]);
    world.settle();
    assert_eq!(holding(&world), [2, 3, 5]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Lost, late and failed requests, answers out of order, places deleted and leases revoked by strangers.
    #[test]
    fn in_random_worlds_one_holds_and_everybody_comes_to_an_end(
        processes in 1..4_usize,
        script in prop::collection::vec(any::<u16>(), 1..250),
    ) {
        let mut world = World::new(processes);
        for throw in script {
            world.happen(throw);
            world.check_holders();
        }
        world.come_to_an_end();
    }
}
