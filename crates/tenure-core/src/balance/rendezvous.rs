//! Every task where its name says: the least movement when nodes come and go.

use super::decision::{Parting, Reason, Verdict};
use super::share::Unwanted;
use super::{Balancer, ClusterLoad, Offer, PATIENCE};

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
    fn may_claim(&mut self, offer: &Offer<'_>, loads: &ClusterLoad<'_>) -> Verdict {
        if offer.rank == 0 {
            return Verdict::Take;
        }
        let Some(again_in) = PATIENCE.checked_sub(loads.left(offer)).filter(|rest| !rest.is_zero()) else {
            self.unwanted.note(offer.task, loads);
            return Verdict::Take;
        };
        Verdict::Wait { again_in, why: Reason::Rank(offer.rank) }
    }

    fn release(&mut self, loads: &ClusterLoad<'_>) -> Vec<Parting> {
        self.unwanted.update(loads);
        if !loads.is_willing() {
            return Vec::new();
        }
        let wanted = loads.own.newest().filter(|(task, _)| !self.unwanted.contains(task));
        let meant = wanted
            .filter_map(|(task, held)| Some((task, loads.willing.meant(task, held.class, Some(loads.me))?)));
        let elsewhere = meant.filter(|(_, node)| *node != loads.me);
        elsewhere
            .map(|(task, node)| Parting { task: task.clone(), why: Reason::Meant(node.clone()) })
            .collect()
    }

    fn name(&self) -> &'static str {
        "rendezvous"
    }
}
