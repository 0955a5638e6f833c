//! Observers: the leader and its changes, without being a candidate.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use tenure_core::id::InvalidName;
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tenure_core::vacancy::{Front, LeaderView, Vacancy};
use tokio::time::Sleep;

use super::{ElectionQueue, Leader};
use crate::clock::Clock;
use crate::error::Error;
use crate::feed::{Feed, FeedItem};
use crate::store::{KeyValue, LeaseView, Revision, Selection, StoreError};

pub use tenure_core::vacancy::{Gap, TermEnd};

/// How often this stream wants to be polled, so that it notices when it was not.
const WAKE_EVERY: Duration = Duration::from_secs(1);

/// How much later than requested a stream may be polled before that time counts as unseen. A busy runtime stays below this.
const UNPOLLED_MAX: Duration = Duration::from_millis(250);

/// How long a read of a lease may take. It only narrows the bounds of a gap, so it is repeated later if the store does not reply.
const LEASE_READ_MAX: Duration = Duration::from_secs(2);

/// The leader at some revision.
#[derive(Clone, PartialEq, Debug)]
pub struct Observation {
    /// The leader; none if the election had none.
    pub leader: Option<Leader>,
    /// The revision.
    pub revision: Revision,
    /// For a leader that follows another one, or a time without a leader: bounds of that time, on the observer's clock.
    pub gap: Option<Gap>,
    /// Without a leader: how the last term ended, if one was seen.
    pub end: Option<TermEnd>,
}

/// The leader, now and after each change: a stream of [`Observation`]s.
///
/// ```
/// use futures_util::StreamExt;
/// use tenure::Namespace;
/// use tenure::election::Elections;
/// use tenure::session::Session;
/// use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let session = Session::open(Store::memory())?;
/// let election = Elections::new(&session, &Namespace::parse("shop")?).election("scheduler");
/// let mut observe = election.observe();
/// assert_eq!(observe.next().await.ok_or("it does not end")??.leader, None);
/// let _term = election.campaign().value("10.0.0.7:80").await?;
/// let seen = observe.next().await.ok_or("it does not end")??;
/// assert_eq!(seen.leader.map(|leader| leader.record.value), Some("10.0.0.7:80".to_owned()));
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * The first item is the present state, also if there is no leader. "No leader" is a value, and comes for every such time that was seen.
/// * Revisions grow from item to item, and the tokens of leaders never shrink.
/// * An item comes for a new leader, for none, and when the leader announces another value. A transfer is one step, without a time
///   between without a leader.
/// * A candidate that waited is shown after it marked its key as the leader's, or renewed its lease while it was the first. A candidate
///   that died in the queue is not shown.
/// * [`Gap`]: a time without a leader has bounds, the reason, and the time in which the observer had no connection.
/// * It survives outages and compaction, and needs no lease.
///
/// # Not guaranteed
///
/// * *The process behind the first key*: the first item shows the first key as the leader, also if its process is dead and its lease has
///   not expired yet.
/// * *Every leader*: a term that began and ended while the store could not be reached, or a broken watch was not restored, is not seen.
///
/// # Cancellation
///
/// Nothing is lost when a future of `next` is dropped.
///
/// # Errors
///
/// Only errors that no retry can mend, as the last item; see [`Feed`].
#[must_use = "an observer does nothing unless it is polled"]
pub struct Observe {
    /// The observer; or the error that is the only item, once.
    observer: Result<Box<Observer>, Option<InvalidName>>,
}

impl Observe {
    pub(super) fn new(queue: Result<ElectionQueue, InvalidName>) -> Observe {
        Observe { observer: queue.map(|queue| Box::new(Observer::new(&queue))).map_err(Some) }
    }
}

impl Stream for Observe {
    type Item = Result<Observation, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut self.observer {
            Ok(observer) => {
                let item = std::task::ready!(Pin::new(&mut **observer).poll_next(context));
                Poll::Ready(item.map(|item| item.map_err(Error::from)))
            }
            Err(invalid) => Poll::Ready(invalid.take().map(|invalid| Err(invalid.into()))),
        }
    }
}

