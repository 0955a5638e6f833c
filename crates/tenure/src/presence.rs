//! Presence: the members of a namespace or the instances of a service, as a stream of changes or as a local copy.
//!
//! The machine in `core::presence` decides which changes are reported; here it is fed from a [`Feed`] and a clock. A silent watch does not
//! show whether its store still replies, so a quiet stream sends a small read now and then: the reply bounds the age of the snapshot.

mod view;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tenure_core::time::Moment;

use crate::clock::{Clock, Sleep};
use crate::feed::{Feed, FeedItem};
use crate::store::{Get, Selection, Store, StoreError};

pub use tenure_core::presence::{
    AllInstancePresence, InstancePresence, NodePresence, Presence, PresenceEvent, PresenceEventOf,
    PresenceKind, PresenceOf, PresenceSet, PresenceSnapshot, PresenceSnapshotOf, UnreadableKey,
};

pub use view::PresenceView;

/// How long a stream may receive nothing before it probes the store. Five hundred quiet streams send a hundred probes per second together, as
/// many as their renewals; halved, the probes would be the larger part. Doubled, an outage is reported later, but the age is still right.
const PROBE_AFTER: Duration = Duration::from_secs(5);

/// How long a probe waits for the reply: longer than a store that serves takes, and than an election of etcd.
const PROBE_WITHIN: Duration = Duration::from_secs(2);

/// How long after a failed probe the next one is sent.
const PROBE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// All entries of one kind at one revision, by one linearizable listing, page by page.
///
/// # Cancellation
///
/// Leaves nothing behind.
///
/// # Errors
///
/// Those of a read.
pub async fn list<K: PresenceKind>(
    store: &Store,
    select: Selection,
    kind: K,
) -> Result<PresenceSnapshotOf<K>, StoreError> {
    let page = store.list(select).await?;
    let mut set = PresenceSet::new(kind);
    let mut events = Vec::new();
    for pair in page.pairs {
        set.handle_item(FeedItem::Put(pair), Moment::ORIGIN, &mut events);
    }
    set.handle_item(FeedItem::Synced(page.revision), Moment::ORIGIN, &mut events);
    // The set has just received a complete listing, so it has a snapshot.
    set.snapshot().ok_or_else(|| StoreError::Corrupt("a listing without a revision".into()))
}

/// A stream of presence events: all entries first, then every change.
///
/// # Guarantees
///
/// * [`PresenceEvent::Snapshot`] comes first. The events from then on add up, between any two transactions of the store, to
///   what the store held at one revision.
/// * It survives broken connections, restarts of the store and compaction: changes during a break are reported once the listing is complete
///   again, and an incomplete listing is never reported.
/// * An entry that was replaced by a new incarnation is reported as `Left` and then `Joined`, also if that happened during a break.
/// * [`PresenceEvent::Stale`] is reported when the store stops replying, [`PresenceEvent::Fresh`] when the snapshot is current again.
///
/// # Not guaranteed
///
/// * *Every change*: the changes during a break are reported as one step.
/// * *Immediately*: a watch has a delay, usually milliseconds; silence is noticed within some 7 s.
///
/// # Cancellation
///
/// Nothing is lost when a future of `next` is dropped. Dropping the stream ends its watch.
///
/// # Errors
///
/// A store that cannot be reached is not an error. An error that no retry can mend (a closed, replaced or corrupt store, a denied access)
/// is the last item.
#[must_use = "a stream does nothing unless it is polled"]
pub struct PresenceWatch<K: PresenceKind> {
    store: Store,
    clock: Arc<dyn Clock>,
    feed: Feed,
    set: Arc<Mutex<PresenceSet<K>>>,
    probe: LivenessProbe,
    /// Reported by the set, not yet polled.
    ready: VecDeque<PresenceEventOf<K>>,
}

/// Whether the store still replies.
enum LivenessProbe {
    /// No probe is sent before then.
    Idle(Sleep),
    /// A probe was sent at that moment.
    Sent(Moment, Pin<Box<dyn Future<Output = bool> + Send>>),
}

