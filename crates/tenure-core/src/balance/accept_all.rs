//! Takes everything and gives nothing away.

use super::decision::{Parting, Verdict};
use super::{Balancer, ClusterLoad, Offer};

/// Takes everything and gives nothing away: for one node, or where who has what does not matter.
#[derive(Clone, Copy, Debug, Default)]
pub struct AcceptAll;

impl Balancer for AcceptAll {
    fn may_claim(&mut self, _: &Offer<'_>, _: &ClusterLoad<'_>) -> Verdict {
        Verdict::Take
    }

    fn release(&mut self, _: &ClusterLoad<'_>) -> Vec<Parting> {
        Vec::new()
    }

    fn name(&self) -> &'static str {
        "all"
    }
}
