//! What happened in a namespace: domain events, folded from the changes of keys.
//!
//! A store keeps its history as changes of keys. No process writes events: they are computed from
//! that history. So they reach back as far as the store does, and a program that reads them later
//! gets the same events as one that follows them.
//!
//! Intuition: the changes of one revision belong together. A task ends when its final state is put
//! and its keys are deleted in one transaction. A lock is broken when its queue key is deleted
//! together with the put of an audit record. So the fold takes one revision at a time, collects its
//! changes, and then derives the events. The holder of a lock and the leader of an election are not
//! stored: they follow from the order of the queue keys before and after the revision.
//!
//! **Invariant**: the events of a revision depend on the changes up to it and on the queue keys that the fold was seeded with, on nothing
//! else: no clock, and not on when the fold is run.
//!
//! **Invariant**: a value that cannot be read is never quoted, because it may be secret.

mod fold;
mod queues;
mod terms;

use std::time::Duration;

use bytes::Bytes;

use crate::id::{ElectionName, LockName, NodeId, TaskId};
use crate::record::{AuditRecord, CommandOutcome, MemberState, Timestamp};
use crate::revision::{Revision, Token};
use crate::task::TaskState;

pub use fold::EventFold;

/// Something that happened, at one revision of the store.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Event {
    /// The revision at which it happened.
    pub revision: Revision,
    /// When, if a record of the change contains that: by the clock of the process that wrote it. The store counts revisions, not time.
    pub at: Option<Timestamp>,
    /// The audit record of the command that caused it: by which process, and why.
    pub audit: Option<AuditRecord>,
    /// What happened.
    pub kind: EventKind,
}

/// What happened, and to what.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// To a task.
    Task {
        /// The task.
        id: TaskId,
        /// What happened to it.
        event: TaskEvent,
    },
    /// To a node.
    Node {
        /// The node.
        id: NodeId,
        /// What happened to it.
        event: NodeEvent,
    },
    /// To a lock.
    Lock {
        /// The lock.
        name: LockName,
        /// What happened to it.
        event: LockEvent,
    },
    /// To an election.
    Election {
        /// The election.
        name: ElectionName,
        /// What happened to it.
        event: ElectionEvent,
    },
    /// An operator revoked a lease: its audit record names the lease.
    LeaseRevoked,
    /// An operator deleted keys without regard to their meaning: its audit record names the key or the prefix.
    KeysDeleted,
    /// A newer program recorded an action that this one does not know.
    UnknownAction,
    /// A key was put among tasks or nodes that the layout does not have: no node reads it.
    UnknownKey {
        /// Among what.
        among: KeyFamily,
        /// The key.
        key: Bytes,
    },
    /// The store has compacted its history between `after` and the revision of this event: what happened there is not known.
    HistoryCompacted {
        /// The last revision before that.
        after: Revision,
    },
    /// The store was lost after the revision of this event. The reader tries again.
    Interrupted {
        /// Why.
        reason: String,
    },
}

/// A family of keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum KeyFamily {
    /// `tasks/`
    Tasks,
    /// `nodes/`
    Nodes,
}

/// What happened to a task.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum TaskEvent {
    /// It was submitted.
    Submitted {
        /// The kind of work.
        kind: Option<String>,
        /// Whether a task of this id has ended before: then it does not run.
        has_ended: bool,
    },
    /// It was submitted with a record that cannot be read, so no node claims it.
    Unreadable {
        /// Why it cannot be read.
        reason: String,
    },
    /// A node claimed it.
    Claimed {
        /// The node; none if the record cannot be read.
        node: Option<NodeId>,
        /// The token of the claim.
        token: Token,
    },
    /// A claim ended, and the task did not.
    Released {
        /// The node, if that is known.
        node: Option<NodeId>,
        /// The token of the claim, if that is known.
        token: Option<Token>,
    },
    /// Its state changed.
    StateChanged {
        /// The state before.
        from: TaskState,
        /// The state now.
        to: TaskState,
        /// The node that changed it.
        node: Option<NodeId>,
    },
    /// It reached a terminal state.
    Ended {
        /// The state.
        state: TaskState,
        /// The node that ended it, or that owned it.
        node: Option<NodeId>,
        /// Why, for a task that failed or was killed.
        reason: Option<String>,
    },
    /// It was deleted before its end.
    Deleted {
        /// The node that owned it.
        owner: Option<NodeId>,
    },
    /// The state that was kept after its end was deleted.
    Forgotten,
    /// A command was sent to it.
    CommandSent(SentCommand),
    /// A command to it ended without effect.
    CommandNotDone(UnheededCommand),
}

