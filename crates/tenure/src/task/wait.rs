//! Waiting until tasks are finished.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tenure_core::board::{Board, BoardChange};
use tenure_core::client::{ReadEffort, TaskFound, TaskKeys};
use tenure_core::id::{InvalidName, TaskId};
use tenure_core::task::{StateRecord, TaskState};
use thiserror::Error;

use super::access::TaskAccess;
use super::query::TaskQuery;
use crate::error::{Error, ErrorClass, classified};
use crate::feed::{Feed, FeedItem};
use crate::store::{Selection, StoreError};
use crate::tenure::request;

/// How many tasks are read at a time when many finish together.
const READS_IN_FLIGHT: usize = 16;

/// How each of several tasks finished, or why that was not seen.
pub type FinishedTasks = BTreeMap<TaskId, Result<Finished, WaitTaskError>>;

/// How a task finished.
#[derive(Clone, PartialEq, Debug)]
pub struct Finished {
    /// Completed, failed or killed.
    pub state: TaskState,
    /// The reason that was stored, or the newest error.
    pub reason: Option<String>,
    /// The whole final state, with attempts and history.
    pub record: StateRecord,
}

impl Finished {
    fn read(record: StateRecord) -> Finished {
        let newest = || record.errors.last().map(|error| error.message.clone());
        let reason = record.reason.clone().or_else(newest);
        Finished { state: record.state.kind(), reason, record }
    }
}

/// Why the end of a task was not seen.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum WaitTaskError {
    /// The text is not an id.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// Nothing is stored about the task: it was never submitted, or it was deleted.
    #[error("the task does not exist")]
    NotFound,
    /// The task was deleted before it finished.
    #[error("the task was deleted before it finished")]
    Deleted,
    /// The task was not finished in time.
    #[error("the task did not finish within {after:?}")]
    Timeout {
        /// The timeout.
        after: Duration,
    },
    /// The store failed.
    #[error("the end of the task cannot be read")]
    Store(#[source] StoreError),
}

impl WaitTaskError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            WaitTaskError::InvalidName(_) | WaitTaskError::NotFound | WaitTaskError::Deleted => {
                ErrorClass::Invalid
            }
            WaitTaskError::Timeout { .. } => ErrorClass::Timeout,
            WaitTaskError::Store(error) => error.into(),
        }
    }
}

classified!(WaitTaskError);

/// Waits until a task is finished. Unbounded unless [`WaitTask::timeout`] is set.
///
/// # Cancellation
///
/// Leaves nothing behind.
///
/// # Errors
///
/// [`WaitTaskError`]; a wrong name is reported when it is awaited.
#[derive(Clone, Debug)]
#[must_use = "nothing is read before this is awaited"]
pub struct WaitTask {
    pub(super) access: TaskAccess,
    pub(super) task: Result<TaskId, InvalidName>,
    pub(super) timeout: Option<Duration>,
}

request!(WaitTask => Result<Finished, WaitTaskError>);

impl WaitTask {
    /// Waits at most this long, then fails with [`WaitTaskError::Timeout`].
    pub fn timeout(mut self, timeout: Duration) -> WaitTask {
        self.timeout = Some(timeout);
        self
    }

    async fn send(self) -> Result<Finished, WaitTaskError> {
        let WaitTask { access, task, timeout } = self;
        let task = task?;
        let finished = access.within(timeout, access.finished(&task)).await;
        finished.unwrap_or(Err(WaitTaskError::Timeout { after: timeout.unwrap_or_default() }))
    }
}

/// Waits until all tasks of a query are finished. Unbounded unless [`WaitTasks::timeout`] is set.
///
/// # Cancellation
///
/// Leaves nothing behind.
///
/// # Errors
///
/// [`Error::InvalidName`](crate::Error::InvalidName) or [`Error::Store`](crate::Error::Store) if nothing can be seen at all. What concerns one task is in its
/// own result, also that it did not finish in time.
#[derive(Clone, Debug)]
#[must_use = "nothing is read before this is awaited"]
pub struct WaitTasks {
    pub(super) query: TaskQuery,
    pub(super) timeout: Option<Duration>,
}

