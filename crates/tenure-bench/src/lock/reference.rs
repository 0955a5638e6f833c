//! The queue that people write by hand: a key each, and a watch each of the key before one's own.
//!
//! Whoever was before one may have left from the middle of the queue, or its lease may have ended, while somebody else still holds. So a program
//! that is right looks whether nobody is before it when that one is gone, as ours does and the etcd project's own: [`TurnCheck::Checks`]. One
//! that does not look is faster by that request and no lock; it is measured beside, without a goal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::StreamExt;
use tenure_core::record::{HolderRecord, Record};

use crate::failure::BenchFailure;
use crate::raw::Raw;
use crate::store_under_test::{StoreUnderTest, TTL, failed};
use crate::workload::wrong;

/// Whether somebody makes sure of its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TurnCheck {
    /// Looks whether nobody else is before it when the one before it is gone.
    Checks,
    /// Holds when the one before it is gone.
    Trusts,
}

impl TurnCheck {
    /// Beside whom ours takes its turns here: both, or where there is no reference nobody, once.
    pub(super) fn beside(place: &StoreUnderTest) -> &'static [TurnCheck] {
        if place.raw.is_some() { &[TurnCheck::Checks, TurnCheck::Trusts] } else { &[TurnCheck::Checks] }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            TurnCheck::Checks => "raw",
            TurnCheck::Trusts => "raw_unchecked",
        }
    }

    /// What is wanted of ours by a reference that is as careful as this; nothing by one that is no lock.
    pub(super) fn goal(self, least: f64) -> Option<f64> {
        match self {
            TurnCheck::Checks => Some(least),
            TurnCheck::Trusts => None,
        }
    }
}

/// A queue, as one of a process stands in it.
#[derive(Clone)]
pub(crate) struct ReferenceQueue {
    raw: Arc<Raw>,
    /// Ends in `/`.
    prefix: Bytes,
    lease: i64,
    /// How many stand here with this lease.
    count: Arc<AtomicU64>,
    /// Its own, again and again: etcd walks over every key that was ever there until its history is compacted.
    key: Bytes,
    /// As much as ours say of themselves.
    value: Bytes,
    care: TurnCheck,
}

/// A place in a queue.
pub(crate) struct QueuePosition {
    key: Bytes,
    revision: i64,
    /// Who was before it when it was put.
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

    /// The same queue for another who stands in it.
    pub(crate) fn another(&self) -> ReferenceQueue {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        // As long as ours.
        let key = [&self.prefix[..], format!("{:016x}-{count:016x}", self.lease).as_bytes()].concat();
        ReferenceQueue { key: key.into(), ..self.clone() }
    }

    /// The same queue for somebody who is as careful as this.
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

    /// Ends the lease that it stands on.
    pub(crate) async fn close(&self) -> Result<(), BenchFailure> {
        ReferenceQueue::end(&self.raw, self.lease).await
    }

    /// Stands in the queue, and says who is before it.
    pub(crate) async fn enter(&self) -> Result<QueuePosition, BenchFailure> {
        let key = self.key.clone();
        let entered = self.raw.enter(&self.prefix, key.clone(), self.value.clone(), self.lease).await;
        let entered = entered.map_err(failed)?;
        Ok(QueuePosition { key, revision: entered.revision, before: entered.before })
    }

    /// Waits until its turn has come: a watch from now on, and one look at what happened before it stood.
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
