//! One task that is ours, with everything that is known and wished about it.
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
//!                       wakes, is told something, is to go
//!
//!   from anywhere, when the claim is over: Stopping if a handler runs, then gone; nothing is written
//! ```
//!
//! Nothing of this is stored as such: where a task stands follows from whether its handler runs, whether something is being written, and the
//! stored state. So every decision is taken afresh from all that is known at that moment, and a command or a loss that arrives
//! between two steps is simply known at the next.

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

/// A task that is ours.
#[derive(Clone, Debug)]
pub(super) struct ClaimedTask {
    /// Which claim this is.
    pub(super) nonce: String,
    pub(super) token: Token,
    pub(super) lease: LeaseId,
    /// The life of the task that was claimed.
    pub(super) created: Revision,
    /// What was submitted.
    pub(super) submitted: TaskRecord,
    pub(super) props: Option<Bytes>,
    /// The state as it is stored.
    pub(super) record: StateRecord,
    /// When it was stored.
    pub(super) state_seen: Revision,
    /// The newest command that is known and not acknowledged.
    pub(super) command: Option<TaskCommandEntry>,
    /// Up to where commands are known: an older word about them is no news.
    pub(super) command_known: Revision,
    pub(super) handler: HandlerState,
    /// How the handler ended, until that is stored.
    pub(super) outcome: Option<HandlerEnd>,
    /// That the task is to be nobody's, and why.
    pub(super) release: Option<ReleaseReason>,
    /// That a command to the node wants the handler stopped.
    pub(super) is_stop_ordered: bool,
    /// That the claim is over, and why. From here on nothing is written.
    pub(super) over: Option<LossReason>,
    /// Progress that the handler wants kept, and who waits for it.
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) checkpoint_requests: Vec<u64>,
    pub(super) write: WriteState,
    pub(super) backoff: BackoffState,
    /// When it wakes, while it is among the sleepers.
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

/// What the handler does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HandlerState {
    /// There is none.
    None,
    /// It runs.
    Running,
    /// It was asked to stop.
    Stopping { why: StopReason, until: Moment, pressure: StopPhase },
}

/// How hard a handler was asked to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StopPhase {
    Requested,
    Aborted,
    Stuck,
}

/// Whether something about the task is being written.
#[derive(Clone, Debug)]
pub(super) enum WriteState {
    Idle,
    InFlight(Box<PendingWrite>),
    /// It was not done, or nobody knows; it will be asked again.
    Backoff(Box<PendingWrite>),
}

/// A save, and what it means when it is done.
#[derive(Clone, Debug)]
pub(super) struct PendingWrite {
    pub(super) save: StateWrite,
    /// The state as it will be stored then.
    pub(super) record: StateRecord,
    /// Whether the handler's outcome is in it.
    pub(super) has_outcome: bool,
    /// How many of those who wait for their progress find it in it.
    pub(super) checkpoint_requests: usize,
    /// The command that it acknowledges.
    pub(super) acknowledges: Option<HandledCommand>,
    /// Whether the handler is to be asked for its progress then.
    pub(super) requests_checkpoint: bool,
    /// Whether the attempts that it ends are in its state.
    pub(super) has_attempts: bool,
    pub(super) release: Option<ReleaseReason>,
    /// Whether it may have been done already.
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

    /// Why the handler has to stop; none if it may go on.
    pub(super) fn stop_reason(&self) -> Option<StopReason> {
        match (self.over, self.release) {
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
        if self.is_stop_ordered {
            return Some(StopReason::NodeCommand);
        }
        self.needs_stop().then_some(StopReason::Command)
    }

    /// Whether the command that waits is one that takes the handler away.
    fn needs_stop(&self) -> bool {
        let Some(mail) = &self.command else { return false };
        let Ok(message) = &mail.message else { return false };
        let stops = match message {
            TaskMessage::Run | TaskMessage::Checkpoint { .. } => false,
            TaskMessage::Sleep { .. }
            | TaskMessage::Pause
            | TaskMessage::Kill { .. }
            | TaskMessage::Error { .. }
            | TaskMessage::Complete
            | TaskMessage::Release => true,
        };
        stops && self.why_expired(mail).is_none() && transition(self.record.state, message).is_ok()
    }

    /// Why a command must not reach this task any more; none if it may.
    pub(super) fn why_expired(&self, mail: &TaskCommandEntry) -> Option<&'static str> {
        if mail.modified < self.created {
            return Some("it was sent to an earlier task of this name");
        }
        mail.is_expired.then_some("it expired before a worker read it")
    }

    /// The handler has ended.
    pub(super) fn end_handler(&mut self, outcome: HandlerEnd) {
        let before = std::mem::replace(&mut self.handler, HandlerState::None);
        let said_nothing = matches!(outcome, HandlerEnd::Release | HandlerEnd::Aborted);
        let is_for_a_command = matches!(before, HandlerState::Stopping { why: StopReason::Command, .. });
        // One that was stopped for a command and has nothing else to say does not ask to go elsewhere.
        self.outcome = (!(said_nothing && is_for_a_command)).then_some(outcome);
        if matches!(before, HandlerState::Stopping { why: StopReason::NodeCommand, .. }) && said_nothing {
            self.release.get_or_insert(ReleaseReason::NodeCommand);
        }
        self.is_stop_ordered = false;
    }

    /// A command was seen, or that there is none; an older word than what is known changes nothing.
    pub(super) fn see_command(&mut self, mail: Option<TaskCommandEntry>, at: Revision) -> bool {
        if at <= self.command_known {
            return false;
        }
        self.command_known = at;
        self.command = mail;
        true
    }
}
