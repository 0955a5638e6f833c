//! What a node tells its users: for `tenure events`, for logs and for tests.

use crate::balance::Release;
use crate::balance::ReleasedBy;
use crate::id::{CommandId, TaskId};
use crate::loss::LossReason;
use crate::record::{CommandOutcome, Timestamp};
use crate::revision::Token;
use crate::task::TaskState;

/// Something that happened.
#[derive(Clone, PartialEq, Debug)]
pub enum WorkerEvent {
    /// A task is ours.
    Claimed {
        /// The task.
        task: TaskId,
        /// The claim.
        token: Token,
    },
    /// Its handler runs.
    Started {
        /// The task.
        task: TaskId,
        /// The claim.
        token: Token,
        /// Which attempt, from 1 on.
        attempt: u64,
    },
    /// Its state has changed, and that is stored.
    StateChanged {
        /// The task.
        task: TaskId,
        /// How it stood.
        from: TaskState,
        /// How it stands.
        to: TaskState,
    },
    /// It has ended, and that is stored.
    Ended {
        /// The task.
        task: TaskId,
        /// How.
        state: TaskState,
        /// Why, where somebody said so.
        reason: Option<String>,
    },
    /// A task that had ended was deleted: it was kept long enough.
    Forgotten {
        /// The task.
        task: TaskId,
        /// When it had ended.
        ended: Timestamp,
    },
    /// It is nobody's now.
    Released {
        /// The task.
        task: TaskId,
        /// Why.
        why: ReleaseReason,
    },
    /// The claim is over, and not by our wish.
    Lost {
        /// The task.
        task: TaskId,
        /// The claim.
        token: Token,
        /// Why.
        why: LossReason,
    },
    /// A task cannot be run here for now: nothing was run, deleted or changed.
    SetAside {
        /// The task.
        task: TaskId,
        /// Why, never with what is stored.
        why: String,
    },
    /// A command to this node has a name that no key of the layout has: it is not handled, and nothing was changed.
    CommandSetAside {
        /// Its key, with what does not print escaped.
        key: String,
    },
    /// A claim that came too late was given back.
    LateClaimReleased {
        /// The task.
        task: TaskId,
        /// The claim.
        token: Token,
    },
    /// A command to a task was acknowledged.
    CommandHandled {
        /// The task.
        task: TaskId,
        /// The command; none if it had no id.
        id: Option<CommandId>,
        /// What came of it.
        outcome: CommandOutcome,
        /// Why nothing came of it.
        why: Option<String>,
    },
    /// A handler did not stop, and could not be stopped. What waits for its end waits on.
    Stuck {
        /// The task.
        task: TaskId,
        /// The claim that it ran under.
        token: Token,
    },
    /// Something could not be stored, and trying again is useless.
    WriteRefused {
        /// The task.
        task: TaskId,
        /// Why.
        why: String,
    },
    /// A look at who has how many tasks.
    Balanced {
        /// What the balancer wants to part with, and why.
        plan: Vec<Release>,
        /// How many of them are given away in this round.
        parting: usize,
    },
    /// A command to this node was acknowledged.
    NodeCommandHandled {
        /// The command.
        id: CommandId,
        /// What came of it.
        outcome: CommandOutcome,
        /// Why nothing came of it, or what else is to be said.
        why: Option<String>,
    },
    /// The node takes no new tasks.
    Frozen,
    /// The node takes new tasks again.
    Unfrozen,
    /// The node gives all its tasks away; so many are left.
    Draining {
        /// How many.
        left: usize,
    },
    /// The node is empty, and will leave.
    Drained,
    /// Events came faster than they were read, and this many are missing here.
    Lagged(u64),
    /// The node ends: it takes nothing new and gives everything back.
    ShuttingDown {
        /// How many tasks it has to give back.
        left: usize,
    },
}

/// Why a task was released.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ReleaseReason {
    /// Its handler wanted it so.
    Handler,
    /// A command to the task.
    Command,
    /// A command to the node.
    NodeCommand,
    /// The node has more than its share.
    Balance,
    /// The node is being drained.
    Drain,
    /// The node ends.
    Shutdown,
    /// What is stored about it cannot be read, or says that it has ended.
    SetAside,
    /// What became of it cannot be stored.
    WriteRefused,
}

impl ReleaseReason {
    /// Every reason, so that each can be counted from zero.
    pub const ALL: [ReleaseReason; 8] = [
        ReleaseReason::Handler,
        ReleaseReason::Command,
        ReleaseReason::NodeCommand,
        ReleaseReason::Balance,
        ReleaseReason::Drain,
        ReleaseReason::Shutdown,
        ReleaseReason::SetAside,
        ReleaseReason::WriteRefused,
    ];

    /// On whose account it was released: by that the node knows when it may take it back.
    pub(super) const fn release(self, had_peers: bool) -> ReleasedBy {
        match self {
            ReleaseReason::Handler | ReleaseReason::SetAside | ReleaseReason::WriteRefused => {
                ReleasedBy::Task { had_peers }
            }
            ReleaseReason::Command
            | ReleaseReason::NodeCommand
            | ReleaseReason::Balance
            | ReleaseReason::Drain
            | ReleaseReason::Shutdown => ReleasedBy::Node,
        }
    }

    /// A word for it that stays the same.
    pub const fn as_str(self) -> &'static str {
        match self {
            ReleaseReason::Handler => "handler",
            ReleaseReason::Command => "command",
            ReleaseReason::NodeCommand => "order",
            ReleaseReason::Balance => "balance",
            ReleaseReason::Drain => "drain",
            ReleaseReason::Shutdown => "shutdown",
            ReleaseReason::SetAside => "set_aside",
            ReleaseReason::WriteRefused => "save_refused",
        }
    }
}
