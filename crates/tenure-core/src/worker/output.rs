//! The outputs of a worker machine. The enum is closed: a driver that does not handle one of them
//! does not compile.

use bytes::Bytes;

use crate::id::{ClaimId, CommandId, TaskId};
use crate::kv::Selection;
use crate::lease::LeaseId;
use crate::record::{MemberState, NodeLoad, TaskRecord, Timestamp};
use crate::revision::{RequestId, Revision, Token};
use crate::task::StateRecord;
use crate::time::Moment;

/// A request for the driver. Its transactions are built in [`request`](super::request).
#[derive(Clone, PartialEq, Debug)]
pub enum WorkerOutput {
    /// Send these claims in one request, each under its own lease handle. The reply is
    /// `ClaimReplies`.
    ///
    /// The driver keeps the lease handle of a claim, by its nonce, until
    /// [`WorkerOutput::EndClaim`]. A repeated claim uses the same lease handle.
    Claim {
        /// The request.
        epoch: RequestId,
        /// The claims.
        claims: Vec<ClaimRequest>,
    },
    /// The claim has ended: drop its lease handle. Has no reply.
    EndClaim {
        /// The claim.
        nonce: String,
    },
    /// Delete the owner key if it is still that of this claim, and the claim's attempt record. The
    /// reply is `ClaimReleased`.
    ReleaseClaim {
        /// The task.
        task: TaskId,
        /// The token of the claim.
        token: Token,
        /// The id of the claim.
        claim: ClaimId,
    },
    /// Run the handler. When none of its code runs any more, report `HandlerEnded`.
    Start(Box<HandlerStart>),
    /// Ask the handler to stop. The only reply is its end.
    Stop {
        /// The task.
        task: TaskId,
        /// The claim that it runs under.
        token: Token,
        /// Why.
        why: StopReason,
        /// When the handler will be aborted.
        until: Moment,
    },
    /// Abort the handler, which did not stop in time. The only reply is its end.
    Abort {
        /// The task.
        task: TaskId,
        /// The claim that it runs under.
        token: Token,
    },
    /// Ask the handler to save a checkpoint. Has no reply.
    RequestCheckpoint {
        /// The task.
        task: TaskId,
        /// The claim that it runs under.
        token: Token,
    },
    /// The reply to a handler that requested a checkpoint. Has no reply itself.
    CheckpointReply {
        /// The task.
        task: TaskId,
        /// The claim that it runs under.
        token: Token,
        /// The requests that this is the reply to.
        checkpoint_requests: Vec<u64>,
        /// Whether the checkpoint is stored, or the reason why not.
        result: Result<(), String>,
    },
    /// Write a task's state, conditional on its claim. The reply is `StateWritten`.
    WriteState(Box<StateWrite>),
    /// Store the result of a command to this worker, or a step of it: the freeze mark. The reply is
    /// `CommandAcked`.
    AckCommand(Box<CommandAck>),
    /// Read a page of expired entries, or delete one key of it. The reply is `Retained`.
    Retain(Box<RetentionRequest>),
    /// Announce this state in the worker's own record, now and whenever its key is put again. Has
    /// no reply.
    Announce(MemberState),
    /// Publish this load in the worker's own record. Has no reply.
    Publish(NodeLoad),
    /// Delete the worker's own key. The reply is `OwnKeyDeleted`.
    Leave,
    /// The machine has ended and sends no more requests.
    Finish {
        /// Tasks with handlers that still run although they were asked to stop. Their claims must
        /// be left to lapse and never be revoked: a revoke would let another worker start the task
        /// while such a handler runs.
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

/// What a retention step does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RetentionStep {
    /// Reads the tasks that ended first, after a key.
    Read {
        /// The last key that was read. `None` for the first page.
        after: Option<Bytes>,
        /// How many at most.
        limit: u32,
    },
    /// Deletes the entry and the final state of a task, if both are unchanged and the task was not
    /// submitted again.
    Delete(EndedTask),
    /// Deletes the entry alone, because its state was changed or deleted by a program that does not
    /// write entries.
    DeleteEntry(EndedTask),
    /// Reads some results of commands.
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
        /// The id that the sender waits on, and the result. `None` if the command has no id.
        result: Option<(CommandId, Bytes)>,
    },
}

/// A key that is deleted because of its age.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpiredKey {
    /// The key.
    pub key: Bytes,
    /// The revision at which it was put. It is deleted only if it is unchanged since.
    pub modified: Revision,
}

/// The entry of an ended task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedTask {
    /// The task.
    pub task: TaskId,
    /// When it ended.
    pub at: Timestamp,
    /// The revision at which the entry was put. The final state was put in the same transaction.
    pub modified: Revision,
}

