//! The store's own record: everything that was ever committed, read by an observer that no fault
//! hits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use tenure::store::{Change, PreviousValues, Revision, Selection, Store, WatchItem, WatchStart};
use tenure::testing::World;
use tenure_core::layout::{Key, Layout};
use tenure_core::revision::Token;

use crate::held::HoldTracker;

/// One change that was committed.
#[derive(Clone, Debug)]
pub struct AuditEntry {
    /// When, in the world's time.
    pub at: Duration,
    /// At which revision.
    pub revision: Revision,
    /// What.
    pub change: Change,
}

/// Everything that was committed so far. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct Audit {
    log: Arc<Mutex<Vec<AuditEntry>>>,
}

impl Audit {
    /// Everything so far.
    pub fn log(&self) -> Vec<AuditEntry> {
        self.lock().clone()
    }

    /// Follows the store for as long as the world lasts. When a queue key is deleted, it records at
    /// that moment whether its holder's validity had ended.
    pub async fn read(self, world: World, store: Store, layout: Layout, holds: HoldTracker) {
        let watch = store.watch(Selection::everything(), WatchStart::Now, PreviousValues::Included);
        let mut watch = watch.await.expect("the observer reaches the store");
        while let Some(item) = watch.next().await {
            let WatchItem::Batch { revision, changes } = item.expect("history is kept for the observer")
            else {
                continue;
            };
            for change in changes {
                if let Change::Delete { key, previous: Some(pair), .. } = &change
                    && let Some(subject) = layout.parse(key).and_then(|key| subject_of(&key))
                {
                    holds.key_deleted(&subject, Token(pair.created));
                }
                self.lock().push(AuditEntry { at: world.elapsed(), revision, change });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<AuditEntry>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lock, election or task that this key belongs to, by its name in the history; `None` for
/// other keys.
pub fn subject_of(key: &Key) -> Option<String> {
    match key {
        Key::Waiter(name, _) => Some(lock_line(name.as_str())),
        Key::Candidate(name, _) => Some(election_line(name.as_str())),
        Key::Ttl(name) => Some(ttl_line(name.as_str())),
        Key::TaskOwner(task) => Some(task_line(task.as_str())),
        Key::Node(_)
        | Key::NodeCommand(..)
        | Key::Task(_)
        | Key::TaskProps(_)
        | Key::TaskAttempt(..)
        | Key::TaskState(_)
        | Key::EndedTask(..)
        | Key::TaskCommand(_)
        | Key::CommandResult(_)
        | Key::Frozen(_)
        | Key::Audit(_)
        | Key::EnterGuard(_)
        | Key::Resignation(..)
        | Key::Run(_)
        | Key::Registration(_) => None,
    }
}

/// A lock, as it is called in the history.
pub fn lock_line(name: &str) -> String {
    format!("lock {name}")
}

/// An election, as it is called in the history.
pub fn election_line(name: &str) -> String {
    format!("election {name}")
}

/// A TTL election, as it is called in the history.
pub fn ttl_line(name: &str) -> String {
    format!("ttl {name}")
}

/// The ownership of a task, as it is called in the history.
pub fn task_line(id: &str) -> String {
    format!("task {id}")
}
