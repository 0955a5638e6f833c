//! One claimed task, with all facts that decide about its next step.
//!
//! ```text
//!                runnable                         stop
//!   claim won ──────────────────► Running ────────────────────► Stopping ──► Stuck
//!       │                         ▲  │ returned                    │ ended     │ ended after all
//!       │                kept,    │  ▼                             ▼           │
//!       │                runnable └─ Saving ◄──────────────────────◄───────────┘
//!       │ sleeping, paused           │  ▲ │
//!       └────────────────► Parked ◄──┘  │ └──► released, or ended
//!                             └─────────┘
//!                       wakes, gets a command, is released
//!
//!   from any state, when the claim is lost: Stopping if a handler runs, then gone; nothing is written
//! ```
//!
//! None of these states is stored as such. They follow from whether the handler runs, whether a
//! write is in flight, and the stored state. Each decision is made from all facts known at that
//! moment. So a command or a loss that arrives between two steps simply counts at the next step.

use bytes::Bytes;

use crate::backoff::BackoffState;
use crate::id::CommandId;
use crate::lease::LeaseId;
use crate::loss::LossReason;
use crate::record::{CommandOutcome, TaskRecord, Timestamp};
use crate::revision::{Revision, Token};
use crate::task::{AttemptRecord, Checkpoint, StateRecord, TaskMessage, transition};
use crate::time::Moment;

use super::config::RETRY;
use super::event::ReleaseReason;
use super::input::HandlerEnd;
use super::output::{StateWrite, StopReason};
use super::task_commands::TaskCommandEntry;

/// A claimed task.
#[derive(Clone, Debug)]
pub(super) struct ClaimedTask {
    /// Identifies the claim.
    pub(super) nonce: String,
    pub(super) token: Token,
    pub(super) lease: LeaseId,
    /// The create revision of the claimed task, which identifies its incarnation.
    pub(super) created: Revision,
    /// What was submitted.
    pub(super) submitted: TaskRecord,
    pub(super) props: Option<Bytes>,
    /// The stored state.
    pub(super) record: StateRecord,
    /// The revision at which it was stored.
    pub(super) state_seen: Revision,
    /// The newest command that is known and not acknowledged.
    pub(super) command: Option<TaskCommandEntry>,
    /// The revision up to which commands are known. Older reports about them are ignored.
    pub(super) command_known: Revision,
    pub(super) handler: HandlerState,
    /// How the handler ended, until that is stored.
    pub(super) outcome: Option<HandlerEnd>,
    /// Why the task is to be released. `None` if it is not.
    pub(super) release: Option<ReleaseReason>,
    /// Whether a command to the worker requires the handler to stop.
    pub(super) is_stop_commanded: bool,
    /// Why the claim was lost. From then on nothing is written.
    pub(super) loss: Option<LossReason>,
    /// The checkpoint that the handler wants stored, and the requests that wait for it.
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) checkpoint_requests: Vec<u64>,
    pub(super) write: WriteState,
    pub(super) backoff: BackoffState,
    /// When it wakes, if it is one of the sleepers.
    pub(super) sleeps_until: Option<Timestamp>,
    /// Earlier claims of the task that have no stored outcome, the oldest first.
    pub(super) lost: Vec<AttemptRecord>,
    /// Why the task is not run again: too many claims ended without an outcome.
    pub(super) quarantine: Option<String>,
    /// Whether this claim's attempt record is stored.
    pub(super) is_attempt_open: bool,
    /// When this claim was requested or its handler began again, by the wall clock.
    pub(super) began: Timestamp,
    /// Whether a handler has run since the last stored outcome.
    pub(super) has_run: bool,
}

/// What the handler does at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HandlerState {
    /// There is no handler.
    None,
    /// It runs.
    Running,
    /// It was asked to stop.
    Stopping { why: StopReason, until: Moment, phase: StopPhase },
}

/// How a handler was asked to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StopPhase {
    Requested,
    Aborted,
    Stuck,
}

/// Whether a write about the task is in flight.
#[derive(Clone, Debug)]
pub(super) enum WriteState {
    Idle,
    InFlight(Box<PendingWrite>),
    /// The write was not applied, or its outcome is unknown. It is repeated after the backoff.
    Backoff(Box<PendingWrite>),
}

