//! The store: the contract that every engine implements in the same way.
//!
//! An [`Engine`] is what implementors write; a [`Store`] is the cheap, clonable handle that everyone else uses, whatever
//! the engine behind it. What the verbs promise is written at each of them, and checked case by case by the conformance suite.

mod dyn_engine;
mod handle;
mod open;
pub(crate) mod page;
mod url;

pub mod memory;

#[cfg(feature = "file")]
pub mod file;

#[cfg(feature = "etcd")]
pub mod etcd;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_core::Stream;

pub use tenure_core::change::{Change, PreviousValues, WatchError, WatchItem, WatchStart};
pub use tenure_core::error::{
    AccessKind, Cause, Denied, InvalidRequest, KeyRange, MissingGrant, StoreError, StoreReplaced, TlsFailure,
    UnusableStore,
};
pub use tenure_core::kv::{Get, KeyValue, Page, Selection, SortOrder, ValueMode};
pub use tenure_core::lease::{Grant, LeaseId, LeaseView, Renewal};
pub use tenure_core::limits::Limits;
pub use tenure_core::revision::Revision;
pub use tenure_core::txn::{Comparison, Condition, Field, LeaseChoice, Op, OpReply, Txn, TxnReply};

pub use handle::Store;
pub use url::{InvalidStoreUrl, StoreUrl, Transport};

/// What a watch yields; an error is always its last item.
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchItem, WatchError>> + Send>>;

/// What a store is and what can be relied upon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreInfo {
    /// The engine's name: `memory`, `file`, `etcd`, or that of a third party.
    pub kind: &'static str,
    /// Which store this is; another one behind the same address has another id.
    pub id: String,
    /// What it accepts.
    pub limits: Limits,
    /// TTLs are counted in steps of this; others are rounded up.
    pub ttl_step: Duration,
    /// What an acknowledged write survives.
    pub durable: Durability,
    /// Which processes can share it.
    pub reach: Reach,
}

/// What an acknowledged write survives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Durability {
    /// Nothing: it is gone with the process.
    Process,
    /// The death of any process, but perhaps not that of the machine.
    Machine,
    /// Power loss too.
    PowerLoss,
}

/// Which processes can share a store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reach {
    /// The tasks of one process.
    Process,
    /// The processes of one machine.
    Machine,
    /// Many machines.
    Network,
}

/// A store's engine: what implementors write, as plain `async fn`s.
///
/// # Guarantees
///
/// Every call is linearizable, except a `get` with `at`. A call that fails with anything but
/// [`StoreError::Ambiguous`] certainly had no effect.
///
/// # Cancellation
///
/// Dropping the future of a write leaves it open whether the write is applied, as [`StoreError::Ambiguous`] does;
/// it is applied whole or not at all. Dropping any other future leaves nothing behind.
pub trait Engine: Send + Sync + 'static {
    /// What this store is.
    fn info(&self) -> &StoreInfo;

    /// Reads keys. All pages of one listing must pass the first page's revision as `at`.
    fn get(&self, get: Get) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Does a transaction; see [`Txn`] for what it promises.
    fn txn(&self, txn: Txn) -> impl Future<Output = Result<TxnReply, StoreError>> + Send;

    /// Does independent transactions, each with an outcome of its own, in as few requests as the engine can.
    ///
    /// They must not touch each other's keys, may share revisions, and are done in no particular order.
    fn batch(&self, txns: Vec<Txn>) -> impl Future<Output = Vec<Result<TxnReply, StoreError>>> + Send {
        async move {
            let mut replies = Vec::with_capacity(txns.len());
            for txn in txns {
                replies.push(self.txn(txn).await);
            }
            replies
        }
    }

    /// Watches keys: each revision exactly once, whole, in order, without gaps after `start`.
    ///
    /// When the call has returned, a watch from [`WatchStart::Now`] or [`WatchStart::Recent`] misses nothing that is committed from then on. History that is gone shows
    /// as the stream's first item, [`WatchError::Compacted`]. The engine resumes interrupted watches where it can; dropping the stream ends the watch.
    fn watch(
        &self,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> impl Future<Output = Result<WatchStream, StoreError>> + Send;

    /// Grants a lease, under an id of the caller's choice or of the engine's. The revision stays.
    fn grant(
        &self,
        ttl: Duration,
        id: Option<LeaseId>,
    ) -> impl Future<Output = Result<Grant, StoreError>> + Send;

    /// Renews a lease for its whole TTL. A lease past its end is `Gone`, even if its keys are still being removed.
    fn renew(&self, id: LeaseId) -> impl Future<Output = Result<Renewal, StoreError>> + Send;

    /// Ends a lease and deletes its keys, in key order, in one revision, which is returned.
    fn revoke(&self, id: LeaseId) -> impl Future<Output = Result<Revision, StoreError>> + Send;

    /// A lease as it is now; none if it is gone.
    fn lease(&self, id: LeaseId) -> impl Future<Output = Result<Option<LeaseView>, StoreError>> + Send;

    /// All leases.
    fn leases(&self) -> impl Future<Output = Result<Vec<LeaseId>, StoreError>> + Send;

    /// Forgets history up to `revision`, except what a read at `revision` needs.
    fn compact(&self, revision: Revision) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Waits until a store that could not be reached responds again; never completes where the engine cannot detect that.
    ///
    /// A retry loop can end its backoff then.
    fn reachable(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Waits until the store is lost for good, and returns why; never completes where the engine detects that only by failed calls.
    ///
    /// A holder that waits for this stops its work before the next renewal would fail.
    fn lost(&self) -> impl Future<Output = StoreError> + Send {
        std::future::pending()
    }

    /// Ends all watches and every later call with [`StoreError::Closed`], and waits for what the engine runs in the background.
    fn close(&self) -> impl Future<Output = ()> + Send;
}
