//! Which files processes use under a path: a new store is never created beside a living one.
//!
//! If the files of a store are removed or renamed, the processes that have them open continue until they notice. A process that opens the
//! same path finds nothing there, creates a new store, and grants the same lock a second time. Nothing inside the files can prevent that. So
//! each process also marks what it uses on inodes that stay:
//!
//! * **Folders.** Every folder from the store's own up to the root gets a mark for "this path below me, these files". It survives the
//!   removal of any file, and a rename of any folder on the way.
//! * **The database.** Its inode gets a mark for "used under this path". It is found again under every other name: a hard link, a bind
//!   mount, a rename.
//!
//! A mark is a read lock of one byte that belongs to an open file description (`F_OFD_SETLK`), so the kernel removes it when the process
//! ends, however it ends. Its offset is a hash. An opener tests for a write lock on all other offsets of the same path: a
//! conflict means that other files are in use.
//!
//! **Invariant**: two processes with marks on one path use the same files, and two with marks on one database use the same path.
//!
//! The database has to be opened for its mark, and SQLite loses its own locks when any descriptor of the database closes in the process.
//! So descriptors are kept until no handle of the process uses that database.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags};

use crate::store::file::error::of_side_file;
use crate::store::file::identity::FileIdentity;
use crate::store::file::paths::StorePaths;
use crate::store::file::side_file::{self, SideFileKind};
use crate::store::{StoreError, StoreReplaced};

use byte_lock::{is_free, lock, unlock};

/// Each path below a folder has so many offsets, one for each set of files.
const FILES_BITS: u32 = 31;

/// Marks on a database begin here, far beyond the bytes that SQLite locks (1 GiB and 512 bytes above).
const DATABASE_FIRST: i64 = 1 << 62;

/// How many offsets a database has for the paths under which it is used.
const DATABASE_BITS: u32 = 61;

/// The marks of one open store.
#[derive(Debug)]
pub(super) struct Occupancy {
    folders: Vec<MarkedFolder>,
    path_offset: i64,
    database: Option<Descriptor>,
}

#[derive(Debug)]
struct MarkedFolder {
    file: OwnedFd,
    /// The first offset of this store's path.
    first: i64,
}

/// Whether the files under a path can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Occupied {
    No,
    /// Processes use other files that had this path, or these files under another path.
    ByOthers,
}

