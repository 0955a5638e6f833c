//! Waits for a message or for a moment on the boot clock, which also counts suspend.
//!
//! The timeout of `poll` does not count suspend, so after it the rest of the timeout would still have to pass. A kernel timer on the boot clock does.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Result;
use tenure_core::time::Moment;

/// A timer on the boot clock.
pub(super) struct BootTimer {
    #[cfg(target_os = "linux")]
    timer: std::os::fd::OwnedFd,
}

#[cfg(target_os = "linux")]
impl BootTimer {
    pub(super) fn new() -> std::io::Result<BootTimer> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(BootTimer { timer: timerfd_create(TimerfdClockId::Boottime, flags)? })
    }

    /// Sets the timer; `None` turns it off. A moment in the past expires immediately.
    pub(super) fn set(&self, at: Option<Moment>) -> Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would turn the timer off; one nanosecond after the boot is in the past, too.
        let at = at.map(Moment::since_origin).map(|at| at.max(std::time::Duration::from_nanos(1)));
        let value = at.and_then(|at| Timespec::try_from(at).ok()).unwrap_or(zero);
        let times = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &times).map(drop)
    }

    /// Waits until the timer expires or stdin is readable. Returns whether stdin is readable.
    pub(super) fn wait(&self, stdin: BorrowedFd<'_>, _: Option<Moment>) -> Result<bool> {
        let mut fds =
            [PollFd::from_borrowed_fd(stdin, PollFlags::IN), PollFd::new(&self.timer, PollFlags::IN)];
        poll(&mut fds, None)?;
        Ok(!fds[0].revents().is_empty())
    }
}

#[cfg(not(target_os = "linux"))]
impl BootTimer {
    pub(super) fn new() -> std::io::Result<BootTimer> {
        Ok(BootTimer {})
    }

    pub(super) fn set(&self, _: Option<Moment>) -> Result<()> {
        Ok(())
    }

    /// Waits for the moment in short pieces, so that a suspend delays it by one piece at most.
    pub(super) fn wait(&self, stdin: BorrowedFd<'_>, at: Option<Moment>) -> Result<bool> {
        use tenure::clock::{BootClock, Clock};
        const PIECE: std::time::Duration = std::time::Duration::from_millis(200);
        let timeout = at.map(|at| at.remaining(BootClock.now()).min(PIECE));
        let timeout = timeout.and_then(|timeout| rustix::event::Timespec::try_from(timeout).ok());
        Ok(poll(&mut [PollFd::from_borrowed_fd(stdin, PollFlags::IN)], timeout.as_ref())? > 0)
    }
}
