//! Following who leads, without being a candidate.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use tenure_core::revision::Token;
use tenure_core::time::Moment;

use super::{Election, Leader};
use crate::clock::Clock;
use crate::feed::{Feed, FeedItem};
use crate::store::{KeyValue, Revision, Selection, StoreError};

/// Who led at some revision.
#[derive(Clone, PartialEq, Debug)]
pub struct Observation {
    /// Who; none if nobody did.
    pub leader: Option<Leader>,
    /// When.
    pub revision: Revision,
    /// For a leader that follows a time without one which was seen: how long that was, on the observer's clock.
    pub leaderless: Option<Duration>,
}

/// Who leads, now and whenever that changes: a stream of [`Observation`]s.
///
/// ```
/// use futures_util::StreamExt;
/// use tenure::core::name::Namespace;
/// use tenure::election::Elections;
/// use tenure::session::Session;
/// use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let session = Session::open(Store::memory())?;
/// let election = Elections::new(&session, &Namespace::parse("shop")?).election("scheduler")?;
/// let mut observe = election.observe();
/// assert_eq!(observe.next().await.ok_or("it does not end")??.leader, None);
/// let _term = election.campaign("10.0.0.7:80").await?;
/// let seen = observe.next().await.ok_or("it does not end")??;
/// assert_eq!(seen.leader.map(|leader| leader.record.value), Some("10.0.0.7:80".to_owned()));
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * The first item says how it is, also if nobody leads. "Nobody" is a value, and comes for every time without a leader that was seen.
/// * Revisions grow from item to item, and the tokens of leaders never shrink.
/// * An item comes for a new leader, for none, and when the leader tells another value. A handover is one step: no "nobody" between.
/// * It survives outages and compaction, and needs no lease.
///
/// # Not guaranteed
///
/// * *Every leader*: what came and went while the store could not be reached, or faster than a broken watch is mended, is not told.
///
/// # Cancellation
///
/// Nothing is lost when a future of `next` is dropped.
///
/// # Errors
///
/// Only what no trying can mend, as the last item; see [`Feed`].
#[must_use = "an observer does nothing unless it is read"]
pub struct Observe {
    election: Election,
    feed: Result<Feed, Option<StoreError>>,
    clock: Arc<dyn Clock>,
    /// The candidates of the picture so far.
    line: BTreeMap<Token, KeyValue>,
    tokens: BTreeMap<Bytes, Token>,
    told: Option<Option<Leader>>,
    none_since: Option<Moment>,
    /// Whether what is asked of a leader is news too.
    tells_wishes: bool,
}

impl Observe {
    pub(super) fn new(election: &Election) -> Observe {
        let feed = Feed::open(election.store().clone(), Selection::Prefix(election.line.clone()));
        Observe {
            feed: feed.map_err(Some),
            clock: election.elections.clock.clone(),
            election: election.clone(),
            line: BTreeMap::new(),
            tokens: BTreeMap::new(),
            told: None,
            none_since: None,
            tells_wishes: false,
        }
    }

    /// One that also tells when something is asked of a leader, or no more.
    pub(super) fn with_wishes(election: &Election) -> Observe {
        Observe { tells_wishes: true, ..Observe::new(election) }
    }

    fn take(&mut self, item: FeedItem) -> Option<Observation> {
        match item {
            FeedItem::Begin => None,
            FeedItem::Put(pair) => {
                self.forget(&pair.key);
                // A stranger's key leads nobody.
                if self.election.place(&pair).is_some() {
                    let token = Token(pair.created);
                    self.tokens.insert(pair.key.clone(), token);
                    self.line.insert(token, pair);
                }
                None
            }
            FeedItem::Delete { key, .. } => {
                self.forget(&key);
                None
            }
            FeedItem::Whole(revision) => self.look(revision),
        }
    }

    fn forget(&mut self, key: &Bytes) {
        if let Some(token) = self.tokens.remove(key) {
            self.line.remove(&token);
        }
    }

    /// The picture is whole: says who leads, if that is news.
    fn look(&mut self, revision: Revision) -> Option<Observation> {
        let first = self.line.values().next();
        let leader = first.and_then(|pair| Some(Leader::of(self.election.place(pair)?, pair)));
        if self.told.as_ref().is_some_and(|told| self.is_same(told.as_ref(), leader.as_ref())) {
            return None;
        }
        self.told = Some(leader.clone());
        let now = self.clock.now();
        let leaderless = match leader {
            Some(_) => self.none_since.take().map(|since| now.since(since)),
            None => {
                self.none_since = Some(now);
                None
            }
        };
        Some(Observation { leader, revision, leaderless })
    }

    /// Whether there is nothing to tell: what is asked of a leader concerns only itself, and whoever asked.
    fn is_same(&self, before: Option<&Leader>, now: Option<&Leader>) -> bool {
        match (before, now) {
            (Some(before), Some(now)) => {
                before.token == now.token
                    && before.record.value == now.record.value
                    && (!self.tells_wishes || before.record.asked == now.record.asked)
            }
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

impl Stream for Observe {
    type Item = Result<Observation, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let item = match &mut self.feed {
                Ok(feed) => ready!(Pin::new(feed).poll_next(context)),
                Err(error) => return Poll::Ready(error.take().map(Err)),
            };
            match item {
                Some(Ok(item)) => {
                    if let Some(observation) = self.take(item) {
                        return Poll::Ready(Some(Ok(observation)));
                    }
                }
                Some(Err(error)) => {
                    self.feed = Err(None);
                    return Poll::Ready(Some(Err(error)));
                }
                None => return Poll::Ready(None),
            }
        }
    }
}
