//! Claims every task and releases none.

use super::decision::{ClaimDecision, Release};
use super::{Balancer, Claimable, ClusterLoad};

/// Claims every task and releases none: for a single worker, or where the distribution does not
/// matter.
#[derive(Clone, Copy, Debug, Default)]
pub struct AcceptAll;

impl Balancer for AcceptAll {
    fn claim(&mut self, _: &Claimable<'_>, _: &ClusterLoad<'_>) -> ClaimDecision {
        ClaimDecision::Claim
    }

    fn release(&mut self, _: &ClusterLoad<'_>) -> Vec<Release> {
        Vec::new()
    }

    fn name(&self) -> &'static str {
        "all"
    }
}
