//! Each task on the worker that its id hashes to: the fewest moves when workers come and go.

use super::decision::{ClaimDecision, DecisionReason, Release};
use super::share::Unwanted;
use super::{Balancer, Claimable, ClusterLoad, PATIENCE};

/// Each task on the worker that rendezvous hashing of its id names. All workers compute the same
/// result.
///
/// When a worker leaves, only its tasks move. When one joins, it gets its share from all others
/// alike. The numbers are near the mean, not equal to it: of a thousand tasks on three workers
/// expect 333 ± 20.
#[derive(Clone, Debug, Default)]
pub struct Rendezvous {
    unwanted: Unwanted,
}

impl Rendezvous {
    /// Creates it without state.
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
