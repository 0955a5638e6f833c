//! What a worker reports: its status, why it has ended, and what a shutdown could not end.

use tenure_core::id::TaskId;
use thiserror::Error;

use crate::store::StoreError;

/// The status of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerStatus {
    /// How many tasks it owns.
    pub tasks: usize,
    /// How many other workers there are, as far as it has seen.
    pub peers: usize,
    /// Whether its member key is certainly stored.
    pub is_member: bool,
}

/// Why a worker has ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WorkerEnd {
    /// It was shut down or drained.
    Left {
        /// Tasks with handlers that did not stop. They are not released: their claims end with the lease.
        running: Vec<TaskId>,
    },
    /// Another process has its id.
    Replaced,
    /// The store can never be used again.
    Store(StoreError),
}

/// What a shutdown could not end.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Handlers did not stop. Their tasks are not released, and no worker runs them before their lease has expired.
    #[error("{} did not stop in time, so {} not released: {}", count(tasks), was(tasks), names(tasks))]
    StillRunning {
        /// Their tasks.
        tasks: Vec<TaskId>,
    },
    /// Another process has its id.
    #[error("another process has this worker's id")]
    Replaced,
    /// The store can never be used again.
    #[error("the store can never be used again")]
    Store(#[source] StoreError),
}

fn count(running: &[TaskId]) -> String {
    match running.len() {
        1 => "one handler".to_owned(),
        len => format!("{len} handlers"),
    }
}

fn was(running: &[TaskId]) -> &'static str {
    if running.len() == 1 { "its task was" } else { "their tasks were" }
}

/// The first few.
fn names(running: &[TaskId]) -> String {
    const SHOWN: usize = 5;
    let mut names: Vec<&str> = running.iter().take(SHOWN).map(TaskId::as_str).collect();
    if running.len() > SHOWN {
        names.push("…");
    }
    names.join(", ")
}

impl WorkerEnd {
    /// The result of a shutdown.
    pub(super) fn as_shutdown(&self) -> Result<(), ShutdownError> {
        match self {
            WorkerEnd::Left { running } if running.is_empty() => Ok(()),
            WorkerEnd::Left { running } => Err(ShutdownError::StillRunning { tasks: running.clone() }),
            WorkerEnd::Replaced => Err(ShutdownError::Replaced),
            WorkerEnd::Store(error) => Err(ShutdownError::Store(error.clone())),
        }
    }
}