impl Occupancy {
    /// Opens the folders; marks nothing yet.
    pub(super) fn open(paths: &StorePaths) -> Result<Occupancy, StoreError> {
        let mut folders = Vec::new();
        let mut below = PathBuf::from(paths.database.file_name().unwrap_or_default());
        let mut path_hash = None;
        for folder in paths.database.ancestors().skip(1) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            // Without permission to list a folder there is no mark on it; the others remain.
            if let Ok(file) = rustix::fs::open(folder, flags, Mode::empty()) {
                let first = i64::from(hash_31(&[below.as_os_str().as_encoded_bytes()])) << FILES_BITS;
                folders.push(MarkedFolder { file, first });
            }
            if path_hash.is_none() {
                let identity = FileIdentity::at(folder)?.ok_or(StoreError::Replaced(StoreReplaced::Files))?;
                let name = below.as_os_str().as_encoded_bytes();
                path_hash = Some(hash(&[&identity.bytes(), name]) & ((1 << DATABASE_BITS) - 1));
            }
            let Some(name) = folder.file_name() else { break };
            below = Path::new(name).join(below);
        }
        let offset = path_hash.unwrap_or_default().cast_signed();
        Ok(Occupancy { folders, path_offset: DATABASE_FIRST + offset, database: None })
    }

    /// Whether other files than those under the path now are in use there. Called inside the write lock, before SQLite opens them.
    pub(super) fn check(&mut self, paths: &StorePaths) -> Result<Occupied, StoreError> {
        let files = [
            FileIdentity::at(&paths.database)?,
            FileIdentity::at(&paths.wal)?,
            FileIdentity::at(&paths.shm)?,
        ];
        let files = match files {
            [Some(database), Some(wal), Some(shm)] => Some([database, wal, shm]),
            // An incomplete set is in use by no process; whatever is marked is another set.
            _ => None,
        };
        // Without a database there is no inode to check; the marks on the folders still count.
        if FileIdentity::at(&paths.database)?.is_some() {
            self.database = Some(Descriptor::open(&paths.database)?);
        }
        self.others(files)
    }

    /// Marks the files, and makes sure that no process marked others meanwhile. Called before anything is granted.
    pub(super) fn mark(&mut self, paths: &StorePaths, files: [FileIdentity; 3]) -> Result<(), StoreError> {
        let database = Descriptor::open(&paths.database)?;
        // Exchanged between SQLite's open and this one.
        if database.identity != files[0] {
            return Err(StoreError::Replaced(StoreReplaced::Files));
        }
        lock(database.file(), self.path_offset).map_err(|error| cannot_lock(&error))?;
        self.database = Some(database);
        for folder in &self.folders {
            lock(&folder.file, folder.first + offset(&files)).map_err(|error| cannot_lock(&error))?;
        }
        // Two processes may have checked at the same time. Of two that have marked, at least the later one sees the other.
        match self.others(Some(files))? {
            Occupied::No => Ok(()),
            Occupied::ByOthers => Err(StoreError::Replaced(StoreReplaced::Files)),
        }
    }

    /// Lets only the owner read and write the database. The mode is set on the open file, whatever its name points to by now.
    pub(super) fn make_private(&mut self, paths: &StorePaths) -> Result<(), StoreError> {
        let database = Descriptor::open(&paths.database)?;
        database
            .file()
            .set_permissions(std::fs::Permissions::from_mode(0o600))
            .map_err(|error| of_side_file(&paths.database.display().to_string(), &error))?;
        self.database = Some(database);
        Ok(())
    }

    fn others(&self, files: Option<[FileIdentity; 3]>) -> Result<Occupied, StoreError> {
        let (mut spans, end) = (Vec::new(), 1_i64 << FILES_BITS);
        for folder in &self.folders {
            match &files {
                None => spans.push((&folder.file, folder.first, end)),
                Some(files) => {
                    // Every offset but that of these files: processes with the same files share the store.
                    let own = offset(files);
                    spans.push((&folder.file, folder.first, own));
                    spans.push((&folder.file, folder.first + own + 1, end - own - 1));
                }
            }
        }
        for (file, first, len) in spans {
            if !is_free(file, first, len).map_err(|error| cannot_lock(&error))? {
                return Ok(Occupied::ByOthers);
            }
        }
        let Some(database) = &self.database else { return Ok(Occupied::No) };
        let end = DATABASE_FIRST + (1 << DATABASE_BITS);
        for (first, len) in [
            (DATABASE_FIRST, self.path_offset - DATABASE_FIRST),
            (self.path_offset + 1, end - self.path_offset - 1),
        ] {
            if !is_free(database.file(), first, len).map_err(|error| cannot_lock(&error))? {
                return Ok(Occupied::ByOthers);
            }
        }
        Ok(Occupied::No)
    }
}

fn cannot_lock(error: &std::io::Error) -> StoreError {
    of_side_file("cannot mark the store's folder as used", error)
}

fn offset(files: &[FileIdentity; 3]) -> i64 {
    let [database, wal, shm] = files.map(FileIdentity::bytes);
    i64::from(hash_31(&[&database, &wal, &shm]))
}

fn hash_31(parts: &[&[u8]]) -> u32 {
    let hash = hash(parts);
    u32::try_from((hash ^ (hash >> 32)) & 0x7FFF_FFFF).unwrap_or_default()
}

/// FNV-1a: every process and every version must compute the same.
fn hash(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    let hash = bytes.fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    });
    // The low bits of FNV mix badly.
    hash ^ (hash >> 29)
}

