//! Clocks: the time that sessions, locks and views use.
//!
//! A lease runs while the machine is suspended. `std::time::Instant` does not on Linux, so a laptop that resumes
//! would treat a lock as valid that another process has acquired. [`BootClock`] counts suspend too.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::record::Timestamp;
use tenure_core::time::Moment;
use tokio::sync::oneshot;

/// A future that completes at a moment of a clock.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A source of time.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time. Never goes back.
    fn now(&self) -> Moment;

    /// Waits until `deadline`. May be late, never early.
    fn sleep_until(&self, deadline: Moment) -> Sleep;
}

/// The machine's own clock: time since boot, suspend included, the same for all processes of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl BootClock {
    #[cfg(target_os = "linux")]
    const ID: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    // Elsewhere than on Linux the monotonic clock is the nearest there is.
    #[cfg(not(target_os = "linux"))]
    const ID: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
}

impl Clock for Arc<dyn Clock> {
    fn now(&self) -> Moment {
        (**self).now()
    }

    fn sleep_until(&self, deadline: Moment) -> Sleep {
        (**self).sleep_until(deadline)
    }
}

impl Clock for BootClock {
    fn now(&self) -> Moment {
        #[cfg(feature = "testing")]
        if let Some(now) = crate::testing::seed::since_boot() {
            return now;
        }
        let time = rustix::time::clock_gettime(BootClock::ID);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
        Moment::after_origin(Duration::new(seconds, nanoseconds))
    }

    fn sleep_until(&self, deadline: Moment) -> Sleep {
        Box::pin(async move {
            // The runtime's timer does not run in suspend and rounds to milliseconds, so the clock is read again after each sleep.
            loop {
                let remaining = deadline.remaining(BootClock.now());
                if remaining.is_zero() {
                    return;
                }
                tokio::time::sleep(remaining).await;
            }
        })
    }
}

/// The time of the wall clock: for display and across reboots, never for the validity of a hold.
pub fn wall_time() -> Timestamp {
    #[cfg(feature = "testing")]
    if let Some(wall) = crate::testing::seed::wall() {
        return wall;
    }
    timestamp(SystemTime::now())
}

/// A time of the wall clock as it is stored.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A clock that moves only when [`VirtualClock::advance`] is called: for tests that must not wait.
#[derive(Clone, Default)]
pub struct VirtualClock {
    state: Arc<Mutex<VirtualTime>>,
}

#[derive(Default)]
struct VirtualTime {
    now: Moment,
    sleepers: BTreeMap<Moment, Vec<oneshot::Sender<()>>>,
}

impl VirtualClock {
    /// A clock at its origin.
    pub fn new() -> VirtualClock {
        VirtualClock::default()
    }

    /// Moves time forward, and wakes every sleeper that is due.
    pub fn advance(&self, duration: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.now = state.now + duration;
        let not_yet = state.now + Duration::from_nanos(1);
        let later = state.sleepers.split_off(&not_yet);
        let due = std::mem::replace(&mut state.sleepers, later);
        drop(state);
        for sleeper in due.into_values().flatten() {
            // A sleeper that was dropped need not be woken.
            let _ = sleeper.send(());
        }
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Moment {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).now
    }

    fn sleep_until(&self, deadline: Moment) -> Sleep {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if deadline <= state.now {
            return Box::pin(std::future::ready(()));
        }
        let (wake, woken) = oneshot::channel();
        state.sleepers.entry(deadline).or_default().push(wake);
        Box::pin(async move {
            if woken.await.is_err() {
                // The clock is gone, so the moment never comes.
                std::future::pending::<()>().await;
            }
        })
    }
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VirtualClock({:?})", self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn virtual_time_wakes_due_sleepers_only() {
        let clock = VirtualClock::new();
        let mut early = clock.sleep_until(Moment::from_ms(10));
        let mut late = clock.sleep_until(Moment::from_ms(11));
        clock.advance(Duration::from_millis(10));
        tokio::select! {
            biased;
            () = &mut late => panic!("woken before its time"),
            () = &mut early => {}
        }
        clock.advance(Duration::from_millis(1));
        late.await;
    }

    #[test]
    fn boot_time_does_not_go_back() {
        let before = BootClock.now();
        assert!(BootClock.now() >= before);
        assert!(before > Moment::ORIGIN);
    }
}
