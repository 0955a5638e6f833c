//! Everything that a node may cause. Closed: a driver that forgets one does not build.

use bytes::Bytes;

use crate::id::{ClaimId, CommandId, TaskId};
use crate::kv::Selection;
use crate::lease::LeaseId;
use crate::record::{MemberState, NodeLoad, TaskRecord, Timestamp};
use crate::revision::{RequestId, Revision, Token};
use crate::task::StateRecord;
use crate::time::Moment;

/// What the driver must do. Whatever is asked of the store is written out in [`request`](super::request).
#[derive(Clone, PartialEq, Debug)]
pub enum WorkerOutput {
    /// Send these claims in one request, each under a loan of its own. Answer with `ClaimReplies`.
    ///
    /// The loan of a claim is kept, by its nonce, until [`WorkerOutput::EndClaim`]; a claim that is asked again is asked under the same loan.
    Claim {
        /// The question.
        epoch: RequestId,
        /// The claims.
        claims: Vec<ClaimRequest>,
    },
    /// This claim is over: its loan is needed no more. Needs no answer.
    EndClaim {
        /// The claim.
        nonce: String,
    },
    /// Delete the owner's key if it is still the one of this claim, and the claim's attempt record. Answer with `ClaimReleased`.
    ReleaseClaim {
        /// The task.
        task: TaskId,
        /// The token of the claim.
        token: Token,
        /// The name of the claim.
        claim: ClaimId,
    },
    /// Run the handler. When nothing of it runs any more, tell `HandlerEnded`.
    Start(Box<HandlerStart>),
    /// Ask the handler to stop. Needs no answer but its end.
    Stop {
        /// The task.
        task: TaskId,
        /// The claim that it runs under.
        token: Token,
        /// Why.
        why: StopReason,
        /// When it will be aborted.
        until: Moment,
    },
    /// The handler did not stop in time: end it by force. Needs no answer but its end.
    Abort {
        /// The task.
        task: TaskId,
        /// The claim that it runs under.
        token: Token,
    },
    /// Ask the handler to keep its progress. Needs no answer.
    RequestCheckpoint {
        /// The task.
        task: TaskId,
        /// The claim that it runs under.
        token: Token,
    },
    /// Tell a handler what became of the progress that it wanted kept. Needs no answer.
    CheckpointReply {
        /// The task.
        task: TaskId,
        /// The claim that it runs under.
        token: Token,
        /// The questions.
        checkpoint_requests: Vec<u64>,
        /// Whether it is kept, or why not.
        result: Result<(), String>,
    },
    /// Write a task's state, guarded by its claim. Answer with `StateWritten`.
    WriteState(Box<StateWrite>),
    /// Say how a command to this node ended, or note on the way that the node is frozen. Answer with `CommandAcked`.
    AckCommand(Box<CommandAck>),
    /// Read a page of what may be deleted because of its age, or delete one key of it. Answer with `Retained`.
    Retain(Box<RetentionRequest>),
    /// Show this as the node's own state, now and whenever its key is put again. Needs no answer.
    Announce(MemberState),
    /// Publish this load in the node's own record. Needs no answer.
    Publish(NodeLoad),
    /// Remove the node's own key. Answer with `OwnKeyDeleted`.
    Leave,
    /// Everything that could be done is done. The machine will ask nothing more.
    Finish {
        /// Tasks whose handlers run on although they were told to stop. Their claims must be left to lapse, never revoked.
        running: Vec<TaskId>,
    },
}

/// One step of retention, in one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RetentionRequest {
    /// The request.
    pub epoch: RequestId,
    /// What is requested.
    pub step: RetentionStep,
}

/// What a step of retention requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RetentionStep {
    /// The tasks that ended first, behind a key.
    Read {
        /// The last key that was read; none to begin.
        after: Option<Bytes>,
        /// How many at most.
        limit: u32,
    },
    /// Deletes the entry and the final state of one task, if both are unchanged and the task was not submitted again.
    Delete(EndedTask),
    /// Deletes the entry alone: its state was changed or deleted by a program that does not know of entries.
    DeleteEntry(EndedTask),
    /// Some results of commands.
    ReadResults {
        /// Among which keys.
        among: Selection,
        /// How many at most.
        limit: u32,
    },
    /// Deletes a result that has expired, if it is unchanged.
    DeleteResult(ExpiredKey),
    /// Deletes a command that has expired, if it is unchanged, and stores its result.
    ExpireCommand {
        /// The command.
        command: ExpiredKey,
        /// The id under which its sender waits, and the result; none if it has no id.
        result: Option<(CommandId, Bytes)>,
    },
}

/// A key that is deleted because of its age.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpiredKey {
    /// The key.
    pub key: Bytes,
    /// When it was put; it is deleted only if it was not put again since.
    pub modified: Revision,
}

