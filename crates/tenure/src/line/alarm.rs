//! The desk's one timer.
//!
//! It is set again only for what comes earlier: then it rings for nothing at times, which costs less than a timer for every lock.

use std::sync::Arc;

use tenure_core::time::Moment;

use crate::clock::{Clock, Sleep};

/// Rings at a moment, or earlier.
pub(super) struct Alarm {
    clock: Arc<dyn Clock>,
    set: Option<(Moment, Sleep)>,
}

impl Alarm {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Alarm {
        Alarm { clock, set: None }
    }

    /// Rings by then.
    pub(super) fn set(&mut self, wake: Option<Moment>) {
        if let Some(wake) = wake
            && self.set.as_ref().is_none_or(|(at, _)| wake < *at)
        {
            self.set = Some((wake, self.clock.sleep_until(wake)));
        }
    }

    /// Waits until it rings, which may be never.
    pub(super) async fn ring(&mut self) {
        match &mut self.set {
            Some((_, sleep)) => sleep.await,
            None => std::future::pending().await,
        }
        self.set = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::clock::VirtualClock;

    #[test]
    fn it_rings_at_the_earliest_moment_it_was_set_to_and_once() {
        let clock = VirtualClock::new();
        let mut alarm = Alarm::new(Arc::new(clock.clone()));
        let begin = clock.now();
        for seconds in [3, 2, 5] {
            alarm.set(Some(begin + Duration::from_secs(seconds)));
        }
        alarm.set(None);
        clock.advance(Duration::from_secs(1));
        assert_eq!(alarm.ring().now_or_never(), None);
        clock.advance(Duration::from_secs(1));
        assert_eq!(alarm.ring().now_or_never(), Some(()));
        clock.advance(Duration::from_secs(9));
        assert_eq!(alarm.ring().now_or_never(), None, "nobody set it since");
    }
}
