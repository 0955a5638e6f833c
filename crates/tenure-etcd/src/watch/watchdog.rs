//! When to ask a silent stream whether it lives, and when to believe that it does not. Told the time.
//!
//! A member that was stopped or cut off keeps its sockets, so nothing ever fails by itself, and HTTP/2 pings may not
//! come often enough to matter: etcd closes connections that ping more than once in five seconds.

use std::time::Duration;

use tokio::time::Instant;

/// How long a watch stream may be silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WatchdogTimeouts {
    /// After so much silence the server is asked to speak.
    pub(super) ask_after: Duration,
    /// Asked and silent for so long, it is left.
    pub(super) answer_within: Duration,
}

/// Watches one stream.
#[derive(Debug)]
pub(super) struct Watchdog {
    patience: WatchdogTimeouts,
    heard_at: Instant,
    /// When the oldest question without any answer since was asked.
    asked_at: Option<Instant>,
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
    /// A stream that was just asked for.
    pub(super) fn new(patience: WatchdogTimeouts, now: Instant) -> Self {
        Self { patience, heard_at: now, asked_at: Some(now) }
    }

    /// Something came.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard_at = now;
        self.asked_at = None;
    }

    /// Something was sent that is answered at once by a server that lives.
    pub(super) fn asked(&mut self, now: Instant) {
        self.asked_at.get_or_insert(now);
    }

    /// When to look again.
    pub(super) fn due_at(&self) -> Instant {
        match self.asked_at {
            Some(asked_at) => asked_at + self.patience.answer_within,
            None => self.heard_at + self.patience.ask_after,
        }
    }

    /// Looks.
    pub(super) fn look(&self, now: Instant) -> WatchdogAction {
        match self.asked_at {
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
        LastReceived,
        Asked,
    }
    use Happened::{Asked, LastReceived};

    /// What happened at which millisecond, and what the dog says at another.
    fn check(story: &[(u64, Happened)], at: u64, wanted: &WatchdogAction) {
        let start = Instant::now();
        let ms = |ms: u64| start + Duration::from_millis(ms);
        let mut watchdog = Watchdog::new(PATIENCE, start);
        for (when, happened) in story {
            match happened {
                LastReceived => watchdog.heard(ms(*when)),
                Asked => watchdog.asked(ms(*when)),
            }
        }
        assert_eq!(watchdog.look(ms(at)), *wanted, "at {at} ms");
    }

    #[test]
    fn a_stream_that_never_answers_is_left() {
        check(&[], 999, &WatchdogAction::Quiet);
        check(&[], 1_000, &WatchdogAction::Leave);
    }

    #[test]
    fn a_silent_stream_is_asked_before_it_is_left() {
        check(&[(10, LastReceived)], 2_509, &WatchdogAction::Quiet);
        check(&[(10, LastReceived)], 2_510, &WatchdogAction::Ask);
        check(&[(10, LastReceived), (2_510, Asked)], 3_509, &WatchdogAction::Quiet);
        check(&[(10, LastReceived), (2_510, Asked)], 3_510, &WatchdogAction::Leave);
    }

    #[test]
    fn any_word_is_a_sign_of_life() {
        check(&[(10, LastReceived), (2_510, Asked), (3_000, LastReceived)], 3_600, &WatchdogAction::Quiet);
        check(&[(10, LastReceived), (2_510, Asked), (3_000, LastReceived)], 5_500, &WatchdogAction::Ask);
    }

    #[test]
    fn the_oldest_question_counts() {
        check(&[(10, LastReceived), (100, Asked), (1_000, Asked)], 1_100, &WatchdogAction::Leave);
    }
}
