//! One watch: it reads history from the log in parts, and then takes new changes from the shared tail.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tenure_core::keyspace::{Rows, WatchId};
use tokio::sync::oneshot;
use tokio::task::coop::poll_proceed;

use crate::store::file::engine::OpenStore;
use crate::store::file::hub::NextChange;
use crate::store::file::job::Job;
use crate::store::file::log::{LogBatch, LogSlice, ReadLimit, read_log};
use crate::store::{Change, PreviousValues, Revision, Selection, StoreError, WatchError, WatchItem};

/// How much of the log one watcher reads at a time: a few milliseconds of the thread that all readers share.
const READ_LIMIT: ReadLimit = ReadLimit { batches: 1_000, bytes: 1 << 20 };

/// One watch of a store file.
pub(super) struct FileWatch {
    running: Arc<OpenStore>,
    id: WatchId,
    select: Selection,
    previous: PreviousValues,
    state: FileWatchState,
}

enum FileWatchState {
    /// Takes from the tail.
    Live,
    /// Waits for a part of the log.
    Reading(oneshot::Receiver<Result<LogSlice, StoreError>>),
    /// Returns a part of the log, which was read up to a revision.
    Serving(VecDeque<LogBatch>, Revision),
    Over,
}

impl FileWatch {
    pub(super) fn new(
        running: Arc<OpenStore>,
        id: WatchId,
        select: Selection,
        previous: PreviousValues,
    ) -> FileWatch {
        FileWatch { running, id, select, previous, state: FileWatchState::Live }
    }

    /// Returns the next item; none if there is none now.
    fn next(&mut self, context: &mut Context<'_>) -> Option<Result<WatchItem, WatchError>> {
        loop {
            match &mut self.state {
                FileWatchState::Over => return None,
                FileWatchState::Serving(batches, up_to) => {
                    let up_to = *up_to;
                    if let Some(LogBatch { revision, changes }) = batches.pop_front() {
                        self.running.core.hub.delivered(self.id, revision);
                        return Some(Ok(WatchItem::Batch { revision, changes }));
                    }
                    // Up to the end of the read, beyond the last selected change.
                    self.running.core.hub.delivered(self.id, up_to);
                    self.state = FileWatchState::Live;
                }
                FileWatchState::Reading(answer) => match Pin::new(answer).poll(context) {
                    Poll::Pending => return None,
                    Poll::Ready(Ok(Ok(passage))) => {
                        self.state = FileWatchState::Serving(passage.batches.into(), passage.up_to);
                    }
                    Poll::Ready(Ok(Err(StoreError::Compacted { at }))) => {
                        return Some(Err(WatchError::Compacted { at: at.unwrap_or(Revision::ZERO) }));
                    }
                    Poll::Ready(Ok(Err(error))) => return Some(Err(WatchError::Lost(error))),
                    Poll::Ready(Err(_)) => return Some(Err(WatchError::Lost(StoreError::Closed))),
                },
                FileWatchState::Live => match self.running.core.hub.next(self.id, context.waker()) {
                    NextChange::Nothing => return None,
                    NextChange::Over(error) => return Some(Err(WatchError::Lost(error))),
                    NextChange::Compacted(at) => return Some(Err(WatchError::Compacted { at })),
                    NextChange::Batch(batch) => {
                        // Also if none of its changes is selected: the watcher must not stay at this revision.
                        self.running.core.hub.delivered(self.id, batch.revision);
                        let changes = self.own(&batch.changes);
                        if !changes.is_empty() {
                            return Some(Ok(WatchItem::Batch { revision: batch.revision, changes }));
                        }
                    }
                    NextChange::Behind { after, up_to } => {
                        self.state = FileWatchState::Reading(self.read(after, up_to));
                    }
                },
            }
        }
    }

    /// The selected changes, with or without previous values as requested.
    fn own(&self, changes: &[Change]) -> Vec<Change> {
        let selected = changes.iter().filter(|change| self.select.contains(change.key())).cloned();
        match self.previous {
            PreviousValues::Included => selected.collect(),
            PreviousValues::Omitted => selected.map(Change::without_previous).collect(),
        }
    }

    /// Requests a part of the log.
    fn read(&self, after: Revision, up_to: Revision) -> oneshot::Receiver<Result<LogSlice, StoreError>> {
        let (select, previous) = (self.select.clone(), self.previous);
        let (job, answer) = Job::new(0, move |tables| {
            // Inside the snapshot of the read: a compaction may have come after the check of the hub.
            if after < tables.compacted() {
                return Err(StoreError::Compacted { at: Some(tables.compacted()) });
            }
            read_log(tables.sql, &select, (after, up_to), previous, READ_LIMIT)
        });
        self.running.core.reads.join(vec![job]);
        answer
    }
}

impl Stream for FileWatch {
    type Item = Result<WatchItem, WatchError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if matches!(self.state, FileWatchState::Over) {
            return Poll::Ready(None);
        }
        // Without a budget a reader of a busy store never yields, and the timers of its worker thread are late.
        let budget = ready!(poll_proceed(context));
        match self.next(context) {
            None => Poll::Pending,
            Some(item) => {
                budget.made_progress();
                if item.is_err() {
                    self.state = FileWatchState::Over;
                }
                Poll::Ready(Some(item))
            }
        }
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.running.core.hub.remove(self.id, self.previous);
    }
}