/// What happened to a node.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum NodeEvent {
    /// It joined.
    Joined {
        /// Its incarnation.
        token: Token,
        /// Its state.
        state: MemberState,
    },
    /// Its state changed.
    StateChanged {
        /// The state before.
        from: MemberState,
        /// The state now.
        to: MemberState,
    },
    /// Its key is gone: it left, or its lease ended.
    Left,
    /// It takes no new tasks from here on.
    Frozen,
    /// It takes tasks again.
    Unfrozen,
    /// A command was sent to it.
    CommandSent(SentCommand),
    /// A command to it ended without effect.
    CommandNotDone(UnheededCommand),
}

/// A command that was sent to a task or a node.
#[derive(Clone, PartialEq, Debug)]
pub struct SentCommand {
    /// The command; or why its record cannot be read.
    pub command: Result<String, String>,
    /// The sender, if the record names it.
    pub by: Option<String>,
}

/// A command that ended without effect. What a command did that was done, other events show.
#[derive(Clone, PartialEq, Debug)]
pub struct UnheededCommand {
    /// The command, if its record can be read.
    pub command: Option<String>,
    /// How it ended.
    pub outcome: CommandOutcome,
    /// The node that handled it, or the client that replaced it.
    pub handled_by: NodeId,
    /// Why nothing came of it.
    pub reason: Option<String>,
}

/// What happened to a lock.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum LockEvent {
    /// A process acquired it.
    Acquired(QueueHead),
    /// A holder released it, or lost its lease.
    Released(QueueHead),
    /// An operator took it from its holder.
    Broken(QueueHead),
}

/// What happened to an election.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum ElectionEvent {
    /// A term began.
    LeaderElected {
        /// The leader.
        leader: QueueHead,
        /// The term before it, if the history shows one.
        previous: Option<PastTerm>,
    },
    /// A candidate that waited is the first now. Only its own mark will show that it leads: its process may be dead.
    CandidateNext {
        /// The candidate.
        candidate: QueueHead,
        /// How the last term ended.
        previous: Option<TermOutcome>,
    },
    /// The last candidate is gone.
    NoLeader {
        /// The one that is gone.
        last: QueueHead,
        /// How its term ended; none if it never led.
        end: Option<TermOutcome>,
    },
}

/// A process that holds a lock, or is the first of an election.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueHead {
    /// The name in its record: the node of a holder, the name of a candidate.
    pub holder: String,
    /// Its token.
    pub token: Token,
}

/// How a term ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TermOutcome {
    /// The leader resigned.
    Resigned,
    /// The leader transferred its term to a candidate.
    Transferred,
    /// An operator revoked the lease of the leader.
    Revoked,
    /// The lease ended: it expired, or its session was closed without a resignation.
    Lapsed,
}

impl TermOutcome {
    /// As it is shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            TermOutcome::Resigned => "resigned",
            TermOutcome::Transferred => "transferred",
            TermOutcome::Revoked => "revoked",
            TermOutcome::Lapsed => "lapsed",
        }
    }
}

/// A term that ended before another one began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PastTerm {
    /// Its token.
    pub token: Token,
    /// How it ended.
    pub outcome: TermOutcome,
    /// The time without a leader after it.
    pub leaderless: Leaderless,
}

/// Bounds of a time without a leader, as far as the history shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaderless {
    /// At least this long.
    pub min: Duration,
    /// At most this long; none if the history does not bound it.
    pub max: Option<Duration>,
}

#[cfg(test)]
mod tests;
