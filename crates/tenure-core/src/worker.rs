//! One node's decisions: which tasks it claims, runs, stops, saves and gives away.
//!
//! The machine is told everything that happens ([`WorkerInput`]) together with the time ([`InputTime`]), and answers with everything that must be done
//! ([`WorkerOutput`]) and told ([`WorkerEvent`]). It reads no clock, throws no dice and asks no store; what it asks of the store is written out in
//! [`request`], so the driver has nothing to decide.
//!
//! Intuition: everything a node believes is late. The board lags behind the store, answers lag behind the board, handlers lag behind both. So
//! every claim has a nonce by which it is known again, every question an epoch, every write the token that makes it harmless when it
//! comes too late; and every decision about a task is taken afresh from all that is known, instead of following a script that the world has left.
//! One task's way through a node is drawn in `claimed_task.rs`.
//!
//! **Invariant**: a handler is begun only under a claim that the store has answered as ours, in the session that asked for it.
//!
//! **Invariant**: once a claim is over nothing is written for it; its handler is told to stop at once, and no other begins here before it has ended.
//!
//! **Invariant**: a task is released, parked or ended only when nothing of its handler runs.
//!
//! **Invariant**: a command is deleted only by a write that also says what came of it, if its sender left an id.
//!
//! **Invariant**: the work for one event does not grow with the number of tasks, except when others take tasks than before: then all that
//! nobody owns are ranked anew.

mod claim_queue;
mod claimed_task;
mod claiming;
mod config;
mod event;
mod feeds;
mod input;
mod node_command_steps;
mod node_commands;
mod orphans;
mod output;
mod peers;
mod pending_write;
mod probes;
mod rebalance;
mod releasing;
pub mod request;
mod retention;
mod running;
mod shutdown;
mod slots;
mod stopping;
mod sweep;
mod task_commands;
mod timers;
mod writing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::balance::Balancer;
use crate::board::Board;
use crate::id::{ClaimId, TaskId};
use crate::layout::Layout;
use crate::lease::LeaseId;
use crate::loss::LossReason;
use crate::record::{MemberState, Timestamp};
use crate::revision::{RequestId, Token};
use crate::snapshot::FeedItem;
use crate::task::retry::ErrorPolicy;
use crate::time::Moment;

use claim_queue::ClaimQueue;
use claimed_task::ClaimedTask;
use claiming::InFlightClaims;
use config::WALL_CHECK;
use node_commands::NodeCommandQueue;
use peers::Peers;
use rebalance::BalanceState;
use retention::Retention;
use slots::HandlerSlots;
use sweep::Sweep;
use task_commands::TaskCommands;
use timers::{Timer, Timers};

pub use crate::record::AcceptedTasks;
pub use config::{LOST_CLAIMS_MAX, StopMode, WorkerConfig};
pub use event::{ReleaseReason, WorkerEvent};
pub use input::{
    ClaimReply, CommandAckReply, EndedPage, FeedId, HandlerEnd, InputTime, ReleaseReply, ResultsPage,
    RetentionReply, StateWriteReply, WonClaim, WorkerInput,
};
pub use output::{
    AfterWrite, AttemptWrite, ClaimRequest, CommandAck, CommandCheck, EndedEntry, EndedTask, ExpiredKey,
    FreezeMark, HandlerStart, RetentionRequest, RetentionStep, StateWrite, StopReason, WorkerOutput,
};
pub use retention::Keep;

/// One node.
pub struct WorkerMachine {
    config: WorkerConfig,
    layout: Layout,
    policy: Box<dyn ErrorPolicy>,
    board: Board,
    peers: Peers,
    task_commands: TaskCommands,
    node_commands: NodeCommandQueue,
    balance: BalanceState,
    retention: Retention,
    sweep: Sweep,
    /// The create revision of the node's own key; none while it is not joined.
    incarnation: Option<Token>,
    phase: WorkerPhase,
    claim_queue: ClaimQueue,
    claims: InFlightClaims,
    /// Claims of this process that it does not keep, and whose keys have to be deleted.
    orphans: BTreeMap<(TaskId, Token), ClaimId>,
    /// In boxes: each is large, and is taken out and put back whenever it goes on.
    held: BTreeMap<TaskId, Box<ClaimedTask>>,
    /// Which of them hang on which lease.
    by_lease: BTreeMap<LeaseId, BTreeSet<TaskId>>,
    /// Which of them use no capacity.
    slots: HandlerSlots,
    /// Those of them that sleep, by when they wake.
    sleepers: BTreeSet<(Timestamp, TaskId)>,
    timers: Timers,
    epoch: RequestId,
    drain_reported: usize,
    stats: WorkerStats,
    outputs: VecDeque<WorkerOutput>,
    events: VecDeque<WorkerEvent>,
}