/// A state write, and the facts that become true when it is applied.
#[derive(Clone, Debug)]
pub(super) struct PendingWrite {
    pub(super) save: StateWrite,
    /// The state that it stores.
    pub(super) record: StateRecord,
    /// Whether it contains the outcome of the handler.
    pub(super) has_outcome: bool,
    /// How many of the waiting checkpoint requests it answers.
    pub(super) checkpoint_requests: usize,
    /// The command that it acknowledges.
    pub(super) acknowledges: Option<HandledCommand>,
    /// Whether the handler is asked for a checkpoint afterwards.
    pub(super) requests_checkpoint: bool,
    /// Whether its state contains the attempts that end with it.
    pub(super) has_attempts: bool,
    pub(super) release: Option<ReleaseReason>,
    /// Whether it may have been applied already.
    pub(super) is_ambiguous: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct HandledCommand {
    pub(super) modified: Revision,
    pub(super) id: Option<CommandId>,
    pub(super) outcome: CommandOutcome,
    pub(super) why: Option<String>,
}

impl ClaimedTask {
    pub(super) fn new_backoff() -> BackoffState {
        BackoffState::new(RETRY)
    }

    /// Why the handler has to stop. `None` if it may continue.
    pub(super) fn stop_reason(&self) -> Option<StopReason> {
        // A loss before everything else: the handler of a lost claim must stop within a second,
        // whatever a command or a release allows it.
        match (self.loss, self.release) {
            (Some(LossReason::Deleted), _) => return Some(StopReason::Deleted),
            (
                Some(
                    LossReason::Lapsed
                    | LossReason::Revoked
                    | LossReason::Replaced
                    | LossReason::MembershipLost
                    | LossReason::Released
                    | LossReason::Closed,
                ),
                _,
            ) => return Some(StopReason::Lost),
            (None, Some(ReleaseReason::Shutdown)) => return Some(StopReason::Shutdown),
            (None, Some(_)) => return Some(StopReason::Release),
            (None, None) => {}
        }
        if self.is_stop_commanded {
            return Some(StopReason::NodeCommand);
        }
        self.needs_stop().then_some(StopReason::Command)
    }

    /// Whether the pending command requires the handler to stop.
    fn needs_stop(&self) -> bool {
        let Some(entry) = &self.command else { return false };
        let Ok(message) = &entry.message else { return false };
        let stops = match message {
            TaskMessage::Run | TaskMessage::Checkpoint { .. } => false,
            TaskMessage::Sleep { .. }
            | TaskMessage::Pause
            | TaskMessage::Kill { .. }
            | TaskMessage::Error { .. }
            | TaskMessage::Complete
            | TaskMessage::Release => true,
        };
        // An expired or illegal command is refused while the handler runs on.
        stops && self.expiry(entry).is_none() && transition(self.record.state, message).is_ok()
    }

    /// Why a command must not be applied to this task. `None` if it may.
    pub(super) fn expiry(&self, entry: &TaskCommandEntry) -> Option<&'static str> {
        // The command key of a task may outlive the task. A command that is older than the task was
        // meant for its former incarnation.
        if entry.modified < self.created {
            return Some("it was sent to an earlier task of this name");
        }
        entry.is_expired.then_some("it expired before a worker read it")
    }

    /// The handler has ended.
    pub(super) fn end_handler(&mut self, outcome: HandlerEnd) {
        let before = std::mem::replace(&mut self.handler, HandlerState::None);
        let has_no_outcome = matches!(outcome, HandlerEnd::Release | HandlerEnd::Aborted);
        let is_for_a_command = matches!(before, HandlerState::Stopping { why: StopReason::Command, .. });
        // A handler that was stopped for a command, and reports no outcome of its own, does not
        // request a release: the command decides how the task continues.
        self.outcome = (!(has_no_outcome && is_for_a_command)).then_some(outcome);
        if matches!(before, HandlerState::Stopping { why: StopReason::NodeCommand, .. }) && has_no_outcome {
            self.release.get_or_insert(ReleaseReason::NodeCommand);
        }
        self.is_stop_commanded = false;
    }

    /// A command was read, or its absence. Reports that are older than what is known are ignored.
    pub(super) fn see_command(&mut self, entry: Option<TaskCommandEntry>, at: Revision) -> bool {
        // The feed, the claim and the replies to writes report commands independently, and in no
        // common order. Only the revision decides which report is newer.
        if at <= self.command_known {
            return false;
        }
        self.command_known = at;
        self.command = entry;
        true
    }
}
