//! What every process records: one line for each request, reply, check of a hold and action.
//!
//! Lines are JSON, stamped with the time since boot, which all processes of the machine share, so
//! that no clocks have to be compared. Each line is one `write`: a killed process loses at most the
//! line that it was about to write.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tenure::clock::{BootClock, Clock};

/// Nanoseconds since the machine was started.
pub type Stamp = u64;

/// What time it is.
pub fn now() -> Stamp {
    stamp(BootClock.now().since_origin())
}

/// A time since boot as a stamp.
pub fn stamp(since_boot: std::time::Duration) -> Stamp {
    u64::try_from(since_boot.as_nanos()).unwrap_or(u64::MAX)
}

/// A line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryLine {
    /// When it was written; of a look, when it began.
    pub at: Stamp,
    /// Its content.
    #[serde(flatten)]
    pub event: HistoryEvent,
}

/// The content of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum HistoryEvent {
    /// An operation begins.
    Asked {
        /// Its number in this history.
        op: u64,
        /// What kind of work it is.
        work: OperationKind,
        /// The lock, the key, the task.
        line: String,
        /// What is written, where something is.
        value: Option<String>,
    },
    /// An operation has ended.
    Answered {
        /// Its number in this history.
        op: u64,
        /// How.
        outcome: OperationOutcome,
        /// The token that came of it, or the revision of a write.
        token: Option<i64>,
        /// What was read, or why it failed.
        value: Option<String>,
    },
    /// The client checked its hold, and it was valid.
    Believed {
        /// What it holds.
        line: String,
        /// Under which token.
        token: i64,
        /// On which lease.
        lease: Option<i64>,
        /// When the look was over.
        by: Stamp,
        /// Until when it is certainly valid, as reported to the client.
        until: Stamp,
    },
    /// The client does not rely on its hold any more.
    Ended {
        /// What it held.
        line: String,
        /// Under which token.
        token: i64,
        /// Why.
        how: HoldEnd,
    },
    /// The protected resource refused the client, which then checked its hold.
    Refused {
        /// What it holds.
        line: String,
        /// Under which token.
        token: i64,
        /// Whether its hold was still valid.
        believed: bool,
    },
    /// A key is wanted with this value, or not any more.
    Wanted {
        /// The key.
        key: String,
        /// The value; none if it is to go.
        value: Option<String>,
    },
    /// A command was sent.
    Sent {
        /// Its id.
        command: String,
    },
    /// The sender received the result.
    Told {
        /// Its id.
        command: String,
        /// The result.
        outcome: String,
    },
    /// No operation is in flight any more, and every registration is there.
    Settled,
    /// The process is about to end.
    Left {
        /// Tasks of the runtime that are still alive.
        tasks: usize,
        /// Open files before there was a store.
        fds_before: usize,
        /// Open files after it was closed.
        fds_after: usize,
        /// What could not be put away.
        trouble: Option<String>,
    },
}

/// Kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// A lock is requested.
    Lock,
    /// A lock is released.
    Release,
    /// What it protects is read and written.
    Count,
    /// A candidate campaigns.
    Campaign,
    /// A leader resigns.
    Resign,
    /// A leader writes the register.
    Write,
    /// A client reads it.
    Read,
    /// A key is registered.
    Register,
    /// A task is submitted.
    Submit,
    /// A handler runs.
    Run,
    /// A command is sent.
    Command,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationOutcome {
    /// It was done.
    Ok,
    /// Certainly without effect.
    No,
    /// The operation may have been applied.
    Unknown,
}

/// Why a client does not rely on its hold any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldEnd {
    /// It was valid, and its holder gives it back.
    GivenUp,
    /// A check showed that it is not valid any more.
    Lost,
}

/// Writes a history.
#[derive(Debug)]
pub struct HistoryWriter {
    file: File,
    ops: AtomicU64,
}

impl HistoryWriter {
    /// Opens a new history, or continues one.
    ///
    /// # Errors
    ///
    /// The error of the file system.
    pub fn open(path: &Path) -> std::io::Result<HistoryWriter> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(HistoryWriter { file, ops: AtomicU64::new(0) })
    }

    /// Writes a line.
    ///
    /// # Panics
    ///
    /// If it cannot be written: a process that cannot record what it does must not do it.
    pub fn record(&self, event: HistoryEvent) {
        self.record_at(now(), event);
    }

    /// Writes a line about an earlier moment.
    ///
    /// # Panics
    ///
    /// As [`HistoryWriter::record`], with the time stamp as an argument.
    pub fn record_at(&self, at: Stamp, event: HistoryEvent) {
        let mut text = serde_json::to_vec(&HistoryLine { at, event }).expect("a line is plain data");
        text.push(b'\n');
        (&self.file).write_all(&text).expect("a history can be written");
    }

    /// An operation begins; its number.
    pub fn begin(&self, work: OperationKind, line: &str, value: Option<String>) -> u64 {
        let op = self.ops.fetch_add(1, Ordering::Relaxed);
        self.record(HistoryEvent::Asked { op, work, line: line.to_owned(), value });
        op
    }

    /// An operation has ended.
    pub fn end(&self, op: u64, outcome: OperationOutcome, token: Option<i64>, value: Option<String>) {
        self.record(HistoryEvent::Answered { op, outcome, token, value });
    }
}

/// Reads a history. A torn last line is what a killed process leaves; a torn line elsewhere is an error.
///
/// # Errors
///
/// The error of the file system, or the malformed line.
pub fn read(path: &Path) -> Result<Vec<HistoryLine>, String> {
    read_on(path, &mut 0)
}

/// Reads what was written since the last time, and moves `offset` behind it.
///
/// # Errors
///
/// As [`read`].
pub fn read_on(path: &Path, offset: &mut u64) -> Result<Vec<HistoryLine>, String> {
    let describe = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = File::open(path).map_err(describe)?;
    file.seek(SeekFrom::Start(*offset)).map_err(describe)?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(describe)?;
    let whole = whole(&text);
    *offset += u64::try_from(whole).unwrap_or(0);
    parse(&text[..whole]).map_err(|error| format!("{}: {error}", path.display()))
}

/// How many bytes are whole lines.
fn whole(text: &[u8]) -> usize {
    text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)
}

fn parse(text: &[u8]) -> Result<Vec<HistoryLine>, String> {
    let whole = whole(text);
    let lines = text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .enumerate()
        .map(|(number, line)| {
            serde_json::from_slice(line).map_err(|error| format!("line {}: {error}", number + 1))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_survives_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("h");
        let writer = HistoryWriter::open(&path).unwrap();
        let op = writer.begin(OperationKind::Lock, "lock:a", None);
        writer.end(op, OperationOutcome::Ok, Some(7), None);
        writer.record(HistoryEvent::Believed {
            line: "lock:a".to_owned(),
            token: 7,
            lease: None,
            by: 2,
            until: 9,
        });
        let lines = read(&path).unwrap();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].at <= lines[1].at && lines[1].at <= lines[2].at);
        assert!(matches!(
            &lines[1].event,
            HistoryEvent::Answered { op: 0, outcome: OperationOutcome::Ok, token: Some(7), .. }
        ));
    }

    #[test]
    fn only_torn_last_line_is_tolerated() {
        let good = b"{\"at\":1,\"event\":\"settled\"}\n";
        assert_eq!(parse(&[good, b"{\"at\":2,\"ev".as_slice()].concat()).unwrap().len(), 1);
        assert!(parse(&[b"{\"at\":2,\"ev\n".as_slice(), good].concat()).is_err());
    }
}
