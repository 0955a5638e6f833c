//! Replies and events that arrive late, and what they must not change. The tests play the store.

use super::*;

fn token(revision: i64) -> Token {
    Token(Revision(revision))
}

fn queue_key_of(id: i64) -> QueueKey {
    QueueKey { lease: lease(id), nonce: 1 }
}

/// The next request, which has to be an enter.
fn enter(queue: &mut WaitQueue) -> (RequestId, QueueKey) {
    match queue.poll_output() {
        Some(QueueOutput::Enter { epoch, queue_key, .. }) => (epoch, queue_key),
        other => panic!("{other:?} instead of an enter"),
    }
}

/// The next request, which has to be a read of the queue.
fn look(queue: &mut WaitQueue) -> RequestId {
    match queue.poll_output() {
        Some(QueueOutput::ReadPredecessor { epoch, .. }) => epoch,
        other => panic!("{other:?} instead of a look"),
    }
}

/// The next request, which has to be a release.
fn leave(queue: &mut WaitQueue) -> RequestId {
    match queue.poll_output() {
        Some(QueueOutput::Leave { epoch, .. }) => epoch,
        other => panic!("{other:?} instead of a leave"),
    }
}

/// Enters under this lease. The reply contains this token and this predecessor.
fn enter_behind(
    queue: &mut WaitQueue,
    id: i64,
    own: i64,
    predecessor: Option<QueueKey>,
) -> (WaiterId, QueueKey) {
    let id = queue.enter(lease(id), LockMode::Exclusive);
    let (epoch, queue_key) = enter(queue);
    queue.handle_entered(id, epoch, EnterReply::Stored { token: token(own), predecessor }, 0.5, NOW);
    (id, queue_key)
}

fn gone(first: Vec<(QueueKey, Token)>) -> LeaveReply {
    LeaveReply::Gone { was_there: true, first, guard: None }
}

/// The waiters that were notified that they hold, with their tokens.
fn held(queue: &mut WaitQueue) -> Vec<(WaiterId, Token)> {
    let notices = std::iter::from_fn(|| queue.poll_event());
    notices
        .filter_map(|notice| match notice {
            QueueEvent::Held { id, token } => Some((id, token)),
            _ => None,
        })
        .collect()
}

fn lost(queue: &mut WaitQueue) -> Vec<LossReason> {
    let notices = std::iter::from_fn(|| queue.poll_event());
    notices
        .filter_map(|notice| match notice {
            QueueEvent::Lost { why, .. } => Some(why),
            _ => None,
        })
        .collect()
}

/// The first key of a waiter was read, then deleted; its second key waits behind another holder.
/// The reply is about the first.
#[test]
fn reply_of_earlier_look_is_ignored() {
    let mut queue = WaitQueue::new(7);
    let (id, queue_key) = enter_behind(&mut queue, 1, 9, Some(queue_key_of(2)));
    queue.handle_watched(queue_key_of(2), NOW);
    let first = look(&mut queue);
    queue.handle_gone(queue_key, Revision(11), NOW);
    let (epoch, _) = enter(&mut queue);
    let again = EnterReply::Stored { token: token(12), predecessor: Some(queue_key_of(3)) };
    queue.handle_entered(id, epoch, again, 0.5, NOW);
    queue.handle_watched(queue_key_of(3), NOW);
    let second = look(&mut queue);
    queue.handle_predecessor(id, first, PredecessorReply::Stored { predecessor: None }, 0.5, NOW);
    assert_eq!(held(&mut queue), [], "its predecessor is in the store");
    queue.handle_predecessor(id, second, PredecessorReply::Stored { predecessor: None }, 0.5, NOW);
    assert_eq!(held(&mut queue), [(id, token(12))]);
}

