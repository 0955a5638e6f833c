//! Whether the files under the names are still those that SQLite has open.
//!
//! An operator or a script may remove or exchange them while a process runs. SQLite continues with its open files, another process
//! makes new files under the same names, and both grant the same lock: two leaders, measured. With only `-shm` exchanged the database
//! is destroyed as well. So the names are resolved inside the write lock, before any row is read.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::store::file::error::of_side_file;
use crate::store::file::paths::StorePaths;
use crate::store::{StoreError, StoreReplaced};

/// Which file is under a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    pub(super) fn of(metadata: &Metadata) -> FileIdentity {
        FileIdentity { device: metadata.dev(), inode: metadata.ino() }
    }

    /// The same as bytes, for hashes and records.
    pub(super) fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.device.to_le_bytes());
        bytes[8..].copy_from_slice(&self.inode.to_le_bytes());
        bytes
    }

    /// The file under a name; none if there is none. Only the name is looked up: opening and closing the database here
    /// would drop SQLite's locks on it.
    pub(super) fn at(path: &Path) -> Result<Option<FileIdentity>, StoreError> {
        match std::fs::symlink_metadata(path) {
            Ok(metadata) => Ok(Some(FileIdentity::of(&metadata))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(of_side_file(&path.display().to_string(), &error)),
        }
    }
}

/// The three files as they were when the store was opened.
#[derive(Clone, Debug)]
pub(super) struct FileIdentityCheck {
    paths: StorePaths,
    files: [FileIdentity; 3],
}

impl FileIdentityCheck {
    /// Remembers the files. Called inside the write lock, after SQLite has opened all of them.
    pub(super) fn remember(paths: &StorePaths) -> Result<FileIdentityCheck, StoreError> {
        let [Some(database), Some(wal), Some(shm)] = look(paths)? else {
            return Err(StoreError::Replaced(StoreReplaced::Files));
        };
        Ok(FileIdentityCheck { paths: paths.clone(), files: [database, wal, shm] })
    }

    /// The database, its write-ahead log and the index of that.
    pub(super) fn files(&self) -> [FileIdentity; 3] {
        self.files
    }

    /// Fails if one of them was exchanged.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if look(&self.paths)? == self.files.map(Some) {
            Ok(())
        } else {
            Err(StoreError::Replaced(StoreReplaced::Files))
        }
    }
}

fn look(paths: &StorePaths) -> Result<[Option<FileIdentity>; 3], StoreError> {
    Ok([FileIdentity::at(&paths.database)?, FileIdentity::at(&paths.wal)?, FileIdentity::at(&paths.shm)?])
}
