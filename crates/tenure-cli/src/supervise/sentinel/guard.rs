//! The sentinel's own process: reads words, looks at the clock, kills.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use tenure::clock::{BootClock, Clock};
use tenure::core::time::Moment;

use super::super::signals;
use super::GUARDING;
use super::alarm::Alarm;

/// Who asks everybody of a service to end means us too, but we end last.
const DEAF_TO: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// Guards until it is told goodbye, or until it had to kill.
pub(crate) fn run() -> ExitCode {
    let deafness = deafen();
    let done = Alarm::new().and_then(|alarm| Guard::default().stand(&alarm));
    drop(deafness);
    if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A handler that does nothing is the nearest to ignoring that there is without unsafe code.
fn deafen() -> io::Result<(tokio::runtime::Runtime, Vec<tokio::signal::unix::Signal>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let streams = {
        let _inside = runtime.enter();
        DEAF_TO.into_iter().map(signals::stream).collect::<io::Result<Vec<_>>>()?
    };
    Ok((runtime, streams))
}

/// What it knows.
#[derive(Default)]
struct Guard {
    /// The groups, each with what its life hangs on.
    groups: BTreeMap<i32, u64>,
    /// When to kill those that hang on it.
    until: BTreeMap<u64, Moment>,
    /// The beginning of a word.
    rest: Vec<u8>,
}

/// What a word means.
#[derive(PartialEq, Eq, Debug)]
enum Word {
    Guard { group: i32, hold: u64 },
    Until { hold: u64, kill: Option<Moment> },
    Leave { group: i32 },
    Done,
}

impl Guard {
    fn stand(mut self, alarm: &Alarm) -> io::Result<()> {
        let stdin = io::stdin();
        loop {
            let is_readable = self.wait(alarm, stdin.as_fd())?;
            // Words first: one that was written in time counts, however late we come to read it.
            if is_readable {
                match self.hear(stdin.as_fd()) {
                    Ok(Heard::Words) => {}
                    Ok(Heard::Goodbye) => return Ok(()),
                    Ok(Heard::End) | Err(_) => {
                        self.groups.keys().for_each(|&group| kill(group));
                        return Ok(());
                    }
                }
            }
            self.kill_due(BootClock.now());
        }
    }

    /// Waits for a word or for the time. Says whether there is a word.
    fn wait(&self, alarm: &Alarm, stdin: BorrowedFd<'_>) -> io::Result<bool> {
        let next = self.until.values().min().copied();
        alarm.set(next)?;
        match alarm.wait(stdin, next) {
            Err(Errno::INTR) => Ok(false),
            waited => Ok(waited?),
        }
    }

    fn hear(&mut self, stdin: BorrowedFd<'_>) -> io::Result<Heard> {
        let mut bytes = [0; 1_024];
        let len = match rustix::io::read(stdin, &mut bytes) {
            Err(Errno::INTR) => return Ok(Heard::Words),
            read => read?,
        };
        if len == 0 {
            return Ok(Heard::End);
        }
        self.rest.extend_from_slice(&bytes[..len]);
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            match Word::parse(&line) {
                Some(Word::Done) => return Ok(Heard::Goodbye),
                Some(word) => self.obey(&word)?,
                // We and the other end are one program.
                None => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(Heard::Words)
    }

    fn obey(&mut self, word: &Word) -> io::Result<()> {
        match *word {
            Word::Guard { group, hold } => {
                self.groups.insert(group, hold);
                let mut stdout = io::stdout();
                stdout.write_all(GUARDING)?;
                stdout.flush()?;
            }
            Word::Until { hold, kill: Some(kill) } => drop(self.until.insert(hold, kill)),
            Word::Until { hold, kill: None } => drop(self.until.remove(&hold)),
            Word::Leave { group } => {
                if let Some(hold) = self.groups.remove(&group)
                    && !self.groups.values().any(|&other| other == hold)
                {
                    self.until.remove(&hold);
                }
            }
            Word::Done => {}
        }
        Ok(())
    }

    /// Kills everybody whose time is over. Once is enough; a group cannot come back.
    fn kill_due(&mut self, now: Moment) {
        let due: Vec<u64> =
            self.until.iter().filter(|(_, kill)| **kill <= now).map(|(hold, _)| *hold).collect();
        for hold in due {
            self.until.remove(&hold);
            self.groups.iter().filter(|(_, other)| **other == hold).for_each(|(&group, _)| kill(group));
        }
    }
}

fn kill(group: i32) {
    if let Some(group) = Pid::from_raw(group) {
        // A group that is gone already is what we want.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

enum Heard {
    Words,
    Goodbye,
    End,
}

impl Word {
    fn parse(line: &[u8]) -> Option<Word> {
        let line = std::str::from_utf8(line).ok()?.trim_end();
        let words: Vec<&str> = line.split(' ').collect();
        let group = |text: &str| text.parse().ok().filter(|&group: &i32| group > 0);
        match words[..] {
            ["guard", of, hold] => Some(Word::Guard { group: group(of)?, hold: hold.parse().ok()? }),
            ["until", hold, "never"] => Some(Word::Until { hold: hold.parse().ok()?, kill: None }),
            ["until", hold, ns] => {
                let since_boot = Duration::from_nanos(ns.parse().ok()?);
                let kill = Some(Moment::after_origin(since_boot));
                Some(Word::Until { hold: hold.parse().ok()?, kill })
            }
            ["leave", of] => Some(Word::Leave { group: group(of)? }),
            ["done"] => Some(Word::Done),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for (line, word) in [
            ("guard 4121 0\n", Some(Word::Guard { group: 4121, hold: 0 })),
            ("until 7 never\n", Some(Word::Until { hold: 7, kill: None })),
            ("until 7 1500000000\n", Some(Word::Until { hold: 7, kill: Some(Moment::from_ms(1_500)) })),
            ("leave 4121\n", Some(Word::Leave { group: 4121 })),
            ("done\n", Some(Word::Done)),
            ("guard 0 0\n", None),
            ("guard -1 0\n", None),
            ("guard 4121\n", None),
            ("until soon\n", None),
            ("", None),
        ] {
            assert_eq!(Word::parse(line.as_bytes()), word, "{line:?}");
        }
    }

    #[test]
    fn the_end_of_one_hold_says_nothing_of_the_others() {
        let mut guard = Guard { groups: BTreeMap::from([(i32::MAX, 1)]), ..Guard::default() };
        guard.obey(&Word::Until { hold: 1, kill: Some(Moment::from_ms(1_000)) }).unwrap();
        guard.obey(&Word::Until { hold: 2, kill: Some(Moment::from_ms(5_000)) }).unwrap();
        guard.kill_due(Moment::from_ms(1_000));
        assert_eq!(guard.until, BTreeMap::from([(2, Moment::from_ms(5_000))]));
    }

    #[test]
    fn a_hold_is_forgotten_with_its_last_group() {
        let mut guard = Guard { groups: BTreeMap::from([(10, 1), (11, 1)]), ..Guard::default() };
        guard.obey(&Word::Until { hold: 1, kill: Some(Moment::from_ms(1_000)) }).unwrap();
        guard.obey(&Word::Leave { group: 10 }).unwrap();
        assert!(guard.until.contains_key(&1));
        guard.obey(&Word::Leave { group: 11 }).unwrap();
        assert!(guard.until.is_empty() && guard.groups.is_empty());
    }
}
