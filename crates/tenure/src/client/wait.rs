//! Waiting for the end of a task.

use std::time::Duration;

use futures_util::StreamExt;
use tenure_core::name::TaskId;
use tenure_core::task::StateRecord;
use thiserror::Error;

use super::Client;
use super::patience::answered;
use super::task::Keys;
use crate::feed::{Feed, FeedItem};
use crate::store::{Selection, StoreError};

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
        let keys = Keys::of(&self.layout, task);
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
                Some(Ok(FeedItem::Whole(_))) => {}
                Some(Ok(FeedItem::Begin | FeedItem::Put(_) | FeedItem::Delete { .. })) => continue,
                Some(Err(error)) => return Err(WaitTaskError::Store(error)),
                None => return Err(WaitTaskError::Store(StoreError::Closed)),
            }
            let found = answered(|| keys.read(&self.store)).await.map_err(WaitTaskError::Store)?;
            if found.ended().is_some()
                && let Ok(state) = found.state()
            {
                return Ok(Ended { state });
            }
            match (&found.task, was_there) {
                (Some(_), _) => was_there = true,
                (None, true) => return Err(WaitTaskError::Deleted),
                (None, false) => return Err(WaitTaskError::NotFound),
            }
        }
    }
}