/// The entry of a task that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedTask {
    /// The task.
    pub task: TaskId,
    /// When it ended.
    pub at: Timestamp,
    /// When the entry was put; its state was put in the same transaction.
    pub modified: Revision,
}

/// One claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimRequest {
    /// The task.
    pub task: TaskId,
    /// The life of it that is meant.
    pub created: Revision,
    /// Which claim this is; no two claims have the same.
    pub nonce: String,
    /// The owner's record, with the nonce in it.
    pub owner: Bytes,
    /// The attempt record, which stays until an outcome is stored.
    pub attempt: Bytes,
    /// Whether the task was submitted with props.
    pub has_props: bool,
    /// Whether it was asked before, so that it may find itself.
    pub is_again: bool,
}

/// What a handler needs to know.
#[derive(Clone, PartialEq, Debug)]
pub struct HandlerStart {
    /// The task.
    pub task: TaskId,
    /// The claim.
    pub token: Token,
    /// By which the claim's loan is found: its validity is the handler's.
    pub nonce: String,
    /// The lease of that loan.
    pub lease: LeaseId,
    /// What was submitted.
    pub record: TaskRecord,
    /// With what.
    pub props: Option<Bytes>,
    /// How the task stands: attempt, checkpoint, errors.
    pub state: StateRecord,
}

/// Why a handler is asked to stop.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum StopReason {
    /// The claim may not be relied upon any more.
    Lost,
    /// The task was deleted.
    Deleted,
    /// A command to the task needs it to stop.
    Command,
    /// A command to the node says so; how the handler ends decides what becomes of the task.
    NodeCommand,
    /// The task goes to another node.
    Release,
    /// The node ends.
    Shutdown,
}

impl StopReason {
    /// A stable word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            StopReason::Lost => "claim lost",
            StopReason::Deleted => "task deleted",
            StopReason::Command => "command to the task",
            StopReason::NodeCommand => "command to the node",
            StopReason::Release => "released to another node",
            StopReason::Shutdown => "shutdown",
        }
    }
}

/// One write about a task, in one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateWrite {
    /// The question.
    pub epoch: RequestId,
    /// The task.
    pub task: TaskId,
    /// The life of it that is meant.
    pub created: Revision,
    /// The claim, which must still be there.
    pub token: Token,
    /// When the stored state was last written, as far as is known; zero if there is none.
    pub state_seen: Revision,
    /// What to store as its state; none if it stays as it is.
    pub state: Option<Bytes>,
    /// What must be true of the command.
    pub command: CommandCheck,
    /// What becomes of the task's attempt records.
    pub attempts: AttemptWrite,
    /// What becomes of the claim and of the task.
    pub after: AfterWrite,
    /// What is kept of a task that ends, beside its state.
    pub entry: Option<EndedEntry>,
}

/// The key of a task that ends: by it retention finds the task, and it holds the props.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedEntry {
    /// When the task ended, as its state has it.
    pub at: Timestamp,
    /// What the submitter gave it.
    pub props: Option<Bytes>,
}

/// What a save does with the attempt records of its task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttemptWrite {
    /// They stay.
    Keep,
    /// All are deleted: an outcome is stored.
    Clear,
    /// This claim's is deleted: its worker goes without an outcome, but was not killed.
    Close {
        /// The claim.
        claim: ClaimId,
    },
    /// This claim's is put again, because its handler is about to run again.
    Open {
        /// The claim.
        claim: ClaimId,
        /// The record.
        attempt: Bytes,
    },
}

/// What a save demands of the command to its task, and does with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommandCheck {
    /// It does not matter.
    Any,
    /// There must be none: whoever ends a task has answered everybody first.
    Absent,
    /// It must be this one, and is acknowledged: deleted, with its result stored.
    Acknowledge {
        /// When it was put.
        modified: Revision,
        /// Under which id its sender waits; none if nobody can be told.
        id: Option<CommandId>,
        /// The result.
        result: Bytes,
    },
}

/// What becomes of the claim, and of the task, when a save is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterWrite {
    /// We go on owning it.
    Keep,
    /// The claim is deleted: somebody else may take the task.
    Release,
    /// The task has ended: it is deleted with its props and the claim. The state stays.
    End,
}

/// How a command to this node ended, in one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandAck {
    /// The question.
    pub epoch: RequestId,
    /// The command.
    pub order: CommandId,
    /// When it was put; it must still be the same.
    pub modified: Revision,
    /// What becomes of the node's mark among the frozen.
    pub mark: FreezeMark,
    /// The result, with which the command is deleted; none if it is still being worked on.
    pub result: Option<Bytes>,
}

/// What becomes of a node's mark among the frozen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FreezeMark {
    /// It stays as it is.
    Keep,
    /// It is put.
    Freeze {
        /// The frozen record.
        record: Bytes,
    },
    /// It is deleted.
    Unfreeze,
}