/// The descriptors of one database in this process.
#[derive(Debug, Default)]
struct SharedDescriptors {
    used: usize,
    /// Those that handles no longer need. They stay open, because closing one would drop SQLite's locks.
    idle: Vec<File>,
}

static SHARED: Mutex<BTreeMap<FileIdentity, SharedDescriptors>> = Mutex::new(BTreeMap::new());

fn shared() -> MutexGuard<'static, BTreeMap<FileIdentity, SharedDescriptors>> {
    // No change of the map can panic between two steps.
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor of a database. It closes when no handle of this process uses the database.
#[derive(Debug)]
struct Descriptor {
    identity: FileIdentity,
    file: Option<File>,
}

impl Descriptor {
    fn open(path: &Path) -> Result<Descriptor, StoreError> {
        let cannot_open = |error: &std::io::Error| of_side_file(&path.display().to_string(), error);
        let found = std::fs::symlink_metadata(path).map_err(|error| cannot_open(&error))?;
        side_file::refuse_untrusted(path, &found, SideFileKind::Regular)?;
        let mut all = shared();
        let known = FileIdentity::at(path)?.filter(|identity| all.contains_key(identity));
        let idle = known.and_then(|identity| Some((identity, all.get_mut(&identity)?.idle.pop()?)));
        let (identity, file) = match idle {
            Some(found) => found,
            None => {
                let file = OpenOptions::new()
                    .read(true)
                    .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
                    .open(path)
                    .map_err(|error| cannot_open(&error))?;
                let found = file.metadata().map_err(|error| cannot_open(&error))?;
                (FileIdentity::of(&found), file)
            }
        };
        all.entry(identity).or_default().used += 1;
        Ok(Descriptor { identity, file: Some(file) })
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("it is taken only when it is dropped")
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let mut all = shared();
        let Some(file) = self.file.take() else { return };
        // It cannot fail for a file that is open; with the last descriptor the lock ends in any case.
        let _ = unlock(&file);
        let Some(shared) = all.get_mut(&self.identity) else { return };
        shared.idle.push(file);
        shared.used -= 1;
        if shared.used == 0 {
            all.remove(&self.identity);
        }
    }
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod byte_lock {
    use std::io;
    use std::os::fd::AsFd;

    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc;

    /// Adds a read lock of one byte.
    pub(super) fn lock(file: impl AsFd, at: i64) -> io::Result<()> {
        fcntl(file, FcntlArg::F_OFD_SETLK(&request(libc::F_RDLCK, at, 1)))?;
        Ok(())
    }

    /// Removes all locks of this description.
    pub(super) fn unlock(file: impl AsFd) -> io::Result<()> {
        fcntl(file, FcntlArg::F_OFD_SETLK(&request(libc::F_UNLCK, 0, 0)))?;
        Ok(())
    }

    /// Whether no other description has a lock in the span.
    pub(super) fn is_free(file: impl AsFd, first: i64, len: i64) -> io::Result<bool> {
        // To the kernel a length of zero means everything that follows.
        if len == 0 {
            return Ok(true);
        }
        let mut found = request(libc::F_WRLCK, first, len);
        fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
        Ok(i32::from(found.l_type) == libc::F_UNLCK)
    }

    fn request(kind: i32, first: i64, len: i64) -> libc::flock {
        let short = |number: i32| i16::try_from(number).unwrap_or(i16::MAX);
        libc::flock {
            l_type: short(kind),
            l_whence: short(libc::SEEK_SET),
            l_start: first,
            l_len: len,
            l_pid: 0,
        }
    }
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
mod byte_lock {
    use std::io;
    use std::os::fd::AsFd;

    /// Elsewhere than on Linux there are no locks that belong to a description; the documentation states what that means.
    pub(super) fn lock(_file: impl AsFd, _at: i64) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn unlock(_file: impl AsFd) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn is_free(_file: impl AsFd, _first: i64, _len: i64) -> io::Result<bool> {
        Ok(true)
    }
}
