//! A value that one side changes and many wait on, who are woken in the order in which they began to wait.
//!
//! tokio's `sync::watch` spreads those who wait over eight lists, with dice of its own that no seed reaches. Then two holders of one
//! lease learn of its end in another order in every run, and a story cannot be told again. Here there is one list. It is also a
//! fraction of the size, and there is one of these for every place in a line and every task that runs.
//!
//! What users are handed (`Session::state`, `Node::tenancy`, `Membership::changes`) stays tokio's: they know it.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use thiserror::Error;
use tokio::sync::Notify;
use tokio::task::coop::cooperative;

/// A value, and whoever waits for it to change.
pub(crate) fn channel<T>(value: T) -> (OrderedSender<T>, OrderedReceiver<T>) {
    let sender = OrderedSender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

/// The side that changes the value. Dropping it ends all waiting.
pub(crate) struct OrderedSender<T> {
    shared: Arc<ChannelShared<T>>,
}

/// A side that waits. A clone has seen what this one has.
pub(crate) struct OrderedReceiver<T> {
    shared: Arc<ChannelShared<T>>,
    /// The version that was last looked at.
    seen: u64,
}

/// The value will not change any more: whoever could change it is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("whoever could change it is gone")]
pub(crate) struct SenderDropped;

/// The value, which does not change as long as this is held: not longer than it takes to look.
pub(crate) struct OrderedRef<'a, T> {
    state: RwLockReadGuard<'a, ChannelState<T>>,
}

struct ChannelShared<T> {
    state: RwLock<ChannelState<T>>,
    /// Rung after each change, and when the sender is gone. Its waiters are one list, first come first served.
    changed: Notify,
}

struct ChannelState<T> {
    value: T,
    /// Grows with each change.
    version: u64,
    is_closed: bool,
}

/// Whether a receiver is alive, for one that outlives the sender.
#[derive(Clone)]
pub(crate) struct Liveness(Weak<dyn Any + Send + Sync>);

impl Liveness {
    /// Whether a receiver is there. False once, false for ever, after the sender is dropped.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl<T: Send + Sync + 'static> OrderedSender<T> {
    /// Tells later whether a receiver is still there.
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

    /// One who waits for what changes from now on.
    pub(crate) fn subscribe(&self) -> OrderedReceiver<T> {
        OrderedReceiver { shared: self.shared.clone(), seen: self.shared.read().version }
    }

    pub(crate) fn borrow(&self) -> OrderedRef<'_, T> {
        OrderedRef { state: self.shared.read() }
    }

    /// Changes the value, and says whether that is news; only then anybody is woken.
    pub(crate) fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let mut state = self.shared.write();
        let is_news = modify(&mut state.value);
        state.version += u64::from(is_news);
        drop(state);
        if is_news {
            self.shared.changed.notify_waiters();
        }
        is_news
    }

    /// Changes the value.
    pub(crate) fn send_modify(&self, modify: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            modify(value);
            true
        });
    }

    /// Puts another value in its place, and gives back the former.
    pub(crate) fn send_replace(&self, mut value: T) -> T {
        self.send_modify(|former| std::mem::swap(former, &mut value));
        value
    }

    /// Puts another value in its place, and lets the caller say when those who wait are woken: they are too when the sender goes.
    pub(crate) fn replace_quietly(&self, value: T) -> PendingWake<T> {
        let mut state = self.shared.write();
        let former = std::mem::replace(&mut state.value, value);
        state.version += 1;
        drop(state);
        drop(former);
        PendingWake { shared: self.shared.clone() }
    }
}

/// Wakes those who wait for a change that has happened.
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

    /// What is there now counts as seen.
    pub(crate) fn mark_unchanged(&mut self) {
        self.seen = self.shared.read().version;
    }

    /// Waits for a change that was not seen yet.
    pub(crate) async fn changed(&mut self) -> Result<(), SenderDropped> {
        // Who asks again and again, and is answered at once, must let others run.
        cooperative(self.next_change()).await
    }

    /// Waits until the value is as wanted; at once if it is so already.
    pub(crate) async fn wait_for(
        &mut self,
        is_wanted: impl FnMut(&T) -> bool,
    ) -> Result<OrderedRef<'_, T>, SenderDropped> {
        cooperative(self.next_wanted(is_wanted)).await
    }

    async fn next_change(&mut self) -> Result<(), SenderDropped> {
        loop {
            // Before the look: a change between the two counts.
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

    async fn next_wanted(
        &mut self,
        mut is_wanted: impl FnMut(&T) -> bool,
    ) -> Result<OrderedRef<'_, T>, SenderDropped> {
        loop {
            let changed = self.shared.changed.notified();
            {
                let state = self.shared.read();
                self.seen = state.version;
                if is_wanted(&state.value) {
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
    // What a panic left behind is a value like any other: who changes it does so in one step.
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
    async fn everybody_is_woken_in_the_order_in_which_they_began_to_wait() {
        let (sender, receiver) = channel(false);
        let (tell, mut told) = mpsc::unbounded_channel();
        for number in 0..32 {
            let (mut receiver, tell) = (receiver.clone(), tell.clone());
            tokio::spawn(async move {
                receiver.wait_for(|is_over| *is_over).await.map(drop).unwrap();
                tell.send(number).unwrap();
            });
        }
        drop(tell);
        tokio::task::yield_now().await;
        sender.send_replace(true);
        let mut woken = Vec::new();
        while let Some(number) = told.recv().await {
            woken.push(number);
        }
        assert_eq!(woken, Vec::from_iter(0..32));
    }

    #[test]
    fn only_news_that_was_not_seen_wakes() {
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
    fn the_last_word_is_heard_before_the_end_is() {
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

    /// A session that is settled says so at once; who asked it in a loop held up the task that was to change that.
    #[tokio::test]
    async fn one_who_asks_without_end_lets_others_run() {
        let (sender, mut receiver) = channel(0);
        tokio::spawn(async move { sender.send_replace(1) });
        for _ in 0..10_000 {
            if *receiver.wait_for(|_| true).await.unwrap() == 1 {
                return;
            }
        }
        panic!("nobody else had a turn");
    }

    #[test]
    fn a_quiet_change_wakes_nobody_until_the_bell_rings_or_the_sender_goes() {
        let (sender, receiver) = channel(1);
        let (waker, woken) = counting_waker();
        let mut context = Context::from_waker(&waker);
        let mut waiting = receiver.clone();
        let mut waiting = pin!(waiting.wait_for(|value| *value == 2));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        let bell = sender.replace_quietly(2);
        assert_eq!((*receiver.borrow(), woken.load(Ordering::Relaxed)), (2, 0), "it can be seen");
        bell.wake();
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
    async fn whoever_waits_hears_that_the_sender_is_gone() {
        let (sender, mut receiver) = channel(());
        let waiting = tokio::spawn(async move { receiver.changed().await });
        tokio::task::yield_now().await;
        drop(sender);
        assert_eq!(waiting.await.unwrap(), Err(SenderDropped));
    }
}
