//! A watch channel that wakes its receivers in the order in which they began to wait.
//!
//! tokio's `sync::watch` spreads its receivers over eight lists, with random numbers that no seed decides. Two holders of one
//! lease would then learn of its end in another order in every run, and a simulation could not be repeated. Here there is one list. It is
//! also a fraction of the size, and there is one channel for every waiter in a queue and every running task.
//!
//! The channels in the public API (`Session::state`, `Worker::status`, `Membership::changes`) are tokio's, because users know them.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use thiserror::Error;
use tokio::sync::Notify;
use tokio::task::coop::cooperative;

/// Makes a channel with its first value.
pub(crate) fn channel<T>(value: T) -> (OrderedSender<T>, OrderedReceiver<T>) {
    let sender = OrderedSender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

/// The side that changes the value. Dropping it ends every wait.
pub(crate) struct OrderedSender<T> {
    shared: Arc<ChannelShared<T>>,
}

/// A side that waits for changes. A clone has seen what the original has seen.
pub(crate) struct OrderedReceiver<T> {
    shared: Arc<ChannelShared<T>>,
    /// The version that was last read.
    seen: u64,
}

/// The value will not change any more: the sender was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the sender was dropped")]
pub(crate) struct SenderDropped;

/// A borrowed value. The sender blocks while it is held, so it must be short.
pub(crate) struct OrderedRef<'a, T> {
    state: RwLockReadGuard<'a, ChannelState<T>>,
}

struct ChannelShared<T> {
    state: RwLock<ChannelState<T>>,
    /// Notified after each change, and when the sender is dropped. Its waiters are one list, in order of arrival.
    changed: Notify,
}

struct ChannelState<T> {
    value: T,
    /// Grows with each change.
    version: u64,
    is_closed: bool,
}

/// Reports whether a receiver is alive, also after the sender was dropped.
#[derive(Clone)]
pub(crate) struct Liveness(Weak<dyn Any + Send + Sync>);

impl Liveness {
    /// Whether there is a receiver. After the sender was dropped, `false` is final.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl<T: Send + Sync + 'static> OrderedSender<T> {
    /// Returns a handle that reports whether there is a receiver.
    pub(crate) fn liveness(&self) -> Liveness {
        let shared: Arc<dyn Any + Send + Sync> = self.shared.clone();
        Liveness(Arc::downgrade(&shared))
    }
}

impl<T> OrderedSender<T> {
    pub(crate) fn new(value: T) -> OrderedSender<T> {
        let state = RwLock::new(ChannelState { value, version: 0, is_closed: false });
        OrderedSender { shared: Arc::new(ChannelShared { state, changed: Notify::new() }) }
    }

    /// Returns a receiver of the changes from now on.
    pub(crate) fn subscribe(&self) -> OrderedReceiver<T> {
        OrderedReceiver { shared: self.shared.clone(), seen: self.shared.read().version }
    }

    pub(crate) fn borrow(&self) -> OrderedRef<'_, T> {
        OrderedRef { state: self.shared.read() }
    }

    /// Changes the value. Wakes the receivers if `modify` returns that it changed, and returns the same.
    pub(crate) fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let mut state = self.shared.write();
        let is_changed = modify(&mut state.value);
        state.version += u64::from(is_changed);
        drop(state);
        if is_changed {
            self.shared.changed.notify_waiters();
        }
        is_changed
    }

    /// Changes the value.
    pub(crate) fn send_modify(&self, modify: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            modify(value);
            true
        });
    }

    /// Replaces the value, and returns the former one.
    pub(crate) fn send_replace(&self, mut value: T) -> T {
        self.send_modify(|former| std::mem::swap(former, &mut value));
        value
    }

    /// Replaces the value without a wake-up. The caller wakes the receivers later; dropping the sender wakes them too.
    pub(crate) fn replace_quietly(&self, value: T) -> PendingWake<T> {
        let mut state = self.shared.write();
        let former = std::mem::replace(&mut state.value, value);
        state.version += 1;
        drop(state);
        drop(former);
        PendingWake { shared: self.shared.clone() }
    }
}

/// A change with receivers that are not woken yet.
pub(crate) struct PendingWake<T> {
    shared: Arc<ChannelShared<T>>,
}

impl<T> PendingWake<T> {
    pub(crate) fn wake(self) {
        self.shared.changed.notify_waiters();
    }
}

impl<T> Drop for OrderedSender<T> {
    fn drop(&mut self) {
        self.shared.write().is_closed = true;
        self.shared.changed.notify_waiters();
    }
}

impl<T> OrderedReceiver<T> {
    pub(crate) fn borrow(&self) -> OrderedRef<'_, T> {
        OrderedRef { state: self.shared.read() }
    }

    /// Marks the current value as seen.
    pub(crate) fn mark_unchanged(&mut self) {
        self.seen = self.shared.read().version;
    }

    /// Waits for a change that this receiver has not seen.
    pub(crate) async fn changed(&mut self) -> Result<(), SenderDropped> {
        // A loop over changes that are always ready must let other tasks run.
        cooperative(self.next_change()).await
    }

    /// Waits until the value satisfies a condition; returns immediately if it does already.
    pub(crate) async fn wait_for(
        &mut self,
        is_match: impl FnMut(&T) -> bool,
    ) -> Result<OrderedRef<'_, T>, SenderDropped> {
        cooperative(self.next_match(is_match)).await
    }

    async fn next_change(&mut self) -> Result<(), SenderDropped> {
        loop {
            // Registered before the value is read: a change between the two must not be missed.
            let changed = self.shared.changed.notified();
            {
                let state = self.shared.read();
                if state.version != self.seen {
                    self.seen = state.version;
                    return Ok(());
                }
                if state.is_closed {
                    return Err(SenderDropped);
                }
            }
            changed.await;
        }
    }

    async fn next_match(
        &mut self,
        mut is_match: impl FnMut(&T) -> bool,
    ) -> Result<OrderedRef<'_, T>, SenderDropped> {
        loop {
            let changed = self.shared.changed.notified();
            {
                let state = self.shared.read();
                self.seen = state.version;
                if is_match(&state.value) {
                    return Ok(OrderedRef { state });
                }
                if state.is_closed {
                    return Err(SenderDropped);
                }
            }
            changed.await;
        }
    }
}

