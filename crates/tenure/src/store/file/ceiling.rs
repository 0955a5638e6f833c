//! The revision that was never passed: what keeps tokens from repeating when the store itself has forgotten.
//!
//! A write-ahead log that is removed after a crash, or lost with the power, takes the last revisions with it, and
//! SQLite opens the rest without a word. Tokens that were handed out would then be handed out again. So a file beside the
//! store says, on disk, a number that no revision has passed; whoever opens a store that went back continues from there.
//!
//! **Invariant**: no revision above the number in the file is ever committed.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::store::file::fault::of_side_file;
use crate::store::{Revision, StoreError};

/// How far ahead the number runs: the disk is waited for once in so many revisions. Halving it doubles the waits;
/// doubling it doubles the jump after a crash of the machine, which costs nothing but digits.
pub(super) const RESERVED: i64 = 4_096;

/// The number, twice: as it is and with every bit turned over, so that a torn write is noticed.
const RECORD_BYTES: usize = 16;

/// The file with the number.
#[derive(Debug)]
pub(super) struct Ceiling {
    file: File,
    /// The number when it was last looked at; others may have raised it since.
    known: Revision,
    what: String,
}

impl Ceiling {
    /// Opens the file, and makes it if there is none. Called inside the write lock.
    pub(super) fn open(path: &Path) -> Result<Ceiling, StoreError> {
        let what = path.display().to_string();
        let open = || -> std::io::Result<File> {
            let exists = path.exists();
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)?;
            if !exists && let Some(folder) = path.parent() {
                // The name must survive a power loss too.
                File::open(folder)?.sync_all()?;
            }
            Ok(file)
        };
        let file = open().map_err(|error| of_side_file(&what, &error))?;
        let mut ceiling = Ceiling { file, known: Revision::ZERO, what };
        ceiling.look()?;
        Ok(ceiling)
    }

    /// The number; zero if the file is new or was destroyed.
    pub(super) fn known(&self) -> Revision {
        self.known
    }

    /// Makes sure that `next` may be committed after `committed`. Called inside the write lock.
    pub(super) fn reserve(&mut self, committed: Revision, next: Revision) -> Result<(), StoreError> {
        if next <= self.known {
            return Ok(());
        }
        self.look()?;
        if next <= self.known {
            return Ok(());
        }
        // Counted from what is committed: a crash right here must not look like a store that went back.
        self.raise(next.max(Revision(committed.0.saturating_add(RESERVED))))
    }

    fn raise(&mut self, to: Revision) -> Result<(), StoreError> {
        let mut record = [0; RECORD_BYTES];
        record[..8].copy_from_slice(&to.0.to_le_bytes());
        record[8..].copy_from_slice(&(!to.0).to_le_bytes());
        let write = || -> std::io::Result<()> {
            self.file.write_all_at(&record, 0)?;
            self.file.sync_data()
        };
        write().map_err(|error| of_side_file(&self.what, &error))?;
        self.known = to;
        Ok(())
    }

    fn look(&mut self) -> Result<(), StoreError> {
        let mut record = [0; RECORD_BYTES];
        match self.file.read_exact_at(&mut record, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(of_side_file(&self.what, &error)),
        }
        let half = |from: usize| {
            i64::from_le_bytes(record[from..from + 8].try_into().expect("half a record has eight bytes"))
        };
        if half(0) == !half(8) {
            self.known = self.known.max(Revision(half(0)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_is_raised_once_in_4096_revisions_and_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db.epoch");
        let mut ceiling = Ceiling::open(&path).unwrap();
        assert_eq!(ceiling.known(), Revision::ZERO);
        ceiling.reserve(Revision(1), Revision(2)).unwrap();
        assert_eq!(ceiling.known(), Revision(4_097));
        ceiling.reserve(Revision(4_096), Revision(4_097)).unwrap();
        assert_eq!(Ceiling::open(&path).unwrap().known(), Revision(4_097));
        ceiling.reserve(Revision(4_097), Revision(4_098)).unwrap();
        assert_eq!(Ceiling::open(&path).unwrap().known(), Revision(8_193));
    }

    #[test]
    fn a_ceiling_raised_by_another_process_is_never_lowered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db.epoch");
        let mut ours = Ceiling::open(&path).unwrap();
        ours.reserve(Revision(1), Revision(2)).unwrap();
        Ceiling::open(&path).unwrap().reserve(Revision(9_000), Revision(9_001)).unwrap();
        ours.reserve(Revision(4_097), Revision(4_098)).unwrap();
        assert_eq!(Ceiling::open(&path).unwrap().known(), Revision(9_000 + RESERVED));
    }

    #[test]
    fn a_destroyed_ceiling_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db.epoch");
        std::fs::write(&path, [7; RECORD_BYTES]).unwrap();
        assert_eq!(Ceiling::open(&path).unwrap().known(), Revision::ZERO);
    }
}
