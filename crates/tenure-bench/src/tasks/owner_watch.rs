//! An observer of the tasks' owners that claims nothing itself.

use std::collections::BTreeSet;
use std::time::Instant;

use futures_util::StreamExt;
use tenure::store::{Change, PreviousValues, WatchItem, WatchStart, WatchStream};
use tenure_core::id::TaskId;
use tenure_core::layout::{Key, Layout};

use super::context::TaskContext;
use super::workers::PATIENCE;
use crate::failure::BenchFailure;
use crate::workload::wrong;

/// Sees tasks come to owners and lose them.
pub(super) struct OwnerWatch {
    layout: Layout,
    events: WatchStream,
    owned: BTreeSet<TaskId>,
    /// When a task lost its owner last.
    pub(super) lost_at: Option<Instant>,
}

impl OwnerWatch {
    /// Looks from now on; nothing is owned yet.
    pub(super) async fn open(context: &TaskContext) -> Result<OwnerWatch, BenchFailure> {
        let events =
            context.store.watch(context.layout.tasks(), WatchStart::Now, PreviousValues::Omitted).await?;
        Ok(OwnerWatch { layout: context.layout.clone(), events, owned: BTreeSet::new(), lost_at: None })
    }

    /// Waits until so many tasks are owned.
    pub(super) async fn see_owned(&mut self, count: usize) -> Result<Instant, BenchFailure> {
        let by = tokio::time::Instant::now() + PATIENCE;
        while self.owned.len() < count {
            let late = || wrong(format!("{} of {count} are owned after {PATIENCE:?}", self.owned.len()));
            let item = tokio::time::timeout_at(by, self.events.next()).await.map_err(|_| late())?;
            self.take_in(item.ok_or_else(|| wrong("the watch ended"))??);
        }
        Ok(Instant::now())
    }

    /// Waits until all of these have lost their owners and found others.
    pub(super) async fn see_moved(&mut self, tasks: BTreeSet<TaskId>) -> Result<Instant, BenchFailure> {
        let by = tokio::time::Instant::now() + PATIENCE;
        let mut owned = tasks;
        let all = self.owned.len();
        while !owned.is_empty() || self.owned.len() < all {
            let late =
                || wrong(format!("{} were not taken over within {PATIENCE:?}", all - self.owned.len()));
            let item = tokio::time::timeout_at(by, self.events.next()).await.map_err(|_| late())?;
            self.take_in(item.ok_or_else(|| wrong("the watch ended"))??);
            owned.retain(|task| self.owned.contains(task));
        }
        Ok(Instant::now())
    }

    fn take_in(&mut self, item: WatchItem) {
        let WatchItem::Batch { changes, .. } = item else { return };
        for change in changes {
            let Some(Key::TaskOwner(task)) = self.layout.parse(change.key()) else { continue };
            match change {
                Change::Put { .. } => {
                    self.owned.insert(task);
                }
                Change::Delete { .. } => {
                    self.lost_at = Some(Instant::now());
                    self.owned.remove(&task);
                }
            }
        }
    }
}
