//! Requests that share a batch.

use super::*;

fn enter(queue: &mut WaitQueue) -> QueueOutput {
    queue.enter(lease(1), LockMode::Exclusive);
    queue.poll_output().unwrap()
}

/// A queue with one waiter that holds.
fn held_queue() -> (WaitQueue, WaiterId) {
    let mut queue = WaitQueue::new(0);
    let first = queue.enter(lease(1), LockMode::Exclusive);
    let Some(QueueOutput::Enter { epoch, .. }) = queue.poll_output() else { panic!("an enter") };
    let stored = EnterReply::Stored { token: Token(Revision(5)), predecessor: None };
    queue.handle_entered(first, epoch, stored, 0.0, NOW);
    (queue, first)
}

/// Returns which of these requests of one queue the first batch takes.
fn taken(outputs: &[QueueOutput]) -> Vec<bool> {
    let mut batch = BatchRequests::default();
    outputs.iter().map(|output| batch.takes(0, *output)).collect()
}

#[test]
fn batch_takes_one_enter_of_each_queue() {
    let mut queue = WaitQueue::new(0);
    let mut batch = BatchRequests::default();
    let taken = [0, 1, 0, 0, 1].map(|n| batch.takes(n, enter(&mut queue)));
    assert_eq!(taken, [true, true, false, false, false]);
    batch.clear();
    assert!(batch.takes(0, enter(&mut queue)));
}

/// Otherwise a lock with many callers in one process would cost two requests for each hand-off.
#[test]
fn release_shares_batch_with_later_enter() {
    let (mut queue, first) = held_queue();
    let (join, another) = (enter(&mut queue), enter(&mut queue));
    queue.leave(first, NOW);
    let leave = queue.poll_output().unwrap();
    assert_eq!(taken(&[join, another, leave]), [true, false, true], "two enters never share one");
}

#[test]
fn enter_that_reads_its_predecessor_is_alone() {
    let mut queue = WaitQueue::new(0);
    let first = queue.enter(lease(1), LockMode::Exclusive);
    let Some(QueueOutput::Enter { epoch, .. }) = queue.poll_output() else { panic!("an enter") };
    let enter = enter(&mut queue);
    let stored = EnterReply::Stored { token: Token(Revision(5)), predecessor: None };
    queue.handle_entered(first, epoch, stored, 0.0, NOW);
    queue.leave(first, NOW);
    let leave = queue.poll_output().unwrap();
    assert_eq!(taken(&[enter, leave]), [true, false]);
    assert_eq!(taken(&[leave, enter]), [true, false]);
}

#[test]
fn enter_behind_a_local_holder_is_not_urgent() {
    assert!(enter(&mut WaitQueue::new(0)).is_urgent(), "no other waiter of this process is before it");
    let (mut queue, _) = held_queue();
    assert!(!enter(&mut queue).is_urgent());
}

/// etcd refuses two changes of one key in a transaction.
#[test]
fn batch_changes_an_enter_guard_once() {
    let (mut queue, first) = held_queue();
    queue.leave(first, NOW);
    let Some(QueueOutput::Leave { id, epoch, queue_key, after, held, .. }) = queue.poll_output() else {
        panic!("a leave")
    };
    let settles = Some(EnterGuard::default());
    let settling = QueueOutput::Leave { id, epoch, queue_key, after, settles, held };
    let mut batch = BatchRequests::default();
    assert_eq!([batch.takes(0, settling), batch.takes(1, settling)], [true, false]);
}
