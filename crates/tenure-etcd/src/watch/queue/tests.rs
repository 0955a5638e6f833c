//! The queue at its bounds.

use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use super::super::router::{QueueFull, WatchSink};
use super::super::{WatchError, WatchEvent, WatchItem};
use super::{ITEMS_MAX, QueueReceiver, Taken, WEIGHT_MAX, queue};
use crate::Error;

fn batch(revision: i64, bytes: usize) -> WatchItem {
    let key = Bytes::from(vec![b'k'; bytes]);
    WatchItem::Batch { revision, events: vec![WatchEvent::Delete { key, revision, prev: None }] }
}

fn take(receiver: &mut QueueReceiver) -> Option<Taken> {
    match receiver.poll_take(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(taken) => Some(taken),
        Poll::Pending => None,
    }
}

#[test]
fn overflowed_queue_reports_when_empty() {
    let (mut sender, mut receiver) = queue();
    let mut revision = 0;
    while sender.offer(batch(revision + 1, 1)).is_ok() {
        revision += 1;
    }
    assert_eq!(usize::try_from(revision).unwrap(), ITEMS_MAX);
    for wanted in 1..revision {
        assert!(matches!(take(&mut receiver), Some(Taken::Item(item)) if item.revision() == wanted));
    }
    assert!(matches!(take(&mut receiver), Some(Taken::LastBeforeRest(item)) if item.revision() == revision));
    assert!(take(&mut receiver).is_none());
    sender.offer(batch(revision + 1, 1)).unwrap();
    assert!(matches!(take(&mut receiver), Some(Taken::Item(_))), "the overflow is reported once");
}

#[test]
fn oversized_batch_fits_empty_queue() {
    let (mut sender, mut receiver) = queue();
    sender.offer(batch(1, 2 * WEIGHT_MAX)).unwrap();
    assert_eq!(sender.offer(batch(2, 1)), Err(QueueFull));
    assert!(matches!(take(&mut receiver), Some(Taken::LastBeforeRest(_))));
    sender.offer(batch(2, 1)).unwrap();
}

#[test]
fn progress_never_fills_the_queue() {
    let (mut sender, mut receiver) = queue();
    for revision in 1..=100_000 {
        sender.offer(WatchItem::Progress(revision)).unwrap();
    }
    assert!(matches!(take(&mut receiver), Some(Taken::Item(WatchItem::Progress(100_000)))));
    assert!(take(&mut receiver).is_none());
}

#[test]
fn end_follows_queued_items_once() {
    let (mut sender, mut receiver) = queue();
    sender.offer(batch(1, 1)).unwrap();
    sender.end(WatchError::Lost(Error::Closed));
    drop(sender);
    assert!(matches!(take(&mut receiver), Some(Taken::Item(_))));
    assert!(matches!(take(&mut receiver), Some(Taken::End(WatchError::Lost(Error::Closed)))));
    assert!(matches!(take(&mut receiver), Some(Taken::Over)));
}

#[test]
fn dropped_sender_ends_receiver() {
    let (sender, mut receiver) = queue();
    drop(sender);
    assert!(matches!(take(&mut receiver), Some(Taken::Over)));
}
