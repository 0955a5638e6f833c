//! The process group that a command leads.
//!
//! **Invariant**: the leader is reaped on request only. Until then the kernel cannot give the group's number to other processes.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

/// A group, named by the pid of its leader.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct ProcessGroup {
    leader: Pid,
}

impl ProcessGroup {
    pub(super) fn led_by(leader: Pid) -> ProcessGroup {
        ProcessGroup { leader }
    }

    pub(super) fn leader(self) -> Pid {
        self.leader
    }

    /// Sends a signal to all processes of the group. An empty group is no error.
    pub(super) fn signal(self, signal: Signal) -> Result<(), Errno> {
        match kill_process_group(self.leader, signal) {
            Err(Errno::SRCH) => Ok(()),
            done => done,
        }
    }

    /// Whether the leader has ended and is not reaped. False without `/proc`.
    pub(super) fn has_leader_ended(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.leader.as_raw_nonzero()));
        stat.is_ok_and(|text| Stat::parse(&text).is_some_and(|stat| !stat.is_running))
    }
}

/// The used fields of `/proc/…/stat`. A pid from outside of this pid namespace is 0 there, and `None` here.
pub(super) struct Stat<'a> {
    pub(super) name: &'a str,
    pub(super) is_running: bool,
    pub(super) parent: Option<Pid>,
    pub(super) group: Option<Pid>,
    pub(super) session: Option<Pid>,
    /// When it started, in ticks since boot.
    pub(super) start: Option<u64>,
}

impl Stat<'_> {
    /// Parses the line. The name is in parentheses and may itself contain some.
    pub(super) fn parse(text: &str) -> Option<Stat<'_>> {
        let (_, rest) = text.split_once('(')?;
        let (name, rest) = rest.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let is_running = !matches!(fields.next()?, "Z" | "X" | "x");
        let mut pid = || Some(Pid::from_raw(fields.next()?.parse().ok()?));
        let (parent, group, session) = (pid()?, pid()?, pid()?);
        // Field 22 of the line; the session is field 6.
        let start = fields.nth(15).and_then(|text| text.parse().ok());
        Some(Stat { name, is_running, parent, group, session, start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_parentheses_is_parsed() {
        let stat = Stat::parse("77 (a) Z 1 (b) S 1 4120 4121 0 -1").unwrap();
        let pid = Pid::from_raw;
        assert_eq!((stat.name, stat.is_running), ("a) Z 1 (b", true));
        assert_eq!((stat.parent, stat.group, stat.session), (pid(1), pid(4120), pid(4121)));
        assert_eq!(stat.start, None);
        let whole = "7 (sh) S 1 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 389211 2 3";
        assert_eq!(Stat::parse(whole).unwrap().start, Some(389_211));
        let zombie = Stat::parse("77 (sh) Z 0 0 0 0").unwrap();
        assert_eq!((zombie.is_running, zombie.group), (false, None));
        for odd in ["", "77", "77 (sh", "77 (sh)", "77 (sh) S 1 x"] {
            assert!(Stat::parse(odd).is_none(), "{odd:?}");
        }
    }
}
