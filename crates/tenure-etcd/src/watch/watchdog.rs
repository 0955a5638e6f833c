//! When to request a sign of life on a silent stream, and when to abandon the stream. Time is an
//! argument.
//!
//! A member that was stopped or cut off keeps its sockets, so nothing ever fails by itself, and HTTP/2 pings may not
//! come often enough to matter: etcd closes connections that ping more than once in five seconds.

use std::time::Duration;

use tokio::time::Instant;

/// How long a watch stream may be silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WatchdogTimeouts {
    /// After so much silence the server is requested to speak.
    pub(super) ask_after: Duration,
    /// Requested and silent for so long, it is left.
    pub(super) answer_within: Duration,
}

/// Watches one stream.
#[derive(Debug)]
pub(super) struct Watchdog {
    timeouts: WatchdogTimeouts,
    received_at: Instant,
    /// When the oldest question without any answer since was requested.
    requested_at: Option<Instant>,
}

/// What to do when the time has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WatchdogAction {
    /// Not yet.
    Quiet,
    /// Ask the server to speak.
    Ask,
    /// Leave it.
    Leave,
}

impl Watchdog {
    /// A stream that was just requested for.
    pub(super) fn new(timeouts: WatchdogTimeouts, now: Instant) -> Self {
        Self { timeouts, received_at: now, requested_at: Some(now) }
    }

    /// Something came.
    pub(super) fn received(&mut self, now: Instant) {
        self.received_at = now;
        self.requested_at = None;
    }

    /// Something was sent that is answered at once by a server that lives.
    pub(super) fn requested(&mut self, now: Instant) {
        self.requested_at.get_or_insert(now);
    }

    /// When to decide again.
    pub(super) fn due_at(&self) -> Instant {
        match self.requested_at {
            Some(requested_at) => requested_at + self.timeouts.answer_within,
            None => self.received_at + self.timeouts.ask_after,
        }
    }

    /// Looks.
    pub(super) fn decide(&self, now: Instant) -> WatchdogAction {
        match self.requested_at {
            _ if now < self.due_at() => WatchdogAction::Quiet,
            Some(_) => WatchdogAction::Leave,
            None => WatchdogAction::Ask,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{Watchdog, WatchdogAction, WatchdogTimeouts};

    const PATIENCE: WatchdogTimeouts = WatchdogTimeouts {
        ask_after: Duration::from_millis(2_500),
        answer_within: Duration::from_millis(1_000),
    };

    enum Happened {
        Received,
        Requested,
    }
    use Happened::{Received, Requested};

    /// Applies events at these milliseconds and compares the decision at another.
    fn check(events: &[(u64, Happened)], at: u64, wanted: &WatchdogAction) {
        let start = Instant::now();
        let ms = |ms: u64| start + Duration::from_millis(ms);
        let mut watchdog = Watchdog::new(PATIENCE, start);
        for (when, happened) in events {
            match happened {
                Received => watchdog.received(ms(*when)),
                Requested => watchdog.requested(ms(*when)),
            }
        }
        assert_eq!(watchdog.decide(ms(at)), *wanted, "at {at} ms");
    }

    #[test]
    fn unanswered_request_closes_stream() {
        check(&[], 999, &WatchdogAction::Quiet);
        check(&[], 1_000, &WatchdogAction::Leave);
    }

    #[test]
    fn silent_stream_is_probed_then_closed() {
        check(&[(10, Received)], 2_509, &WatchdogAction::Quiet);
        check(&[(10, Received)], 2_510, &WatchdogAction::Ask);
        check(&[(10, Received), (2_510, Requested)], 3_509, &WatchdogAction::Quiet);
        check(&[(10, Received), (2_510, Requested)], 3_510, &WatchdogAction::Leave);
    }

    #[test]
    fn any_response_resets_watchdog() {
        check(&[(10, Received), (2_510, Requested), (3_000, Received)], 3_600, &WatchdogAction::Quiet);
        check(&[(10, Received), (2_510, Requested), (3_000, Received)], 5_500, &WatchdogAction::Ask);
    }

    #[test]
    fn timeout_counts_from_oldest_request() {
        check(&[(10, Received), (100, Requested), (1_000, Requested)], 1_100, &WatchdogAction::Leave);
    }
}
