//! The ledger of a demo worker: when each run of a task began and ended, with its token. One append-only file for each worker.
//!
//! A killed worker writes no ends; the demo records when it killed the worker.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tenure::clock::{BootClock, Clock};

/// A line of the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LedgerEntry {
    pub(super) mark: LedgerMark,
    pub(super) task: String,
    pub(super) token: i64,
    /// On the boot clock, which all processes of a host share.
    pub(super) at_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LedgerMark {
    Begin,
    End,
}

impl LedgerEntry {
    fn to_line(&self) -> String {
        let mark = match self.mark {
            LedgerMark::Begin => '+',
            LedgerMark::End => '-',
        };
        format!("{mark} {} {} {}\n", self.token, self.at_ns, self.task)
    }

    fn parse(line: &str) -> Option<LedgerEntry> {
        let mut fields = line.splitn(4, ' ');
        let mark = match fields.next()? {
            "+" => LedgerMark::Begin,
            "-" => LedgerMark::End,
            _ => return None,
        };
        let token = fields.next()?.parse().ok()?;
        let at_ns = fields.next()?.parse().ok()?;
        Some(LedgerEntry { mark, token, at_ns, task: fields.next()?.to_owned() })
    }
}

/// Now, in nanoseconds since boot.
pub(super) fn now_ns() -> u64 {
    u64::try_from(BootClock.now().since_origin().as_nanos()).unwrap_or(u64::MAX)
}

/// Appends entries to a ledger.
pub(super) struct LedgerWriter {
    file: File,
}

impl LedgerWriter {
    pub(super) fn open(path: &Path) -> io::Result<LedgerWriter> {
        Ok(LedgerWriter { file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    /// Appends a line with one system call, so that a killed worker leaves whole lines only.
    pub(super) fn write(&self, entry: &LedgerEntry) -> io::Result<()> {
        (&self.file).write_all(entry.to_line().as_bytes())
    }
}

/// Reads the entries that were appended since the last read.
pub(super) struct LedgerReader {
    path: PathBuf,
    read: u64,
}

impl LedgerReader {
    pub(super) fn new(path: PathBuf) -> LedgerReader {
        LedgerReader { path, read: 0 }
    }

    /// Returns the new entries. An incomplete line is left for the next read; an invalid one is an error.
    pub(super) fn read_new(&mut self) -> io::Result<Vec<LedgerEntry>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += u64::try_from(whole).unwrap_or(0);
        let invalid = |line: &str| io::Error::other(format!("invalid line {line:?}"));
        text[..whole].lines().map(|line| LedgerEntry::parse(line).ok_or_else(|| invalid(line))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1");
        let mut reader = LedgerReader::new(path.clone());
        assert_eq!(reader.read_new().unwrap(), []);
        let writer = LedgerWriter::open(&path).unwrap();
        let entry = |mark, at_ns| LedgerEntry { mark, task: "a task".to_owned(), token: 7, at_ns };
        writer.write(&entry(LedgerMark::Begin, 5)).unwrap();
        assert_eq!(reader.read_new().unwrap(), [entry(LedgerMark::Begin, 5)]);
        let line = entry(LedgerMark::End, 9).to_line();
        (&writer.file).write_all(&line.as_bytes()[..4]).unwrap();
        assert_eq!(reader.read_new().unwrap(), []);
        (&writer.file).write_all(&line.as_bytes()[4..]).unwrap();
        assert_eq!(reader.read_new().unwrap(), [entry(LedgerMark::End, 9)]);
        (&writer.file).write_all(b"nonsense\n").unwrap();
        assert!(reader.read_new().is_err());
    }
}
