//! Which member receives the next request, when a failed one is probed, and how many connects the
//! client may make.
//!
//! Pure: time and random numbers are arguments, it does no IO, and every decision can be tested as
//! a table. The intuition: stay with one member as long as it serves (sticky). When it fails,
//! quarantine it and let the health probe test it in the background, so that callers never pay
//! twice for a dead member. Count every connect of the whole client, so that a dead cluster gets no
//! extra load.
//!
//! **Invariant**: at most [`CONNECTS_PER_WINDOW`] connects are handed out in any [`WINDOW`].
//! **Invariant**: a member in quarantine is picked only after a probe was answered, and only when no other
//! member can serve.

use std::collections::VecDeque;
use std::time::Duration;

/// One of the configured endpoints, by its index in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EndpointId(pub(crate) usize);

/// A failed member is left alone this long (times 0.8 to 1.2). Halved, a flapping member costs a timeout
/// every few calls; doubled, a restarted one stays unused although it is back.
pub(crate) const QUARANTINE: Duration = Duration::from_secs(5);

/// First probe after a failure. A member that only restarts is back in about this time.
const PROBE_PAUSE_FIRST: Duration = Duration::from_millis(250);

/// Probes are never further apart. A client has to recover within two seconds of the store's
/// return, and needs part of that time to reconnect.
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Connects of the whole client in one [`WINDOW`].
const CONNECTS_PER_WINDOW: usize = 4;

/// A second, and a little for the time between the decision and the packet.
const WINDOW: Duration = Duration::from_millis(1_050);

/// The state of every endpoint, and the selected one.
#[derive(Debug)]
pub(crate) struct EndpointSelector {
    members: Vec<EndpointHealth>,
    sticky: usize,
    /// When the last connects were, or will be, made; at most [`CONNECTS_PER_WINDOW`], oldest first.
    connects: VecDeque<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndpointHealth {
    /// Nothing bad is known.
    Good,
    /// It was slow: still usable, but its status is requested immediately.
    Suspect,
    /// It failed.
    Quarantined {
        until: Duration,
        probe_at: Duration,
        /// Failures in a row, without a reply between them.
        failures: u32,
        /// A probe was answered since.
        answered: bool,
    },
}

impl EndpointSelector {
    /// All members start as healthy. `first` is the member to begin with, so that many clients
    /// spread out.
    pub(crate) fn new(count: usize, first: usize) -> Self {
        assert!(count > 0, "a client without endpoints is refused by its configuration");
        Self { members: vec![EndpointHealth::Good; count], sticky: first % count, connects: VecDeque::new() }
    }

    /// The member to use now, if any can be; those in `avoid` only when there is no other.
    pub(crate) fn pick(&mut self, now: Duration, avoid: &[EndpointId]) -> Option<EndpointId> {
        let count = self.members.len();
        let in_turn = || (0..count).map(|step| (self.sticky + step) % count);
        let avoided = |index: &usize| avoid.contains(&EndpointId(*index));
        let good = |index: &usize| self.is_good(*index, now);
        let found = in_turn()
            .filter(|index| !avoided(index))
            .find(good)
            .or_else(|| in_turn().filter(|index| !avoided(index)).find(|index| self.has_answered(*index)))
            .or_else(|| in_turn().find(good))
            .or_else(|| in_turn().find(|index| self.has_answered(*index)))?;
        if avoid.is_empty() {
            self.sticky = found;
        }
        Some(EndpointId(found))
    }

    /// Selects this member from now on: it replied where the one before did not.
    pub(crate) fn prefer(&mut self, id: EndpointId) {
        self.sticky = id.0;
    }

    /// The member replied.
    pub(crate) fn healthy(&mut self, id: EndpointId, now: Duration) {
        match self.members[id.0] {
            EndpointHealth::Good => {}
            EndpointHealth::Suspect => self.members[id.0] = EndpointHealth::Good,
            EndpointHealth::Quarantined { until, .. } if until <= now => {
                self.members[id.0] = EndpointHealth::Good;
            }
            EndpointHealth::Quarantined { until, probe_at, .. } => {
                self.members[id.0] =
                    EndpointHealth::Quarantined { until, probe_at, failures: 0, answered: true };
            }
        }
    }

    /// The member was slow. Returns `true` if the health probe must be woken.
    pub(crate) fn suspect(&mut self, id: EndpointId) -> bool {
        let is_new = self.members[id.0] == EndpointHealth::Good;
        if is_new {
            self.members[id.0] = EndpointHealth::Suspect;
        }
        is_new
    }

    /// The member failed. `jitter` is a random number in `0.0..1.0`.
    pub(crate) fn failed(&mut self, id: EndpointId, now: Duration, jitter: f64) {
        let failures = match self.members[id.0] {
            EndpointHealth::Good | EndpointHealth::Suspect => 0,
            EndpointHealth::Quarantined { failures, .. } => failures,
        };
        let pause = PROBE_PAUSE_FIRST.saturating_mul(1 << failures.min(8)).min(PROBE_PAUSE_MAX);
        self.members[id.0] = EndpointHealth::Quarantined {
            until: now + QUARANTINE.mul_f64(0.8 + 0.4 * jitter),
            probe_at: now + pause.mul_f64(0.5 + 0.5 * jitter),
            failures: failures.saturating_add(1),
            answered: false,
        };
    }

    /// What the health probe of this member has to do next.
    pub(crate) fn probe_action(&self, id: EndpointId) -> ProbeAction {
        match self.members[id.0] {
            EndpointHealth::Good => ProbeAction::Idle,
            EndpointHealth::Suspect => ProbeAction::Probe { at: Duration::ZERO },
            EndpointHealth::Quarantined { answered: true, until, .. } => ProbeAction::Release { at: until },
            EndpointHealth::Quarantined { probe_at, .. } => ProbeAction::Probe { at: probe_at },
        }
    }

    /// Reserves one connect and returns when it may be made.
    pub(crate) fn reserve_connect(&mut self, now: Duration) -> Duration {
        let at = if self.connects.len() < CONNECTS_PER_WINDOW {
            now
        } else {
            let oldest = self.connects.pop_front().expect("the list was just found to be full");
            now.max(oldest + WINDOW)
        };
        self.connects.push_back(at);
        at
    }

    fn is_good(&self, index: usize, now: Duration) -> bool {
        match self.members[index] {
            EndpointHealth::Good | EndpointHealth::Suspect => true,
            EndpointHealth::Quarantined { until, answered, .. } => answered && until <= now,
        }
    }

    fn has_answered(&self, index: usize) -> bool {
        matches!(self.members[index], EndpointHealth::Quarantined { answered: true, .. })
    }
}

/// The next step of a health probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeAction {
    /// Nothing, until something happens.
    Idle,
    /// Request the member's status at this time.
    Probe {
        /// When.
        at: Duration,
    },
    /// The member replies again: end its quarantine at this time.
    Release {
        /// When.
        at: Duration,
    },
}

#[cfg(test)]
mod tests;