/// The observer of an election with a valid name.
pub(super) struct Observer {
    election: ElectionQueue,
    feed: Result<Feed, Option<StoreError>>,
    clock: Arc<dyn Clock>,
    /// The candidates of the snapshot so far.
    queue: BTreeMap<Token, KeyValue>,
    tokens: BTreeMap<Bytes, Token>,
    /// The keys that were seen behind another one.
    waited: BTreeSet<Token>,
    /// The keys that were put while the queue was known and empty: their terms began when they were put.
    unopposed: BTreeSet<Token>,
    last_shown: Option<Option<Leader>>,
    vacancy: Vacancy,
    /// When the queue was last read completely.
    whole_at: Revision,
    /// A read of the lease of the first key.
    reading: Option<LeaseRead>,
    wake: Option<(Moment, Pin<Box<Sleep>>)>,
    is_whole: bool,
    /// Whether a stored or deleted request to step down is shown as well.
    shows_requests: bool,
}

/// A read of a lease in flight.
struct LeaseRead {
    token: Token,
    sent_at: Moment,
    reply: Pin<Box<dyn Future<Output = Option<LeaseView>> + Send>>,
}

impl Observer {
    fn new(election: &ElectionQueue) -> Observer {
        let feed = Feed::open(election.store().clone(), Selection::Prefix(election.prefix.clone()));
        Observer {
            feed: feed.map_err(Some),
            clock: election.elections.clock.clone(),
            election: election.clone(),
            queue: BTreeMap::new(),
            tokens: BTreeMap::new(),
            waited: BTreeSet::new(),
            unopposed: BTreeSet::new(),
            last_shown: None,
            vacancy: Vacancy::default(),
            whole_at: Revision::ZERO,
            reading: None,
            wake: None,
            is_whole: false,
            shows_requests: false,
        }
    }

    /// An observer that also shows when a request to step down is stored or deleted.
    pub(super) fn of_requests(election: &ElectionQueue) -> Observer {
        Observer { shows_requests: true, ..Observer::new(election) }
    }

    fn take(&mut self, item: FeedItem) -> Option<Observation> {
        let now = self.clock.now();
        match item {
            FeedItem::SnapshotBegin => {
                self.is_whole = false;
                self.vacancy.handle_break(now);
                None
            }
            FeedItem::Put(pair) => {
                let token = Token(pair.created);
                // Else it is part of a list, and may have been there for long.
                let is_live = self.is_whole;
                if self.tokens.get(&pair.key) != Some(&token) {
                    self.forget(&pair.key);
                }
                // A foreign key is no candidate.
                if self.election.queue_key(&pair).is_some() {
                    if self.queue.keys().next().is_some_and(|first| *first < token) {
                        self.waited.insert(token);
                    } else if is_live && self.queue.is_empty() {
                        self.unopposed.insert(token);
                    }
                    self.tokens.insert(pair.key.clone(), token);
                    self.queue.insert(token, pair);
                }
                None
            }
            FeedItem::Delete { key, .. } => {
                self.forget(&key);
                None
            }
            FeedItem::Synced(revision) => {
                // A list comes in the order of its keys, not of their creation: only when it is complete, it shows which key is the oldest.
                if !self.is_whole {
                    self.waited.extend(self.queue.keys().skip(1));
                }
                (self.whole_at, self.is_whole) = (revision, true);
                self.look(now)
            }
        }
    }

    fn forget(&mut self, key: &Bytes) {
        if let Some(token) = self.tokens.remove(key) {
            self.queue.remove(&token);
            self.waited.remove(&token);
            self.unopposed.remove(&token);
        }
    }

    /// The queue is complete: returns what is new in it.
    fn look(&mut self, now: Moment) -> Option<Observation> {
        let front = self.leader().map(|leader| Front {
            token: leader.token,
            waited: self.waited.contains(&leader.token),
            leads: leader.record.leads,
        });
        let shown = self.vacancy.handle_front(now, front);
        self.show(shown)
    }

    /// Notices that the caller has not polled this stream: what happened meanwhile was not seen when it happened.
    fn handle_pause(&mut self) {
        let now = self.clock.now();
        if let Some((at, _)) = self.wake.take_if(|(at, _)| now.since(*at) > UNPOLLED_MAX) {
            self.vacancy.handle_break(at);
        }
    }

    /// The candidate with the oldest key.
    fn leader(&self) -> Option<Leader> {
        let pair = self.queue.values().next()?;
        let mut leader = Leader::of(self.election.queue_key(pair)?, pair);
        if self.unopposed.contains(&leader.token) {
            // A term is recorded after a moment. This one was seen to begin with its key.
            leader.record.acquired.get_or_insert(leader.record.queued);
        }
        Some(leader)
    }

