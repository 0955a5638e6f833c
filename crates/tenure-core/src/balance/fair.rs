//! The same number of tasks for each worker.

use super::decision::{ClaimDecision, Release};
use super::share::{InvalidThreshold, ReleaseOrder, Share};
use super::worker_loads::LoadMetric;
use super::{Balancer, Claimable, ClusterLoad};

/// The same number of tasks for each worker: the default.
///
/// # Guarantees
///
/// No worker claims more than the ceiling of the mean while a peer could claim the task, and none
/// releases below that.
/// It releases the newest tasks first, unless configured otherwise, and at most what it owns.
/// Workers without tasks count; workers that are leaving do not.
///
/// # Not guaranteed
///
/// Equal numbers: no task moves for a difference below the threshold, which is a fifth of the
/// share.
#[derive(Clone, Debug)]
pub struct Fair(Share);

impl Fair {
    /// With a threshold of 120 %, the newest tasks first.
    pub fn new() -> Fair {
        Fair(Share::by(LoadMetric::Tasks))
    }

    /// Releases when the worker owns more than this percentage of its share.
    ///
    /// # Errors
    ///
    /// [`InvalidThreshold`] below 100 %: workers with equal shares would release tasks to each
    /// other without end.
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