impl<T> Clone for OrderedReceiver<T> {
    fn clone(&self) -> OrderedReceiver<T> {
        OrderedReceiver { shared: self.shared.clone(), seen: self.seen }
    }
}

impl<T> Deref for OrderedRef<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state.value
    }
}

impl<T> ChannelShared<T> {
    // A poisoned value is consistent: each change is one step.
    fn read(&self) -> RwLockReadGuard<'_, ChannelState<T>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, ChannelState<T>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Debug> fmt::Debug for OrderedSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OrderedSender({:?})", *self.borrow())
    }
}

impl<T: fmt::Debug> fmt::Debug for OrderedReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OrderedReceiver({:?})", *self.borrow())
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use futures_util::FutureExt;
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn receivers_wake_in_order_of_waiting() {
        let (sender, receiver) = channel(false);
        let (order, mut woken_order) = mpsc::unbounded_channel();
        for number in 0..32 {
            let (mut receiver, order) = (receiver.clone(), order.clone());
            tokio::spawn(async move {
                receiver.wait_for(|is_over| *is_over).await.map(drop).unwrap();
                order.send(number).unwrap();
            });
        }
        drop(order);
        tokio::task::yield_now().await;
        sender.send_replace(true);
        let mut woken = Vec::new();
        while let Some(number) = woken_order.recv().await {
            woken.push(number);
        }
        assert_eq!(woken, Vec::from_iter(0..32));
    }

    #[test]
    fn only_unseen_changes_wake() {
        let (sender, mut receiver) = channel(1);
        assert_eq!(receiver.changed().now_or_never(), None);
        assert!(!sender.send_if_modified(|_| false));
        assert_eq!(receiver.changed().now_or_never(), None);
        assert_eq!(sender.send_replace(2), 1);
        assert_eq!(receiver.clone().changed().now_or_never(), Some(Ok(())));
        receiver.mark_unchanged();
        assert_eq!(receiver.changed().now_or_never(), None);
        assert_eq!(*receiver.borrow(), 2);
    }

    #[test]
    fn last_change_is_seen_before_the_end() {
        let (sender, mut receiver) = channel(1);
        sender.send_replace(2);
        drop(sender);
        assert_eq!(receiver.changed().now_or_never(), Some(Ok(())));
        assert_eq!(receiver.changed().now_or_never(), Some(Err(SenderDropped)));
        assert_eq!(
            receiver.wait_for(|value| *value == 2).now_or_never().map(|seen| seen.map(|value| *value)),
            Some(Ok(2))
        );
        assert!(matches!(receiver.wait_for(|value| *value == 3).now_or_never(), Some(Err(SenderDropped))));
    }

    /// A loop over a condition that is always true once blocked the task that was to change the value.
    #[tokio::test]
    async fn busy_receiver_lets_others_run() {
        let (sender, mut receiver) = channel(0);
        tokio::spawn(async move { sender.send_replace(1) });
        for _ in 0..10_000 {
            if *receiver.wait_for(|_| true).await.unwrap() == 1 {
                return;
            }
        }
        panic!("no other task ran");
    }

    #[test]
    fn quiet_change_wakes_on_wake_or_drop() {
        let (sender, receiver) = channel(1);
        let (waker, woken) = counting_waker();
        let mut context = Context::from_waker(&waker);
        let mut waiting = receiver.clone();
        let mut waiting = pin!(waiting.wait_for(|value| *value == 2));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        let pending = sender.replace_quietly(2);
        assert_eq!((*receiver.borrow(), woken.load(Ordering::Relaxed)), (2, 0), "it can be seen");
        pending.wake();
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        assert!(waiting.as_mut().poll(&mut context).is_ready());

        let mut last = receiver.clone();
        let mut last = pin!(last.wait_for(|value| *value == 3));
        assert!(last.as_mut().poll(&mut context).is_pending());
        sender.replace_quietly(3);
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        drop(sender);
        assert_eq!(woken.load(Ordering::Relaxed), 2);
        assert!(matches!(last.as_mut().poll(&mut context), Poll::Ready(Ok(value)) if *value == 3));
    }

    /// Counts how often it wakes.
    fn counting_waker() -> (Waker, Arc<AtomicUsize>) {
        struct Counting(Arc<AtomicUsize>);
        impl Wake for Counting {
            fn wake(self: Arc<Counting>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let woken = Arc::new(AtomicUsize::new(0));
        (Waker::from(Arc::new(Counting(woken.clone()))), woken)
    }

    #[tokio::test]
    async fn waiting_receiver_sees_dropped_sender() {
        let (sender, mut receiver) = channel(());
        let waiting = tokio::spawn(async move { receiver.changed().await });
        tokio::task::yield_now().await;
        drop(sender);
        assert_eq!(waiting.await.unwrap(), Err(SenderDropped));
    }
}
