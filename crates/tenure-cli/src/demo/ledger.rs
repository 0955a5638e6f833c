//! What tasks write about themselves: when each run began and ended, with its token. One file for each worker, appended to and never rewritten.
//!
//! A worker that is killed writes no ends; whoever killed it says when it was gone.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tenure::clock::{BootClock, Clock};

/// A line that a task writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) mark: Mark,
    pub(super) task: String,
    pub(super) token: i64,
    /// On the boot clock, which all processes of a machine share.
    pub(super) at_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    Begin,
    End,
}

impl Entry {
    fn to_line(&self) -> String {
        let mark = match self.mark {
            Mark::Begin => '+',
            Mark::End => '-',
        };
        format!("{mark} {} {} {}\n", self.token, self.at_ns, self.task)
    }

    fn parse(line: &str) -> Option<Entry> {
        let mut words = line.splitn(4, ' ');
        let mark = match words.next()? {
            "+" => Mark::Begin,
            "-" => Mark::End,
            _ => return None,
        };
        let token = words.next()?.parse().ok()?;
        let at_ns = words.next()?.parse().ok()?;
        Some(Entry { mark, token, at_ns, task: words.next()?.to_owned() })
    }
}

/// Now, in nanoseconds since boot.
pub(super) fn now_ns() -> u64 {
    u64::try_from(BootClock.now().since_origin().as_nanos()).unwrap_or(u64::MAX)
}

/// A worker's end of its file.
pub(super) struct Pen {
    file: File,
}

impl Pen {
    pub(super) fn open(path: &Path) -> io::Result<Pen> {
        Ok(Pen { file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    /// One call to the kernel: a line is there or not, whenever we are killed.
    pub(super) fn write(&self, entry: &Entry) -> io::Result<()> {
        (&self.file).write_all(entry.to_line().as_bytes())
    }
}

/// The other end: reads what has been added since the last time.
pub(super) struct Reader {
    path: PathBuf,
    read: u64,
}

impl Reader {
    pub(super) fn new(path: PathBuf) -> Reader {
        Reader { path, read: 0 }
    }

    /// What is new. A line that is not whole yet is left for the next time; one that makes no sense is an error.
    pub(super) fn news(&mut self) -> io::Result<Vec<Entry>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += u64::try_from(whole).unwrap_or(0);
        let odd = |line: &str| io::Error::other(format!("a worker wrote {line:?}"));
        text[..whole].lines().map(|line| Entry::parse(line).ok_or_else(|| odd(line))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_once_and_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1");
        let mut reader = Reader::new(path.clone());
        assert_eq!(reader.news().unwrap(), []);
        let pen = Pen::open(&path).unwrap();
        let entry = |mark, at_ns| Entry { mark, task: "a task".to_owned(), token: 7, at_ns };
        pen.write(&entry(Mark::Begin, 5)).unwrap();
        assert_eq!(reader.news().unwrap(), [entry(Mark::Begin, 5)]);
        let line = entry(Mark::End, 9).to_line();
        (&pen.file).write_all(&line.as_bytes()[..4]).unwrap();
        assert_eq!(reader.news().unwrap(), []);
        (&pen.file).write_all(&line.as_bytes()[4..]).unwrap();
        assert_eq!(reader.news().unwrap(), [entry(Mark::End, 9)]);
        (&pen.file).write_all(b"nonsense\n").unwrap();
        assert!(reader.news().is_err());
    }
}
