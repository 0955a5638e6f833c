//! Which member to talk to, when to knock again, and how often anybody may knock at all.
//!
//! Pure: it is told the time and the dice, does no IO, and every decision can be tested as a table.
//! The intuition: stay with one member as long as it serves us (sticky); when it fails, put it into
//! quarantine and let the watchman knock in the background, so that callers never pay for a dead member
//! twice; and count every connect of the whole client, so that a dead cluster is not also hammered.
//!
//! **Invariant**: at most [`CONNECTS_PER_WINDOW`] connects are handed out in any [`WINDOW`].
//! **Invariant**: a member in quarantine is picked only after a knock was answered, and only when no other
//! member can serve.

use std::collections::VecDeque;
use std::time::Duration;

/// One of the configured endpoints, by its place in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EndpointId(pub(crate) usize);

/// A failed member is left alone this long (times 0.8 to 1.2). Halved, a flapping member costs a timeout
/// every few calls; doubled, a restarted one stays unused although it is back.
pub(crate) const QUARANTINE: Duration = Duration::from_secs(5);

/// First knock after a failure. A member that only restarts is back in about this time.
const KNOCK_FIRST: Duration = Duration::from_millis(250);

/// Knocks are never further apart. Whoever recovers has two seconds from the store's return, and needs some of them for itself.
const KNOCK_MAX: Duration = Duration::from_secs(1);

/// Connects of the whole client in one [`WINDOW`].
const CONNECTS_PER_WINDOW: usize = 4;

/// A second, and a little for the time between the decision and the packet.
const WINDOW: Duration = Duration::from_millis(1_050);

/// The state of every endpoint, and the one we stay with.
#[derive(Debug)]
pub(crate) struct Choice {
    members: Vec<Standing>,
    sticky: usize,
    /// When the last connects were, or will be, made; at most [`CONNECTS_PER_WINDOW`], oldest first.
    connects: VecDeque<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Nothing bad is known.
    Good,
    /// It was slow: still usable, but the watchman looks at it at once.
    Suspect,
    /// It failed.
    Quarantined {
        until: Duration,
        knock_at: Duration,
        /// Failures in a row, without an answer between them.
        failures: u32,
        /// A knock was answered since.
        answered: bool,
    },
}

impl Choice {
    /// Knows nothing bad of anybody; `first` says where to begin, so that many clients spread out.
    pub(crate) fn new(count: usize, first: usize) -> Self {
        assert!(count > 0, "a client without endpoints is refused by its configuration");
        Self { members: vec![Standing::Good; count], sticky: first % count, connects: VecDeque::new() }
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

    /// Stay with this member from now on: it answered where the one before did not.
    pub(crate) fn prefer(&mut self, id: EndpointId) {
        self.sticky = id.0;
    }

    /// The member served us.
    pub(crate) fn healthy(&mut self, id: EndpointId, now: Duration) {
        match self.members[id.0] {
            Standing::Good => {}
            Standing::Suspect => self.members[id.0] = Standing::Good,
            Standing::Quarantined { until, .. } if until <= now => self.members[id.0] = Standing::Good,
            Standing::Quarantined { until, knock_at, .. } => {
                self.members[id.0] = Standing::Quarantined { until, knock_at, failures: 0, answered: true };
            }
        }
    }

    /// The member was slow; true if the watchman has to be told.
    pub(crate) fn suspect(&mut self, id: EndpointId) -> bool {
        let news = self.members[id.0] == Standing::Good;
        if news {
            self.members[id.0] = Standing::Suspect;
        }
        news
    }

    /// The member failed. `jitter` is a throw in `0.0..1.0`.
    pub(crate) fn failed(&mut self, id: EndpointId, now: Duration, jitter: f64) {
        let failures = match self.members[id.0] {
            Standing::Good | Standing::Suspect => 0,
            Standing::Quarantined { failures, .. } => failures,
        };
        let pause = KNOCK_FIRST.saturating_mul(1 << failures.min(8)).min(KNOCK_MAX);
        self.members[id.0] = Standing::Quarantined {
            until: now + QUARANTINE.mul_f64(0.8 + 0.4 * jitter),
            knock_at: now + pause.mul_f64(0.5 + 0.5 * jitter),
            failures: failures.saturating_add(1),
            answered: false,
        };
    }

    /// What the watchman of this member has to do next.
    pub(crate) fn errand(&self, id: EndpointId) -> Errand {
        match self.members[id.0] {
            Standing::Good => Errand::Rest,
            Standing::Suspect => Errand::Knock { at: Duration::ZERO },
            Standing::Quarantined { answered: true, until, .. } => Errand::Release { at: until },
            Standing::Quarantined { knock_at, .. } => Errand::Knock { at: knock_at },
        }
    }

    /// Reserves one connect and says when it may be made.
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
            Standing::Good | Standing::Suspect => true,
            Standing::Quarantined { until, answered, .. } => answered && until <= now,
        }
    }

    fn has_answered(&self, index: usize) -> bool {
        matches!(self.members[index], Standing::Quarantined { answered: true, .. })
    }
}

/// The watchman's next step for one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// Nothing, until something happens.
    Rest,
    /// Ask the member whether it is alive, at this time.
    Knock {
        /// When.
        at: Duration,
    },
    /// It answers again: end its quarantine at this time.
    Release {
        /// When.
        at: Duration,
    },
}

#[cfg(test)]
mod tests;
