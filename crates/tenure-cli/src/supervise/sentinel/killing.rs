//! A process tree that the sentinel guards, and how it kills the tree.

use rustix::process::{Pid, Signal, kill_process_group};

use super::super::descendants;

/// The number of consecutive rounds without a process before the reaper itself is killed. A healthy reaper has ended by then; a stopped one
/// has not. One round is not enough: a listing can miss a process right after its parent has ended.
const EMPTY_ROUNDS: u32 = 5;

/// A guarded tree.
#[derive(Debug)]
pub(super) struct Guarded {
    reaper: Option<Pid>,
    group: Option<Pid>,
    /// The number of its lease.
    pub(super) hold: u64,
    handle: ReaperHandle,
    /// The number of consecutive rounds that found no process; `None` while the tree may run.
    empty_rounds: Option<u32>,
}

impl Guarded {
    /// Guards a tree. Its reaper is alive, because the supervisor waits for the reply, so the pidfd refers to the right process.
    pub(super) fn new(reaper: i32, group: i32, hold: u64) -> Guarded {
        let reaper = Pid::from_raw(reaper);
        let handle = ReaperHandle::open(reaper);
        Guarded { reaper, group: Pid::from_raw(group), hold, handle, empty_rounds: None }
    }

    /// Marks the tree to be killed.
    pub(super) fn condemn(&mut self) {
        self.empty_rounds = Some(0);
    }

    /// Whether the tree is being killed.
    pub(super) fn is_dying(&self) -> bool {
        self.empty_rounds.is_some()
    }

    /// Kills the processes of the tree that exist now: one round.
    pub(super) fn kill(&mut self) {
        let (Some(reaper), Some(empty_rounds)) = (self.reaper, self.empty_rounds) else { return };
        if self.handle.has_ended() {
            self.empty_rounds = None;
            return;
        }
        match descendants::signal(reaper, Signal::KILL, |_| true) {
            Ok(0) => self.empty_rounds = Some(empty_rounds + 1),
            Ok(_) => self.empty_rounds = Some(0),
            Err(_) => {
                // Without /proc only the command's group can be killed. It may have ended already.
                let _ = self.group.map(|group| kill_process_group(group, Signal::KILL));
                self.empty_rounds = Some(EMPTY_ROUNDS);
            }
        }
        if self.empty_rounds >= Some(EMPTY_ROUNDS) {
            self.handle.kill(reaper);
            self.empty_rounds = None;
        }
    }
}

/// A pidfd of a reaper. The pid alone may be reused by another process after the reaper has ended.
#[derive(Debug)]
struct ReaperHandle {
    /// None on kernels before 5.3, and if no descriptor is left.
    #[cfg(target_os = "linux")]
    pidfd: Option<std::os::fd::OwnedFd>,
}

#[cfg(target_os = "linux")]
impl ReaperHandle {
    fn open(pid: Option<Pid>) -> ReaperHandle {
        use rustix::process::{PidfdFlags, pidfd_open};
        ReaperHandle { pidfd: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) }
    }

    fn has_ended(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        // A pidfd becomes readable when its process ends.
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let poll = |pidfd| poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now));
        self.pidfd.as_ref().is_some_and(|pidfd| poll(pidfd).is_ok_and(|ready| ready > 0))
    }

    fn kill(&self, pid: Pid) {
        let _ = match &self.pidfd {
            Some(pidfd) => rustix::process::pidfd_send_signal(pidfd, Signal::KILL),
            None => rustix::process::kill_process(pid, Signal::KILL),
        };
    }
}

#[cfg(not(target_os = "linux"))]
impl ReaperHandle {
    fn open(_: Option<Pid>) -> ReaperHandle {
        ReaperHandle {}
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn kill(&self, pid: Pid) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}
