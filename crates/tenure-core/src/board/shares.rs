//! The load of each worker, and which loads have changed.

use std::collections::{BTreeMap, BTreeSet};

use super::Owner;
use crate::balance::Load;
use crate::id::NodeId;

/// The load of each worker.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnedLoads {
    by_node: BTreeMap<NodeId, Load>,
    /// The workers with a load that has changed since the last call.
    shifted: BTreeSet<NodeId>,
}

impl OwnedLoads {
    pub(super) fn add(&mut self, node: &NodeId, load: Load) {
        match self.by_node.get_mut(node) {
            Some(owned) => *owned = *owned + load,
            None => drop(self.by_node.insert(node.clone(), load)),
        }
        self.shift(node);
    }

    pub(super) fn sub(&mut self, node: &NodeId, load: Load) {
        let Some(owned) = self.by_node.get_mut(node) else { return };
        *owned = *owned - load;
        if owned.tasks == 0 {
            self.by_node.remove(node);
        }
        self.shift(node);
    }

    /// Replaces the name in an owner record with the copy that is stored here. A hundred thousand
    /// tasks would otherwise keep a hundred thousand copies of a few names.
    pub(super) fn share_name(&self, owner: &mut Owner) {
        if let Ok(record) = &mut owner.holder
            && let Some((known, _)) = self.by_node.get_key_value(&record.node)
        {
            record.node = known.clone();
        }
    }

    fn shift(&mut self, node: &NodeId) {
        if !self.shifted.contains(node) {
            self.shifted.insert(node.clone());
        }
    }

    pub(super) fn by_node(&self) -> &BTreeMap<NodeId, Load> {
        &self.by_node
    }

    pub(super) fn take_shifted(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.shifted)
    }
}