request!(WaitTasks => Result<FinishedTasks, Error>);

impl WaitTasks {
    /// Waits at most this long. Tasks that are not finished then have [`WaitTaskError::Timeout`] as their result.
    pub fn timeout(mut self, timeout: Duration) -> WaitTasks {
        self.timeout = Some(timeout);
        self
    }

    async fn send(self) -> Result<FinishedTasks, Error> {
        let WaitTasks { query, timeout } = self;
        let access = query.access.clone();
        let mut open: BTreeSet<TaskId> = query.ids_or_found().await?.into_iter().collect();
        let mut finished = FinishedTasks::new();
        let all = access.within(timeout, access.all_finished(&mut open, &mut finished)).await;
        if let Some(all) = all {
            all?;
        }
        let after = timeout.unwrap_or_default();
        finished.extend(open.into_iter().map(|task| (task, Err(WaitTaskError::Timeout { after }))));
        Ok(finished)
    }
}

impl TaskAccess {
    async fn finished(&self, task: &TaskId) -> Result<Finished, WaitTaskError> {
        let keys = TaskKeys::of(&self.layout, task);
        let open = |key: &Bytes| {
            Feed::open(self.store.clone(), Selection::key(key.clone())).map_err(WaitTaskError::Store)
        };
        let (mut tasks, mut states) = (open(&keys.task)?, open(&keys.state)?);
        let mut existed = false;
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
            // The two feeds may be at different revisions, so task and state are read in one transaction.
            let found = self.read(task, ReadEffort::UntilReply).await.map_err(WaitTaskError::Store)?;
            match end_of(&found, existed) {
                Some(end) => return end,
                None => existed = true,
            }
        }
    }

    /// Follows all of these tasks through one feed, and moves each from `open` to `finished` when it ends.
    async fn all_finished(
        &self,
        open: &mut BTreeSet<TaskId>,
        finished: &mut FinishedTasks,
    ) -> Result<(), StoreError> {
        if open.is_empty() {
            return Ok(());
        }
        let mut feed = Feed::open(self.store.clone(), self.layout.tasks())?;
        let mut board = Board::new(self.layout.clone());
        let mut changes = Vec::new();
        // A task that was on the board and is gone without a final state was deleted.
        let mut existed = BTreeSet::new();
        let mut is_first = true;
        while !open.is_empty() {
            let item = feed.next().await.ok_or(StoreError::Closed)??;
            board.handle_item(item, &mut changes);
            let mut changed: BTreeSet<TaskId> = changes.drain(..).map(subject).collect();
            if board.is_fresh() && std::mem::take(&mut is_first) {
                changed.clone_from(open);
            }
            // The final state is written in the transaction that deletes the task, so only tasks off the board are read.
            let is_over = |task: &TaskId| board.get(task).is_none_or(|card| !card.is_live());
            let (over, running): (Vec<_>, Vec<_>) =
                changed.into_iter().filter(|task| open.contains(task)).partition(is_over);
            existed.extend(running);
            let reads = over.into_iter().map(|task| async move {
                let found = self.read(&task, ReadEffort::UntilReply).await?;
                Ok::<_, StoreError>((task, found))
            });
            // Collected first: a stream that borrows what it maps would keep the future from being sent to another thread.
            let reads: Vec<_> = reads.collect();
            let reads: Vec<(TaskId, TaskFound)> =
                stream::iter(reads).buffer_unordered(READS_IN_FLIGHT).try_collect().await?;
            for (task, found) in reads {
                if let Some(end) = end_of(&found, existed.contains(&task)) {
                    open.remove(&task);
                    finished.insert(task, end);
                }
            }
        }
        Ok(())
    }
}

/// How a task finished, if it is finished.
fn end_of(found: &TaskFound, existed: bool) -> Option<Result<Finished, WaitTaskError>> {
    if found.ended().is_some()
        && let Ok(record) = found.state()
    {
        return Some(Ok(Finished::read(record)));
    }
    match (&found.task, existed) {
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
