//! The runtime's own clock as a store's: with paused time, a suite that waits for leases takes no time at all.

use tenure::clock::{Clock, Sleep};
use tenure::store::memory::MemoryEngine;
use tenure::store::{Limits, Store};
use tenure_core::time::Moment;
use tokio::time::Instant;

/// Counts from when it was made, in the runtime's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokioClock {
    origin: Instant,
}

impl TokioClock {
    pub(crate) fn new() -> TokioClock {
        TokioClock { origin: Instant::now() }
    }

    /// An empty memory engine on such a clock.
    pub(crate) fn memory() -> MemoryEngine {
        MemoryEngine::with_clock(TokioClock::new(), Limits::EMBEDDED)
    }

    /// An empty store on such a clock.
    pub(crate) fn store() -> Store {
        Store::new(TokioClock::memory())
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        Moment::after_origin(self.origin.elapsed())
    }

    fn sleep_until(&self, deadline: Moment) -> Sleep {
        Box::pin(tokio::time::sleep_until(self.origin + deadline.since_origin()))
    }
}
