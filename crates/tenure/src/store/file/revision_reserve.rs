//! The reserved revision: it keeps tokens from repeating when the store itself has lost its last revisions.
//!
//! A write-ahead log that is removed after a crash, or lost with the power, takes the last revisions with it, and
//! SQLite opens the database without an error. Tokens that were handed out would then be handed out again. So a file beside the
//! store holds, on disk, a revision that no commit has passed. An opener that finds a store with lost revisions continues from there.
//!
//! Two more records are not forced to disk, because they only have to outlive processes: the revision that was last committed, and
//! the identity of the database. A store below the first has lost commits; another identity means that the files are a copy, and
//! the original may have higher revisions.
//!
//! **Invariant**: no revision above the reserved one is ever committed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::store::file::error::of_side_file;
use crate::store::file::identity::FileIdentity;
use crate::store::file::rows::REVISION_MAX;
use crate::store::file::side_file;
use crate::store::{Revision, StoreError};

/// How many revisions are reserved at once: a commit waits for the disk once in so many revisions. Halving it doubles the waits;
/// doubling it doubles the jump after a crash of the machine, which costs nothing but digits.
pub(super) const RESERVED: i64 = 4_096;

/// A number, twice: as it is and with every bit inverted, so that a torn write is detected.
const RECORD_BYTES: usize = 16;

/// The offsets of the records: the reserved revision, the last committed revision, and the identity of the database with a second copy.
const RESERVE_AT: u64 = 0;
const LAST_AT: u64 = 16;
const IDENTITY_AT: u64 = 32;

/// The first revision of a new store, and the least to which revisions jump when a store may have forgotten some: microseconds since
/// 1970 on the wall clock.
///
/// A store never makes a million revisions each second, so every revision that an earlier store under the same path ever handed
/// out is smaller. It stays below 2^53, which JSON numbers hold exactly, until the year 2255. A wall clock that was set back is
/// the one thing that breaks this rule; the reserved revision still holds if its file exists.
pub(super) fn first_revision(wall_ms: i64) -> Revision {
    Revision(wall_ms.saturating_mul(1_000).clamp(1, REVISION_MAX / 2))
}

/// The file with the reserved revision.
#[derive(Debug)]
pub(super) struct RevisionReserve {
    file: File,
    /// The reserved revision when it was last read; other processes may have raised it since.
    known: Revision,
    what: String,
}

impl RevisionReserve {
    /// Opens the file, and makes it if there is none. Called inside the write lock.
    pub(super) fn open(path: &Path) -> Result<RevisionReserve, StoreError> {
        let what = path.display().to_string();
        let exists = path.exists();
        let file = side_file::open(path)?;
        if !exists && let Some(folder) = path.parent() {
            // The name must survive a power loss too.
            let sync = || File::open(folder)?.sync_all();
            sync().map_err(|error| of_side_file(&what, &error))?;
        }
        let mut reserve = RevisionReserve { file, known: Revision::ZERO, what };
        reserve.refresh()?;
        Ok(reserve)
    }

    /// Returns the reserved revision; zero if the file is new or was destroyed.
    pub(super) fn known(&self) -> Revision {
        self.known
    }

    /// Returns the revision that was last noted; zero if none was, or if the record is damaged.
    pub(super) fn last(&self) -> Result<Revision, StoreError> {
        Ok(self.read(LAST_AT)?.unwrap_or(Revision::ZERO))
    }

    /// Notes a committed revision. A note that cannot be written only makes a later loss harder to detect.
    pub(super) fn note(&self, committed: Revision) {
        if let Err(error) = self.file.write_all_at(&record(committed), LAST_AT) {
            tracing::debug!(file = self.what, %error, "committed revision not recorded");
        }
    }

    /// Notes to which database the file belongs; returns whether it belonged to another one.
    pub(super) fn adopt(&self, database: FileIdentity) -> Result<bool, StoreError> {
        let wanted = [database.bytes(), database.bytes()].concat();
        let mut found = vec![0; wanted.len()];
        let cannot = |error: &std::io::Error| of_side_file(&self.what, error);
        match self.file.read_exact_at(&mut found, IDENTITY_AT) {
            Ok(()) if found == wanted => return Ok(false),
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(cannot(&error)),
        }
        self.file.write_all_at(&wanted, IDENTITY_AT).map_err(|error| cannot(&error))?;
        // A torn or missing record does not identify a database.
        Ok(found[..16] == found[16..] && found.iter().any(|byte| *byte != 0))
    }

