//! The decisions of a balancer, with their reasons.

use std::fmt;
use std::time::Duration;

use crate::id::{NodeId, TaskId};

/// Whether a worker claims a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClaimDecision {
    /// The worker claims it now.
    Claim,
    /// The worker does not claim it now.
    Wait {
        /// After how long the worker asks the balancer again, if no worker has claimed the task by then.
        retry_after: Duration,
        /// Why the worker waits.
        reason: DecisionReason,
    },
}

impl ClaimDecision {
    /// Waits, for a reason in free text. For custom balancers.
    pub fn wait_secs(seconds: u64, reason: impl Into<String>) -> ClaimDecision {
        ClaimDecision::Wait {
            retry_after: Duration::from_secs(seconds),
            reason: DecisionReason::Other(reason.into()),
        }
    }
}

/// A task that a worker should release.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Release {
    /// The task.
    pub task: TaskId,
    /// Why the worker should release it.
    pub reason: DecisionReason,
}

/// Why a worker does not claim a task, or releases one.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DecisionReason {
    /// This worker takes no tasks: it drains, is frozen, or shuts down.
    TakesNoTasks,
    /// This worker released the task recently.
    CoolingDown,
    /// This worker owns its share, or its peers own less.
    Share {
        /// What this worker owns.
        own: u64,
        /// The most that it should own.
        quota: u64,
        /// How many workers share.
        nodes: usize,
    },
    /// Rendezvous hashing names another worker.
    Meant(NodeId),
    /// So many peers rank before this worker.
    Rank(usize),
    /// Too much of the resource is used.
    Used {
        /// The part that is used, in percent.
        percent: u64,
        /// The limit, in percent.
        limit_percent: u64,
    },
    /// The worker has claimed as many tasks as one measurement of the resource allows. The next claim needs a new measurement.
    Unmeasured,
    /// The resource that this balancer goes by is not measured.
    NoReading,
    /// A reason in free text.
    Other(String),
}

impl fmt::Display for DecisionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecisionReason::TakesNoTasks => f.write_str("this node takes no tasks"),
            DecisionReason::CoolingDown => f.write_str("this node has just released it"),
            DecisionReason::Share { own, quota, nodes } => {
                write!(f, "this node has {own}, and the share of each of {nodes} is {quota}")
            }
            DecisionReason::Meant(node) => write!(f, "{node} is meant to have it"),
            DecisionReason::Rank(before) => write!(f, "{before} other nodes come first"),
            DecisionReason::Used { percent, limit_percent } => {
                write!(f, "{percent} % of the resource is used, the limit is {limit_percent} %")
            }
            DecisionReason::Unmeasured => f.write_str("the resource must be measured again first"),
            DecisionReason::NoReading => f.write_str("the resource is not measured"),
            DecisionReason::Other(reason) => f.write_str(reason),
        }
    }
}
