//! A process group: the command and everything it starts, unless that leaves with `setsid` or `setpgid`.
//!
//! **Invariant**: the leader is reaped last, when nobody else of the group is left, so that until then the group's number cannot go to strangers.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use tokio::task::JoinHandle;

/// A group, named by the pid of its leader.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Group {
    leader: Pid,
}

/// A process of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Member {
    pub(super) pid: Pid,
    /// What the kernel calls it.
    name: String,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.pid.as_raw_nonzero(), self.name)
    }
}

impl Group {
    pub(super) fn led_by(leader: Pid) -> Group {
        Group { leader }
    }

    pub(super) fn leader(self) -> Pid {
        self.leader
    }

    /// Sends a signal to everybody in it. That nobody is left is no failure.
    pub(super) fn signal(self, signal: Signal) -> Result<(), Errno> {
        match kill_process_group(self.leader, signal) {
            Err(Errno::SRCH) => Ok(()),
            done => done,
        }
    }

    /// Sends a signal to those in it who catch it: nobody is ended by a question.
    pub(super) fn nudge(self, signal: Signal) {
        let others = self.others().into_iter().map(|member| member.pid);
        for pid in others.chain([self.leader]).filter(|pid| catches(*pid, signal)) {
            // One that is gone by now has nothing to say.
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether anybody is left, counting those that only wait to be reaped.
    pub(super) fn is_empty(self) -> bool {
        test_kill_process_group(self.leader) == Err(Errno::SRCH)
    }

    /// Who runs in it, besides the leader. Nobody is found where there is no /proc.
    pub(super) fn others(self) -> Vec<Member> {
        others_of(&HashSet::from([self])).remove(&self).unwrap_or_default()
    }
}

/// Who runs in these groups, besides their leaders, by one look at all processes.
pub(super) fn others_of(groups: &HashSet<Group>) -> HashMap<Group, Vec<Member>> {
    let mut others: HashMap<Group, Vec<Member>> = HashMap::new();
    let Ok(processes) = fs::read_dir("/proc") else { return others };
    let member = |entry: &fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        // A process that ends in between is no member any more.
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let stat = Stat::parse(&stat)?;
        let group = Group::led_by(stat.group?);
        let is_other = pid != group.leader && stat.is_running && groups.contains(&group);
        is_other.then(|| (group, Member { pid, name: stat.name.to_owned() }))
    };
    for (group, member) in processes.flatten().filter_map(|entry| member(&entry)) {
        others.entry(group).or_default().push(member);
    }
    others
}

/// Whether a process has a handler for a signal; not where there is no /proc.
fn catches(pid: Pid, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal.as_raw() - 1)) != 0
}

/// What we need of `/proc/…/stat`. Numbers from outside our namespace are zero there, and none here.
pub(super) struct Stat<'a> {
    name: &'a str,
    is_running: bool,
    pub(super) parent: Option<Pid>,
    pub(super) group: Option<Pid>,
    pub(super) session: Option<Pid>,
}

impl Stat<'_> {
    /// The name stands in parentheses and may itself hold some.
    pub(super) fn parse(text: &str) -> Option<Stat<'_>> {
        let (_, rest) = text.split_once('(')?;
        let (name, rest) = rest.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let is_running = !matches!(fields.next()?, "Z" | "X" | "x");
        let mut pid = || Some(Pid::from_raw(fields.next()?.parse().ok()?));
        Some(Stat { name, is_running, parent: pid()?, group: pid()?, session: pid()? })
    }
}

/// Waits until a process is gone, which need not be a child of ours; may be woken early, so look again.
///
/// A thread does the waiting, because no safe call gives the kernel's handle of a process to the runtime.
pub(super) fn gone(pid: Pid) -> JoinHandle<()> {
    tokio::task::spawn_blocking(move || {
        if !wait_for(pid) {
            std::thread::sleep(LOOK_AGAIN_AFTER);
        }
    })
}

/// False if the kernel cannot tell.
#[cfg(target_os = "linux")]
fn wait_for(pid: Pid) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{PidfdFlags, pidfd_open};
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => poll(&mut [PollFd::new(&process, PollFlags::IN)], None).is_ok(),
        Err(Errno::SRCH) => true,
        // Kernels before 5.3.
        Err(_) => false,
    }
}

#[cfg(not(target_os = "linux"))]
fn wait_for(_: Pid) -> bool {
    false
}

/// Where no event tells of an end: seldom enough to cost nothing, soon enough that nobody notices.
const LOOK_AGAIN_AFTER: std::time::Duration = std::time::Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_hide_the_group() {
        let stat = Stat::parse("77 (a) Z 1 (b) S 1 4120 4121 0 -1").unwrap();
        let pid = Pid::from_raw;
        assert_eq!((stat.name, stat.is_running), ("a) Z 1 (b", true));
        assert_eq!((stat.parent, stat.group, stat.session), (pid(1), pid(4120), pid(4121)));
        let zombie = Stat::parse("77 (sh) Z 0 0 0 0").unwrap();
        assert_eq!((zombie.is_running, zombie.group), (false, None));
        for odd in ["", "77", "77 (sh", "77 (sh)", "77 (sh) S 1 x"] {
            assert!(Stat::parse(odd).is_none(), "{odd:?}");
        }
    }
}