    /// Makes sure that `next` may be committed after `committed`. Called inside the write lock.
    pub(super) fn ensure(&mut self, committed: Revision, next: Revision) -> Result<(), StoreError> {
        if next <= self.known {
            return Ok(());
        }
        self.refresh()?;
        if next <= self.known {
            return Ok(());
        }
        // Counted from the committed revision: a crash right here must not look like lost revisions.
        self.raise(next.max(Revision(committed.0.saturating_add(RESERVED))))
    }

    fn raise(&mut self, to: Revision) -> Result<(), StoreError> {
        let write = || -> std::io::Result<()> {
            self.file.write_all_at(&record(to), RESERVE_AT)?;
            self.file.sync_data()
        };
        write().map_err(|error| of_side_file(&self.what, &error))?;
        self.known = to;
        Ok(())
    }

    fn refresh(&mut self) -> Result<(), StoreError> {
        self.known = self.known.max(self.read(RESERVE_AT)?.unwrap_or(Revision::ZERO));
        Ok(())
    }

    /// Reads a record; none if it is missing, torn, or holds a number that no store ever wrote.
    fn read(&self, at: u64) -> Result<Option<Revision>, StoreError> {
        let mut record = [0; RECORD_BYTES];
        match self.file.read_exact_at(&mut record, at) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(of_side_file(&self.what, &error)),
        }
        let half = |from: usize| {
            i64::from_le_bytes(record[from..from + 8].try_into().expect("half a record has eight bytes"))
        };
        let is_whole = half(0) == !half(8) && (0..=REVISION_MAX / 2).contains(&half(0));
        Ok(is_whole.then(|| Revision(half(0))))
    }
}

fn record(revision: Revision) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(&revision.0.to_le_bytes());
    record[8..].copy_from_slice(&(!revision.0).to_le_bytes());
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_raised_once_in_4096_revisions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db.epoch");
        let mut reserve = RevisionReserve::open(&path).unwrap();
        assert_eq!(reserve.known(), Revision::ZERO);
        reserve.ensure(Revision(1), Revision(2)).unwrap();
        assert_eq!(reserve.known(), Revision(4_097));
        reserve.ensure(Revision(4_096), Revision(4_097)).unwrap();
        assert_eq!(RevisionReserve::open(&path).unwrap().known(), Revision(4_097));
        reserve.ensure(Revision(4_097), Revision(4_098)).unwrap();
        assert_eq!(RevisionReserve::open(&path).unwrap().known(), Revision(8_193));
    }

    #[test]
    fn reserve_of_another_process_is_never_lowered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db.epoch");
        let mut own = RevisionReserve::open(&path).unwrap();
        own.ensure(Revision(1), Revision(2)).unwrap();
        RevisionReserve::open(&path).unwrap().ensure(Revision(9_000), Revision(9_001)).unwrap();
        own.ensure(Revision(4_097), Revision(4_098)).unwrap();
        assert_eq!(RevisionReserve::open(&path).unwrap().known(), Revision(9_000 + RESERVED));
    }

    #[test]
    fn destroyed_reserve_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db.epoch");
        std::fs::write(&path, [7; RECORD_BYTES]).unwrap();
        assert_eq!(RevisionReserve::open(&path).unwrap().known(), Revision::ZERO);
        // A whole record with an impossible number must not make the store unusable.
        std::fs::write(&path, record(Revision(i64::MAX - 1))).unwrap();
        assert_eq!(RevisionReserve::open(&path).unwrap().known(), Revision::ZERO);
    }

    #[test]
    fn last_revision_and_identity_are_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db.epoch");
        let reserve = RevisionReserve::open(&path).unwrap();
        assert_eq!(reserve.last().unwrap(), Revision::ZERO);
        reserve.note(Revision(7));
        let [one, two] = ["one", "two"].map(|name| {
            let path = folder.path().join(name);
            std::fs::write(&path, "").unwrap();
            FileIdentity::at(&path).unwrap().unwrap()
        });
        assert!(!reserve.adopt(one).unwrap(), "a new file belongs to no database");
        let again = RevisionReserve::open(&path).unwrap();
        assert_eq!((again.last().unwrap(), again.known()), (Revision(7), Revision::ZERO));
        assert!(!again.adopt(one).unwrap());
        assert!(again.adopt(two).unwrap());
        assert!(!again.adopt(two).unwrap());
    }

    #[test]
    fn first_revision_of_a_later_store_is_larger() {
        let now_ms = 1_790_000_000_000;
        // A million changes in the second between two stores.
        assert!(first_revision(now_ms + 1_000).0 >= first_revision(now_ms).0 + 1_000_000);
        assert!(first_revision(now_ms).0 < 1 << 53);
        assert_eq!(first_revision(-5), Revision(1));
        assert!(first_revision(i64::MAX).0 <= REVISION_MAX / 2);
    }
}
