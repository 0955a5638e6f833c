//! As many tasks as the worker has resources for.
//!
//! The resource is measured elsewhere, and the measurement lags: a task that was claimed a moment
//! ago has used nothing yet. Therefore only a few tasks are claimed for each measurement, and only
//! one is released.

use std::time::Duration;

use thiserror::Error;

use super::decision::{ClaimDecision, DecisionReason, Release};
use super::owned_tasks::OwnedTask;
use super::worker_loads::LoadMetric;
use super::{Balancer, Claimable, ClusterLoad};
use crate::time::Moment;

/// How many tasks are claimed for one measurement. With one measurement per second a worker fills
/// at 16 tasks per second, and overshoots by 16 at most.
const TAKEN_PER_READING_MAX: u32 = 16;

/// How soon to decide again when there is no room: resources are not freed faster.
const AGAIN_IN: Duration = Duration::from_secs(5);

/// How soon to decide again when the next measurement must come first.
const NEXT_READING_IN: Duration = Duration::from_secs(1);

/// A measurement of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResourceUsage {
    /// How much is used.
    pub used: u64,
    /// How much there is.
    pub total: u64,
    /// When it was measured. It distinguishes two measurements.
    pub read_at: Moment,
}

impl ResourceUsage {
    /// The used part in percent, rounded up. A resource with a total of zero is used up.
    pub fn used_percent(&self) -> u64 {
        let used = u128::from(self.used) * 100;
        let percent = if self.total == 0 { 100 } else { used.div_ceil(u128::from(self.total)) };
        u64::try_from(percent).unwrap_or(u64::MAX)
    }
}

/// Claims tasks while less than one part of a resource is used, and releases tasks above another
/// part.
#[derive(Clone, Debug)]
pub struct Capacity {
    claim_below_percent: u64,
    release_above_percent: u64,
    /// The time of the last measurement, and how many tasks were claimed for it.
    taken: Option<(Moment, u32)>,
}

/// Limits between which tasks would move back and forth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidCapacity {
    /// A task that is claimed at one limit would be released at the other.
    #[error("tasks are claimed below {claim} % and released above {release} %: the first must be less")]
    ClaimNotBelowRelease {
        /// The worker claims below this part.
        claim: u64,
        /// The worker releases above this part.
        release: u64,
    },
    /// The worker would never claim.
    #[error("tasks are claimed below 0 %, so none ever is")]
    ClaimsNothing,
    /// The worker would never release.
    #[error("tasks are released above {0} %, and there is no more than 100 %")]
    ReleasesNothing(u64),
}

impl Capacity {
    /// Claims while less than the first part is used, and releases while more than the second part
    /// is.
    ///
    /// # Errors
    ///
    /// [`InvalidCapacity`] unless 0 < claim < release ≤ 100.
    pub fn new(claim_below_percent: u64, release_above_percent: u64) -> Result<Capacity, InvalidCapacity> {
        if claim_below_percent == 0 {
            return Err(InvalidCapacity::ClaimsNothing);
        }
        if claim_below_percent >= release_above_percent {
            return Err(InvalidCapacity::ClaimNotBelowRelease {
                claim: claim_below_percent,
                release: release_above_percent,
            });
        }
        if release_above_percent > 100 {
            return Err(InvalidCapacity::ReleasesNothing(release_above_percent));
        }
        Ok(Capacity { claim_below_percent, release_above_percent, taken: None })
    }
}

impl Balancer for Capacity {
    fn claim(&mut self, _: &Claimable<'_>, cluster: &ClusterLoad<'_>) -> ClaimDecision {
        let Some(resource) = cluster.resource else {
            return ClaimDecision::Wait { retry_after: AGAIN_IN, reason: DecisionReason::NoReading };
        };
        let percent = resource.used_percent();
        if percent >= self.claim_below_percent {
            let reason = DecisionReason::Used { percent, limit_percent: self.claim_below_percent };
            return ClaimDecision::Wait { retry_after: AGAIN_IN, reason };
        }
        let before = self.taken.filter(|(read_at, _)| *read_at == resource.read_at).map_or(0, |(_, n)| n);
        if before >= TAKEN_PER_READING_MAX {
            return ClaimDecision::Wait { retry_after: NEXT_READING_IN, reason: DecisionReason::Unmeasured };
        }
        self.taken = Some((resource.read_at, before + 1));
        ClaimDecision::Claim
    }

    fn release(&mut self, cluster: &ClusterLoad<'_>) -> Vec<Release> {
        let Some(resource) = cluster.resource else { return Vec::new() };
        let percent = resource.used_percent();
        if percent <= self.release_above_percent {
            return Vec::new();
        }
        let reason = DecisionReason::Used { percent, limit_percent: self.release_above_percent };
        let can_move = |held: &OwnedTask| {
            cluster.workers.takers(cluster.me, LoadMetric::Tasks, held.class).next().is_some()
        };
        let newest = cluster.own.newest().find(|(_, held)| can_move(held));
        newest.map(|(task, _)| Release { task: task.clone(), reason }).into_iter().collect()
    }

    fn name(&self) -> &'static str {
        "capacity"
    }
}
