//! The bounded queue between the stream's task and one consumer.
//!
//! The task never waits for a consumer. When the queue is full it cancels that watcher at the
//! server, and the consumer requests the remainder once it has emptied the queue. A slow consumer
//! therefore delays no other.
//!
//! **Invariant**: what was queued is delivered, in order, before the end is.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use super::router::{QueueFull, WatchSink};
use super::{WatchError, WatchItem};

/// Items one consumer may lag behind.
/// etcd catches up in responses of 1,000 revisions: with room for fewer than two of them a reader that merely keeps up
/// would be cancelled and re-created every 100 ms; with ten times as many, thousands of slow readers cost real memory.
const ITEMS_MAX: usize = 4_096;
/// Bytes one consumer may lag behind: a bit more than two of the largest values etcd takes, so that a reader of large
/// values still has one to read while the next arrives.
const WEIGHT_MAX: usize = 4 << 20;

/// The sending end, held by the task.
#[derive(Debug)]
pub(super) struct QueueSender(Arc<Mutex<QueueState>>);

/// The receiving end, held by the consumer.
#[derive(Debug)]
pub(super) struct QueueReceiver(Arc<Mutex<QueueState>>);

/// The result of a poll by the consumer.
#[derive(Debug)]
pub(super) enum Taken {
    /// The next item.
    Item(WatchItem),
    /// The next item; the queue had overflowed and is empty now, so the remainder must be
    /// requested.
    LastBeforeRest(WatchItem),
    /// The end, once.
    End(WatchError),
    /// The stream of items has ended.
    Over,
}

#[derive(Debug, Default)]
struct QueueState {
    items: VecDeque<WatchItem>,
    weight: usize,
    overflowed: bool,
    opened: Option<i64>,
    end: Option<WatchError>,
    over: bool,
    waker: Option<Waker>,
}

/// A new queue.
pub(super) fn queue() -> (QueueSender, QueueReceiver) {
    let state = Arc::new(Mutex::new(QueueState::default()));
    (QueueSender(Arc::clone(&state)), QueueReceiver(state))
}

impl WatchSink for QueueSender {
    fn opened(&mut self, point: i64) {
        let mut state = lock(&self.0);
        state.opened = Some(point);
        wake(state);
    }

    fn offer(&mut self, item: WatchItem) -> Result<(), QueueFull> {
        let weight = item.weight();
        let mut state = lock(&self.0);
        if let (WatchItem::Progress(_), Some(last @ WatchItem::Progress(_))) = (&item, state.items.back_mut())
        {
            // A later progress item includes the earlier one.
            *last = item;
            return Ok(());
        }
        let has_room = state.items.is_empty()
            || (state.items.len() < ITEMS_MAX && state.weight.saturating_add(weight) <= WEIGHT_MAX);
        if !has_room {
            state.overflowed = true;
            return Err(QueueFull);
        }
        state.weight = state.weight.saturating_add(weight);
        state.items.push_back(item);
        wake(state);
        Ok(())
    }

    fn end(&mut self, end: WatchError) {
        let mut state = lock(&self.0);
        state.end = Some(end);
        wake(state);
    }
}

impl Drop for QueueSender {
    /// A task that ended must not leave its consumers waiting.
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.over = true;
        wake(state);
    }
}

impl QueueReceiver {
    /// Waits until the server has created the watch, and returns the revision after which it
    /// delivers.
    pub(super) fn poll_opened(&mut self, context: &mut Context<'_>) -> Poll<Result<i64, Option<WatchError>>> {
        let mut state = lock(&self.0);
        if let Some(point) = state.opened {
            return Poll::Ready(Ok(point));
        }
        if state.end.is_some() || state.over {
            return Poll::Ready(Err(state.end.take()));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// The next item, or the end.
    pub(super) fn poll_take(&mut self, context: &mut Context<'_>) -> Poll<Taken> {
        let mut state = lock(&self.0);
        if let Some(item) = state.items.pop_front() {
            state.weight = state.weight.saturating_sub(item.weight());
            let rest_waits = state.items.is_empty() && std::mem::take(&mut state.overflowed);
            return Poll::Ready(if rest_waits { Taken::LastBeforeRest(item) } else { Taken::Item(item) });
        }
        if let Some(end) = state.end.take() {
            state.over = true;
            return Poll::Ready(Taken::End(end));
        }
        if state.over {
            return Poll::Ready(Taken::Over);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

fn lock(state: &Mutex<QueueState>) -> MutexGuard<'_, QueueState> {
    state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Wakes the task after the lock is released, so that it does not block on it.
fn wake(mut state: MutexGuard<'_, QueueState>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests;
