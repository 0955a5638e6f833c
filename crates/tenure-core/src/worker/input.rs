//! The inputs of a worker machine. The enum is closed: a new input must break the build of every
//! machine and driver.

use bytes::Bytes;

use crate::balance::ResourceUsage;
use crate::id::TaskId;
use crate::kv::KeyValue;
use crate::lease::LeaseId;
use crate::loss::LossReason;
use crate::record::Timestamp;
use crate::revision::{RequestId, Revision, Token};
use crate::snapshot::FeedItem;
use crate::task::Checkpoint;
use crate::task::retry::RetryDecision;
use crate::time::Moment;

use super::output::{EndedTask, ExpiredKey, RetentionRequest};

/// The time and the random number that come with every input.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct InputTime {
    /// The monotonic time, for deadlines.
    pub at: Moment,
    /// The wall-clock time, for records and for sleeping until a time.
    pub wall: Timestamp,
    /// A random number in `0.0..=1.0`, for jitter.
    pub jitter: f64,
}

/// The prefix that a feed follows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FeedId {
    /// `tasks/`: the tasks and their owners.
    Tasks,
    /// `nodes/`: the members, and the commands to this worker.
    Nodes,
    /// `frozen/`: the workers that take no new tasks.
    Frozen,
    /// `commands/`: the commands to tasks.
    Commands,
}

/// An event that the driver reports.
#[derive(Clone, Debug)]
pub enum WorkerInput {
    /// An item of a feed.
    FeedItem(FeedId, FeedItem),
    /// The worker's own key is stored, under a live lease.
    Joined {
        /// The key's create revision.
        incarnation: Token,
    },
    /// The session was lost: no key under its leases may be relied on.
    SessionLost,
    /// No key under this lease may be relied on.
    LeaseLost {
        /// The lease.
        lease: LeaseId,
        /// Why.
        why: LossReason,
    },
    /// The replies to [`WorkerOutput::Claim`](super::WorkerOutput::Claim).
    ClaimReplies {
        /// The request.
        epoch: RequestId,
        /// One for each claim, in the order of the request.
        replies: Vec<ClaimReply>,
    },
    /// The reply to [`WorkerOutput::ReleaseClaim`](super::WorkerOutput::ReleaseClaim).
    ClaimReleased {
        /// The task.
        task: TaskId,
        /// The claim.
        token: Token,
        /// The reply.
        reply: ReleaseReply,
    },
    /// A handler has returned or was aborted: none of its code runs any more.
    HandlerEnded {
        /// The task.
        task: TaskId,
        /// The claim that it ran under.
        token: Token,
        /// How it ended.
        outcome: HandlerEnd,
    },
    /// A handler requests that its checkpoint is stored. The reply is
    /// [`WorkerOutput::CheckpointReply`](super::WorkerOutput::CheckpointReply).
    Checkpoint {
        /// The task.
        task: TaskId,
        /// The claim that it runs under.
        token: Token,
        /// The id of this request, repeated in the reply.
        ask: u64,
        /// The checkpoint.
        blob: Checkpoint,
    },
    /// The reply to [`WorkerOutput::WriteState`](super::WorkerOutput::WriteState).
    StateWritten {
        /// The task.
        task: TaskId,
        /// The request.
        epoch: RequestId,
        /// The reply.
        reply: StateWriteReply,
    },
    /// The reply to [`WorkerOutput::AckCommand`](super::WorkerOutput::AckCommand).
    CommandAcked {
        /// The request.
        epoch: RequestId,
        /// The reply.
        reply: CommandAckReply,
    },
    /// The reply to [`WorkerOutput::Retain`](super::WorkerOutput::Retain).
    Retained {
        /// What was requested.
        ask: Box<RetentionRequest>,
        /// The reply.
        reply: RetentionReply,
    },
    /// A measurement of the resource that a balancer may consider. `None` if it could not be read.
    Measured(Option<ResourceUsage>),
    /// The process shuts down, at the latest at the deadline.
    Shutdown {
        /// The latest time at which the worker ends.
        deadline: Moment,
    },
    /// The reply to [`WorkerOutput::Leave`](super::WorkerOutput::Leave): the own key was deleted,
    /// or the session stopped trying to delete it.
    OwnKeyDeleted,
    /// Time has passed: [`WorkerMachine::next_wake`](super::WorkerMachine::next_wake) has come.
    Time,
}