/// Keys are reused, and a watch may show the end of an earlier turn.
#[test]
fn delete_event_older_than_the_key_is_ignored() {
    let mut queue = WaitQueue::new(7);
    let (_, queue_key) = enter_behind(&mut queue, 1, 9, None);
    queue.handle_gone(queue_key, Revision(8), NOW);
    assert_eq!(lost(&mut queue), []);
    queue.handle_gone(queue_key, Revision(10), NOW);
    assert_eq!(lost(&mut queue), [LossReason::Deleted]);
}

/// The second enter can require a newer guard than the first, so releasing the key would settle
/// only the first of them.
#[test]
fn ambiguous_enter_holds_only_by_its_own_reply() {
    let mut queue = WaitQueue::new(7);
    let (first, _) = enter_behind(&mut queue, 1, 5, None);
    let second = queue.enter(lease(1), LockMode::Exclusive);
    let (epoch, queue_key) = enter(&mut queue);
    queue.handle_entered(second, epoch, EnterReply::Unknown, 0.0, NOW);
    queue.handle_time(NOW + Duration::from_secs(5));
    let (epoch, again) = enter(&mut queue);
    assert_eq!(again, queue_key);
    queue.leave(first, NOW);
    let leaving = leave(&mut queue);
    held(&mut queue);
    queue.handle_left(first, leaving, gone(vec![(queue_key, token(6))]), 0.5, NOW);
    assert_eq!(held(&mut queue), [], "a request of it is in flight");
    let reply = EnterReply::Stored { token: token(6), predecessor: None };
    queue.handle_entered(second, epoch, reply, 0.5, NOW);
    assert_eq!(held(&mut queue), [(second, token(6))]);
}

/// The control of the test above: without a lost reply the hand-over needs no further reply.
#[test]
fn entering_waiter_holds_by_the_release_before_it() {
    let mut queue = WaitQueue::new(7);
    let (first, _) = enter_behind(&mut queue, 1, 5, None);
    let second = queue.enter(lease(1), LockMode::Exclusive);
    let (_, queue_key) = enter(&mut queue);
    queue.leave(first, NOW);
    let leaving = leave(&mut queue);
    held(&mut queue);
    queue.handle_left(first, leaving, gone(vec![(queue_key, token(6))]), 0.5, NOW);
    assert_eq!(held(&mut queue), [(second, token(6))]);
}

/// It holds by the release of its predecessor, and its own enter has no reply yet. Another client
/// deletes its key.
#[test]
fn key_with_request_in_flight_is_kept() {
    let mut queue = WaitQueue::new(7);
    let (first, _) = enter_behind(&mut queue, 1, 5, None);
    let second = queue.enter(lease(1), LockMode::Exclusive);
    let (_, queue_key) = enter(&mut queue);
    queue.leave(first, NOW);
    let leaving = leave(&mut queue);
    queue.handle_left(first, leaving, gone(vec![(queue_key, token(6))]), 0.5, NOW);
    assert_eq!(held(&mut queue).last(), Some(&(second, token(6))));
    queue.handle_gone(queue_key, Revision(7), NOW);
    assert_eq!(lost(&mut queue), [LossReason::Deleted]);
    assert!(queue.is_empty());
    // Keys are reused in their order, from the oldest that is certainly gone.
    for _ in 0..3 {
        queue.enter(lease(1), LockMode::Exclusive);
        assert_ne!(enter(&mut queue).1, queue_key);
    }
}

/// A process can wait under two leases of its session. The watch of the lost key would notify it
/// later, if at all.
#[test]
fn lost_lease_wakes_the_local_waiter_behind_it() {
    let mut queue = WaitQueue::new(7);
    let (_, queue_key) = enter_behind(&mut queue, 1, 5, None);
    let (waiter, _) = enter_behind(&mut queue, 2, 6, Some(queue_key));
    assert_eq!(queue.poll_output(), None);
    held(&mut queue);
    queue.handle_lease_lost(lease(1), NOW);
    let epoch = look(&mut queue);
    queue.handle_predecessor(waiter, epoch, PredecessorReply::Stored { predecessor: None }, 0.5, NOW);
    assert_eq!(held(&mut queue), [(waiter, token(6))]);
}