/// What a node is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WorkerPhase {
    /// It takes and runs tasks.
    Working,
    /// It gives everything away, because an order says so.
    Draining,
    /// It gives everything away, because its process ends.
    Ending { deadline: Moment },
    /// It has asked for its own key to be removed.
    Leaving,
    /// It is over.
    Finished,
}

/// How much a node has worked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerStats {
    /// How often it was thought about whether to claim a task.
    pub considered: u64,
    /// How many claims were sent.
    pub claims_sent: u64,
    /// How many of them were won.
    pub won: u64,
    /// How many timers were due.
    pub timers: u64,
    /// How many changes of the board were looked at.
    pub changes: u64,
}

impl WorkerMachine {
    /// A node that knows nothing yet. It claims once it has joined and all its feeds have shown a whole picture.
    pub fn new(
        config: WorkerConfig,
        layout: Layout,
        balancer: Box<dyn Balancer>,
        policy: Box<dyn ErrorPolicy>,
    ) -> WorkerMachine {
        WorkerMachine {
            policy,
            board: Board::new(layout.clone()),
            peers: Peers::new(config.node.clone(), layout.clone()),
            task_commands: TaskCommands::new(layout.clone()),
            node_commands: NodeCommandQueue::new(),
            balance: BalanceState::new(balancer),
            retention: Retention::default(),
            sweep: Sweep::new(layout.clone()),
            incarnation: None,
            phase: WorkerPhase::Working,
            claim_queue: ClaimQueue::default(),
            claims: InFlightClaims::new(config.seed),
            orphans: BTreeMap::new(),
            held: BTreeMap::new(),
            by_lease: BTreeMap::new(),
            slots: HandlerSlots::default(),
            sleepers: BTreeSet::new(),
            timers: Timers::default(),
            epoch: RequestId(0),
            drain_reported: usize::MAX,
            stats: WorkerStats::default(),
            outputs: VecDeque::new(),
            events: VecDeque::new(),
            config,
            layout,
        }
    }

