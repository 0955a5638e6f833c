//! The queue at its bounds.

use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use super::super::router::{Full, Sink};
use super::super::{Event, WatchError, WatchItem};
use super::{Drain, ITEMS_MAX, Taken, WEIGHT_MAX, queue};
use crate::Error;

fn batch(revision: i64, bytes: usize) -> WatchItem {
    let key = Bytes::from(vec![b'k'; bytes]);
    WatchItem::Batch { revision, events: vec![Event::Delete { key, revision, prev: None }] }
}

fn take(drain: &mut Drain) -> Option<Taken> {
    match drain.poll_take(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(taken) => Some(taken),
        Poll::Pending => None,
    }
}

#[test]
fn a_full_queue_refuses_and_tells_the_consumer_when_it_is_empty() {
    let (mut feeder, mut drain) = queue();
    let mut revision = 0;
    while feeder.offer(batch(revision + 1, 1)).is_ok() {
        revision += 1;
    }
    assert_eq!(usize::try_from(revision).unwrap(), ITEMS_MAX);
    for wanted in 1..revision {
        assert!(matches!(take(&mut drain), Some(Taken::Item(item)) if item.revision() == wanted));
    }
    assert!(matches!(take(&mut drain), Some(Taken::LastBeforeRest(item)) if item.revision() == revision));
    assert!(take(&mut drain).is_none());
    feeder.offer(batch(revision + 1, 1)).unwrap();
    assert!(matches!(take(&mut drain), Some(Taken::Item(_))), "the overflow was told once");
}

#[test]
fn bytes_count_too_but_one_batch_always_fits() {
    let (mut feeder, mut drain) = queue();
    feeder.offer(batch(1, 2 * WEIGHT_MAX)).unwrap();
    assert_eq!(feeder.offer(batch(2, 1)), Err(Full));
    assert!(matches!(take(&mut drain), Some(Taken::LastBeforeRest(_))));
    feeder.offer(batch(2, 1)).unwrap();
}

#[test]
fn progress_never_fills_the_queue() {
    let (mut feeder, mut drain) = queue();
    for revision in 1..=100_000 {
        feeder.offer(WatchItem::Progress(revision)).unwrap();
    }
    assert!(matches!(take(&mut drain), Some(Taken::Item(WatchItem::Progress(100_000)))));
    assert!(take(&mut drain).is_none());
}

#[test]
fn the_end_comes_after_everything_queued_and_once() {
    let (mut feeder, mut drain) = queue();
    feeder.offer(batch(1, 1)).unwrap();
    feeder.end(WatchError::Lost(Error::Closed));
    drop(feeder);
    assert!(matches!(take(&mut drain), Some(Taken::Item(_))));
    assert!(matches!(take(&mut drain), Some(Taken::End(WatchError::Lost(Error::Closed)))));
    assert!(matches!(take(&mut drain), Some(Taken::Over)));
}

#[test]
fn a_task_that_vanished_does_not_leave_its_consumer_waiting() {
    let (feeder, mut drain) = queue();
    drop(feeder);
    assert!(matches!(take(&mut drain), Some(Taken::Over)));
}
