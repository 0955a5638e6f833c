//! How much each node owns, and whose share has changed.

use std::collections::{BTreeMap, BTreeSet};

use super::Owner;
use crate::balance::Load;
use crate::id::NodeId;

/// How much each node owns.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnedLoads {
    by_node: BTreeMap<NodeId, Load>,
    /// Nodes whose load is another than when that was last asked.
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

    /// Lets an owner's name be the one that is known: a hundred thousand tasks would keep a hundred thousand copies of a few names.
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
