//! The events of a worker, for its users, for logs and for tests.

use crate::balance::Release;
use crate::balance::ReleasedBy;
use crate::id::{CommandId, TaskId};
use crate::loss::LossReason;
use crate::record::{CommandOutcome, Timestamp};
use crate::revision::Token;
use crate::task::TaskState;

/// An event of a worker.
#[derive(Clone, PartialEq, Debug)]
pub enum WorkerEvent {
    /// The worker has claimed a task.
    Claimed {
        /// The task.
        task: TaskId,
        /// The claim.
        token: Token,
    },
    /// The handler of a task was started.
    Started {
        /// The task.
        task: TaskId,
        /// The claim.
        token: Token,
        /// Which attempt, from 1 on.
        attempt: u64,
    },
    /// The state of a task has changed, and the change is stored.
    StateChanged {
        /// The task.
        task: TaskId,
        /// The previous state.
        from: TaskState,
        /// The new state.
        to: TaskState,
    },
    /// A task has ended, and its final state is stored.
    Ended {
        /// The task.
        task: TaskId,
        /// The final state.
        state: TaskState,
        /// The reason, if a command or the error policy gave one.
        reason: Option<String>,
    },
    /// An ended task was deleted, because it was kept for as long as configured.
    Forgotten {
        /// The task.
        task: TaskId,
        /// When it had ended.
        ended: Timestamp,
    },
    /// A task was released and has no owner now.
    Released {
        /// The task.
        task: TaskId,
        /// Why.
        why: ReleaseReason,
    },
    /// A claim was lost: it ended without a release by this worker.
    Lost {
        /// The task.
        task: TaskId,
        /// The claim.
        token: Token,
        /// Why.
        why: LossReason,
    },
    /// A task cannot be run here at present. Nothing was run, deleted or changed.
    SetAside {
        /// The task.
        task: TaskId,
        /// Why. Never contains a stored value.
        why: String,
    },
    /// A command to this worker has a key that the layout does not have. It is not handled, and
    /// nothing was changed.
    CommandSetAside {
        /// Its key, with unprintable bytes escaped.
        key: String,
    },
    /// A claim that was confirmed too late was released.
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
        /// Its result.
        outcome: CommandOutcome,
        /// Why it was not done.
        why: Option<String>,
    },
    /// A handler did not stop, and could not be aborted. Whatever waits for its end keeps waiting.
    Stuck {
        /// The task.
        task: TaskId,
        /// The claim that it ran under.
        token: Token,
    },
    /// A write was refused by the store, and a repetition would be refused as well.
    WriteRefused {
        /// The task.
        task: TaskId,
        /// Why.
        why: String,
    },
    /// A round of balancing has decided what to release.
    Balanced {
        /// The releases that the balancer returned, with the reasons.
        plan: Vec<Release>,
        /// How many of them this round carries out.
        parting: usize,
    },
    /// A command to this worker was acknowledged.
    NodeCommandHandled {
        /// The command.
        id: CommandId,
        /// Its result.
        outcome: CommandOutcome,
        /// Why it was not done, or further information.
        why: Option<String>,
    },
    /// The node takes no new tasks.
    Frozen,
    /// The node takes new tasks again.
    Unfrozen,
    /// The worker drains: it releases all its tasks.
    Draining {
        /// How many tasks are left.
        left: usize,
    },
    /// The worker has no tasks left, and will leave.
    Drained,
    /// The reader fell behind: so many events are missing here.
    Lagged(u64),
    /// The worker shuts down: it claims nothing and releases all its tasks.
    ShuttingDown {
        /// How many tasks it has to release.
        left: usize,
    },
}

/// Why a task was released.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ReleaseReason {
    /// Its handler requested it.
    Handler,
    /// A command to the task.
    Command,
    /// A command to the node.
    NodeCommand,
    /// The worker owns more than its share.
    Balance,
    /// The worker drains.
    Drain,
    /// The worker shuts down.
    Shutdown,
    /// Its stored state cannot be read, or is terminal.
    SetAside,
    /// Its state cannot be stored.
    WriteRefused,
}

impl ReleaseReason {
    /// Every reason, so that each metric starts at zero.
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

    /// The cause of the release. It decides when this worker may claim the task again.
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

    /// A stable text for it, as in metrics.
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
