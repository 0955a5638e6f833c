//! The sentinel's own process: reads messages, reads the clock, kills.

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

/// Guards until it is told goodbye, or until it had to kill.
pub(crate) fn run() -> ExitCode {
    let deafness = signals::deafen();
    let done = BootTimer::new().and_then(|alarm| SentinelProcess::default().serve(&alarm));
    drop(deafness);
    if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What it knows.
#[derive(Default)]
struct SentinelProcess {
    /// The trees by the pid of their reaper, each with what its life hangs on.
    trees: BTreeMap<i32, Guarded>,
    /// When to kill those that hang on it.
    until: BTreeMap<u64, Moment>,
    /// The beginning of a message.
    rest: Vec<u8>,
}

/// What a message means.
#[derive(PartialEq, Eq, Debug)]
enum SentinelMessage {
    Guard { reaper: i32, group: i32, hold: u64 },
    Until { hold: u64, kill: Option<Moment> },
    Leave { reaper: i32 },
    Done,
}

impl SentinelProcess {
    fn serve(mut self, alarm: &BootTimer) -> io::Result<()> {
        let stdin = io::stdin();
        loop {
            let is_readable = self.wait(alarm, stdin.as_fd())?;
            // Messages first, up to the newest: one that was written in time counts, however late it is read. A sentinel that was stopped has
            // old deadlines in its pipe, which newer messages behind them have moved.
            if is_readable {
                match self.hear_all(stdin.as_fd()) {
                    Ok(MessageRead::Words) => {}
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
    fn wait(&self, alarm: &BootTimer, stdin: BorrowedFd<'_>) -> io::Result<bool> {
        let round =
            self.trees.values().any(Guarded::is_dying).then(|| BootClock.now() + descendants::ROUND_EVERY);
        let next = self.until.values().copied().chain(round).min();
        alarm.set(next)?;
        match alarm.wait(stdin, next) {
            Err(Errno::INTR) => Ok(false),
            waited => Ok(waited?),
        }
    }

    /// Reads until nothing is left to read.
    fn hear_all(&mut self, stdin: BorrowedFd<'_>) -> io::Result<MessageRead> {
        loop {
            let heard = self.hear(stdin)?;
            if heard != MessageRead::Words || !is_readable(stdin)? {
                return Ok(heard);
            }
        }
    }

    fn hear(&mut self, stdin: BorrowedFd<'_>) -> io::Result<MessageRead> {
        let mut bytes = [0; 1_024];
        let len = match rustix::io::read(stdin, &mut bytes) {
            Err(Errno::INTR) => return Ok(MessageRead::Words),
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
                Some(word) => self.obey(&word)?,
                // We and the other end are one program.
                None => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(MessageRead::Words)
    }

    fn obey(&mut self, word: &SentinelMessage) -> io::Result<()> {
        match *word {
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

    /// Kills every tree whose time is over, with one round for each; the next wait ends after a moment as long as one is not gone.
    fn kill_due(&mut self, now: Moment) {
        let due: Vec<u64> =
            self.until.iter().filter(|(_, kill)| **kill <= now).map(|(hold, _)| *hold).collect();
        for hold in due {
            self.until.remove(&hold);
            self.trees.values_mut().filter(|tree| tree.hold == hold).for_each(Guarded::condemn);
        }
        self.trees.values_mut().filter(|tree| tree.is_dying()).for_each(Guarded::kill);
    }

    /// Kills everything, and returns when it is gone.
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
    Words,
    Goodbye,
    End,
}

impl SentinelMessage {
    fn parse(line: &[u8]) -> Option<SentinelMessage> {
        let line = std::str::from_utf8(line).ok()?.trim_end();
        let words: Vec<&str> = line.split(' ').collect();
        let pid = |text: &str| text.parse().ok().filter(|&pid: &i32| pid > 0);
        match words[..] {
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

    /// A tree whose reaper does not exist: killing it changes nothing.
    fn tree(hold: u64) -> Guarded {
        Guarded::new(i32::MAX, i32::MAX, hold)
    }

    #[test]
    fn words_are_read_as_they_are_written() {
        for (line, word) in [
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
            assert_eq!(SentinelMessage::parse(line.as_bytes()), word, "{line:?}");
        }
    }

    #[test]
    fn the_end_of_one_hold_says_nothing_of_the_others() {
        let mut guard = SentinelProcess {
            trees: BTreeMap::from([(1, tree(1)), (2, tree(2))]),
            ..SentinelProcess::default()
        };
        guard.obey(&SentinelMessage::Until { hold: 1, kill: Some(Moment::from_ms(1_000)) }).unwrap();
        guard.obey(&SentinelMessage::Until { hold: 2, kill: Some(Moment::from_ms(5_000)) }).unwrap();
        guard.kill_due(Moment::from_ms(999));
        assert_eq!(guard.until.len(), 2);
        guard.kill_due(Moment::from_ms(1_000));
        assert_eq!(guard.until, BTreeMap::from([(2, Moment::from_ms(5_000))]));
    }

    #[test]
    fn a_hold_is_forgotten_with_its_last_tree() {
        let mut guard = SentinelProcess {
            trees: BTreeMap::from([(10, tree(1)), (11, tree(1))]),
            ..SentinelProcess::default()
        };
        guard.obey(&SentinelMessage::Until { hold: 1, kill: Some(Moment::from_ms(1_000)) }).unwrap();
        guard.obey(&SentinelMessage::Leave { reaper: 10 }).unwrap();
        assert!(guard.until.contains_key(&1));
        guard.obey(&SentinelMessage::Leave { reaper: 11 }).unwrap();
        assert!(guard.until.is_empty() && guard.trees.is_empty());
    }

    /// The pipe of a sentinel that was stopped: a deadline that has passed, and the newer one far behind it.
    #[test]
    fn backlog_is_read_to_the_newest_message() {
        let (reader, mut writer) = io::pipe().unwrap();
        for ms in 1..=500 {
            writeln!(writer, "until 7 {}", Duration::from_millis(ms).as_nanos()).unwrap();
        }
        let mut guard = SentinelProcess::default();
        assert_eq!(guard.hear_all(reader.as_fd()).unwrap(), MessageRead::Words);
        assert_eq!(guard.until, BTreeMap::from([(7, Moment::from_ms(500))]));
        writer.write_all(b"done\n").unwrap();
        assert_eq!(guard.hear_all(reader.as_fd()).unwrap(), MessageRead::Goodbye);
        drop(writer);
        assert_eq!(guard.hear_all(reader.as_fd()).unwrap(), MessageRead::End);
    }
}