impl<K: PresenceKind> PresenceWatch<K> {
    /// A stream of the entries of a kind; the listing begins when it is first polled.
    ///
    /// # Errors
    ///
    /// Only [`StoreError::Invalid`], for a selection that no store accepts.
    pub fn open(
        store: Store,
        select: Selection,
        kind: K,
        clock: Arc<dyn Clock>,
    ) -> Result<PresenceWatch<K>, StoreError> {
        let feed = Feed::open(store.clone(), select)?;
        let probe = LivenessProbe::Idle(clock.sleep_until(clock.now() + PROBE_AFTER));
        let set = Arc::new(Mutex::new(PresenceSet::new(kind)));
        Ok(PresenceWatch { store, clock, feed, set, probe, ready: VecDeque::new() })
    }

    fn set(&self) -> MutexGuard<'_, PresenceSet<K>> {
        lock(&self.set)
    }

    fn handle_item(&mut self, item: FeedItem) {
        let now = self.clock.now();
        lock(&self.set).handle_item(item, now, &mut self.ready);
    }

    /// Sends a probe, or handles its reply. False if there is nothing to do yet.
    fn step_probe(&mut self, context: &mut Context<'_>) -> bool {
        let now = self.clock.now();
        match &mut self.probe {
            LivenessProbe::Idle(rest) => {
                if rest.as_mut().poll(context).is_pending() {
                    return false;
                }
                let (heard, is_broken) = {
                    let set = self.set();
                    (set.replied_at(), !set.is_fresh())
                };
                self.probe = match heard {
                    // The watch has delivered something since, so no probe is needed yet.
                    Some(heard) if heard + PROBE_AFTER > now && !is_broken => {
                        LivenessProbe::Idle(self.clock.sleep_until(heard + PROBE_AFTER))
                    }
                    Some(_) => LivenessProbe::Sent(
                        now,
                        send_probe(self.store.clone(), self.feed.selection().clone()),
                    ),
                    // Without a snapshot the feed is reading one, and retries by itself.
                    None => LivenessProbe::Idle(self.clock.sleep_until(now + PROBE_AFTER)),
                };
            }
            LivenessProbe::Sent(sent_at, reply) => {
                let Poll::Ready(has_replied) = reply.as_mut().poll(context) else { return false };
                let sent_at = *sent_at;
                let mut set = lock(&self.set);
                if has_replied {
                    set.handle_reply(sent_at, &mut self.ready);
                } else {
                    set.handle_no_reply(&mut self.ready);
                }
                let wait = if has_replied { PROBE_AFTER } else { PROBE_AGAIN_AFTER };
                drop(set);
                self.probe = LivenessProbe::Idle(self.clock.sleep_until(now + wait));
            }
        }
        true
    }
}

impl<K: PresenceKind> Stream for PresenceWatch<K> {
    type Item = Result<PresenceEventOf<K>, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            match Pin::new(&mut self.feed).poll_next(context) {
                Poll::Ready(Some(Ok(item))) => self.handle_item(item),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    if !self.step_probe(context) {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

// The future inside is not pinned in place, it is boxed.
impl<K: PresenceKind> Unpin for PresenceWatch<K> {}

impl<K: PresenceKind> std::fmt::Debug for PresenceWatch<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let set = self.set();
        write!(
            f,
            "PresenceWatch({:?}, {} members at {:?})",
            self.feed.selection(),
            set.len(),
            set.synced_at()
        )
    }
}

fn lock<K: PresenceKind>(set: &Mutex<PresenceSet<K>>) -> MutexGuard<'_, PresenceSet<K>> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether the store replies to a small linearizable read of the selection.
fn send_probe(store: Store, select: Selection) -> Pin<Box<dyn Future<Output = bool> + Send>> {
    Box::pin(async move {
        let read = store.get(Get::new(select).limit(1).keys_only());
        matches!(tokio::time::timeout(PROBE_WITHIN, read).await, Ok(Ok(_)))
    })
}
