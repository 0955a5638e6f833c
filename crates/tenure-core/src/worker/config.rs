//! What can be chosen about a node.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::balance::COOLDOWN;
use crate::id::NodeId;
use crate::record::AcceptedTasks;

use super::retention::Keep;

/// What a node goes by. Made with [`WorkerConfig::new`]; every field may be changed.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// The node's name.
    pub node: NodeId,
    /// A throw of the dice: it tells this life's claims from those of any other.
    pub seed: u64,
    /// How long a handler has to stop before it is aborted. Twice as long makes every move and shutdown as much slower in the worst case.
    pub grace: Duration,
    /// What becomes of a handler that has not stopped by then.
    pub stop_mode: StopMode,
    /// How many tasks it runs at a time; none for no limit. Sleeping and paused tasks do not count.
    pub capacity: Option<usize>,
    /// How many sleeping and paused tasks a node with a capacity holds before it claims no more.
    pub parked_max: usize,
    /// Which tasks it can run.
    pub selector: AcceptedTasks,
    /// How often it looks whether others should have some of its tasks, ± 10 %.
    pub rebalance_every: Duration,
    /// For how long it does not take back what it has released.
    pub cooldown: Duration,
    /// After how many claims in a row that ended without an outcome within a day a task is failed instead of run; none for no limit.
    pub lost_claims_max: Option<usize>,
    /// How long tasks that have ended are kept. It counts in the node that does this work for all, so set it alike.
    pub keep: Keep,
}

impl WorkerConfig {
    /// The usual settings.
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

/// After how many claims in a row without an outcome a task is failed, unless something else is set. One may be an accident of the host, two a
/// coincidence. Doubled, a task that kills its worker takes twice as many of them with it.
pub const LOST_CLAIMS_MAX: usize = 3;

/// What becomes of a handler whose grace is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StopMode {
    /// It is aborted, and that is its end.
    #[default]
    Abort,
    /// It is waited for: what it has begun elsewhere, such as a process, would outlive an abort, and its task must not be released before that
    /// is gone. A handler that has still not ended a second later is called stuck.
    Wait,
}

/// How many sleeping and paused tasks a node with a capacity holds unless set otherwise. Each costs a key under the node's lease and about a
/// kilobyte of memory. A tenth of it would let one wave of failing tasks block a fleet; ten times as many would take seconds to release.
const PARKED_MAX: usize = 10_000;

/// How long to wait after a request that failed.
pub(super) const RETRY: Backoff = Backoff::WORKER;

/// How many claims go out in one request. A request has at most 128 operations, and the claim that reads most has four more of its own.
/// Halved, claiming ten thousand tasks takes twice as many round trips.
pub(super) const CLAIMS_PER_REQUEST: usize = 120;

/// How many requests with claims are under way at once: one travels while the other is worked on. More of them gain nothing and make a node
/// claim what it should have left to others.
pub(super) const CLAIM_REQUESTS: usize = 2;

/// How much later each rank claims. It must be longer than a round trip and the way of the news through the watch, else two nodes race;
/// a task whose first node is dead waits this long for the second. A node whose own claims take longer gives the others more.
pub(super) const RANK_STEP: Duration = Duration::from_millis(250);

/// The most that a step grows: a store that takes longer than half of this for a claim does not get through its tasks anyway.
pub(super) const RANK_STEP_MAX: Duration = Duration::from_secs(4);

/// The most steps that anybody waits: whoever comes fifth or later races with few.
pub(super) const RANK_STEPS_MAX: u32 = 4;

/// After this long nobody waits for those who rank before it any more, however busy they are; and longer while much is worked through.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// How much longer for each task that nobody owned when there were most of them, for as long as they become fewer. A store on which all nodes
/// together claim fewer than a thousand a second would make them race for what is left of a large pile; doubled, a task that only the
/// second can run waits as much longer while the first works through others.
pub(super) const PATIENCE_PER_TASK: Duration = Duration::from_millis(1);

/// How long to wait before looking again at a task that the store says is taken or gone: the board will say so itself.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long a task whose records cannot be read is let be. No feed tells when its state is written again.
pub(super) const SET_ASIDE_FOR: Duration = Duration::from_secs(60);

/// How long a lost claim counts against its task. Hosts fail too: a task that runs for a year must not be failed because of three of them.
pub(super) const LOST_CLAIMS_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a claim of ours that we do not know of may be on its way to us before it is given back.
pub(super) const ORPHAN_AFTER: Duration = Duration::from_secs(2);

/// How long a handler has to stop once its claim is lost: somebody else may begin any moment.
pub(super) const LOST_GRACE: Duration = Duration::from_secs(1);

/// How long an aborted handler has to be gone before it is called stuck.
pub(super) const ABORT_WITHIN: Duration = Duration::from_secs(1);

/// How long the company must be unchanged before a node balances: nodes come and go in groups.
pub(super) const DEBOUNCE: Duration = Duration::from_millis(500);

/// How soon the next round follows while there is more to give away than one round may.
pub(super) const NEXT_ROUND: Duration = Duration::from_secs(1);

/// The share of its own tasks that a node gives away in one round, as one in this many.
pub(super) const CHURN_DIVISOR: usize = 10;

/// How often the sleeping are looked at even if none is due: wall clocks are set, and suspended machines wake.
pub(super) const WALL_CHECK: Duration = Duration::from_secs(60);