    /// Something happened.
    pub fn handle(&mut self, event: WorkerInput, now: InputTime) {
        if self.phase == WorkerPhase::Finished {
            return;
        }
        match event {
            WorkerInput::FeedItem(feed, item) => {
                let is_half = matches!(item, FeedItem::Put(_) | FeedItem::Delete { .. });
                self.handle_feed(feed, item, now);
                // What is said between two whole pictures changes nothing yet.
                if is_half {
                    return;
                }
            }
            WorkerInput::Joined { incarnation } => {
                self.incarnation = Some(incarnation);
                self.outputs.push_back(WorkerOutput::Announce(match self.phase {
                    WorkerPhase::Working => MemberState::Ready,
                    WorkerPhase::Draining
                    | WorkerPhase::Ending { .. }
                    | WorkerPhase::Leaving
                    | WorkerPhase::Finished => MemberState::Draining,
                }));
                if self.timers.at(&Timer::Periodic).is_none() {
                    self.set_periodic(now);
                }
                self.begin_retention(now);
                self.begin_sweep(now);
            }
            WorkerInput::SessionLost => {
                self.incarnation = None;
                self.forget_claims();
                let tasks: Vec<TaskId> = self.held.keys().cloned().collect();
                self.lose_all(tasks, LossReason::MembershipLost, now);
            }
            WorkerInput::LeaseLost { lease, why } => {
                self.claims.note_over(lease);
                let tasks = self.by_lease.get(&lease).into_iter().flatten().cloned().collect();
                self.lose_all(tasks, why, now);
            }
            WorkerInput::ClaimReplies { epoch, replies } => self.handle_claims(epoch, replies, now),
            WorkerInput::ClaimReleased { task, token, reply } => {
                self.handle_claim_released(task, token, reply, now);
            }
            WorkerInput::HandlerEnded { task, token, outcome } => {
                self.handle_ended(&task, token, outcome, now);
            }
            WorkerInput::Checkpoint { task, token, ask, blob } => {
                self.handle_checkpoint(task, token, ask, blob, now);
            }
            WorkerInput::StateWritten { task, epoch, reply } => {
                self.handle_state_written(&task, epoch, reply, now)
            }
            WorkerInput::CommandAcked { epoch, reply } => self.handle_command_acked(epoch, reply, now),
            WorkerInput::Retained { ask, reply } => self.handle_retained(&ask, reply, now),
            WorkerInput::Measured(resource) => self.handle_measured(resource, now),
            WorkerInput::Shutdown { deadline } => self.begin_shutdown(deadline, now),
            WorkerInput::OwnKeyDeleted => self.handle_left(),
            WorkerInput::Time => {}
        }
        self.handle_time(now);
        self.update_own_load(now);
        self.begin_next_command(now);
        self.check_ending(now);
        self.start_queued(now);
        self.make_room(now);
        self.send_claims(now);
        self.publish_load(now);
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<WorkerOutput> {
        self.outputs.pop_front()
    }

    /// The next thing to tell.
    pub fn poll_event(&mut self) -> Option<WorkerEvent> {
        self.events.pop_front()
    }

    /// When to tell [`WorkerInput::Time`] if nothing else happens.
    pub fn next_wake(&self, now: InputTime) -> Option<Moment> {
        if self.phase == WorkerPhase::Finished {
            return None;
        }
        let sleeper =
            self.sleepers.first().map(|(until, _)| running::moment_of(*until, now).min(now.at + WALL_CHECK));
        self.timers.next().into_iter().chain(sleeper).min()
    }

    /// The tasks and their owners, as this node sees them.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// How many tasks it owns, those among them that are on their way out.
    pub fn owned(&self) -> usize {
        self.held.len()
    }

    /// How many other nodes take tasks, as far as it has seen.
    pub fn peers(&self) -> usize {
        self.peers.peers()
    }

    /// Whether it takes no new tasks until it is told otherwise.
    pub fn is_frozen(&self) -> bool {
        self.peers.is_self_frozen()
    }

    /// Whether everything is over: [`WorkerOutput::Finish`] was asked for.
    pub fn is_finished(&self) -> bool {
        self.phase == WorkerPhase::Finished
    }

    /// How much it has worked.
    pub fn stats(&self) -> WorkerStats {
        self.stats
    }

    fn handle_time(&mut self, now: InputTime) {
        while let Some(timer) = self.timers.pop(now.at) {
            self.stats.timers += 1;
            match timer {
                Timer::Claimable(task) => self.claim_due(task),
                Timer::RankDelay(behind) => self.rank_delay_due(behind, now),
                Timer::Stop(task) => self.stop_due(&task, now),
                Timer::Retry(task) => self.retry_due(&task, now),
                Timer::Orphan(task) => self.orphan_due(task, now),
                Timer::NodeCommand => self.retry_command_ack(),
                Timer::Retention => self.retention_due(now),
                Timer::Sweep => self.sweep_due(now),
                Timer::Round => drop(self.balance_round(now)),
                Timer::Periodic => {
                    self.set_periodic(now);
                    self.balance_round(now);
                }
                // That they woke the node is all they are for.
                Timer::Claims | Timer::Deadline | Timer::Publish => {}
            }
        }
        self.wake_sleepers(now);
    }

    fn lose_all(&mut self, tasks: Vec<TaskId>, why: LossReason, now: InputTime) {
        for task in tasks {
            self.lose(&task, why, now);
        }
    }

    fn is_working(&self) -> bool {
        self.phase == WorkerPhase::Working
    }

    /// Whether this node takes tasks, and says so.
    fn takes_tasks(&self) -> bool {
        self.is_working()
            && self.incarnation.is_some()
            && self.peers.is_known()
            && !self.peers.is_self_frozen()
    }

    /// Whether it may claim just now.
    fn may_claim(&self) -> bool {
        self.takes_tasks() && self.board.is_fresh()
    }

    fn next_epoch(&mut self) -> RequestId {
        self.epoch = self.epoch.next();
        self.epoch
    }
}

impl std::fmt::Debug for WorkerMachine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({}, {:?}, {} tasks)", self.config.node, self.phase, self.held.len())
    }
}

#[cfg(test)]
mod tests;
