//! Who holds a lock and who waits for it, for anybody who wants to know.

use std::collections::BTreeMap;

use tenure_core::layout::{Key, Place};
use tenure_core::line::RollCall;
use tenure_core::name::LockName;
use tenure_core::record::{HolderRecord, Record};
use tenure_core::revision::Token;

use super::Locks;
use crate::audit::{AuditAction, AuditEntry, AuditRecord};
use crate::store::{Condition, KeyValue, Op, Revision, StoreError, Txn};

/// A lock, as it was at one revision.
#[derive(Clone, PartialEq, Debug)]
pub struct LockView {
    /// Its name.
    pub name: LockName,
    /// Who holds it, the oldest first.
    pub holders: Vec<Holder>,
    /// Who waits, the next first.
    pub waiters: Vec<Holder>,
    /// When this was so.
    pub revision: Revision,
}

/// All locks that somebody holds, as they were at one revision.
#[derive(Clone, PartialEq, Debug)]
pub struct LockList {
    /// By name.
    pub locks: Vec<LockView>,
    /// When this was so.
    pub revision: Revision,
}

/// One who holds a lock or waits for it.
#[derive(Clone, PartialEq, Debug)]
pub struct Holder {
    /// Its place in the line.
    pub place: Place,
    /// Its token.
    pub token: Token,
    /// Its stored record: the process, the reason, when it entered the queue and when it acquired. All empty if that cannot be read.
    ///
    /// `acquired` is none in the first 100 ms of a hold, and while a waiter waits.
    pub record: HolderRecord,
}

impl Locks {
    /// Who holds a lock and who waits for it.
    pub async fn view(&self, name: &LockName) -> Result<LockView, StoreError> {
        let page = self.store.list(self.layout.waiters(name)).await?;
        let mut views = self.views(page.pairs, page.revision);
        let nobody = || LockView {
            name: name.clone(),
            holders: Vec::new(),
            waiters: Vec::new(),
            revision: page.revision,
        };
        Ok(views.remove(name).unwrap_or_else(nobody))
    }

    /// All locks that somebody holds, by name.
    pub async fn list(&self) -> Result<LockList, StoreError> {
        let page = self.store.list(self.layout.locks()).await?;
        let locks = self.views(page.pairs, page.revision).into_values().collect();
        Ok(LockList { locks, revision: page.revision })
    }

    /// Takes a place in the line from whoever has it, holder or not. True if it was there.
    ///
    /// A holder is told within a round trip; what it does until then only its token can keep harmless. One who waits stands in line again.
    ///
    /// The same transaction puts an [audit record](crate::audit) with the identity of these locks and the reason.
    pub async fn evict(&self, name: &LockName, holder: &Holder, reason: &str) -> Result<bool, StoreError> {
        let key = self.layout.encode(&Key::Waiter(name.clone(), holder.place));
        let only_it = Condition::created_at(key.clone(), holder.token.0);
        let audit = AuditRecord {
            action: AuditAction::BreakLock,
            target: name.to_string(),
            token: Some(holder.token),
            by: self.holder.identity(),
            reason: reason.to_owned(),
            ..AuditRecord::default()
        };
        let txn = Txn::new().when(only_it).then(Op::delete(key));
        let txn = AuditEntry::new(&self.layout, audit).add_to(txn);
        Ok(self.store.txn(txn).await?.succeeded)
    }

    fn views(&self, pairs: Vec<KeyValue>, revision: Revision) -> BTreeMap<LockName, LockView> {
        let mut lines: BTreeMap<LockName, BTreeMap<Token, Holder>> = BTreeMap::new();
        for pair in pairs {
            // A stranger's key is in nobody's line.
            let Some(Key::Waiter(name, place)) = self.layout.parse(&pair.key) else { continue };
            let token = Token(pair.created);
            let record = HolderRecord::decode(&pair.value).unwrap_or_default();
            lines.entry(name).or_default().insert(token, Holder { place, token, record });
        }
        lines.into_iter().map(|(name, line)| (name.clone(), view(name, line, revision))).collect()
    }
}

fn view(name: LockName, line: BTreeMap<Token, Holder>, revision: Revision) -> LockView {
    let mut roll_call = RollCall::default();
    let (holders, waiters) = line.into_values().partition(|holder| roll_call.holds(holder.record.mode));
    LockView { name, holders, waiters, revision }
}
