//! The queue before the write lock: `flock` on a file of its own.
//!
//! SQLite's own lock is taken by whoever asks at the right instant, and with sixteen processes some waited for over a
//! second: that eats a lease. `flock` sleeps in the kernel and wakes when it is its turn. It is no more than a queue:
//! SQLite's lock is still taken inside it and alone keeps the file whole.
//!
//! The file holds the pid of the one who writes, so that those who wait for long can say for whom.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::store::StoreError;
use crate::store::file::fault::of_side_file;
use crate::store::file::guard::Identity;

/// How many bytes a pid takes in the file, blanks included, so that a shorter one overwrites a longer one whole.
const PID_BYTES: usize = 12;

/// One process's place in the queue.
#[derive(Debug)]
pub(super) struct WriteQueue {
    path: PathBuf,
    file: File,
    pid: String,
}

impl WriteQueue {
    pub(super) fn open(path: &Path) -> Result<WriteQueue, StoreError> {
        let pid = format!("{:<width$}\n", std::process::id(), width = PID_BYTES - 1);
        let file = open(path).map_err(|error| of_side_file(&path.display().to_string(), &error))?;
        Ok(WriteQueue { path: path.to_owned(), file, pid })
    }

    /// Waits for the turn of this process, however long it takes; `waiting` is called before it has to wait.
    ///
    /// The turn ends when it is dropped, and also when the process dies.
    pub(super) fn wait(&mut self, mut waiting: impl FnMut()) -> Result<Turn<'_>, StoreError> {
        self.acquire(&mut waiting).map_err(|error| of_side_file(&self.path.display().to_string(), &error))?;
        Ok(Turn { file: &self.file })
    }

    /// Takes the turn if nobody else has it.
    pub(super) fn try_now(&mut self) -> Option<Turn<'_>> {
        self.file.try_lock().ok()?;
        Some(Turn { file: &self.file })
    }

    fn acquire(&mut self, waiting: &mut impl FnMut()) -> std::io::Result<()> {
        loop {
            match self.file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    waiting();
                    self.file.lock()?;
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Somebody may have removed the file, and others may queue at a new one: join them.
            let is_ours = Identity::of(&self.file.metadata()?);
            if std::fs::metadata(&self.path).is_ok_and(|found| Identity::of(&found) == is_ours) {
                break;
            }
            self.file = open(&self.path)?;
        }
        self.file.write_all_at(self.pid.as_bytes(), 0)
    }
}

/// The right to write, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    file: &'a File,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // It cannot fail for a file that is open, and the kernel lets go of it with the process at the latest.
        let _ = self.file.unlock();
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// The pid of the process that writes now, or wrote last.
pub(super) fn holder_pid(path: &Path) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_the_turn_and_says_who_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db.lock");
        let (mut first, mut second) = (WriteQueue::open(&path).unwrap(), WriteQueue::open(&path).unwrap());
        let turn = first.wait(|| panic!("nobody else is there")).unwrap();
        assert!(second.try_now().is_none());
        assert_eq!(holder_pid(&path), Some(std::process::id()));
        drop(turn);
        assert!(second.try_now().is_some());
    }

    #[test]
    fn all_meet_at_the_new_file_when_the_old_one_was_removed() {
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
