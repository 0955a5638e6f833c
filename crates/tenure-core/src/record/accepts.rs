//! What a node publishes about the tasks that it can take: part of its own record, for the
//! balancers of its peers.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::TaskRecord;

/// Which tasks a node accepts: all of them if both fields are empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct AcceptedTasks {
    /// Only tasks of one of these kinds; empty for any.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub kinds: BTreeSet<String>,
    /// Only tasks with all these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl AcceptedTasks {
    /// Whether the node can run such a task.
    pub fn accepts(&self, record: &TaskRecord) -> bool {
        let kind = record.kind.as_deref().unwrap_or_default();
        (self.kinds.is_empty() || self.kinds.contains(kind))
            && self.labels.iter().all(|(name, value)| record.labels.get(name) == Some(value))
    }
}

/// The load of a node. Published with a delay, so the number of tasks that the node owns may differ
/// from the sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeLoad {
    /// Tasks that use its capacity: running, starting, stopping.
    #[serde(default)]
    pub running: u64,
    /// Tasks that it owns and that are sleeping or paused. They use no capacity.
    #[serde(default)]
    pub parked: u64,
}
