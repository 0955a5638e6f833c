//! Modes with several holders: only a snapshot of the whole queue decides.

use super::*;

/// The watch can show a key before the reply to its enter arrives. The snapshot decides then too.
#[test]
fn snapshot_before_enter_reply_decides() {
    let mode = LockMode::Permit { of: NonZeroU32::new(2).unwrap() };
    let token = |revision| Token(Revision(revision));
    let predecessor = QueueKey { lease: lease(2), nonce: 1 };
    for (earlier, holds) in [(vec![3], true), (vec![3, 4], false)] {
        let mut queue = WaitQueue::new(7);
        let id = queue.enter(lease(1), mode);
        let Some(QueueOutput::Enter { epoch, .. }) = queue.poll_output() else { panic!("no enter") };
        let snapshot = earlier.into_iter().chain([9]).map(|revision| (token(revision), mode)).collect();
        queue.handle_snapshot(snapshot, NOW);
        assert!(queue.poll_event().is_none(), "the reply is missing");
        queue.handle_entered(
            id,
            epoch,
            EnterReply::Stored { token: token(9), predecessor: Some(predecessor) },
            0.5,
            NOW,
        );
        match queue.poll_event() {
            Some(QueueEvent::Held { .. }) => assert!(holds),
            Some(QueueEvent::Waits { .. }) => assert!(!holds),
            other => panic!("{other:?}"),
        }
    }
}

/// A predecessor alone decides nothing for a permit: a try would fail although permits are free.
#[test]
fn permit_waits_only_after_a_snapshot() {
    let mode = LockMode::Permit { of: NonZeroU32::new(2).unwrap() };
    let mut queue = WaitQueue::new(7);
    let id = queue.enter(lease(1), mode);
    let Some(QueueOutput::Enter { epoch, .. }) = queue.poll_output() else { panic!("no enter") };
    let predecessor = Some(QueueKey { lease: lease(2), nonce: 1 });
    queue.handle_entered(id, epoch, EnterReply::Stored { token: Token(Revision(9)), predecessor }, 0.5, NOW);
    assert!(queue.poll_event().is_none() && queue.needs_snapshot());
    let snapshot = |revisions: &[i64]| revisions.iter().map(|&at| (Token(Revision(at)), mode)).collect();
    queue.handle_snapshot(snapshot(&[3, 4]), NOW);
    assert!(queue.poll_event().is_none(), "the snapshot is older than the key");
    queue.handle_snapshot(snapshot(&[3, 4, 9]), NOW);
    assert!(matches!(queue.poll_event(), Some(QueueEvent::Waits { .. })));
    queue.handle_snapshot(snapshot(&[4, 9]), NOW);
    assert!(matches!(queue.poll_event(), Some(QueueEvent::Held { .. })));
}

/// Another process shares the lock. The exclusive waiter behind the local shared holder holds only
/// when that process has released too. So the release must read the queue: the waiter's key alone
/// does not show the other holder.
#[test]
fn release_of_a_shared_holder_reads_the_queue() {
    let token = |revision| Token(Revision(revision));
    let other = QueueKey { lease: lease(2), nonce: 1 };
    for (other_mode, mode, reads) in
        [(Some(LockMode::Shared), LockMode::Shared, true), (None, LockMode::Exclusive, false)]
    {
        let mut queue = WaitQueue::new(7);
        let holder = queue.enter(lease(1), mode);
        let Some(QueueOutput::Enter { epoch, queue_key, .. }) = queue.poll_output() else {
            panic!("no enter")
        };
        let predecessor = other_mode.map(|_| other);
        queue.handle_entered(holder, epoch, EnterReply::Stored { token: token(9), predecessor }, 0.5, NOW);
        if let Some(other_mode) = other_mode {
            queue.handle_snapshot([(token(3), other_mode), (token(9), mode)].into(), NOW);
        }
        let waiter = queue.enter(lease(1), LockMode::Exclusive);
        let Some(QueueOutput::Enter { epoch, queue_key: behind, .. }) = queue.poll_output() else {
            panic!("no enter")
        };
        let reply = EnterReply::Stored { token: token(12), predecessor: Some(queue_key) };
        queue.handle_entered(waiter, epoch, reply, 0.5, NOW);
        while queue.poll_event().is_some() {}
        queue.leave(holder, NOW);
        let Some(QueueOutput::Leave { epoch, after, .. }) = queue.poll_output() else { panic!("no leave") };
        assert_eq!(after, if reads { AfterLeave::Queue } else { AfterLeave::Successor(behind, token(12)) });
        // The reply to the release decides: with another holder first, the waiter keeps waiting.
        let first =
            if reads { vec![(other, token(3)), (behind, token(12))] } else { vec![(behind, token(12))] };
        queue.handle_left(holder, epoch, LeaveReply::Gone { was_there: true, first, guard: None }, 0.5, NOW);
        let is_held = std::iter::from_fn(|| queue.poll_event())
            .any(|notice| matches!(notice, QueueEvent::Held { id, .. } if id == waiter));
        assert_eq!(is_held, !reads);
    }
}
