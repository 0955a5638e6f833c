//! The queue of a program with bare calls: one key per waiter, and one watch per waiter of the key
//! before its own.
//!
//! The predecessor may have left from the middle of the queue, or its lease may have expired, while
//! another process still holds. A correct program therefore reads whether an older key exists when
//! its predecessor is gone, as Tenure and the etcd project's own lock do: [`TurnCheck::Checks`]. A
//! program without that read saves one request and is no lock; it is measured too, without a goal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::StreamExt;
use tenure_core::record::{HolderRecord, Record};

use crate::failure::BenchFailure;
use crate::raw::Raw;
use crate::store_under_test::{StoreUnderTest, TTL, failed};
use crate::workload::wrong;

/// Whether a waiter confirms its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TurnCheck {
    /// Reads whether an older key exists when the predecessor is gone.
    Checks,
    /// Holds as soon as its predecessor is gone.
    Trusts,
}

impl TurnCheck {
    /// The references that Tenure is compared with here: both, or none where there is no server.
    pub(super) fn compared_with(place: &StoreUnderTest) -> &'static [TurnCheck] {
        if place.raw.is_some() { &[TurnCheck::Checks, TurnCheck::Trusts] } else { &[TurnCheck::Checks] }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            TurnCheck::Checks => "raw",
            TurnCheck::Trusts => "raw_unchecked",
        }
    }

    /// The goal against a reference with this check; none against one that is no lock.
    pub(super) fn goal(self, least: f64) -> Option<f64> {
        match self {
            TurnCheck::Checks => Some(least),
            TurnCheck::Trusts => None,
        }
    }
}

/// A queue, as used by one process.
#[derive(Clone)]
pub(crate) struct ReferenceQueue {
    raw: Arc<Raw>,
    /// Ends in `/`.
    prefix: Bytes,
    lease: i64,
    /// How many keys this process has put with this lease.
    count: Arc<AtomicU64>,
    /// Its own, again and again: etcd walks over every key that was ever there until its history is compacted.
    key: Bytes,
    /// A value as long as Tenure's.
    value: Bytes,
    care: TurnCheck,
}

/// A place in a queue.
pub(crate) struct QueuePosition {
    key: Bytes,
    revision: i64,
    /// The key before it when it was put.
    pub(crate) before: Option<Bytes>,
}

impl ReferenceQueue {
    pub(crate) fn new(raw: &Raw, folder: &str, name: &str, lease: i64) -> ReferenceQueue {
        let first = ReferenceQueue {
            raw: Arc::new(raw.clone()),
            prefix: format!("{folder}locks/{name}/").into(),
            lease,
            count: Arc::default(),
            key: Bytes::new(),
            value: HolderRecord::default().encode(),
            care: TurnCheck::Checks,
        };
        first.another()
    }

    /// The same queue for another waiter.
    pub(crate) fn another(&self) -> ReferenceQueue {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        // A key as long as Tenure's.
        let key = [&self.prefix[..], format!("{:016x}-{count:016x}", self.lease).as_bytes()].concat();
        ReferenceQueue { key: key.into(), ..self.clone() }
    }

    /// The same queue for a waiter with this check.
    pub(crate) fn with(self, care: TurnCheck) -> ReferenceQueue {
        ReferenceQueue { care, ..self }
    }

    /// The same queue through another connection.
    pub(crate) fn through(&self, raw: &Raw) -> ReferenceQueue {
        ReferenceQueue { raw: Arc::new(raw.clone()), ..self.clone() }
    }

    /// A lease for the keys of a turn.
    pub(crate) async fn lease(raw: &Raw) -> Result<i64, BenchFailure> {
        raw.grant(i64::try_from(TTL.as_secs()).unwrap_or(i64::MAX)).await.map_err(failed)
    }

    /// Ends a lease, and the keys with it.
    pub(crate) async fn end(raw: &Raw, lease: i64) -> Result<(), BenchFailure> {
        raw.revoke(lease).await.map_err(failed)
    }

    /// Revokes the lease of its keys.
    pub(crate) async fn close(&self) -> Result<(), BenchFailure> {
        ReferenceQueue::end(&self.raw, self.lease).await
    }

    /// Enters the queue, and returns its position.
    pub(crate) async fn enter(&self) -> Result<QueuePosition, BenchFailure> {
        let key = self.key.clone();
        let entered = self.raw.enter(&self.prefix, key.clone(), self.value.clone(), self.lease).await;
        let entered = entered.map_err(failed)?;
        Ok(QueuePosition { key, revision: entered.revision, before: entered.before })
    }

    /// Waits until it is its turn: a watch from now on, and one read of what happened before it
    /// entered.
    pub(crate) async fn wait(&self, stand: &QueuePosition) -> Result<(), BenchFailure> {
        let mut before = stand.before.clone();
        while let Some(key) = before.take() {
            let mut deletes = self.raw.watch_deletes(key, Bytes::new()).await.map_err(failed)?;
            if self.nearest(stand).await?.is_none() {
                return Ok(());
            }
            loop {
                match deletes.next().await {
                    Some(Ok(keys)) if keys.is_empty() => {}
                    Some(Ok(_)) => break,
                    Some(Err(error)) => return Err(failed(error)),
                    None => return Err(wrong("a watch of the reference ended")),
                }
            }
            if self.care == TurnCheck::Checks {
                before = self.nearest(stand).await?;
            }
        }
        Ok(())
    }

    async fn nearest(&self, stand: &QueuePosition) -> Result<Option<Bytes>, BenchFailure> {
        self.raw.nearest_before(&self.prefix, stand.revision).await.map_err(failed)
    }

    /// Gives its place up.
    pub(crate) async fn leave(&self, stand: QueuePosition) -> Result<(), BenchFailure> {
        match self.raw.delete(stand.key).await.map_err(failed)? {
            true => Ok(()),
            false => Err(wrong("a place of the reference was not there any more")),
        }
    }
}
