//! The same weight of tasks for each worker.

use super::decision::{ClaimDecision, Release};
use super::share::{InvalidThreshold, ReleaseOrder, Share};
use super::worker_loads::LoadMetric;
use super::{Balancer, Claimable, ClusterLoad};

/// Like [`Fair`](super::Fair), but by the tasks' label `weight`, which is 1 if it is absent.
///
/// A task that is heavier than the mean goes to the worker with the smallest load.
#[derive(Clone, Debug)]
pub struct Weighted(Share);

impl Weighted {
    /// With a threshold of 120 %, the newest tasks first.
    pub fn new() -> Weighted {
        Weighted(Share::by(LoadMetric::Weight))
    }

    /// Releases when the worker owns more than this percentage of its share.
    ///
    /// # Errors
    ///
    /// [`InvalidThreshold`] below 100 %: workers with equal shares would release tasks to each
    /// other without end.
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
