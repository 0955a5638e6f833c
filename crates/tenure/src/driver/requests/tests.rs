//! Batches, flow control, and requests that callers send for a driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use tokio::sync::oneshot;

use super::*;

const NOW: Moment = Moment::from_ms(100);

fn batch(&(ms, len): &(u64, usize)) -> RequestBatch {
    RequestBatch { since: NOW - Duration::from_millis(ms), len }
}

fn sent(waiting: usize, in_flight: &[(u64, usize)]) -> usize {
    allowance(waiting, in_flight.iter().map(batch), NOW)
}

#[test]
fn idle_driver_sends_at_once() {
    assert_eq!((sent(0, &[]), sent(1, &[])), (0, 1));
    assert_eq!(sent(14, &[]), 14, "nothing is gained by halves of seven");
}

#[test]
fn many_requests_are_sent_in_halves() {
    assert_eq!(sent(64, &[]), 32);
    assert_eq!(sent(32, &[(0, 32)]), 32);
    assert_eq!(sent(0, &[(0, 32), (0, 32)]), 0);
}

#[test]
fn few_late_requests_travel_with_the_next() {
    assert_eq!(sent(3, &[(1, 32)]), 0);
    assert_eq!(sent(26, &[(1, 32)]), 26, "enough for a flow of their own");
    assert_eq!(sent(40, &[(1, 32), (1, 30)]), 0, "two are in flight");
}

#[test]
fn small_batches_delay_no_request() {
    assert_eq!(sent(1, &[(0, 1), (0, 2)]), 1);
    assert_eq!(sent(1, &[(0, 7)]), 1);
}

#[test]
fn late_batches_stop_delaying_requests() {
    assert_eq!(sent(3, &[(5, 32)]), 3);
    assert_eq!(sent(3, &[(6, 32), (7, 30)]), 3);
    assert_eq!(sent(3, &[(9, 1), (8, 1), (7, 1), (6, 1)]), 0);
}

#[test]
fn batch_without_waiting_callers_delays_no_request() {
    assert_eq!(sent(64, &[(0, 0), (0, 0), (0, 0), (0, 0)]), 32);
}

#[test]
fn patience_ends_with_the_oldest_young_batch() {
    let batches = [(6, 9), (4, 9), (1, 9)];
    let of = |batches: &[(u64, usize)]| patience_ends(batches.iter().map(batch), NOW);
    assert_eq!(of(&batches), Some(NOW + Duration::from_millis(1)));
    assert_eq!(of(&batches[..1]), None);
}

/// Requests are numbers; odd ones are urgent, and a batch takes each number once.
#[derive(Default)]
struct DistinctNumbers(Vec<u32>);

impl BatchRules for DistinctNumbers {
    type Request = u32;

    fn clear(&mut self) {
        self.0.clear();
    }

    fn takes(&mut self, request: &u32) -> bool {
        let is_new = !self.0.contains(request);
        self.0.push(*request);
        is_new
    }

    fn is_urgent(request: &u32) -> bool {
        request % 2 == 1
    }
}

fn queue(requests: impl IntoIterator<Item = u32>) -> RequestQueue<DistinctNumbers> {
    let mut queue = RequestQueue::default();
    requests.into_iter().for_each(|request| queue.push(request));
    queue
}

#[test]
fn request_that_does_not_fit_keeps_its_order() {
    let mut queue = queue([1, 2, 1, 1, 2]);
    let batches: Vec<Vec<u32>> =
        std::iter::from_fn(|| Some(queue.take(usize::MAX)).filter(|batch| !batch.is_empty())).collect();
    assert_eq!(batches, [vec![1, 2], vec![1, 2], vec![1]]);
    assert_eq!(queue.urgent, 0);
}

#[test]
fn batch_is_bounded() {
    let mut queue = queue(0..250);
    let lens: Vec<usize> =
        std::iter::from_fn(|| Some(queue.take(usize::MAX).len()).filter(|&len| len > 0)).collect();
    assert_eq!(lens, [100, 100, 50]);
}

#[test]
fn request_without_a_waiting_caller_travels_with_others() {
    let mut queue = queue([2]);
    assert_eq!(queue.allowance(NOW), 1, "nothing is in flight");
    let other = queue.begin(1, NOW);
    assert_eq!(queue.allowance(NOW), 0);
    queue.push(1);
    assert_eq!(queue.next_batch(NOW), [2, 1]);
    queue.end(other);
    assert!(queue.is_idle());
}

/// Counts how often the driver would be woken.
#[derive(Default)]
struct WakeCounter(AtomicUsize);

impl Wake for WakeCounter {
    fn wake(self: Arc<WakeCounter>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

async fn request(reply: oneshot::Receiver<()>) {
    reply.await.unwrap();
}

#[test]
fn reply_to_a_direct_send_wakes_the_driver() {
    let driver = Arc::new(WakeCounter::default());
    let waker = Waker::from(driver.clone());
    let inbox = Inbox::default();
    assert!(inbox.lock().poll(&mut Context::from_waker(&waker)).is_pending());
    let (reply, replied) = oneshot::channel();
    assert!(inbox.direct().unwrap().send(request(replied)).is_none(), "nothing is answered yet");
    assert_eq!(driver.0.load(Ordering::Relaxed), 0, "the driver was not woken to send it");
    reply.send(()).unwrap();
    assert_eq!(driver.0.load(Ordering::Relaxed), 1);
    assert!(inbox.lock().poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn direct_send_needs_a_driver_that_waits() {
    let inbox: Inbox<()> = Inbox::default();
    assert!(inbox.direct().is_none());
    let (_reply, replied) = oneshot::channel();
    inbox.send(request(replied));
    assert_eq!(inbox.lock().pending.len(), 1, "it is sent when the driver waits");
}

/// A request of a session owns what its inbox is in: kept in the inbox, it would keep both for ever.
#[test]
fn ended_driver_drops_its_requests() {
    let inbox: Inbox<()> = Inbox::default();
    let waker = Waker::from(Arc::new(WakeCounter::default()));
    let owned = Arc::new(());
    let kept = owned.clone();
    let end = inbox.end_on_drop();
    inbox.send(async move {
        std::future::pending::<()>().await;
        drop(kept);
    });
    assert!(inbox.lock().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(inbox.direct().is_some());
    drop(end);
    assert_eq!(Arc::strong_count(&owned), 1);
    assert!(inbox.direct().is_none(), "no driver polls what would be sent");
}
