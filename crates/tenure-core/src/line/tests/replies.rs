//! Replies and events that arrive late, and what they must not change. The tests reply to each request themselves.

use super::*;

fn token(revision: i64) -> Token {
    Token(Revision(revision))
}

fn place_of(id: i64) -> Place {
    Place { lease: lease(id), nonce: 1 }
}

/// The next request, which has to be an enter.
fn enter(line: &mut Line) -> (Epoch, Place) {
    match line.poll_action() {
        Some(Action::Enter { epoch, place, .. }) => (epoch, place),
        other => panic!("{other:?} instead of an enter"),
    }
}

/// The next request, which has to be a read of the queue.
fn look(line: &mut Line) -> Epoch {
    match line.poll_action() {
        Some(Action::Look { epoch, .. }) => epoch,
        other => panic!("{other:?} instead of a look"),
    }
}

/// The next request, which has to be a release.
fn leave(line: &mut Line) -> Epoch {
    match line.poll_action() {
        Some(Action::Leave { epoch, .. }) => epoch,
        other => panic!("{other:?} instead of a leave"),
    }
}

/// Enters under this lease; the reply shows this token and this predecessor.
fn stands(line: &mut Line, id: i64, own: i64, before: Option<Place>) -> (Ticket, Place) {
    let ticket = line.stand(lease(id), Mode::Exclusive);
    let (epoch, place) = enter(line);
    line.handle_entered(ticket, epoch, Entered::Stands { token: token(own), before }, 0.5, NOW);
    (ticket, place)
}

fn gone(first: Vec<(Place, Token)>) -> Left {
    Left::Gone { was_there: true, first, guard: None }
}

/// The tickets that were notified that they hold, with their tokens.
fn held(line: &mut Line) -> Vec<(Ticket, Token)> {
    let notices = std::iter::from_fn(|| line.poll_notice());
    notices
        .filter_map(|notice| match notice {
            Notice::Held { ticket, token } => Some((ticket, token)),
            _ => None,
        })
        .collect()
}

fn lost(line: &mut Line) -> Vec<LossReason> {
    let notices = std::iter::from_fn(|| line.poll_notice());
    notices
        .filter_map(|notice| match notice {
            Notice::Lost { why, .. } => Some(why),
            _ => None,
        })
        .collect()
}

/// The first key of a waiter was read, then deleted; its second key waits behind another holder. The reply is about the first.
#[test]
fn reply_of_earlier_look_is_ignored() {
    let mut line = Line::new(7);
    let (ticket, place) = stands(&mut line, 1, 9, Some(place_of(2)));
    line.handle_watched(place_of(2), NOW);
    let first = look(&mut line);
    line.handle_gone(place, Revision(11), NOW);
    let (epoch, _) = enter(&mut line);
    let again = Entered::Stands { token: token(12), before: Some(place_of(3)) };
    line.handle_entered(ticket, epoch, again, 0.5, NOW);
    line.handle_watched(place_of(3), NOW);
    let second = look(&mut line);
    line.handle_looked(ticket, first, Looked::Stands { before: None }, 0.5, NOW);
    assert_eq!(held(&mut line), [], "its predecessor is in the store");
    line.handle_looked(ticket, second, Looked::Stands { before: None }, 0.5, NOW);
    assert_eq!(held(&mut line), [(ticket, token(12))]);
}

/// Keys are reused, and a watch may show the end of an earlier turn.
#[test]
fn delete_event_older_than_the_key_is_ignored() {
    let mut line = Line::new(7);
    let (_, place) = stands(&mut line, 1, 9, None);
    line.handle_gone(place, Revision(8), NOW);
    assert_eq!(lost(&mut line), []);
    line.handle_gone(place, Revision(10), NOW);
    assert_eq!(lost(&mut line), [LossReason::Deleted]);
}

/// The second enter can require a newer guard than the first, so releasing the place would settle only the first of them.
#[test]
fn ambiguous_enter_holds_only_by_its_own_reply() {
    let mut line = Line::new(7);
    let (first, _) = stands(&mut line, 1, 5, None);
    let second = line.stand(lease(1), Mode::Exclusive);
    let (epoch, place) = enter(&mut line);
    line.handle_entered(second, epoch, Entered::Unknown, 0.0, NOW);
    line.handle_time(NOW + Duration::from_secs(5));
    let (epoch, again) = enter(&mut line);
    assert_eq!(again, place);
    line.leave(first, NOW);
    let leaving = leave(&mut line);
    held(&mut line);
    line.handle_left(first, leaving, gone(vec![(place, token(6))]), 0.5, NOW);
    assert_eq!(held(&mut line), [], "a request of it is in flight");
    let reply = Entered::Stands { token: token(6), before: None };
    line.handle_entered(second, epoch, reply, 0.5, NOW);
    assert_eq!(held(&mut line), [(second, token(6))]);
}

