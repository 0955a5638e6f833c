//! Every task where its name says: the least movement when nodes come and go.

use super::decision::{ClaimDecision, DecisionReason, Release};
use super::share::Unwanted;
use super::{Balancer, Claimable, ClusterLoad, PATIENCE};

/// Every task where its name says, computed alike by all nodes.
///
/// When a node goes, only its tasks move; when one comes, it gets its share from all the others alike. What each has is near the mean, not at it: of a
/// thousand tasks on three nodes expect 333 give or take 20.
#[derive(Clone, Debug, Default)]
pub struct Rendezvous {
    unwanted: Unwanted,
}

impl Rendezvous {
    /// Without anything to remember yet.
    pub fn new() -> Rendezvous {
        Rendezvous::default()
    }
}

impl Balancer for Rendezvous {
    fn claim(&mut self, offer: &Claimable<'_>, cluster: &ClusterLoad<'_>) -> ClaimDecision {
        if offer.rank == 0 {
            return ClaimDecision::Claim;
        }
        let Some(retry_after) = PATIENCE.checked_sub(cluster.left(offer)).filter(|rest| !rest.is_zero())
        else {
            self.unwanted.note(offer.task, cluster);
            return ClaimDecision::Claim;
        };
        ClaimDecision::Wait { retry_after, reason: DecisionReason::Rank(offer.rank) }
    }

    fn release(&mut self, cluster: &ClusterLoad<'_>) -> Vec<Release> {
        self.unwanted.update(cluster);
        if !cluster.takes_tasks() {
            return Vec::new();
        }
        let wanted = cluster.own.newest().filter(|(task, _)| !self.unwanted.contains(task));
        let meant = wanted.filter_map(|(task, held)| {
            Some((task, cluster.workers.meant(task, held.class, Some(cluster.me))?))
        });
        let elsewhere = meant.filter(|(_, node)| *node != cluster.me);
        elsewhere
            .map(|(task, node)| Release { task: task.clone(), reason: DecisionReason::Meant(node.clone()) })
            .collect()
    }

    fn name(&self) -> &'static str {
        "rendezvous"
    }
}
