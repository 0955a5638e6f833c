//! As much work for each node as for any other, where tasks say what they weigh.

use super::decision::{ClaimDecision, Release};
use super::share::{InvalidThreshold, ReleaseOrder, Share};
use super::worker_loads::LoadMetric;
use super::{Balancer, Claimable, ClusterLoad};

/// As [`Fair`](super::Fair), but what counts is the tasks' label `weight`, 1 without one.
///
/// A task heavier than the mean is somebody's too: it goes to whoever has least.
#[derive(Clone, Debug)]
pub struct Weighted(Share);

impl Weighted {
    /// With a threshold of 120 %, the newest first.
    pub fn new() -> Weighted {
        Weighted(Share::by(LoadMetric::Weight))
    }

    /// Releases when it has more than this part of its share.
    ///
    /// # Errors
    ///
    /// [`InvalidThreshold`] below 100 %: nodes with an equal share would go on giving tasks to each other.
    pub fn threshold_percent(self, percent: u64) -> Result<Weighted, InvalidThreshold> {
        self.0.threshold_percent(percent).map(Weighted)
    }

    /// Releases in this order.
    #[must_use]
    pub fn order(mut self, order: ReleaseOrder) -> Weighted {
        self.0.order = order;
        self
    }
}

impl Default for Weighted {
    fn default() -> Weighted {
        Weighted::new()
    }
}

impl Balancer for Weighted {
    fn claim(&mut self, offer: &Claimable<'_>, cluster: &ClusterLoad<'_>) -> ClaimDecision {
        self.0.claim(offer, cluster)
    }

    fn release(&mut self, cluster: &ClusterLoad<'_>) -> Vec<Release> {
        self.0.release(cluster)
    }

    fn name(&self) -> &'static str {
        "weighted"
    }
}
