//! As many tasks for each node as for any other.

use super::decision::{ClaimDecision, Release};
use super::share::{InvalidThreshold, ReleaseOrder, Share};
use super::worker_loads::LoadMetric;
use super::{Balancer, Claimable, ClusterLoad};

/// As many tasks for each node as for any other: the usual choice.
///
/// # Guarantees
///
/// * No node takes more than the ceiling of the mean while another could take it, and none releases below that.
/// * What it releases is the newest, unless told otherwise, and at most what it has.
/// * Nodes without tasks count, nodes that are leaving do not.
///
/// # Not guaranteed
///
/// That all have the same: nobody moves a task for a difference below the threshold, which is a fifth of the share.
#[derive(Clone, Debug)]
pub struct Fair(Share);

impl Fair {
    /// With a threshold of 120 %, the newest first.
    pub fn new() -> Fair {
        Fair(Share::by(LoadMetric::Tasks))
    }

    /// Releases when it has more than this part of its share.
    ///
    /// # Errors
    ///
    /// [`InvalidThreshold`] below 100 %: nodes with an equal share would go on giving tasks to each other.
    pub fn threshold_percent(self, percent: u64) -> Result<Fair, InvalidThreshold> {
        self.0.threshold_percent(percent).map(Fair)
    }

    /// Releases in this order.
    #[must_use]
    pub fn order(mut self, order: ReleaseOrder) -> Fair {
        self.0.order = order;
        self
    }
}

impl Default for Fair {
    fn default() -> Fair {
        Fair::new()
    }
}

impl Balancer for Fair {
    fn claim(&mut self, offer: &Claimable<'_>, cluster: &ClusterLoad<'_>) -> ClaimDecision {
        self.0.claim(offer, cluster)
    }

    fn release(&mut self, cluster: &ClusterLoad<'_>) -> Vec<Release> {
        self.0.release(cluster)
    }

    fn name(&self) -> &'static str {
        "fair"
    }
}
