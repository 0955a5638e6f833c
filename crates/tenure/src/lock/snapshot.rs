//! Reads of locks: their holders and waiters; and breaking a hold.

use tenure_core::cluster::locks_in;
use tenure_core::id::LockName;
use tenure_core::layout::Key;
use tenure_core::queue::{BreakHold, Broken};

use super::Locks;
use crate::audit::{self, AuditAction, AuditRecord};
use crate::retry;
use crate::store::{Revision, StoreError};

pub use tenure_core::cluster::{Holder, LockSnapshot};

/// All locks that have a holder, at one revision.
#[derive(Clone, PartialEq, Debug)]
pub struct LockList {
    /// By name.
    pub locks: Vec<LockSnapshot>,
    /// The revision.
    pub revision: Revision,
}

impl Locks {
    /// The holders and waiters of a lock.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub async fn get(&self, name: &LockName) -> Result<LockSnapshot, StoreError> {
        let page = self.store.list(self.layout.waiters(name)).await?;
        let mut views = locks_in(&self.layout, page.pairs, page.revision);
        let unused = || LockSnapshot {
            name: name.clone(),
            holders: Vec::new(),
            waiters: Vec::new(),
            revision: page.revision,
        };
        Ok(views.remove(name).unwrap_or_else(unused))
    }

    /// All locks that have a holder, by name.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub async fn list(&self) -> Result<LockList, StoreError> {
        let page = self.store.list(self.layout.locks()).await?;
        let locks = locks_in(&self.layout, page.pairs, page.revision).into_values().collect();
        Ok(LockList { locks, revision: page.revision })
    }

    /// Deletes the queue key of a holder or a waiter. False if it was deleted before.
    ///
    /// A holder loses its hold within a round trip; until then only its token keeps its writes harmless. A waiter enters the queue again.
    ///
    /// The same transaction puts an [audit record](crate::audit) with the identity of these locks and the reason.
    pub async fn break_hold(
        &self,
        name: &LockName,
        holder: &Holder,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let key = self.layout.encode(&Key::Waiter(name.clone(), holder.place));
        let record = AuditRecord {
            action: AuditAction::BreakLock,
            target: name.to_string(),
            token: Some(holder.token),
            by: self.holder.identity(),
            reason: reason.to_owned(),
            ..AuditRecord::default()
        };
        let mut break_hold = BreakHold::new(key, holder.token, audit::entry(&self.layout, record));
        let broken = retry::run("break hold", &self.store, self.queues.clock(), &mut break_hold).await?;
        Ok(broken == Broken::Done)
    }
}
