//! The configuration of a worker, and the constants of its protocol.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::balance::COOLDOWN;
use crate::id::NodeId;
use crate::record::AcceptedTasks;

use super::retention::Keep;

/// The configuration of a worker. Created with [`WorkerConfig::new`]; every field may be changed.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// The id of the worker.
    pub node: NodeId,
    /// A random number. It distinguishes the claims of this process from those of every other
    /// process with the same id.
    pub seed: u64,
    /// How long a handler has to stop before it is aborted. Doubled, every move of a task and every
    /// shutdown takes twice as long in the worst case.
    pub grace: Duration,
    /// What happens to a handler that has not stopped by then.
    pub stop_mode: StopMode,
    /// How many tasks run at a time. `None` for no limit. Sleeping and paused tasks do not count.
    pub capacity: Option<usize>,
    /// How many sleeping and paused tasks a worker with a capacity holds before it claims no more.
    pub parked_max: usize,
    /// Which tasks it can run.
    pub selector: AcceptedTasks,
    /// How often the balancer is asked whether peers should get some of the tasks, ± 10 %.
    pub rebalance_every: Duration,
    /// How long the worker does not claim a task that it has released.
    pub cooldown: Duration,
    /// After how many consecutive claims without an outcome, within a day, a task fails instead of
    /// being run. `None` for no limit.
    pub lost_claims_max: Option<usize>,
    /// How long ended tasks are kept. Only the worker that has the retention duty reads it, so
    /// configure all workers alike.
    pub keep: Keep,
}

impl WorkerConfig {
    /// The default configuration.
    pub fn new(node: NodeId, seed: u64) -> WorkerConfig {
        WorkerConfig {
            node,
            seed,
            grace: Duration::from_secs(5),
            stop_mode: StopMode::Abort,
            capacity: None,
            parked_max: PARKED_MAX,
            selector: AcceptedTasks::default(),
            rebalance_every: Duration::from_secs(15 * 60),
            cooldown: COOLDOWN,
            lost_claims_max: Some(LOST_CLAIMS_MAX),
            keep: Keep::default(),
        }
    }
}

/// The default number of consecutive claims without an outcome after which a task fails. One may be
/// an accident of the host, two a coincidence. Doubled, a task that kills its worker kills twice as
/// many of them.
pub const LOST_CLAIMS_MAX: usize = 3;

/// What happens to a handler that has not stopped within the grace period.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StopMode {
    /// It is aborted, which ends it.
    #[default]
    Abort,
    /// It is waited for. What it has started elsewhere, such as a process, would outlive an abort,
    /// and its task must not be released before that has ended. A handler that has not ended one
    /// second later is reported as stuck.
    Wait,
}

/// The default number of sleeping and paused tasks that a worker with a capacity holds. Each costs
/// a key under the worker's lease and about a kilobyte of memory. With a tenth of it, one wave of
/// failing tasks could block a fleet. With ten times as many, a release of all of them would take
/// seconds.
const PARKED_MAX: usize = 10_000;

/// The backoff after a failed request.
pub(super) const RETRY: Backoff = Backoff::WORKER;

/// How many claims are sent in one request. A request has at most 128 operations, and the claim
/// with the most reads has four more. Halved, claiming ten thousand tasks takes twice as many round
/// trips.
pub(super) const CLAIMS_PER_REQUEST: usize = 120;

/// How many claim requests are in flight: one travels while the store processes the other. More
/// gain nothing, and make a worker claim tasks that it should leave to its peers.
pub(super) const CLAIM_REQUESTS: usize = 2;

/// How much later each rank claims a task. It must be longer than a round trip plus the delay of
/// the watch, or two workers race. Doubled, a task of a dead first-ranked worker waits twice as
/// long. A worker with slow claims of its own waits longer still.
pub(super) const RANK_STEP: Duration = Duration::from_millis(250);

/// The longest rank step. A store that takes longer than half of this for a claim cannot keep up
/// with its tasks anyway.
pub(super) const RANK_STEP_MAX: Duration = Duration::from_secs(4);

/// The most rank steps that a worker waits. Workers of rank five or more race, but with few peers.
pub(super) const RANK_STEPS_MAX: u32 = 4;

/// After this long a worker waits for no peer that ranks before it, however busy that peer is. It
/// waits longer while a large backlog is worked off.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// How much longer it waits for each task of the highest backlog, while the backlog shrinks. With
/// less, workers on a store that claims fewer than a thousand tasks per second would race for the
/// rest of a large backlog. Doubled, a task that only the second-ranked worker can run waits twice
/// as long while the first works off others.
pub(super) const PATIENCE_PER_TASK: Duration = Duration::from_millis(1);

/// How long to wait before a task is considered again that the store has reported as taken or gone.
/// The board usually reports that itself.
pub(super) const RECONSIDER_AFTER: Duration = Duration::from_secs(1);

/// How long a task with unreadable records is not considered. No feed reports when its state is
/// written again.
pub(super) const SET_ASIDE_FOR: Duration = Duration::from_secs(60);

/// How long a lost claim counts against its task. Hosts fail too: a task that runs for a year must
/// not fail because of three of them.
pub(super) const LOST_CLAIMS_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);

/// How long an unknown claim of this process may be on its way before it is released.
pub(super) const ORPHAN_AFTER: Duration = Duration::from_secs(2);

/// How long a handler has to stop once its claim is lost. Another worker may start the task at any
/// moment.
pub(super) const LOST_GRACE: Duration = Duration::from_secs(1);

/// How long an aborted handler may take to end before it is reported as stuck.
pub(super) const ABORT_WITHIN: Duration = Duration::from_secs(1);

/// How long the set of workers must be unchanged before a worker balances: workers come and go in
/// groups.
pub(super) const DEBOUNCE: Duration = Duration::from_millis(500);

/// The pause before the next round while there is more to release than one round may.
pub(super) const NEXT_ROUND: Duration = Duration::from_secs(1);

/// One round releases at most the number of own tasks divided by this.
pub(super) const CHURN_DIVISOR: usize = 10;

/// How often sleeping tasks are checked even if none is due: wall clocks are set, and suspended
/// hosts resume.
pub(super) const WALL_CHECK: Duration = Duration::from_secs(60);
