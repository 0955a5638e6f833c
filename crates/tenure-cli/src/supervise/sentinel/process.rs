//! The process of the sentinel: reads messages, watches deadlines, kills trees.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tenure::clock::{BootClock, Clock};
use tenure_core::time::Moment;

use super::super::{descendants, signals};
use super::GUARDING;
use super::killing::Guarded;
use super::timer::BootTimer;

/// Runs until the final message, or until it had to kill.
pub(crate) fn run() -> ExitCode {
    let handlers = signals::ignore_requests();
    let done = BootTimer::new().and_then(|timer| SentinelProcess::default().serve(&timer));
    drop(handlers);
    if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The guarded trees and their deadlines.
#[derive(Default)]
struct SentinelProcess {
    /// The trees by the pid of their reaper.
    trees: BTreeMap<i32, Guarded>,
    /// The deadline of each lease.
    until: BTreeMap<u64, Moment>,
    /// The received beginning of a message.
    rest: Vec<u8>,
}

/// A message of the supervisor.
#[derive(PartialEq, Eq, Debug)]
enum SentinelMessage {
    Guard { reaper: i32, group: i32, hold: u64 },
    Until { hold: u64, kill: Option<Moment> },
    Leave { reaper: i32 },
    Done,
}

impl SentinelProcess {
    fn serve(mut self, timer: &BootTimer) -> io::Result<()> {
        let stdin = io::stdin();
        loop {
            let is_readable = self.wait(timer, stdin.as_fd())?;
            // All messages are read before the clock: a deadline that was written in time counts, however late it is read. The pipe of a sentinel
            // that was stopped contains old deadlines, which later messages in it have moved.
            if is_readable {
                match self.read_all(stdin.as_fd()) {
                    Ok(MessageRead::Messages) => {}
                    Ok(MessageRead::Goodbye) => return Ok(()),
                    Ok(MessageRead::End) | Err(_) => {
                        self.kill_all();
                        return Ok(());
                    }
                }
            }
            self.kill_due(BootClock.now());
        }
    }

    /// Waits for a message or for the time. Returns whether there is a message.
    fn wait(&self, timer: &BootTimer, stdin: BorrowedFd<'_>) -> io::Result<bool> {
        let round =
            self.trees.values().any(Guarded::is_dying).then(|| BootClock.now() + descendants::ROUND_EVERY);
        let next = self.until.values().copied().chain(round).min();
        timer.set(next)?;
        match timer.wait(stdin, next) {
            Err(Errno::INTR) => Ok(false),
            waited => Ok(waited?),
        }
    }

    /// Reads until nothing is left to read.
    fn read_all(&mut self, stdin: BorrowedFd<'_>) -> io::Result<MessageRead> {
        loop {
            let read = self.read(stdin)?;
            if read != MessageRead::Messages || !is_readable(stdin)? {
                return Ok(read);
            }
        }
    }

    fn read(&mut self, stdin: BorrowedFd<'_>) -> io::Result<MessageRead> {
        let mut bytes = [0; 1_024];
        let len = match rustix::io::read(stdin, &mut bytes) {
            Err(Errno::INTR) => return Ok(MessageRead::Messages),
            read => read?,
        };
        if len == 0 {
            return Ok(MessageRead::End);
        }
        self.rest.extend_from_slice(&bytes[..len]);
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            match SentinelMessage::parse(&line) {
                Some(SentinelMessage::Done) => return Ok(MessageRead::Goodbye),
                Some(message) => self.apply(&message)?,
                // Both ends are the same program, so an unknown message means a broken pipe.
                None => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(MessageRead::Messages)
    }

    fn apply(&mut self, message: &SentinelMessage) -> io::Result<()> {
        match *message {
            SentinelMessage::Guard { reaper, group, hold } => {
                self.trees.insert(reaper, Guarded::new(reaper, group, hold));
                let mut stdout = io::stdout();
                stdout.write_all(GUARDING)?;
                stdout.flush()?;
            }
            SentinelMessage::Until { hold, kill: Some(kill) } => drop(self.until.insert(hold, kill)),
            SentinelMessage::Until { hold, kill: None } => drop(self.until.remove(&hold)),
            SentinelMessage::Leave { reaper } => {
                if let Some(gone) = self.trees.remove(&reaper)
                    && !self.trees.values().any(|other| other.hold == gone.hold)
                {
                    self.until.remove(&gone.hold);
                }
            }
            SentinelMessage::Done => {}
        }
        Ok(())
    }

    /// Kills every tree past its deadline, with one round each. The next wait is short while such a tree is left.
    fn kill_due(&mut self, now: Moment) {
        let due: Vec<u64> =
            self.until.iter().filter(|(_, kill)| **kill <= now).map(|(hold, _)| *hold).collect();
        for hold in due {
            self.until.remove(&hold);
            self.trees.values_mut().filter(|tree| tree.hold == hold).for_each(Guarded::condemn);
        }
        self.trees.values_mut().filter(|tree| tree.is_dying()).for_each(Guarded::kill);
    }

    /// Kills every tree, and returns when none is left.
    fn kill_all(&mut self) {
        self.trees.values_mut().for_each(Guarded::condemn);
        while self.trees.values().any(Guarded::is_dying) {
            self.trees.values_mut().filter(|tree| tree.is_dying()).for_each(Guarded::kill);
            std::thread::sleep(descendants::ROUND_EVERY);
        }
    }
}

fn is_readable(stdin: BorrowedFd<'_>) -> io::Result<bool> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut [PollFd::from_borrowed_fd(stdin, PollFlags::IN)], Some(&now)) {
        Err(Errno::INTR) => Ok(true),
        ready => Ok(ready? > 0),
    }
}

#[derive(PartialEq, Eq, Debug)]
enum MessageRead {
    Messages,
    Goodbye,
    End,
}

impl SentinelMessage {
    fn parse(line: &[u8]) -> Option<SentinelMessage> {
        let line = std::str::from_utf8(line).ok()?.trim_end();
        let fields: Vec<&str> = line.split(' ').collect();
        let pid = |text: &str| text.parse().ok().filter(|&pid: &i32| pid > 0);
        match fields[..] {
            ["guard", reaper, group, hold] => {
                let (reaper, group) = (pid(reaper)?, pid(group)?);
                Some(SentinelMessage::Guard { reaper, group, hold: hold.parse().ok()? })
            }
            ["until", hold, "never"] => Some(SentinelMessage::Until { hold: hold.parse().ok()?, kill: None }),
            ["until", hold, ns] => {
                let since_boot = Duration::from_nanos(ns.parse().ok()?);
                let kill = Some(Moment::after_origin(since_boot));
                Some(SentinelMessage::Until { hold: hold.parse().ok()?, kill })
            }
            ["leave", reaper] => Some(SentinelMessage::Leave { reaper: pid(reaper)? }),
            ["done"] => Some(SentinelMessage::Done),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with a reaper that does not exist: killing it has no effect.
    fn tree(hold: u64) -> Guarded {
        Guarded::new(i32::MAX, i32::MAX, hold)
    }

    #[test]
    fn messages_are_parsed_as_written() {
        for (line, message) in [
            ("guard 4120 4121 0\n", Some(SentinelMessage::Guard { reaper: 4120, group: 4121, hold: 0 })),
            ("until 7 never\n", Some(SentinelMessage::Until { hold: 7, kill: None })),
            (
                "until 7 1500000000\n",
                Some(SentinelMessage::Until { hold: 7, kill: Some(Moment::from_ms(1_500)) }),
            ),
            ("leave 4120\n", Some(SentinelMessage::Leave { reaper: 4120 })),
            ("done\n", Some(SentinelMessage::Done)),
            ("guard 0 4121 0\n", None),
            ("guard 4120 -1 0\n", None),
            ("guard 4120 4121\n", None),
            ("until soon\n", None),
            ("", None),
        ] {
            assert_eq!(SentinelMessage::parse(line.as_bytes()), message, "{line:?}");
        }
    }

    #[test]
    fn each_lease_has_its_own_deadline() {
        let mut sentinel = SentinelProcess {
            trees: BTreeMap::from([(1, tree(1)), (2, tree(2))]),
            ..SentinelProcess::default()
        };
        sentinel.apply(&SentinelMessage::Until { hold: 1, kill: Some(Moment::from_ms(1_000)) }).unwrap();
        sentinel.apply(&SentinelMessage::Until { hold: 2, kill: Some(Moment::from_ms(5_000)) }).unwrap();
        sentinel.kill_due(Moment::from_ms(999));
        assert_eq!(sentinel.until.len(), 2);
        sentinel.kill_due(Moment::from_ms(1_000));
        assert_eq!(sentinel.until, BTreeMap::from([(2, Moment::from_ms(5_000))]));
    }

    #[test]
    fn last_tree_removes_its_lease() {
        let mut sentinel = SentinelProcess {
            trees: BTreeMap::from([(10, tree(1)), (11, tree(1))]),
            ..SentinelProcess::default()
        };
        sentinel.apply(&SentinelMessage::Until { hold: 1, kill: Some(Moment::from_ms(1_000)) }).unwrap();
        sentinel.apply(&SentinelMessage::Leave { reaper: 10 }).unwrap();
        assert!(sentinel.until.contains_key(&1));
        sentinel.apply(&SentinelMessage::Leave { reaper: 11 }).unwrap();
        assert!(sentinel.until.is_empty() && sentinel.trees.is_empty());
    }

    /// The pipe of a sentinel that was stopped: a deadline that has passed, and a later one far behind it.
    #[test]
    fn backlog_is_read_to_the_newest_message() {
        let (reader, mut writer) = io::pipe().unwrap();
        for ms in 1..=500 {
            writeln!(writer, "until 7 {}", Duration::from_millis(ms).as_nanos()).unwrap();
        }
        let mut sentinel = SentinelProcess::default();
        assert_eq!(sentinel.read_all(reader.as_fd()).unwrap(), MessageRead::Messages);
        assert_eq!(sentinel.until, BTreeMap::from([(7, Moment::from_ms(500))]));
        writer.write_all(b"done\n").unwrap();
        assert_eq!(sentinel.read_all(reader.as_fd()).unwrap(), MessageRead::Goodbye);
        drop(writer);
        assert_eq!(sentinel.read_all(reader.as_fd()).unwrap(), MessageRead::End);
    }
}