/// The predecessor's key was put anew behind the waiter. That it holds there leaves room for others
/// before the waiter.
#[test]
fn holder_behind_the_waiter_is_no_predecessor() {
    for (since, expected) in
        [(3, Predecessor::Holder(queue_key_of(2))), (12, Predecessor::Nearest(queue_key_of(2)))]
    {
        let mut queue = WaitQueue::new(7);
        enter_behind(&mut queue, 1, 9, Some(queue_key_of(2)));
        queue.handle_holder(queue_key_of(2), token(since), Revision(13));
        queue.handle_gone(queue_key_of(2), Revision(14), NOW);
        match queue.poll_output() {
            Some(QueueOutput::ReadPredecessor { predecessor, .. }) => assert_eq!(predecessor, expected),
            other => panic!("{other:?} instead of a look"),
        }
    }
}

/// The read may have been done before the predecessor left. Without a second one the waiter would
/// wait for ever.
#[test]
fn event_during_a_look_causes_another() {
    let mut queue = WaitQueue::new(7);
    let (id, _) = enter_behind(&mut queue, 1, 9, Some(queue_key_of(2)));
    queue.handle_watched(queue_key_of(2), NOW);
    let first = look(&mut queue);
    queue.handle_gone(queue_key_of(2), Revision(11), NOW);
    assert_eq!(queue.poll_output(), None, "one read at a time");
    queue.handle_predecessor(
        id,
        first,
        PredecessorReply::Stored { predecessor: Some(queue_key_of(2)) },
        0.5,
        NOW,
    );
    let second = look(&mut queue);
    queue.handle_predecessor(id, second, PredecessorReply::Stored { predecessor: None }, 0.5, NOW);
    assert_eq!(held(&mut queue), [(id, token(9))]);
}

/// The reply to the first enter was lost, and the second is refused. The first can still be
/// applied.
#[test]
fn refused_enter_settles_the_one_before_it() {
    let mut queue = WaitQueue::new(7);
    let id = queue.enter(lease(1), LockMode::Exclusive);
    let (epoch, queue_key) = enter(&mut queue);
    queue.handle_entered(id, epoch, EnterReply::Unknown, 0.0, NOW);
    queue.handle_time(NOW + Duration::from_secs(5));
    let (epoch, _) = enter(&mut queue);
    let why = StoreError::Corrupt("no".to_owned());
    queue.handle_entered(id, epoch, EnterReply::Refused(why), 0.0, NOW);
    match queue.poll_output() {
        Some(QueueOutput::Leave { queue_key: left, settles: Some(_), .. }) => assert_eq!(left, queue_key),
        other => panic!("{other:?} instead of a leave that settles"),
    }
}

/// A waiter that leaves ends no hold; a holder names its hold in every request to leave, also after
/// a lost reply.
#[test]
fn leave_names_the_hold_that_ends() {
    let held_in = |action| match action {
        Some(QueueOutput::Leave { epoch, held, .. }) => (epoch, held),
        other => panic!("{other:?} instead of a leave"),
    };
    let mut queue = WaitQueue::new(7);
    let (waiter, _) = enter_behind(&mut queue, 1, 9, Some(QueueKey { lease: lease(2), nonce: 1 }));
    queue.leave(waiter, NOW);
    assert_eq!(held_in(queue.poll_output()).1, None);
    let mut queue = WaitQueue::new(7);
    let (holder, _) = enter_behind(&mut queue, 1, 9, None);
    queue.leave(holder, NOW);
    let (epoch, held) = held_in(queue.poll_output());
    assert_eq!(held, Some(token(9)));
    queue.handle_left(holder, epoch, LeaveReply::Unknown, 0.0, NOW);
    queue.handle_time(NOW + Duration::from_secs(5));
    assert_eq!(held_in(queue.poll_output()).1, Some(token(9)));
}
