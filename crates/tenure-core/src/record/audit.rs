//! Audit records of destructive commands against another process's keys.

use serde::{Deserialize, Serialize};

use super::{Identity, Record, Timestamp, UnknownFields};
use crate::revision::Token;

/// The kind of a destructive command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AuditAction {
    /// A holder's queue key was deleted.
    BreakLock,
    /// A lease was revoked. Written before the revoke: a store cannot do both in one transaction.
    RevokeLease,
    /// A kill was sent to a task.
    KillTask,
    /// A task was deleted.
    DeleteTask,
    /// The state of an ended task was deleted.
    ForgetTask,
    /// Keys were deleted without regard to their meaning.
    DeleteKeys,
    /// An action that this program does not know.
    #[default]
    #[serde(other)]
    Other,
}

/// One destructive command, under `audit/<uuid-v7>`: in the transaction of what it describes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct AuditRecord {
    /// The action.
    pub action: AuditAction,
    /// Its target: a name, a lease, a key or a prefix.
    #[serde(default)]
    pub target: String,
    /// The token of the holder that lost a lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// The number of keys to delete, for a prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The process that sent it.
    #[serde(default)]
    pub by: Identity,
    /// The reason, in the words of the user.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The time, by the clock of that process.
    #[serde(default)]
    pub at: Timestamp,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

impl Record for AuditRecord {}

impl AuditRecord {
    /// The action as a past participle.
    pub const fn verb(&self) -> &'static str {
        match self.action {
            AuditAction::BreakLock => "broken",
            AuditAction::RevokeLease => "lease revoked",
            AuditAction::KillTask => "killed",
            AuditAction::DeleteTask | AuditAction::DeleteKeys => "deleted",
            AuditAction::ForgetTask => "forgotten",
            AuditAction::Other => "changed",
        }
    }

    /// `by root@web-1 pid 4121 because the host is gone`; without a reason it has none.
    pub fn origin(&self) -> String {
        let user = if self.by.user.is_empty() { String::new() } else { format!("{}@", self.by.user) };
        let because =
            if self.reason.is_empty() { String::new() } else { format!(" because {}", self.reason) };
        format!("by {user}{}{because}", self.by)
    }
}