/// A claim of one task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimRequest {
    /// The task.
    pub task: TaskId,
    /// The create revision of the task, which identifies its incarnation.
    pub created: Revision,
    /// Identifies the claim. No two claims have the same nonce.
    pub nonce: String,
    /// The owner record, which contains the nonce.
    pub owner: Bytes,
    /// The attempt record. It stays until an outcome is stored.
    pub attempt: Bytes,
    /// Whether the task was submitted with props.
    pub has_props: bool,
    /// Whether the claim was sent before, so that it may find its own owner key.
    pub is_again: bool,
}

/// What a handler needs to start.
#[derive(Clone, PartialEq, Debug)]
pub struct HandlerStart {
    /// The task.
    pub task: TaskId,
    /// The claim.
    pub token: Token,
    /// Identifies the claim's lease handle: the handler's validity is that of the handle.
    pub nonce: String,
    /// The lease of that handle.
    pub lease: LeaseId,
    /// The submitted record.
    pub record: TaskRecord,
    /// The submitted props.
    pub props: Option<Bytes>,
    /// The stored state: attempt, checkpoint, errors.
    pub state: StateRecord,
}

/// Why a handler is asked to stop.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum StopReason {
    /// The claim is not valid any more.
    Lost,
    /// The task was deleted.
    Deleted,
    /// A command to the task needs it to stop.
    Command,
    /// A command to the worker. The end of the handler decides how the task continues.
    NodeCommand,
    /// The task is released for another worker.
    Release,
    /// The worker shuts down.
    Shutdown,
}

impl StopReason {
    /// A stable text for it.
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
    /// The request.
    pub epoch: RequestId,
    /// The task.
    pub task: TaskId,
    /// The create revision of the task, which identifies its incarnation.
    pub created: Revision,
    /// The token of the claim, which must still be stored.
    pub token: Token,
    /// The revision at which the stored state was last written, as far as the worker knows. Zero if
    /// there is none.
    pub state_seen: Revision,
    /// The new state. `None` if it stays unchanged.
    pub state: Option<Bytes>,
    /// The condition on the pending command.
    pub command: CommandCheck,
    /// What happens to the task's attempt records.
    pub attempts: AttemptWrite,
    /// What happens to the claim and the task.
    pub after: AfterWrite,
    /// What is kept of an ended task, besides its state.
    pub entry: Option<EndedEntry>,
}

/// The key of an ended task. Retention finds the task by it, and it holds the props.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedEntry {
    /// When the task ended, as in its state.
    pub at: Timestamp,
    /// The submitted props.
    pub props: Option<Bytes>,
}

/// What a state write does with the attempt records of its task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttemptWrite {
    /// They stay.
    Keep,
    /// All are deleted: an outcome is stored.
    Clear,
    /// The record of this claim is deleted: its worker releases the task without an outcome, but
    /// was not killed.
    Close {
        /// The claim.
        claim: ClaimId,
    },
    /// The record of this claim is put again, because its handler is about to run again.
    Open {
        /// The claim.
        claim: ClaimId,
        /// The record.
        attempt: Bytes,
    },
}

/// The condition of a state write on the pending command, and what it does with the command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommandCheck {
    /// No condition.
    Any,
    /// There must be no pending command: every command is answered before its task ends.
    Absent,
    /// It must be this command, which is deleted while its result is stored.
    Acknowledge {
        /// When it was put.
        modified: Revision,
        /// The id that its sender waits on. `None` if the sender cannot be notified.
        id: Option<CommandId>,
        /// The result.
        result: Bytes,
    },
}

/// What happens to the claim and the task in a state write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterWrite {
    /// This worker keeps the claim.
    Keep,
    /// The claim is deleted: any worker may claim the task.
    Release,
    /// The task has ended: it is deleted with its props and the claim. The state stays.
    End,
}

/// The result of a command to this worker, or a step of it, in one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandAck {
    /// The request.
    pub epoch: RequestId,
    /// The command.
    pub command: CommandId,
    /// The revision at which it was put. It must be unchanged.
    pub modified: Revision,
    /// What happens to the worker's freeze mark.
    pub mark: FreezeMark,
    /// The result, which is stored while the command is deleted. `None` if the command is still in
    /// progress.
    pub result: Option<Bytes>,
}

/// What happens to a worker's freeze mark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FreezeMark {
    /// It stays unchanged.
    Keep,
    /// It is put.
    Freeze {
        /// The frozen record.
        record: Bytes,
    },
    /// It is deleted.
    Unfreeze,
}