/// The result of one claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClaimReply {
    /// The claim was won: the owner key is stored and belongs to this claim.
    Won(Box<WonClaim>),
    /// Another worker owns the task.
    Taken,
    /// The task does not exist, or it was submitted again since.
    TaskGone,
    /// The lease of the claim has ended, and every key under it is or will be deleted.
    LeaseLost,
    /// The request was certainly not applied.
    NotDone,
    /// The outcome is unknown. The same claim is sent again, with the same nonce and under the same
    /// lease.
    Ambiguous,
}

/// What a successful claim has read about its task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WonClaim {
    /// The create revision of the owner's key.
    pub token: Token,
    /// The lease that the owner key is attached to.
    pub lease: LeaseId,
    /// The revision at which the following fields were read.
    pub revision: Revision,
    /// The task's props.
    pub props: Option<Bytes>,
    /// Its stored state.
    pub state: Option<KeyValue>,
    /// The pending command to the task.
    pub command: Option<KeyValue>,
}

/// The result of releasing a claim. The request may be repeated any number of times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleaseReply {
    /// The claim does not exist any more.
    Done,
    /// The claim may still exist.
    NotDone,
}

/// How a handler ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HandlerEnd {
    /// The work is done.
    Completed,
    /// The task should be run by another worker.
    Release,
    /// It failed, or panicked.
    Fault(String),
    /// It failed, and the handler has decided how the task continues.
    FaultDecided {
        /// What went wrong.
        message: String,
        /// How the task continues, instead of the decision of the error policy.
        decision: RetryDecision,
    },
    /// The task should run again at a later time.
    Sleep {
        /// When, by the wall clock.
        until: Timestamp,
    },
    /// The task should stay paused until a command resumes it.
    Pause,
    /// The handler was aborted, so it reported no outcome.
    Aborted,
}

/// The result of a state write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StateWriteReply {
    /// The write was applied.
    Applied {
        /// At this revision.
        revision: Revision,
    },
    /// Not applied: the claim is not stored any more.
    NotOwner {
        /// The stored state of the task. It shows whether an ambiguous write was applied before the
        /// claim ended.
        state: Option<Bytes>,
    },
    /// Not applied: the stored state or the command differs from what the worker knew.
    Changed {
        /// The stored state.
        state: Option<KeyValue>,
        /// The pending command.
        command: Option<KeyValue>,
        /// The revision at which they were read.
        revision: Revision,
    },
    /// Not applied: the task was deleted, although the claim is still stored.
    TaskGone,
    /// Certainly not applied. It may be repeated.
    NotDone,
    /// The outcome is unknown.
    Ambiguous,
    /// Not applied, and a repetition will be refused as well.
    Refused(String),
}

/// The result of a retention step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RetentionReply {
    /// The tasks that have ended.
    Page(EndedPage),
    /// Results of commands.
    Results(ResultsPage),
    /// It was deleted.
    Deleted,
    /// Nothing was deleted: the task was submitted again, or another process has deleted or replaced the key.
    Kept,
    /// Nothing was deleted: the entry is unchanged, but the state is not the one that was put with it.
    Stale,
    /// It may not have been done. The next pass finds what is left.
    NotDone,
}

/// Some tasks that have ended, the oldest end first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedPage {
    /// The tasks.
    pub ended: Vec<EndedTask>,
    /// The last key, also of an entry that cannot be read.
    pub last: Option<Bytes>,
    /// Whether more entries follow.
    pub more: bool,
}

/// Some results of commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResultsPage {
    /// Those that can be read, and when they expire.
    pub results: Vec<(ExpiredKey, Option<Timestamp>)>,
    /// The last key, also of a result that cannot be read.
    pub last: Option<Bytes>,
    /// Whether more results follow.
    pub more: bool,
}

/// The result of acknowledging a command to this worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandAckReply {
    /// The acknowledgement was applied.
    Applied,
    /// Not applied: the command was deleted or replaced.
    Changed,
    /// The acknowledgement may not have been applied. It may be repeated.
    NotDone,
}
