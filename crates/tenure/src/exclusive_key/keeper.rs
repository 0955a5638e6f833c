//! The task of an exclusive key: follows the key, awaits replies, and passes both to the machine.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use tenure_core::exclusive_key::{ExclusiveKeyError, IdentifiedRecord, ReadKey};
use tenure_core::revision::{RequestId, Revision};
use tenure_core::time::Moment;
use tokio::sync::watch;
use tracing::warn;

use super::{KeyShared, Registering, reply_of};
use crate::clock::Clock;
use crate::feed::{Feed, FeedItem};
use crate::retry;
use crate::session::{RegisterError, RegisteredKey, SessionState};
use crate::store::{KeyValue, Selection, StoreError};

/// A read of the key in flight.
type KeyRead = Pin<Box<dyn Future<Output = ReadResult> + Send>>;
type ReadResult = Result<(Option<KeyValue>, Revision), StoreError>;

/// Runs the machine of one key. Dropping it before the end withdraws the key.
pub(super) struct KeyKeeper<R: IdentifiedRecord> {
    shared: Arc<KeyShared<R>>,
    state: watch::Receiver<SessionState>,
    feed: Option<Feed>,
    registering: Option<(RequestId, Registering)>,
    reading: Option<KeyRead>,
    /// Whether the machine has ended. A leave that begins after that belongs to the next keeper.
    has_ended: bool,
}

enum KeeperEvent {
    /// The handle has changed the machine.
    Changed,
    Session,
    Registered(RequestId, Result<RegisteredKey, RegisterError>),
    Read(ReadResult),
    Item(Option<Result<FeedItem, StoreError>>),
    Time,
}

/// What the keeper waits for next.
struct KeeperStep {
    wake: Option<Moment>,
    is_taken: bool,
    is_over: bool,
}

impl<R: IdentifiedRecord> KeyKeeper<R> {
    pub(super) fn new(shared: Arc<KeyShared<R>>) -> KeyKeeper<R> {
        let state = shared.session.state();
        KeyKeeper { shared, state, feed: None, registering: None, reading: None, has_ended: false }
    }

    /// Runs until the key is taken or can not be.
    pub(super) async fn take(&mut self) -> Result<(), ExclusiveKeyError> {
        loop {
            let step = self.step();
            if step.is_taken
                && let Some(taken) = self.shared.lock().taken.take()
            {
                return taken.map(drop);
            }
            let event = self.next(step.wake).await;
            self.handle(event);
        }
    }

    /// Runs until the key is released, or another process owns it.
    pub(super) async fn keep(mut self) {
        loop {
            let step = self.step();
            if step.is_over {
                self.has_ended = true;
                return;
            }
            let event = self.next(step.wake).await;
            self.handle(event);
        }
    }

    /// Shows the session to the machine and begins what it requests.
    fn step(&mut self) -> KeeperStep {
        self.state.mark_unchanged();
        let shared = self.shared.clone();
        let mut inner = shared.lock();
        let mut view = shared.session_view(inner.machine.lease());
        view.has_key = inner.machine.is_waiting() && shared.session.keys().contains(&shared.key);
        inner.machine.handle_session(view, shared.session.clock().now());
        shared.perform(&mut inner);
        if let Some(registering) = inner.registering.take() {
            self.registering = Some(registering);
        }
        if std::mem::take(&mut inner.is_read_requested) {
            let (store, clock) = (shared.store.clone(), shared.session.clock().clone());
            let mut read = ReadKey::new(shared.key.clone());
            self.reading =
                Some(Box::pin(
                    async move { retry::run("read exclusive key", &store, &clock, &mut read).await },
                ));
        }
        let is_over = inner.machine.is_over();
        if is_over {
            self.feed = None;
        } else if self.feed.is_none() {
            match Feed::open(shared.store.clone(), Selection::Key(shared.key.clone())) {
                Ok(feed) => self.feed = Some(feed),
                Err(error) => {
                    inner.machine.handle_feed_end(error, shared.session.clock().now());
                    shared.perform(&mut inner);
                }
            }
        }
        let (wake, is_taken) = (inner.machine.next_wake(), inner.taken.is_some());
        KeeperStep { wake, is_taken, is_over: inner.machine.is_over() }
    }

    /// # Cancellation
    ///
    /// Nothing is lost.
    async fn next(&mut self, wake: Option<Moment>) -> KeeperEvent {
        let KeyKeeper { shared, state, feed, registering, reading, .. } = self;
        tokio::select! {
            biased;
            () = shared.changed.notified() => KeeperEvent::Changed,
            changed = state.changed() => {
                changed.expect("the session lives as long as this handle of it");
                KeeperEvent::Session
            }
            (epoch, reply) = registered(registering) => KeeperEvent::Registered(epoch, reply),
            read = finished(reading) => KeeperEvent::Read(read),
            item = shown(feed) => KeeperEvent::Item(item),
            () = sleep(shared.session.clock().as_ref(), wake) => KeeperEvent::Time,
        }
    }

    fn handle(&mut self, event: KeeperEvent) {
        let mut inner = self.shared.lock();
        let now = self.shared.session.clock().now();
        match event {
            KeeperEvent::Changed | KeeperEvent::Session => {}
            KeeperEvent::Registered(epoch, reply) => {
                self.registering = None;
                inner.machine.handle_registered(epoch, reply_of(reply), now);
            }
            KeeperEvent::Read(read) => {
                self.reading = None;
                inner.machine.handle_read(read, now);
            }
            KeeperEvent::Item(Some(Ok(item))) => inner.machine.handle_item(item, now),
            KeeperEvent::Item(end) => {
                let error = end.and_then(Result::err).unwrap_or(StoreError::Closed);
                warn!(key = ?self.shared.key, %error, "own key can not be followed any more");
                inner.machine.handle_feed_end(error, now);
            }
            KeeperEvent::Time => inner.machine.handle_time(now),
        }
    }
}

impl<R: IdentifiedRecord> Drop for KeyKeeper<R> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.shared.release();
        }
    }
}

async fn registered(
    registering: &mut Option<(RequestId, Registering)>,
) -> (RequestId, Result<RegisteredKey, RegisterError>) {
    match registering {
        Some((epoch, reply)) => (*epoch, reply.await),
        None => std::future::pending().await,
    }
}

async fn finished(reading: &mut Option<KeyRead>) -> ReadResult {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
}

async fn shown(feed: &mut Option<Feed>) -> Option<Result<FeedItem, StoreError>> {
    match feed {
        Some(feed) => feed.next().await,
        None => std::future::pending().await,
    }
}

async fn sleep(clock: &dyn Clock, wake: Option<Moment>) {
    match wake {
        Some(wake) => clock.sleep_until(wake).await,
        None => std::future::pending().await,
    }
}
