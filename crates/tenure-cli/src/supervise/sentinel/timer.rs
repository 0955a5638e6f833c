//! Waiting for a word or for a moment on the boot clock, which goes on while the machine sleeps.
//!
//! The timeout of a poll does not: after a suspend it would let the rest of it pass once more. So the moment is watched by a timer of the kernel's.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Result;
use tenure_core::time::Moment;

/// Rings at a moment.
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

    /// Rings at this moment and at no other. A moment that has passed rings at once.
    pub(super) fn set(&self, at: Option<Moment>) -> Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would turn the timer off, and the moment of the boot has passed anyway.
        let at = at.map(Moment::since_origin).map(|at| at.max(std::time::Duration::from_nanos(1)));
        let value = at.and_then(|at| Timespec::try_from(at).ok()).unwrap_or(zero);
        let times = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &times).map(drop)
    }

    /// Waits until it rings or there is something to read; says which.
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

    /// Waits for the moment in short pieces, so that a suspend cannot add much.
    pub(super) fn wait(&self, stdin: BorrowedFd<'_>, at: Option<Moment>) -> Result<bool> {
        use tenure::clock::{BootClock, Clock};
        const PIECE: std::time::Duration = std::time::Duration::from_millis(200);
        let timeout = at.map(|at| at.remaining(BootClock.now()).min(PIECE));
        let timeout = timeout.and_then(|timeout| rustix::event::Timespec::try_from(timeout).ok());
        Ok(poll(&mut [PollFd::from_borrowed_fd(stdin, PollFlags::IN)], timeout.as_ref())? > 0)
    }
}