/// The control of the test above: without a lost reply the hand-over needs no further reply.
#[test]
fn entering_waiter_holds_by_the_release_before_it() {
    let mut line = Line::new(7);
    let (first, _) = stands(&mut line, 1, 5, None);
    let second = line.stand(lease(1), Mode::Exclusive);
    let (_, place) = enter(&mut line);
    line.leave(first, NOW);
    let leaving = leave(&mut line);
    held(&mut line);
    line.handle_left(first, leaving, gone(vec![(place, token(6))]), 0.5, NOW);
    assert_eq!(held(&mut line), [(second, token(6))]);
}

/// It holds by the release of its predecessor, and its own enter has no reply yet. Another client deletes its key.
#[test]
fn key_with_a_request_in_flight_is_not_reused() {
    let mut line = Line::new(7);
    let (first, _) = stands(&mut line, 1, 5, None);
    let second = line.stand(lease(1), Mode::Exclusive);
    let (_, place) = enter(&mut line);
    line.leave(first, NOW);
    let leaving = leave(&mut line);
    line.handle_left(first, leaving, gone(vec![(place, token(6))]), 0.5, NOW);
    assert_eq!(held(&mut line).last(), Some(&(second, token(6))));
    line.handle_gone(place, Revision(7), NOW);
    assert_eq!(lost(&mut line), [LossReason::Deleted]);
    assert!(line.is_empty());
    // Keys are reused in their order, from the oldest that is certainly gone.
    for _ in 0..3 {
        line.stand(lease(1), Mode::Exclusive);
        assert_ne!(enter(&mut line).1, place);
    }
}

/// A process can wait under two leases of its session. The watch of the lost key would notify it later, if at all.
#[test]
fn lost_lease_wakes_the_local_waiter_behind_it() {
    let mut line = Line::new(7);
    let (_, place) = stands(&mut line, 1, 5, None);
    let (waiter, _) = stands(&mut line, 2, 6, Some(place));
    assert_eq!(line.poll_action(), None);
    held(&mut line);
    line.handle_lease_lost(lease(1), NOW);
    let epoch = look(&mut line);
    line.handle_looked(waiter, epoch, Looked::Stands { before: None }, 0.5, NOW);
    assert_eq!(held(&mut line), [(waiter, token(6))]);
}

/// The predecessor's key was put anew behind the waiter. That it holds there leaves room for others before the waiter.
#[test]
fn holder_behind_the_waiter_is_no_predecessor() {
    for (since, expected) in [(3, Before::Holder(place_of(2))), (12, Before::Nearest(place_of(2)))] {
        let mut line = Line::new(7);
        stands(&mut line, 1, 9, Some(place_of(2)));
        line.handle_holder(place_of(2), token(since), Revision(13));
        line.handle_gone(place_of(2), Revision(14), NOW);
        match line.poll_action() {
            Some(Action::Look { before, .. }) => assert_eq!(before, expected),
            other => panic!("{other:?} instead of a look"),
        }
    }
}

/// The read may have been done before the predecessor left. Without a second one the waiter would wait for ever.
#[test]
fn event_during_a_look_causes_another() {
    let mut line = Line::new(7);
    let (ticket, _) = stands(&mut line, 1, 9, Some(place_of(2)));
    line.handle_watched(place_of(2), NOW);
    let first = look(&mut line);
    line.handle_gone(place_of(2), Revision(11), NOW);
    assert_eq!(line.poll_action(), None, "one read at a time");
    line.handle_looked(ticket, first, Looked::Stands { before: Some(place_of(2)) }, 0.5, NOW);
    let second = look(&mut line);
    line.handle_looked(ticket, second, Looked::Stands { before: None }, 0.5, NOW);
    assert_eq!(held(&mut line), [(ticket, token(9))]);
}

/// The reply to the first enter was lost, and the second is refused. The first can still be applied.
#[test]
fn refused_enter_settles_the_one_before_it() {
    let mut line = Line::new(7);
    let ticket = line.stand(lease(1), Mode::Exclusive);
    let (epoch, place) = enter(&mut line);
    line.handle_entered(ticket, epoch, Entered::Unknown, 0.0, NOW);
    line.handle_time(NOW + Duration::from_secs(5));
    let (epoch, _) = enter(&mut line);
    let why = StoreError::Corrupt("no".to_owned());
    line.handle_entered(ticket, epoch, Entered::Refused(why), 0.0, NOW);
    match line.poll_action() {
        Some(Action::Leave { place: left, settles: Some(_), .. }) => assert_eq!(left, place),
        other => panic!("{other:?} instead of a leave that settles"),
    }
}
