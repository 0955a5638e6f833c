//! Probes: claims out of turn, for tasks that a peer with room should have claimed, but has not.
//!
//! A delay does not prove that a peer is idle. On a host that is short of CPU every worker is late,
//! and each would consider the others idle. The reply to a claim does prove it. A worker therefore
//! starts with a few probes. While it wins them, it doubles their number. When it loses one, a peer
//! is at work: the worker sends one probe at a time and doubles its delays.
//!
//! **Invariant**: while a peer works through its share, a worker loses at most [`FIRST`] claims to
//! it, and then one for each delay.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::id::TaskId;

use super::config::{CLAIM_REQUESTS, CLAIMS_PER_REQUEST, RANK_STEP_MAX};

/// How many probes are in flight at first. Doubled, a hundred workers that consider each other idle
/// would send eight hundred claims in vain.
const FIRST: usize = 4;

/// How often delays are doubled at most. After that they have reached [`RANK_STEP_MAX`].
const DOUBLINGS_MAX: u32 = 4;

/// The claims out of turn.
#[derive(Clone, Debug)]
pub(super) struct ClaimProbes {
    in_flight: BTreeSet<TaskId>,
    allowed: usize,
    doublings: u32,
}

impl Default for ClaimProbes {
    fn default() -> ClaimProbes {
        ClaimProbes { in_flight: BTreeSet::new(), allowed: FIRST, doublings: 0 }
    }
}

impl ClaimProbes {
    /// How many more probes may be sent now.
    pub(super) fn room(&self) -> usize {
        self.allowed.saturating_sub(self.in_flight.len())
    }

    /// The delay of each rank, instead of `step`.
    pub(super) fn stretch(&self, step: Duration) -> Duration {
        (step * (1 << self.doublings)).min(RANK_STEP_MAX)
    }

    pub(super) fn send(&mut self, task: &TaskId) {
        self.in_flight.insert(task.clone());
    }

    pub(super) fn won(&mut self, task: &TaskId) {
        if self.in_flight.remove(task) {
            self.doublings = 0;
            self.allowed = (self.allowed * 2).min(CLAIMS_PER_REQUEST * CLAIM_REQUESTS);
        }
    }

    pub(super) fn lost(&mut self, task: &TaskId) {
        if self.in_flight.remove(task) {
            self.doublings = DOUBLINGS_MAX.min(self.doublings + 1);
            self.allowed = 1;
        }
    }

    pub(super) fn forget(&mut self, task: &TaskId) {
        self.in_flight.remove(task);
    }

    pub(super) fn forget_all(&mut self) {
        self.in_flight.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(n: usize) -> TaskId {
        TaskId::parse(&format!("t{n}")).unwrap()
    }

    #[test]
    fn lost_probe_leaves_one_and_doubles_the_delay() {
        let (mut probes, step) = (ClaimProbes::default(), Duration::from_millis(250));
        (0..FIRST).for_each(|n| probes.send(&task(n)));
        assert_eq!((probes.room(), probes.stretch(step)), (0, step));
        (0..FIRST).for_each(|n| probes.lost(&task(n)));
        assert_eq!((probes.room(), probes.stretch(step)), (1, RANK_STEP_MAX));
        probes.lost(&task(77));
        assert_eq!(probes.room(), 1, "a claim in turn proves nothing about peers");
    }

    #[test]
    fn won_probes_double_until_requests_are_full() {
        let (mut probes, step) = (ClaimProbes::default(), Duration::from_millis(250));
        probes.send(&task(0));
        probes.lost(&task(0));
        for n in 0..20 {
            probes.send(&task(n));
            probes.won(&task(n));
        }
        assert_eq!(probes.room(), CLAIMS_PER_REQUEST * CLAIM_REQUESTS);
        assert_eq!(probes.stretch(step), step);
    }
}
