//! The queue before the write lock: `flock` on a file of its own.
//!
//! SQLite's own lock goes to the process that polls at the right instant. With sixteen processes some waited for over a
//! second, which is much of a lease. `flock` sleeps in the kernel and wakes in order. It is no more than a queue:
//! SQLite's lock is still taken inside it, and alone keeps the file consistent.
//!
//! The file holds the pid of the writing process, so that a waiting process can report it. Behind it is a number that changes
//! with every successful turn: a waiter is patient while the queue makes progress, and fails when it makes none.

use std::fs::{File, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::clock::{BootClock, Clock};
use crate::store::StoreError;
use crate::store::file::error::of_side_file;
use crate::store::file::identity::FileIdentity;
use crate::store::file::side_file;

/// How many bytes a pid takes in the file, blanks included, so that a shorter one overwrites a longer one whole.
const PID_BYTES: usize = 12;

/// One process in the queue for the write lock.
#[derive(Debug)]
pub(super) struct WriteQueue {
    path: PathBuf,
    file: File,
    pid: String,
}

impl WriteQueue {
    pub(super) fn open(path: &Path) -> Result<WriteQueue, StoreError> {
        let pid = format!("{:<width$}\n", std::process::id(), width = PID_BYTES - 1);
        let file = side_file::open(path)?;
        Ok(WriteQueue { path: path.to_owned(), file, pid })
    }

    /// Waits for the turn of this process, without a timeout. `waiting` is called before the thread has to wait.
    ///
    /// The turn ends when it is dropped, and also when the process dies.
    pub(super) fn wait(&mut self, mut waiting: impl FnMut()) -> Result<WriteTurn<'_>, StoreError> {
        self.acquire(&mut waiting)?;
        Ok(WriteTurn { file: &self.file })
    }

    /// Takes the turn if no other process has it.
    pub(super) fn try_now(&mut self) -> Option<WriteTurn<'_>> {
        self.file.try_lock().ok()?;
        Some(WriteTurn { file: &self.file })
    }

    fn acquire(&mut self, waiting: &mut impl FnMut()) -> Result<(), StoreError> {
        let cannot = |error: &std::io::Error| of_side_file(&self.path.display().to_string(), error);
        loop {
            match self.file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    waiting();
                    self.file.lock().map_err(|error| cannot(&error))?;
                }
                Err(TryLockError::Error(error)) => return Err(cannot(&error)),
            }
            // The file may have been removed, and others may queue at a new one: join them.
            let opened = FileIdentity::of(&self.file.metadata().map_err(|error| cannot(&error))?);
            if FileIdentity::at(&self.path)? == Some(opened) {
                break;
            }
            self.file = side_file::open(&self.path)?;
        }
        self.file.write_all_at(self.pid.as_bytes(), 0).map_err(|error| cannot(&error))
    }
}

/// The right to write, until it is dropped.
#[derive(Debug)]
pub(super) struct WriteTurn<'a> {
    file: &'a File,
}

impl WriteTurn<'_> {
    /// Ends a successful turn, and shows the waiting processes that the queue makes progress.
    pub(super) fn succeed(self) {
        let stamp = format!("{:020}\n", BootClock.now().since_origin().as_nanos());
        // Without the stamp a waiting request may fail too early, nothing more.
        let _ = self.file.write_all_at(stamp.as_bytes(), PID_BYTES as u64);
    }
}

impl Drop for WriteTurn<'_> {
    fn drop(&mut self) {
        // It cannot fail for an open file, and the kernel releases the lock with the process at the latest.
        let _ = self.file.unlock();
    }
}

/// What the lock file shows to waiting processes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct LockFileContent {
    /// The process that writes now, or wrote last.
    pub(super) pid: Option<u32>,
    /// Changes with every successful turn. It is only compared, never interpreted.
    pub(super) stamp: Vec<u8>,
}

/// Reads the lock file.
pub(super) fn read_lock_file(path: &Path) -> LockFileContent {
    let mut bytes = [0; PID_BYTES + 21];
    let Ok(len) = side_file::open(path).and_then(|file| {
        file.read_at(&mut bytes, 0).map_err(|error| of_side_file(&path.display().to_string(), &error))
    }) else {
        return LockFileContent::default();
    };
    let (pid, stamp) = bytes[..len].split_at(PID_BYTES.min(len));
    let pid = std::str::from_utf8(pid).ok().and_then(|pid| pid.trim().parse().ok());
    LockFileContent { pid, stamp: stamp.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_turn_is_exclusive_and_names_its_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db.lock");
        let (mut first, mut second) = (WriteQueue::open(&path).unwrap(), WriteQueue::open(&path).unwrap());
        let turn = first.wait(|| panic!("the lock is free")).unwrap();
        assert!(second.try_now().is_none());
        let before = read_lock_file(&path);
        assert_eq!(before.pid, Some(std::process::id()));
        drop(turn);
        assert_eq!(read_lock_file(&path), before, "a turn without success is no progress");
        first.wait(|| {}).unwrap().succeed();
        assert_ne!(read_lock_file(&path).stamp, before.stamp);
        assert_eq!(read_lock_file(&path).pid, before.pid);
        assert!(second.try_now().is_some());
    }

    #[test]
    fn removed_lock_file_is_rejoined() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db.lock");
        let mut first = WriteQueue::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut second = WriteQueue::open(&path).unwrap();
        let turn = first.wait(|| {}).unwrap();
        assert!(second.try_now().is_none());
        drop(turn);
    }
}
