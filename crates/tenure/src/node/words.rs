//! What a node says of itself.

use tenure_core::id::TaskId;
use thiserror::Error;

use crate::store::StoreError;

/// How a node stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerStatus {
    /// How many tasks it owns.
    pub tasks: usize,
    /// How many other nodes take tasks, as far as it has seen.
    pub peers: usize,
    /// Whether it certainly has its place among the nodes.
    pub is_member: bool,
}

/// Why a node has ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NodeEnd {
    /// It was told to end, or was drained.
    Left {
        /// Tasks whose handlers run on although they were told to stop. They are not released: their claims end with the lease.
        running: Vec<TaskId>,
    },
    /// Somebody else has its id.
    Displaced,
    /// The store can never be used again.
    Store(StoreError),
}

/// Why a node did not end as it should.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Handlers did not stop. Their tasks are not released, and nobody runs them before their lease is over.
    #[error("{} did not stop in time, so {} not released: {}", count(running), was(running), names(running))]
    StillRunning {
        /// Their tasks.
        running: Vec<TaskId>,
    },
    /// Somebody else has its id.
    #[error("somebody else has this node's id")]
    Displaced,
    /// The store can never be used again.
    #[error("the store cannot be used any more")]
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

/// The first few: a thousand names help nobody.
fn names(running: &[TaskId]) -> String {
    const SHOWN: usize = 5;
    let mut names: Vec<&str> = running.iter().take(SHOWN).map(TaskId::as_str).collect();
    if running.len() > SHOWN {
        names.push("…");
    }
    names.join(", ")
}

impl NodeEnd {
    /// What that means to somebody who wanted the node to end.
    pub(super) fn as_shutdown(&self) -> Result<(), ShutdownError> {
        match self {
            NodeEnd::Left { running } if running.is_empty() => Ok(()),
            NodeEnd::Left { running } => Err(ShutdownError::StillRunning { running: running.clone() }),
            NodeEnd::Displaced => Err(ShutdownError::Displaced),
            NodeEnd::Store(error) => Err(ShutdownError::Store(error.clone())),
        }
    }
}
