//! One tree that the sentinel guards, and the way to its end.

use rustix::process::{Pid, Signal, kill_process_group};

use super::super::descendants;

/// In how many rounds no process must be found before the reaper itself is killed. A healthy reaper has ended by then; one that was stopped
/// has not, and a single listing can miss a process whose parent has just ended.
const EMPTY_ROUNDS: u32 = 5;

/// A tree.
#[derive(Debug)]
pub(super) struct Guarded {
    reaper: Option<Pid>,
    group: Option<Pid>,
    /// What its life hangs on.
    pub(super) hold: u64,
    handle: ReaperHandle,
    /// The number of the last rounds that found no process; none as long as the tree may run.
    empty_rounds: Option<u32>,
}

impl Guarded {
    /// Takes a tree into guard. Its reaper is alive, because its supervisor waits for the answer.
    pub(super) fn new(reaper: i32, group: i32, hold: u64) -> Guarded {
        let reaper = Pid::from_raw(reaper);
        let handle = ReaperHandle::open(reaper);
        Guarded { reaper, group: Pid::from_raw(group), hold, handle, empty_rounds: None }
    }

    /// From now on it is killed.
    pub(super) fn condemn(&mut self) {
        self.empty_rounds = Some(0);
    }

    /// Whether it is to be killed and not gone.
    pub(super) fn is_dying(&self) -> bool {
        self.empty_rounds.is_some()
    }

    /// Kills what there is of it now.
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
                // Without /proc, the group is what can be reached. A group that is gone already is as wanted.
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
