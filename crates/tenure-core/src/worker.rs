//! The machine of one worker: which tasks it claims, runs, stops, writes and releases.
//!
//! The driver reports everything that happens as a [`WorkerInput`], with the time ([`InputTime`]).
//! The machine returns requests for the driver ([`WorkerOutput`]) and events for the user
//! ([`WorkerEvent`]). It reads no clock, draws no random numbers and sends no request. The
//! transactions for its requests are built in [`request`], so the driver makes no decision.
//!
//! Intuition: everything a worker knows is late. The board lags behind the store, replies lag
//! behind the board, and handlers lag behind both. Therefore every claim has a nonce that
//! identifies it, and every request has an id. Every write is conditional on the claim's token,
//! which makes a late write harmless. Each decision about a task is made from all facts known at
//! that moment, never from a plan made earlier. `claimed_task.rs` shows the states of one claimed
//! task.
//!
//! **Invariant**: a handler starts only under a claim that the store has confirmed for this worker,
//! in the session that requested it.
//!
//! **Invariant**: nothing is written for a claim that has ended. Its handler is asked to stop
//! immediately, and no other handler of the task starts here before it has ended.
//!
//! **Invariant**: a task is released, parked or ended only when nothing of its handler runs.
//!
//! **Invariant**: a command is deleted only by a write that also stores its result, if the command
//! has an id.
//!
//! **Invariant**: the work for one input does not grow with the number of tasks, except when the
//! set of workers that take tasks changes: then all unowned tasks are ranked again.

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

/// The state machine of one worker.
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
    /// The create revision of the worker's own key. `None` while it is not joined.
    incarnation: Option<Token>,
    phase: WorkerPhase,
    claim_queue: ClaimQueue,
    claims: InFlightClaims,
    /// Claims of this process that it does not keep. Their keys have to be deleted.
    orphans: BTreeMap<(TaskId, Token), ClaimId>,
    /// The claimed tasks. Boxed, because each is large, and is removed and inserted again at each
    /// step.
    held: BTreeMap<TaskId, Box<ClaimedTask>>,
    /// The claimed tasks by the lease that their owner keys are attached to.
    by_lease: BTreeMap<LeaseId, BTreeSet<TaskId>>,
    /// Which of them use no capacity.
    slots: HandlerSlots,
    /// The sleeping ones, by the time at which they wake.
    sleepers: BTreeSet<(Timestamp, TaskId)>,
    timers: Timers,
    epoch: RequestId,
    drain_reported: usize,
    stats: WorkerStats,
    outputs: VecDeque<WorkerOutput>,
    events: VecDeque<WorkerEvent>,
}

/// What the worker does at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WorkerPhase {
    /// It claims and runs tasks.
    Working,
    /// It releases all tasks because of a command.
    Draining,
    /// It releases all tasks because its process shuts down.
    Ending { deadline: Moment },
    /// It has requested the deletion of its own key.
    Leaving,
    /// It has ended.
    Finished,
}

/// Counts of what a worker has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerStats {
    /// How often the worker decided whether to claim a task.
    pub considered: u64,
    /// How many claims were sent.
    pub claims_sent: u64,
    /// How many of them were won.
    pub won: u64,
    /// How many timers were due.
    pub timers: u64,
    /// How many changes of the board it has processed.
    pub changes: u64,
}

impl WorkerMachine {
    /// Creates a worker without any knowledge. It claims tasks once it has joined and all its feeds
    /// have delivered a complete snapshot.
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
                // Items between two complete snapshots are only collected. Half of a list must not
                // be acted on: the owner keys of its tasks may follow.
                if is_half {
                    return;
                }
            }
            WorkerInput::Joined { incarnation } => {
                self.incarnation = Some(incarnation);
                // Joined again after a lost session, a draining worker must not announce itself as
                // ready: peers would leave tasks to it.
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
                self.claims.note_lease_lost(lease);
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
                self.handle_state_written(&task, epoch, reply, now);
            }
            WorkerInput::CommandAcked { epoch, reply } => self.handle_command_acked(epoch, reply, now),
            WorkerInput::Retained { ask, reply } => self.handle_retained(&ask, reply, now),
            WorkerInput::Measured(resource) => self.handle_measured(resource, now),
            WorkerInput::Shutdown { deadline } => self.begin_shutdown(deadline, now),
            WorkerInput::OwnKeyDeleted => self.handle_left(),
            WorkerInput::Time => {}
        }
        // The order matters. Timers first, so that due tasks count in the decisions below. The own
        // load before the claims, because the balancer compares it with that of the peers. Claims
        // last, when freeze marks, commands and the shutdown have had their effect.
        self.handle_time(now);
        self.update_own_load(now);
        self.begin_next_command(now);
        self.check_ending(now);
        self.start_queued(now);
        self.make_room(now);
        self.send_claims(now);
        self.publish_load(now);
    }

    /// The next request for the driver.
    pub fn poll_output(&mut self) -> Option<WorkerOutput> {
        self.outputs.pop_front()
    }

    /// The next event for users.
    pub fn poll_event(&mut self) -> Option<WorkerEvent> {
        self.events.pop_front()
    }

    /// When the driver has to send [`WorkerInput::Time`] if no other input arrives.
    pub fn next_wake(&self, now: InputTime) -> Option<Moment> {
        if self.phase == WorkerPhase::Finished {
            return None;
        }
        // The wall clock may be set while the machine sleeps. Sleepers are therefore checked at
        // least every minute, and not only when the earliest one is due by the clock of now.
        let sleeper =
            self.sleepers.first().map(|(until, _)| running::moment_of(*until, now).min(now.at + WALL_CHECK));
        self.timers.next().into_iter().chain(sleeper).min()
    }

    /// The tasks and their owners, as far as this worker's feeds have shown them.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// How many tasks it owns, including those that are being released.
    pub fn owned(&self) -> usize {
        self.held.len()
    }

    /// How many peers take tasks, as far as this worker knows.
    pub fn peers(&self) -> usize {
        self.peers.peers()
    }

    /// Whether this worker is frozen: it takes no new tasks until it is unfrozen.
    pub fn is_frozen(&self) -> bool {
        self.peers.is_self_frozen()
    }

    /// Whether the worker has ended: it has returned [`WorkerOutput::Finish`].
    pub fn is_finished(&self) -> bool {
        self.phase == WorkerPhase::Finished
    }

    /// Counts of what it has done.
    pub fn stats(&self) -> WorkerStats {
        self.stats
    }

    fn handle_time(&mut self, now: InputTime) {
        while let Some(timer) = self.timers.pop(now.at) {
            self.stats.timers += 1;
            match timer {
                Timer::Claimable(task) => self.claim_due(task),
                Timer::RankDelay(delay) => self.rank_delay_due(delay, now),
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
                // These only wake the machine: `handle` continues with whatever became possible.
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

    /// Whether this worker takes tasks and its peers can see that in its record.
    fn takes_tasks(&self) -> bool {
        self.is_working()
            && self.incarnation.is_some()
            && self.peers.is_known()
            && !self.peers.is_self_frozen()
    }

    /// Whether it may send claims now.
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
