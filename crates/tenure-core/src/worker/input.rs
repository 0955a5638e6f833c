//! Everything that can wake a node. Closed: a new reason to wake must break the build.

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

/// What the machine is told with every event.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct InputTime {
    /// For deadlines.
    pub at: Moment,
    /// For people, and for sleeping until.
    pub wall: Timestamp,
    /// A throw of the dice in `0.0..=1.0`, for waits that must not fall together.
    pub jitter: f64,
}

/// Which prefix a feed follows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FeedId {
    /// `tasks/`: which tasks there are and who owns them.
    Tasks,
    /// `nodes/`: who is there, and the commands to this node.
    Nodes,
    /// `frozen/`: who takes no new tasks.
    Frozen,
    /// `commands/`: the commands to tasks.
    Commands,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum WorkerInput {
    /// A feed said something.
    FeedItem(FeedId, FeedItem),
    /// The node's own key is in the store, under a live lease.
    Joined {
        /// The key's create revision.
        incarnation: Token,
    },
    /// Nothing that hangs on a lease of ours may be relied upon any more.
    SessionLost,
    /// What hangs on this lease may not be relied upon any more.
    LeaseLost {
        /// The lease.
        lease: LeaseId,
        /// Why.
        why: LossReason,
    },
    /// Answers [`WorkerOutput::Claim`](super::WorkerOutput::Claim).
    ClaimReplies {
        /// The question.
        epoch: RequestId,
        /// One for each claim, in their order.
        replies: Vec<ClaimReply>,
    },
    /// Answers [`WorkerOutput::ReleaseClaim`](super::WorkerOutput::ReleaseClaim).
    ClaimReleased {
        /// The task.
        task: TaskId,
        /// The claim.
        token: Token,
        /// What came of it.
        reply: ReleaseReply,
    },
    /// A handler has returned, or was aborted: nothing of it runs any more.
    HandlerEnded {
        /// The task.
        task: TaskId,
        /// The claim that it ran under.
        token: Token,
        /// How it ended.
        outcome: HandlerEnd,
    },
    /// A handler wants its progress kept. Answered by [`WorkerOutput::CheckpointReply`](super::WorkerOutput::CheckpointReply).
    Checkpoint {
        /// The task.
        task: TaskId,
        /// The claim that it runs under.
        token: Token,
        /// For the answer.
        ask: u64,
        /// The progress.
        blob: Checkpoint,
    },
    /// Answers [`WorkerOutput::WriteState`](super::WorkerOutput::WriteState).
    StateWritten {
        /// The task.
        task: TaskId,
        /// The question.
        epoch: RequestId,
        /// What came of it.
        reply: StateWriteReply,
    },
    /// Answers [`WorkerOutput::AckCommand`](super::WorkerOutput::AckCommand).
    CommandAcked {
        /// The question.
        epoch: RequestId,
        /// What came of it.
        reply: CommandAckReply,
    },
    /// Answers [`WorkerOutput::Retain`](super::WorkerOutput::Retain).
    Retained {
        /// What was requested.
        ask: Box<RetentionRequest>,
        /// What came of it.
        reply: RetentionReply,
    },
    /// How much of the resource is used that a balancer may look at; none if that could not be read.
    Measured(Option<ResourceUsage>),
    /// The process wants to end by then.
    Shutdown {
        /// When, at the latest.
        deadline: Moment,
    },
    /// Answers [`WorkerOutput::Leave`](super::WorkerOutput::Leave): the node's own key is gone, or nobody will try any more.
    OwnKeyDeleted,
    /// Time has passed: [`WorkerMachine::next_wake`](super::WorkerMachine::next_wake) has come.
    Time,
}

/// What came of one claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClaimReply {
    /// The owner's key is there, and it is this claim's.
    Won(Box<WonClaim>),
    /// Somebody else owns the task.
    Taken,
    /// The task is not there, or it is another life of it.
    TaskGone,
    /// The claim's lease is over; whatever hangs on it ends with it.
    LeaseLost,
    /// This request certainly did nothing.
    NotDone,
    /// Nobody knows. It will be asked again, with the same nonce, under the same lease.
    Ambiguous,
}

/// What a claim that was won has read with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WonClaim {
    /// The create revision of the owner's key.
    pub token: Token,
    /// The lease it hangs on.
    pub lease: LeaseId,
    /// Of which revision what follows was read.
    pub revision: Revision,
    /// The task's props.
    pub props: Option<Bytes>,
    /// Its stored state.
    pub state: Option<KeyValue>,
    /// The command that waits for it.
    pub command: Option<KeyValue>,
}

/// What came of giving a claim back. It may be asked any number of times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleaseReply {
    /// The claim is not there any more.
    Done,
    /// Perhaps it still is.
    NotDone,
}

/// How a handler ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HandlerEnd {
    /// The work is done.
    Completed,
    /// Somebody else should go on with it.
    Release,
    /// It failed, or panicked.
    Fault(String),
    /// It failed, and the handler has decided what follows.
    FaultDecided {
        /// What went wrong.
        message: String,
        /// What follows, instead of what the error policy decides.
        decision: RetryDecision,
    },
    /// It wants to run again then.
    Sleep {
        /// When, by the wall clock.
        until: Timestamp,
    },
    /// It wants to be let be until it is told otherwise.
    Pause,
    /// It was aborted and has nothing to say.
    Aborted,
}

/// What came of a save.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StateWriteReply {
    /// It was done.
    Applied {
        /// At this revision.
        revision: Revision,
    },
    /// Nothing was done: the claim is not in the store any more.
    NotOwner {
        /// What is stored as the task's state; by it a save whose answer was lost knows itself again.
        state: Option<Bytes>,
    },
    /// Nothing was done: the state or the command is another than was known.
    Changed {
        /// The stored state.
        state: Option<KeyValue>,
        /// The command that waits.
        command: Option<KeyValue>,
        /// Of which revision they are.
        revision: Revision,
    },
    /// Nothing was done: the task was deleted, although our claim is still there.
    TaskGone,
    /// Certainly nothing was done; it may be tried again.
    NotDone,
    /// Nobody knows whether it was done.
    Ambiguous,
    /// Certainly nothing was done, and it never will be.
    Refused(String),
}

/// What came of a step of retention.
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
    /// Whether there are more behind it.
    pub more: bool,
}

/// Some results of commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResultsPage {
    /// Those that can be read, and when they expire.
    pub results: Vec<(ExpiredKey, Option<Timestamp>)>,
    /// The last key, also of a result that cannot be read.
    pub last: Option<Bytes>,
    /// Whether there are more behind it.
    pub more: bool,
}

/// What came of answering a command to this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandAckReply {
    /// It was done.
    Applied,
    /// Nothing was done: the command is not there any more, or is another.
    Changed,
    /// It may not have been done; it may be tried again.
    NotDone,
}
