//! The changes that the board reports.

use crate::id::{NodeId, TaskId};
use crate::revision::{Revision, Token};

/// A change of the board.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BoardChange {
    /// An incarnation of a task has ended: it was deleted.
    Gone {
        /// The task.
        task: TaskId,
        /// The create revision of that incarnation.
        created: Revision,
    },
    /// An owner that was reported before has released or lost its claim.
    OwnerGone {
        /// The task.
        task: TaskId,
        /// The claim that has ended.
        token: Token,
    },
    /// The record of a task was written again, or a task was added that cannot be claimed: ended or
    /// unreadable.
    Changed(TaskId),
    /// A task has an owner.
    Owned {
        /// The task.
        task: TaskId,
        /// The worker. `None` if the owner record cannot be read.
        node: Option<NodeId>,
        /// The claim.
        token: Token,
    },
    /// A task has become claimable.
    Unowned(TaskId),
}