    /// Returns an observation, if the leader has changed since the last one.
    fn show(&mut self, shown: LeaderView) -> Option<Observation> {
        let (leader, gap) = match shown {
            LeaderView::Leader(gap) => (self.leader(), gap),
            LeaderView::Leaderless => (None, None),
            LeaderView::Unsettled => return None,
        };
        if self.last_shown.as_ref().is_some_and(|last| self.is_same(last.as_ref(), leader.as_ref())) {
            return None;
        }
        let token = |leader: &Option<Leader>| leader.as_ref().map(|leader| leader.token);
        let is_new = self.last_shown.as_ref().is_none_or(|last| token(last) != token(&leader));
        self.last_shown = Some(leader.clone());
        let end = if leader.is_none() { self.vacancy.end() } else { None };
        Some(Observation { leader, revision: self.whole_at, gap: gap.filter(|_| is_new), end })
    }

    /// Reads the lease of the first key when that is due, and waits for what is due next.
    fn poll_lease(&mut self, context: &mut Context<'_>) -> Poll<Option<Observation>> {
        loop {
            let now = self.clock.now();
            if let Some(reading) = &mut self.reading {
                if let Poll::Ready(view) = reading.reply.as_mut().poll(context) {
                    let lease = view.map(|view| (view.granted, view.remaining));
                    let (token, sent_at) = (reading.token, reading.sent_at);
                    self.reading = None;
                    let shown = self.vacancy.handle_lease(token, sent_at, now, lease);
                    return Poll::Ready(self.show(shown));
                }
            } else if let Some((token, at)) = self.vacancy.read_at()
                && at <= now
                && let Some(pair) = self.queue.get(&token)
                && let Some(place) = self.election.queue_key(pair)
            {
                let store = self.election.store().clone();
                let read = async move {
                    let read = tokio::time::timeout(LEASE_READ_MAX, store.lease(place.lease));
                    read.await.ok().and_then(Result::ok).flatten()
                };
                self.reading = Some(LeaseRead { token, sent_at: now, reply: Box::pin(read) });
                continue;
            }
            if self.vacancy.leaderless_at().is_some_and(|at| at <= now) {
                let shown = self.vacancy.shown(now);
                if let Some(observation) = self.show(shown) {
                    return Poll::Ready(Some(observation));
                }
            }
            let read_at = self.vacancy.read_at().map(|(_, at)| at).filter(|_| self.reading.is_none());
            let leaderless_at = self.vacancy.leaderless_at().filter(|at| *at > now);
            let due = read_at.into_iter().chain(leaderless_at).min();
            let at = due.map_or(now + WAKE_EVERY, |at| at.min(now + WAKE_EVERY));
            // At least a millisecond, so that a first key without a candidate behind it does not make this loop busy.
            let rest = at.remaining(now).max(Duration::from_millis(1));
            let (_, wake) = self.wake.insert((now + rest, Box::pin(tokio::time::sleep(rest))));
            if wake.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Whether nothing changed that an observer shows. A request to step down concerns only the leader and the sender.
    fn is_same(&self, before: Option<&Leader>, now: Option<&Leader>) -> bool {
        match (before, now) {
            (Some(before), Some(now)) => {
                before.token == now.token
                    && before.record.value == now.record.value
                    && (!self.shows_requests || before.record.asked == now.record.asked)
            }
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

impl Stream for Observer {
    type Item = Result<Observation, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.handle_pause();
        loop {
            let item = match &mut self.feed {
                Ok(feed) => Pin::new(feed).poll_next(context),
                Err(error) => return Poll::Ready(error.take().map(Err)),
            };
            match item {
                Poll::Ready(Some(Ok(item))) => {
                    if let Some(observation) = self.take(item) {
                        return Poll::Ready(Some(Ok(observation)));
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    self.feed = Err(None);
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending if self.is_whole && self.vacancy.is_blind() => {
                    // Nothing changed while the caller did not poll.
                    let now = self.clock.now();
                    if let Some(observation) = self.look(now) {
                        return Poll::Ready(Some(Ok(observation)));
                    }
                }
                Poll::Pending => match self.poll_lease(context) {
                    Poll::Ready(Some(observation)) => return Poll::Ready(Some(Ok(observation))),
                    Poll::Ready(None) => {}
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }
}
