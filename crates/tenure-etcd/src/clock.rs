//! The clock that validity is counted on: it keeps running while the machine sleeps.
//!
//! `std::time::Instant` stops in suspend on Linux, so a holder that wakes up would rely on a lease
//! that the store deleted hours ago. Every time stamp of a request is taken from this clock, before
//! the request is sent.

use std::time::Duration;

/// Time since the machine was started, including the time it slept.
///
/// Linux counts suspend (`CLOCK_BOOTTIME`); where that clock is missing, the plain monotonic one is
/// used.
#[must_use]
pub fn boot_time() -> Duration {
    let now = rustix::time::clock_gettime(CLOCK);
    let seconds = u64::try_from(now.tv_sec).expect("time since the start of the machine is not negative");
    let nanos = u32::try_from(now.tv_nsec).expect("nanoseconds of a second fit in 32 bits");
    Duration::new(seconds, nanos)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

#[cfg(test)]
mod tests {
    use super::boot_time;

    #[test]
    fn boot_time_never_goes_back() {
        let first = boot_time();
        let second = boot_time();
        assert!(first > std::time::Duration::ZERO);
        assert!(second >= first);
    }
}
