//! Who is there, followed: the roster of nodes or of a service's instances, as a stream of news or as a view to look at.
//!
//! The machine in `core::roster` decides what is told; here it is fed from a [`Feed`] and told the time. A watch that is silent says
//! nothing about its store, so a quiet follower asks it now and then whether it still answers: that is how a picture knows its age.

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

/// How long a follower may hear nothing before it asks whether the store still answers. Five hundred quiet followers ask a hundred
/// times a second all together, as much as their renewals; halved, they would be the larger part. Doubled, an outage is told later,
/// but the age is right all the time.
const ASK_AFTER: Duration = Duration::from_secs(5);

/// How long to wait for that answer: longer than any answer of a store that serves, and an election of etcd.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// How soon to ask again when there was no answer.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Everybody of one kind, as they are at one revision: one linearizable listing, page by page.
///
/// # Cancellation
///
/// Leaves nothing behind.
///
/// # Errors
///
/// What the store says to a read.
pub async fn list<K: PresenceKind>(
    store: &Store,
    select: Selection,
    kind: K,
) -> Result<PresenceSnapshotOf<K>, StoreError> {
    let page = store.list(select).await?;
    let mut roster = PresenceSet::new(kind);
    let mut told = Vec::new();
    for pair in page.pairs {
        roster.handle_item(FeedItem::Put(pair), Moment::ORIGIN, &mut told);
    }
    roster.handle_item(FeedItem::Synced(page.revision), Moment::ORIGIN, &mut told);
    // A roster that was told of a whole picture has one.
    roster.snapshot().ok_or_else(|| StoreError::Corrupt("a listing without a revision".into()))
}

/// PresenceEvent of who is there: the whole picture first, then every difference.
///
/// # Guarantees
///
/// * [`PresenceEvent::Snapshot`] comes first. What is told from then on adds up, at every moment between two transactions of the store, to
///   what the store held at one revision.
/// * It survives broken connections, restarts of the store and compaction: what changed meanwhile is told when the picture is whole again, and
///   half a listing is never told.
/// * One who was replaced by a new incarnation is told as `Left` and then `Joined`, also if nobody watched.
/// * [`PresenceEvent::Stale`] is told when the store stops answering, [`PresenceEvent::Fresh`] when the picture is up to date again.
///
/// # Not guaranteed
///
/// * *Every change*: after a break, what happened meanwhile is told as one step.
/// * *At once*: a watch takes its time, usually milliseconds; silence is noticed within some 7 s.
///
/// # Cancellation
///
/// Nothing is lost when a future of `next` is dropped. Dropping the follower ends its watch.
///
/// # Errors
///
/// A store that cannot be reached is not an error. What no trying can mend (a closed, replaced or corrupt store, a denied access) is
/// the last item.
#[must_use = "a follower does nothing unless it is read"]
pub struct PresenceWatch<K: PresenceKind> {
    store: Store,
    clock: Arc<dyn Clock>,
    feed: Feed,
    roster: Arc<Mutex<PresenceSet<K>>>,
    question: LivenessProbe,
    /// Told by the roster, not yet read.
    ready: VecDeque<PresenceEventOf<K>>,
}

/// Whether the store still answers.
enum LivenessProbe {
    /// Not asked until then.
    Resting(Sleep),
    /// Asked at that moment.
    Asked(Moment, Pin<Box<dyn Future<Output = bool> + Send>>),
}

impl<K: PresenceKind> PresenceWatch<K> {
    /// Follows the members of a kind; the listing begins when the follower is first read.
    ///
    /// # Errors
    ///
    /// Only [`StoreError::Invalid`], for a selection that no store would take.
    pub fn open(
        store: Store,
        select: Selection,
        kind: K,
        clock: Arc<dyn Clock>,
    ) -> Result<PresenceWatch<K>, StoreError> {
        let feed = Feed::open(store.clone(), select)?;
        let question = LivenessProbe::Resting(clock.sleep_until(clock.now() + ASK_AFTER));
        let roster = Arc::new(Mutex::new(PresenceSet::new(kind)));
        Ok(PresenceWatch { store, clock, feed, roster, question, ready: VecDeque::new() })
    }

    fn roster(&self) -> MutexGuard<'_, PresenceSet<K>> {
        lock(&self.roster)
    }

    /// Takes one item of the feed in.
    fn on_item(&mut self, item: FeedItem) {
        let now = self.clock.now();
        lock(&self.roster).handle_item(item, now, &mut self.ready);
    }

    /// Asks, or takes an answer in. False if there is nothing to do yet.
    fn step_question(&mut self, context: &mut Context<'_>) -> bool {
        let now = self.clock.now();
        match &mut self.question {
            LivenessProbe::Resting(rest) => {
                if rest.as_mut().poll(context).is_pending() {
                    return false;
                }
                let (heard, is_broken) = {
                    let roster = self.roster();
                    (roster.heard(), !roster.is_fresh())
                };
                self.question = match heard {
                    // Somebody spoke meanwhile, so there is no need to ask yet.
                    Some(heard) if heard + ASK_AFTER > now && !is_broken => {
                        LivenessProbe::Resting(self.clock.sleep_until(heard + ASK_AFTER))
                    }
                    Some(_) => {
                        LivenessProbe::Asked(now, ask(self.store.clone(), self.feed.selection().clone()))
                    }
                    // Without a picture the feed is busy getting one.
                    None => LivenessProbe::Resting(self.clock.sleep_until(now + ASK_AFTER)),
                };
            }
            LivenessProbe::Asked(asked, answer) => {
                let Poll::Ready(is_answered) = answer.as_mut().poll(context) else { return false };
                let asked = *asked;
                let mut roster = lock(&self.roster);
                if is_answered {
                    roster.handle_answer(asked, &mut self.ready);
                } else {
                    roster.handle_silence(&mut self.ready);
                }
                let rest = if is_answered { ASK_AFTER } else { ASK_AGAIN_AFTER };
                drop(roster);
                self.question = LivenessProbe::Resting(self.clock.sleep_until(now + rest));
            }
        }
        true
    }
}

impl<K: PresenceKind> Stream for PresenceWatch<K> {
    type Item = Result<PresenceEventOf<K>, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(news) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(news)));
            }
            match Pin::new(&mut self.feed).poll_next(context) {
                Poll::Ready(Some(Ok(item))) => self.on_item(item),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    if !self.step_question(context) {
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
        let roster = self.roster();
        write!(
            f,
            "PresenceWatch({:?}, {} members at {:?})",
            self.feed.selection(),
            roster.len(),
            roster.whole_at()
        )
    }
}

fn lock<K: PresenceKind>(roster: &Mutex<PresenceSet<K>>) -> MutexGuard<'_, PresenceSet<K>> {
    roster.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the store answers a small linearizable read of what is followed.
fn ask(store: Store, select: Selection) -> Pin<Box<dyn Future<Output = bool> + Send>> {
    Box::pin(async move {
        let read = store.get(Get::new(select).limit(1).keys_only());
        matches!(tokio::time::timeout(ANSWER_WITHIN, read).await, Ok(Ok(_)))
    })
}
