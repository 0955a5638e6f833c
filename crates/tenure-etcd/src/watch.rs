//! Watches: any number of them on one stream, resumed without their consumers noticing.
//!
//! One task per client owns the stream (`watch/driver.rs`) and executes what a pure machine decides
//! (`watch/router.rs`). It leaves a server that does not reply, continues on another one after the
//! last delivered revision, and proves after each restart that compaction removed nothing in
//! between.

mod driver;
mod hub;
mod join;
mod queue;
mod refusal;
mod router;
mod start_checks;
mod subscription;
mod version;
mod watchdog;

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use tokio::task::coop::poll_proceed;

use crate::client::Client;
use crate::error::Error;
use crate::kv::KeyValue;

pub(crate) use hub::Hub;

/// What to watch, and from when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchSpec {
    /// The key, or the first key of the range.
    pub key: Bytes,
    /// Empty for the one key; one zero byte for all keys from `key` on; otherwise the first key outside the range.
    pub range_end: Bytes,
    /// Where to begin.
    pub start: WatchFrom,
    /// Whether events carry the previous value of their key.
    pub prev: bool,
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFrom {
    /// After a revision read during the call: nothing committed after the call returned is missed.
    Now,
    /// After the current revision of the member that serves the watch, which may lag. Nothing
    /// committed after the call returned is missed, and a later read sees everything before it.
    /// Saves the read of [`WatchFrom::Now`].
    Recent,
    /// With the first revision above this one, which may lie in the past or in the future; 0 is the beginning.
    After(i64),
}

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// The key was written.
    Put {
        /// The key as it is now.
        kv: KeyValue,
        /// The previous value, if requested, and if there was one that compaction has kept.
        prev: Option<KeyValue>,
    },
    /// The key was deleted.
    Delete {
        /// The key.
        key: Bytes,
        /// The revision of the deletion.
        revision: i64,
        /// The previous value, if requested and if compaction has kept it.
        prev: Option<KeyValue>,
    },
}

impl WatchEvent {
    /// The revision of the change.
    #[must_use]
    pub fn revision(&self) -> i64 {
        match self {
            WatchEvent::Put { kv, .. } => kv.mod_revision,
            WatchEvent::Delete { revision, .. } => *revision,
        }
    }

    fn weight(&self) -> usize {
        let weight = |kv: &KeyValue| kv.key.len() + kv.value.len() + size_of::<KeyValue>();
        match self {
            WatchEvent::Put { kv, prev } => weight(kv) + prev.as_ref().map_or(0, weight),
            WatchEvent::Delete { key, prev, .. } => {
                key.len() + prev.as_ref().map_or(0, weight) + size_of::<KeyValue>()
            }
        }
    }
}

/// What a watcher delivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchItem {
    /// All changes of one revision that the watcher covers, in the order of their transaction.
    Batch {
        /// The revision.
        revision: i64,
        /// Its changes; never empty.
        events: Vec<WatchEvent>,
    },
    /// Everything up to this revision was delivered.
    Progress(i64),
}

impl WatchItem {
    /// The revision up to which everything was delivered with this item.
    #[must_use]
    pub fn revision(&self) -> i64 {
        match self {
            WatchItem::Batch { revision, .. } | WatchItem::Progress(revision) => *revision,
        }
    }

    fn weight(&self) -> usize {
        match self {
            WatchItem::Batch { events, .. } => events.iter().map(WatchEvent::weight).sum(),
            WatchItem::Progress(_) => 0,
        }
    }
}

/// Why a watcher ended; its last item.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// What comes next was removed by compaction: list again, then watch after that revision.
    #[error("the history up to revision {at} was compacted away")]
    Compacted {
        /// The compact revision as the server reported it, or the smallest one it can have.
        at: i64,
    },
    /// The store is lost for this client.
    #[error("the watch was lost")]
    Lost(#[source] Error),
}

impl Client {
    /// Watches a key or a range, on the one stream that all watchers of this client share.
    ///
    /// Returns when a server has created the watch. Consumers do not notice broken streams and dead
    /// members: the watch continues elsewhere, after the last revision delivered.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an empty key, an empty range or a negative revision; [`Error::Denied`] without the
    /// permission to read the range; [`Error::Unavailable`] when no member took it within the deadline.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind: the watch is cancelled at the server, as if the watcher had been
    /// dropped.
    pub async fn watch(&self, spec: WatchSpec) -> Result<Watcher, Error> {
        self.watches().watch(self.endpoints(), spec).await
    }
}

/// All events of one revision.
#[derive(Debug, PartialEq, Eq)]
struct RevisionBatch {
    revision: i64,
    events: Vec<WatchEvent>,
}

/// A stream of the changes of a key or a range.
///
/// # Guarantees
///
/// Each revision comes exactly once, whole and in order, without a gap, across broken streams and changed servers.
/// [`WatchItem::Progress`] comes only after everything up to its revision was delivered.
///
/// # Not guaranteed
///
/// A watcher that reads too slowly is cancelled at the server and continued when it has caught up; if compaction is
/// faster, it ends with [`WatchError::Compacted`].
///
/// # Cancellation
///
/// Dropping it cancels the watch at the server; the drop itself only signals.
#[derive(Debug)]
pub struct Watcher {
    queue: queue::QueueReceiver,
    handle: hub::SubscriptionHandle,
    point: i64,
}

impl Watcher {
    /// The revision after which the watcher delivers: the one given, the one read for [`WatchFrom::Now`], or the member's.
    #[must_use]
    pub fn start_revision(&self) -> i64 {
        self.point
    }
}

impl Stream for Watcher {
    type Item = Result<WatchItem, WatchError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Without a budget a reader of a busy watch never yields, and the timers of its worker thread are late.
        let budget = ready!(poll_proceed(context));
        let taken = ready!(self.queue.poll_take(context));
        budget.made_progress();
        Poll::Ready(match taken {
            queue::Taken::Item(item) => Some(Ok(item)),
            queue::Taken::LastBeforeRest(item) => {
                self.handle.drained();
                Some(Ok(item))
            }
            queue::Taken::End(end) => Some(Err(end)),
            queue::Taken::Over => None,
        })
    }
}
