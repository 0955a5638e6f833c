//! The descendants of a process, also those that left its process group or its session.
//!
//! `/proc` is not a snapshot: a listing can miss a process if its parent has just ended.
//! That process becomes a child of the subreaper, so the next listing finds it. Killing is therefore repeated until none is left, and any
//! other signal is sent after two listings that agree.
//!
//! **Invariant**: a signal goes to the process that was listed, never to a later process with the same number.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::group::Stat;

/// The pause between two rounds of killing: the kernel needs about a millisecond to end a process, and a round costs about as much.
pub(super) const ROUND_EVERY: Duration = Duration::from_millis(5);

/// The maximum of listings before a signal is sent. Two are enough unless the tree changes all the time, and such a tree must not delay
/// its own stop.
const READINGS_MAX: usize = 8;

/// A descendant that runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Descendant {
    pub(super) pid: Pid,
    /// Its process group; `None` if that is outside of this pid namespace.
    pub(super) group: Option<Pid>,
    name: String,
    /// When it started, in ticks since boot: distinguishes it from a later process with the same pid.
    start: Option<u64>,
}

impl fmt::Display for Descendant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.pid.as_raw_nonzero(), self.name)
    }
}

/// Lists the running descendants of a process, without the process itself and without zombies.
///
/// # Errors
///
/// If `/proc` is missing, or belongs to another pid namespace, where the same pids mean other processes.
pub(super) fn of(root: Pid) -> io::Result<Vec<Descendant>> {
    if !is_own_proc() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let table = if has_children_files() { None } else { Some(children_of_all()?) };
    let children = |pid: Pid| match &table {
        None => children_of(pid),
        Some(table) => table.get(&pid).cloned().unwrap_or_default(),
    };
    let (mut found, mut next) = (Vec::new(), children(root));
    while let Some(pid) = next.pop() {
        next.extend(children(pid));
        found.extend(Descendant::read(pid).filter(|(_, is_running)| *is_running).map(|(process, _)| process));
    }
    Ok(found)
}

/// Sends a signal to all running descendants for which `is_target` holds, and returns how many got it.
/// Processes of another user cannot be signalled and do not count.
///
/// # Errors
///
/// As [`of`].
pub(super) fn signal(
    root: Pid,
    signal: Signal,
    is_target: impl Fn(&Descendant) -> bool,
) -> io::Result<usize> {
    // The caller repeats SIGKILL. Any other signal is sent once: a second one could hit a process that a handler of the first has started.
    let found = if signal == Signal::KILL { of(root)? } else { settled(|| of(root))? };
    Ok(found.iter().filter(|process| is_target(process) && process.send(signal).is_ok()).count())
}

/// Lists until a listing shows no new process.
fn settled(mut read: impl FnMut() -> io::Result<Vec<Descendant>>) -> io::Result<Vec<Descendant>> {
    let mut found = read()?;
    for _ in 1..READINGS_MAX {
        let known = found.len();
        for process in read()? {
            // An exec changes the name, but not the pid and the start time.
            let is_known = |known: &Descendant| (known.pid, known.start) == (process.pid, process.start);
            if !found.iter().any(is_known) {
                found.push(process);
            }
        }
        if found.len() == known {
            break;
        }
    }
    Ok(found)
}

impl Descendant {
    fn read(pid: Pid) -> Option<(Descendant, bool)> {
        // The process may have ended since it was listed.
        let text = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        let stat = Stat::parse(&text)?;
        let process = Descendant { pid, group: stat.group, name: stat.name.to_owned(), start: stat.start };
        Some((process, stat.is_running))
    }

    /// Whether the process handles a signal.
    pub(super) fn catches(&self, signal: Signal) -> bool {
        let status = format!("/proc/{}/status", self.pid.as_raw_nonzero());
        let status = fs::read_to_string(status).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        mask & (1 << (signal.as_raw() - 1)) != 0
    }

    fn is_same(&self) -> bool {
        Descendant::read(self.pid).is_some_and(|(now, _)| now.start == self.start)
    }

