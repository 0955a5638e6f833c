//! Waiting for the end of a task, or of many.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tenure_core::board::{Board, BoardChange};
use tenure_core::client::{ReadEffort, TaskFound, TaskKeys};
use tenure_core::id::TaskId;
use tenure_core::task::StateRecord;
use thiserror::Error;

use super::Client;
use crate::feed::{Feed, FeedItem};
use crate::store::{Selection, StoreError};

/// How many tasks are looked at together when many end at once.
const LOOKS_IN_FLIGHT: usize = 16;

/// How each of several tasks has ended, or why that was not seen.
pub type Ends = BTreeMap<TaskId, Result<Ended, WaitTaskError>>;

/// How a task has ended: its state is completed, failed or killed, and the record says why.
#[derive(Clone, PartialEq, Debug)]
pub struct Ended {
    /// The state that stays.
    pub state: StateRecord,
}

/// Why the end of a task was not seen.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WaitTaskError {
    /// There is no such task, and there is no memory of one: it was never submitted, or it was deleted.
    #[error("there is no such task")]
    NotFound,
    /// The task was there and was deleted before it had ended.
    #[error("the task was deleted before it had ended")]
    Deleted,
    /// It has not ended yet.
    #[error("the task has not ended within {0:?}")]
    Deadline(Duration),
    /// The store says no more.
    #[error("the end of the task cannot be seen")]
    Store(#[source] StoreError),
}

impl Client {
    /// Waits until a task has ended.
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// See [`WaitTaskError`].
    pub async fn wait(&self, task: &TaskId, within: Duration) -> Result<Ended, WaitTaskError> {
        match tokio::time::timeout(within, self.ended(task)).await {
            Ok(ended) => ended,
            Err(_) => Err(WaitTaskError::Deadline(within)),
        }
    }

    async fn ended(&self, task: &TaskId) -> Result<Ended, WaitTaskError> {
        let keys = TaskKeys::of(&self.layout, task);
        let open = |key: &bytes::Bytes| {
            Feed::open(self.store.clone(), Selection::key(key.clone())).map_err(WaitTaskError::Store)
        };
        let (mut tasks, mut states) = (open(&keys.task)?, open(&keys.state)?);
        let mut was_there = false;
        loop {
            let item = tokio::select! {
                biased;
                item = tasks.next() => item,
                item = states.next() => item,
            };
            match item {
                Some(Ok(FeedItem::Synced(_))) => {}
                Some(Ok(FeedItem::SnapshotBegin | FeedItem::Put(_) | FeedItem::Delete { .. })) => continue,
                Some(Err(error)) => return Err(WaitTaskError::Store(error)),
                None => return Err(WaitTaskError::Store(StoreError::Closed)),
            }
            let found = self.read(task, ReadEffort::UntilReply).await.map_err(WaitTaskError::Store)?;
            match end_of(&found, was_there) {
                Some(end) => return end,
                None => was_there = true,
            }
        }
    }

    /// Waits until all of these tasks have ended, and tells how each did. They are followed together, through one feed, however many they are.
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`WaitTaskError::Store`] if nothing can be seen at all. What became of a single task is told with it, also that it has not ended in time.
    pub async fn wait_all(
        &self,
        tasks: impl IntoIterator<Item = TaskId>,
        within: Duration,
    ) -> Result<Ends, WaitTaskError> {
        let mut open: BTreeSet<TaskId> = tasks.into_iter().collect();
        let mut ends = Ends::new();
        match tokio::time::timeout(within, self.all_ended(&mut open, &mut ends)).await {
            Ok(all) => all?,
            Err(_) => {
                let late = |task| (task, Err(WaitTaskError::Deadline(within)));
                ends.extend(open.into_iter().map(late));
            }
        }
        Ok(ends)
    }

    async fn all_ended(&self, open: &mut BTreeSet<TaskId>, ends: &mut Ends) -> Result<(), WaitTaskError> {
        let mut feed = Feed::open(self.store.clone(), self.layout.tasks()).map_err(WaitTaskError::Store)?;
        let mut board = Board::new(self.layout.clone());
        let mut told = Vec::new();
        // Those that were seen on the board: one that is gone without an end was deleted.
        let mut was_there = BTreeSet::new();
        let mut is_first = true;
        while !open.is_empty() {
            let item = match feed.next().await {
                Some(item) => item.map_err(WaitTaskError::Store)?,
                None => return Err(WaitTaskError::Store(StoreError::Closed)),
            };
            board.handle_item(item, &mut told);
            let mut changed: BTreeSet<TaskId> = told.drain(..).map(subject).collect();
            if board.is_fresh() && std::mem::take(&mut is_first) {
                changed.clone_from(open);
            }
            // A task that is on the board and has not ended need not be looked at: its end takes it off.
            let is_over = |task: &TaskId| board.get(task).is_none_or(|card| !card.is_live());
            let (over, running): (Vec<_>, Vec<_>) =
                changed.into_iter().filter(|task| open.contains(task)).partition(is_over);
            was_there.extend(running);
            let looks = over.into_iter().map(|task| async move {
                let found = self.read(&task, ReadEffort::UntilReply).await?;
                Ok::<_, StoreError>((task, found))
            });
            let looks: Vec<(TaskId, TaskFound)> = stream::iter(looks)
                .buffer_unordered(LOOKS_IN_FLIGHT)
                .try_collect()
                .await
                .map_err(WaitTaskError::Store)?;
            for (task, found) in looks {
                if let Some(end) = end_of(&found, was_there.contains(&task)) {
                    open.remove(&task);
                    ends.insert(task, end);
                }
            }
        }
        Ok(())
    }
}

/// How a task has ended, if it has.
fn end_of(found: &TaskFound, was_there: bool) -> Option<Result<Ended, WaitTaskError>> {
    if found.ended().is_some()
        && let Ok(state) = found.state()
    {
        return Some(Ok(Ended { state }));
    }
    match (&found.task, was_there) {
        (Some(_), _) => None,
        (None, true) => Some(Err(WaitTaskError::Deleted)),
        (None, false) => Some(Err(WaitTaskError::NotFound)),
    }
}

fn subject(change: BoardChange) -> TaskId {
    match change {
        BoardChange::Gone { task, .. }
        | BoardChange::OwnerGone { task, .. }
        | BoardChange::Owned { task, .. }
        | BoardChange::Changed(task)
        | BoardChange::Unowned(task) => task,
    }
}
