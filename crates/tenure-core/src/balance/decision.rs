//! What a balancer says.

use std::fmt;
use std::time::Duration;

use crate::id::{NodeId, TaskId};

/// Whether a node takes a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It does.
    Take,
    /// Not now.
    Wait {
        /// When to ask again, if nobody has taken it by then.
        again_in: Duration,
        /// Why.
        why: Reason,
    },
}

impl Verdict {
    /// Not now, for a reason in words: for balancers of your own.
    pub fn wait_secs(seconds: u64, why: impl Into<String>) -> Verdict {
        Verdict::Wait { again_in: Duration::from_secs(seconds), why: Reason::Other(why.into()) }
    }
}

/// A task that a node should give away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parting {
    /// The task.
    pub task: TaskId,
    /// Why.
    pub why: Reason,
}

/// Why a node does not take a task, or gives one away.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// This node takes no tasks at all.
    NotWilling,
    /// This node gave it away a moment ago.
    CoolingDown,
    /// This node has its share, or others have less.
    Share {
        /// What it has.
        own: u64,
        /// What it should have at most.
        quota: u64,
        /// How many nodes share.
        nodes: usize,
    },
    /// Another node is meant to have it.
    Meant(NodeId),
    /// Other nodes come first.
    Rank(usize),
    /// Too much of the resource is used.
    Used {
        /// How much, in percent.
        percent: u64,
        /// How much may be.
        limit_percent: u64,
    },
    /// As many were taken as one measurement of the resource allows; it must be measured again.
    Unmeasured,
    /// Nobody measures the resource that this balancer goes by.
    NoReading,
    /// In somebody's words.
    Other(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NotWilling => f.write_str("this node takes no tasks"),
            Reason::CoolingDown => f.write_str("this node has just given it away"),
            Reason::Share { own, quota, nodes } => {
                write!(f, "this node has {own}, and the share of each of {nodes} is {quota}")
            }
            Reason::Meant(node) => write!(f, "{node} is meant to have it"),
            Reason::Rank(before) => write!(f, "{before} other nodes come first"),
            Reason::Used { percent, limit_percent } => {
                write!(f, "{percent} % of the resource is used, the limit is {limit_percent} %")
            }
            Reason::Unmeasured => f.write_str("the resource must be measured again first"),
            Reason::NoReading => f.write_str("nobody measures the resource"),
            Reason::Other(why) => f.write_str(why),
        }
    }
}