    #[cfg(target_os = "linux")]
    fn send(&self, signal: Signal) -> Result<(), Errno> {
        use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
        match pidfd_open(self.pid, PidfdFlags::empty()) {
            // A pidfd keeps referring to one process, so the start time is compared after the pidfd was opened.
            Ok(handle) if self.is_same() => pidfd_send_signal(handle, signal),
            Ok(_) => Err(Errno::SRCH),
            // A kernel before 5.3, or no free descriptor.
            Err(Errno::NOSYS | Errno::MFILE | Errno::NFILE) if self.is_same() => {
                kill_process(self.pid, signal)
            }
            Err(error) => Err(error),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn send(&self, signal: Signal) -> Result<(), Errno> {
        if self.is_same() { kill_process(self.pid, signal) } else { Err(Errno::SRCH) }
    }
}

/// Whether `/proc` belongs to the pid namespace of this process. `unshare --pid` without a new mount keeps the old `/proc`, where the pids of this
/// namespace belong to other processes.
fn is_own_proc() -> bool {
    let link = fs::read_link("/proc/self").ok();
    let number = link.as_ref().and_then(|link| link.to_str()).and_then(|text| text.parse::<u32>().ok());
    number == Some(std::process::id())
}

/// Whether the kernel has these files. It may be built without them; then all of `/proc` is read.
fn has_children_files() -> bool {
    fs::exists("/proc/thread-self/children").unwrap_or(false)
}

/// The children of a process. Each thread lists the children that it forked.
pub(super) fn children_of(pid: Pid) -> Vec<Pid> {
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) else { return Vec::new() };
    let text = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    text.flat_map(|text| text.split_whitespace().filter_map(parse_pid).collect::<Vec<_>>()).collect()
}

fn children_of_all() -> io::Result<HashMap<Pid, Vec<Pid>>> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(parse_pid) else { continue };
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some(parent) = Stat::parse(&text).and_then(|stat| stat.parent) {
            children.entry(parent).or_default().push(pid);
        }
    }
    Ok(children)
}

fn parse_pid(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Kernels without the `children` files have only the table of all processes.
    #[cfg(target_os = "linux")]
    #[test]
    fn children_files_and_process_table_agree() {
        let mut child = Command::new("sleep").arg("20").stdout(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        let own = Pid::from_raw(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(children_of(own).contains(&pid));
        assert!(children_of_all().unwrap()[&own].contains(&pid));
        assert!(of(own).unwrap().iter().any(|process| process.pid == pid));
        signal(own, Signal::KILL, |process| process.pid == pid).unwrap();
        child.wait().unwrap();
        assert!(!of(own).unwrap().iter().any(|process| process.pid == pid));
    }

    /// The first listing showed neither the parent, which had ended, nor its child, which the reaper had not adopted yet: a stop did not reach the child.
    #[test]
    fn process_missed_by_one_reading_is_signalled() {
        let process = |pid| Descendant {
            pid: Pid::from_raw(pid).unwrap(),
            group: None,
            name: "sleep".to_owned(),
            start: Some(1),
        };
        let mut readings = [vec![1], vec![1, 2], vec![2, 1]].into_iter();
        let read = || Ok(readings.next().unwrap().into_iter().map(process).collect());
        assert_eq!(settled(read).unwrap(), [process(1), process(2)]);
        assert_eq!(readings.next(), None, "two listings agree");
        let mut count = 0;
        let changing = settled(|| {
            count += 1;
            Ok(vec![process(count)])
        });
        assert_eq!(
            changing.unwrap().len(),
            READINGS_MAX,
            "a tree that changes all the time is signalled too"
        );
    }

    /// No signal is sent if the pid belongs to another process in the meantime.
    #[cfg(target_os = "linux")]
    #[test]
    fn reused_pid_is_not_signalled() {
        let mut child = Command::new("sleep").arg("20").stdout(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        let (mut process, _) = Descendant::read(pid).unwrap();
        process.start = process.start.map(|start| start + 1);
        assert_eq!(process.send(Signal::KILL), Err(Errno::SRCH));
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
