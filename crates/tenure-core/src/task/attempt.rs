//! Attempts at a task: which claims ran it, and how each of them ended.
//!
//! A claim puts an [`AttemptRecord`] in its own transaction, under a key without a lease. The write that stores an outcome deletes it. So a
//! record that is left without an owner belongs to a claim that ended without an outcome: its worker was killed, or lost its lease and has
//! not reported since. Ended attempts are kept in the state record, newest last.

use serde::{Deserialize, Serialize};

use crate::id::NodeId;
use crate::record::{Record, Timestamp, UnknownFields};

/// How many ended attempts are kept with a task, the newest: some 3 KiB.
pub const ATTEMPTS_LEN_MAX: usize = 32;

/// A claim that began and has no stored outcome, under `tasks/<task>/attempts/<claim>`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// The node that claimed the task.
    pub node: NodeId,
    /// When, by the node's clock.
    #[serde(default)]
    pub started: Timestamp,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

impl Record for AttemptRecord {}

/// An attempt that has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attempt {
    /// The node that ran the task.
    pub node: NodeId,
    /// When it began, by the node's clock.
    #[serde(default)]
    pub started: Timestamp,
    /// When it ended; for a lost one, when the next claim began.
    #[serde(default)]
    pub ended: Timestamp,
    /// How it ended.
    pub end: AttemptEnd,
}

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AttemptEnd {
    /// The task was done.
    Completed,
    /// The handler failed.
    Failed,
    /// A command killed the task.
    Killed,
    /// The task went to sleep.
    Sleeping,
    /// The task was paused.
    Paused,
    /// The worker released the task to another one.
    Released,
    /// The claim ended without an outcome: the worker was killed or lost its lease.
    Lost,
    /// An end that a newer program wrote.
    #[serde(other)]
    Other,
}

impl AttemptEnd {
    /// As it is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            AttemptEnd::Completed => "completed",
            AttemptEnd::Failed => "failed",
            AttemptEnd::Killed => "killed",
            AttemptEnd::Sleeping => "sleeping",
            AttemptEnd::Paused => "paused",
            AttemptEnd::Released => "released",
            AttemptEnd::Lost => "lost",
            AttemptEnd::Other => "other",
        }
    }
}

impl std::fmt::Display for AttemptEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
