//! Whether a run is due, and its record: what [`Once`](super::Once) does under its lock, for programs that hold the lock in their own way.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::fence::Fence;
use tenure_core::id::{LockName, Namespace};
use tenure_core::layout::{Key, Layout};
use tenure_core::once::{
    BeginRun, Begun, CountedRuns, EndRun, OnceDecision, OnceRule, is_in_future, lock_of,
};
use tenure_core::record::{OnceRecord, Record};
use thiserror::Error;

use crate::clock::{BootClock, Clock, wall_time};
use crate::identity::{self, Identity};
use crate::retry;
use crate::store::{Store, StoreError};

/// Decides whether a run is due and records it, under a lock that the caller holds.
///
/// ```
/// use std::time::Duration;
/// use tenure::{LockName, Namespace};
/// use tenure::lock::Locks;
/// use tenure::once::{Begun, OnceDecision, RunGate};
/// use tenure::session::Session;
/// use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, namespace) = (Store::memory(), Namespace::parse("shop")?);
/// let day = Duration::from_secs(24 * 3_600);
/// let gate = RunGate::new(&store, &namespace, LockName::parse("backup")?, day);
///
/// if let OnceDecision::Due { .. } = gate.decide().await? {
///     let guard = Locks::new(&Session::open(store)?, &namespace).lock(gate.lock_name().as_str()).await?;
///     if let Begun::Begun { mut record, .. } = gate.begin(guard.fence()).await? {
///         record.exit_code = Some(0); // the work, and how it ended
///         assert!(gate.finish(&guard.fence(), &record).await?);
///     }
///     guard.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * [`RunGate::begin`] reports that a run has begun at most once per period, if it is given the fence of the lock [`RunGate::lock_name`].
/// * A record is written only while that lock is held.
///
/// # Not guaranteed
///
/// That a run is still due after [`RunGate::decide`]: only [`RunGate::begin`] knows.
///
/// # Cancellation
///
/// Dropping the future of a begin leaves open whether the run counts.
///
/// # Errors
///
/// The errors of the store. A failed begin is retried twice and a lost reply is settled by a read; [`RunGate::finish`] and
/// [`RunGate::withdraw`] retry until the store replies, so bound them.
#[derive(Clone, Debug)]
pub struct RunGate {
    store: Store,
    clock: Arc<dyn Clock>,
    key: Bytes,
    name: LockName,
    rule: OnceRule,
    identity: Arc<Identity>,
}

/// Why it is not known whether a run is due.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RunGateError {
    /// The record of the last run cannot be read. If no program needs it, delete its key.
    #[error("the record of the last run cannot be read: {reason}")]
    Unreadable {
        /// Why.
        reason: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl RunGate {
    /// The runs of this name, one in each period of this length. Asks nothing of the store yet.
    pub fn new(store: &Store, namespace: &Namespace, name: LockName, every: Duration) -> RunGate {
        RunGate {
            store: store.clone(),
            clock: Arc::new(BootClock),
            key: Layout::new(namespace).encode(&Key::Run(name.clone())),
            name,
            rule: OnceRule { every, counted: CountedRuns::Begun },
            identity: Arc::new(identity::current()),
        }
    }

    /// Counts only runs that are recorded as a success, with the exit code 0.
    #[must_use]
    pub fn retry_failed(mut self) -> RunGate {
        self.rule.counted = CountedRuns::Succeeded;
        self
    }

    /// The identity that is stored with a run; [`identity::current`] otherwise.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> RunGate {
        self.identity = Arc::new(identity);
        self
    }

    /// Waits between retries on this clock.
    pub(super) fn on(mut self, clock: &Arc<dyn Clock>) -> RunGate {
        self.clock = clock.clone();
        self
    }

    /// The name.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The key of the record.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// The lock to hold.
    pub fn lock_name(&self) -> LockName {
        lock_of(&self.name)
    }

    /// The period, and which runs count.
    pub(super) fn rule(&self) -> &OnceRule {
        &self.rule
    }

    /// The record of the last run.
    pub async fn last(&self) -> Result<Option<OnceRecord>, RunGateError> {
        let Some(pair) = self.store.get_key(self.key.clone()).await? else { return Ok(None) };
        let unreadable = |reason| RunGateError::Unreadable { reason };
        OnceRecord::decode(&pair.value).map(Some).map_err(|bad| unreadable(bad.reason()))
    }

    /// Whether a run is due now, without the lock.
    pub async fn decide(&self) -> Result<OnceDecision, RunGateError> {
        Ok(self.rule.decide(self.last().await?.as_ref(), wall_time()))
    }

    /// Records that a run begins, if one is due. Start the work only after [`Begun::Begun`].
    pub async fn begin(&self, fence: Fence) -> Result<Begun, StoreError> {
        let Identity { node, pid, program: command, .. } = (*self.identity).clone();
        let record = OnceRecord { started: wall_time(), node, pid, command, ..OnceRecord::default() };
        let mut begin = BeginRun::new(self.key.clone(), fence, self.rule, record);
        retry::run("begin of a run", &self.store, &self.clock, &mut begin).await
    }

    /// Records how the run ended, with `record.exit_code`. False if the lock is not held any more.
    pub async fn finish(&self, fence: &Fence, record: &OnceRecord) -> Result<bool, StoreError> {
        let mut end = EndRun::finished(self.key.clone(), fence, record);
        retry::run("end of a run", &self.store, &self.clock, &mut end).await
    }

    /// Deletes the record of a run that did not start after all. False if the lock is not held any more: then the run counts.
    pub async fn withdraw(&self, fence: &Fence) -> Result<bool, StoreError> {
        let mut end = EndRun::withdrawn(self.key.clone(), fence);
        retry::run("withdrawal of a run", &self.store, &self.clock, &mut end).await
    }
}

/// The last run of a name.
#[derive(Clone, PartialEq, Debug)]
pub struct LastRun {
    /// The name.
    pub name: LockName,
    /// Its record.
    pub record: OnceRecord,
    /// Whether it was recorded by a clock that is too far ahead of this one. It does not count for an earlier period.
    pub is_in_future: bool,
}

/// The last run of every name in a namespace, by name. A record that cannot be read is left out: the next run reports it.
///
/// # Errors
///
/// The errors of a read.
pub async fn list(store: &Store, namespace: &Namespace) -> Result<Vec<LastRun>, StoreError> {
    let layout = Layout::new(namespace);
    let pairs = store.list(layout.runs()).await?.pairs;
    let now = wall_time();
    let last = pairs.iter().filter_map(|pair| {
        let Some(Key::Run(name)) = layout.parse(&pair.key) else { return None };
        let record = OnceRecord::decode(&pair.value).ok()?;
        Some(LastRun { name, is_in_future: is_in_future(record.started, now), record })
    });
    Ok(last.collect())
}
