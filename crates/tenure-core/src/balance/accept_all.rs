//! Takes everything and gives nothing away.

use super::decision::{ClaimDecision, Release};
use super::{Balancer, Claimable, ClusterLoad};

/// Takes everything and gives nothing away: for one node, or where who has what does not matter.
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
