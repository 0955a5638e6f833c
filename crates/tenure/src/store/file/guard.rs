//! Whether the files under the names are still those that SQLite has open.
//!
//! Somebody may remove or exchange them while we run. SQLite goes on with what it has open, another process makes new
//! files under the same names, and both grant the same lock: two leaders, measured. With only `-shm` exchanged the database is
//! destroyed as well. So the names are looked up inside the write lock, before anything is believed.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::store::file::fault::of_side_file;
use crate::store::file::place::Place;
use crate::store::{StoreError, StoreReplaced};

/// Which file is under a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub(super) fn of(metadata: &Metadata) -> Identity {
        Identity { device: metadata.dev(), inode: metadata.ino() }
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
    pub(super) fn at(path: &Path) -> Result<Option<Identity>, StoreError> {
        match std::fs::symlink_metadata(path) {
            Ok(metadata) => Ok(Some(Identity::of(&metadata))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(of_side_file(&path.display().to_string(), &error)),
        }
    }
}

/// The three files as they were when the store was opened.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    place: Place,
    files: [Identity; 3],
}

impl Guard {
    /// Remembers the files. Called inside the write lock, after SQLite has opened all of them.
    pub(super) fn remember(place: &Place) -> Result<Guard, StoreError> {
        let [Some(database), Some(wal), Some(shm)] = look(place)? else {
            return Err(StoreError::Replaced(StoreReplaced::Files));
        };
        Ok(Guard { place: place.clone(), files: [database, wal, shm] })
    }

    /// The database, its write-ahead log and the index of that.
    pub(super) fn files(&self) -> [Identity; 3] {
        self.files
    }

    /// Refuses to go on if one of them is not the one it was.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if look(&self.place)? == self.files.map(Some) {
            Ok(())
        } else {
            Err(StoreError::Replaced(StoreReplaced::Files))
        }
    }
}

fn look(place: &Place) -> Result<[Option<Identity>; 3], StoreError> {
    Ok([Identity::at(&place.database)?, Identity::at(&place.wal)?, Identity::at(&place.shm)?])
}
