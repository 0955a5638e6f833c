//! The sentinel's own process: reads words, looks at the clock, kills.

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
    let done =
        Alarm::new().and_then(|alarm| Guard { group: None, until: None, alarm, rest: Vec::new() }.stand());
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
struct Guard {
    group: Option<Pid>,
    /// When to kill.
    until: Option<Moment>,
    alarm: Alarm,
    /// The beginning of a word.
    rest: Vec<u8>,
}

/// What a word means.
#[derive(PartialEq, Eq, Debug)]
enum Word {
    Guard(Pid),
    Until(Option<Moment>),
    Done,
}

impl Guard {
    fn stand(mut self) -> io::Result<()> {
        let stdin = io::stdin();
        loop {
            let is_readable = self.wait(stdin.as_fd())?;
            // Words first: one that was written in time counts, however late we come to read it.
            if is_readable {
                match self.hear(stdin.as_fd()) {
                    Ok(Heard::Words) => {}
                    Ok(Heard::Goodbye) => return Ok(()),
                    Ok(Heard::End) | Err(_) => {
                        self.kill();
                        return Ok(());
                    }
                }
            }
            if self.until.is_some_and(|until| BootClock.now() >= until) {
                self.kill();
                // Once is enough; the group cannot come back.
                self.until = None;
            }
        }
    }

    /// Waits for a word or for the time. Says whether there is a word.
    fn wait(&self, stdin: BorrowedFd<'_>) -> io::Result<bool> {
        self.alarm.set(self.until)?;
        match self.alarm.wait(stdin, self.until) {
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
                Some(Word::Guard(group)) => {
                    self.group = Some(group);
                    let mut stdout = io::stdout();
                    stdout.write_all(GUARDING)?;
                    stdout.flush()?;
                }
                Some(Word::Until(until)) => self.until = until,
                Some(Word::Done) => return Ok(Heard::Goodbye),
                // We and the other end are one program.
                None => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(Heard::Words)
    }

    fn kill(&self) {
        if let Some(group) = self.group {
            // A group that is gone already is what we want.
            let _ = kill_process_group(group, Signal::KILL);
        }
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
        match line.split_once(' ') {
            Some(("guard", group)) => group.parse().ok().and_then(Pid::from_raw).map(Word::Guard),
            Some(("until", "never")) => Some(Word::Until(None)),
            Some(("until", ns)) => {
                let since_boot = Duration::from_nanos(ns.parse().ok()?);
                Some(Word::Until(Some(Moment::after_origin(since_boot))))
            }
            None if line == "done" => Some(Word::Done),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        let pid = Pid::from_raw(4121).unwrap();
        for (line, word) in [
            ("guard 4121\n", Some(Word::Guard(pid))),
            ("until never\n", Some(Word::Until(None))),
            ("until 1500000000\n", Some(Word::Until(Some(Moment::from_ms(1_500))))),
            ("done\n", Some(Word::Done)),
            ("guard 0\n", None),
            ("guard\n", None),
            ("until soon\n", None),
            ("", None),
        ] {
            assert_eq!(Word::parse(line.as_bytes()), word, "{line:?}");
        }
    }
}
