//! The paths of a store file and its side files, and where they may be.
//!
//! The folder is private, and on a disk of this machine: the processes that share the file share memory through `-shm`, which
//! works inside one kernel only. On a network file system two machines would not see each other's locks.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::store::file::error::of_side_file;
use crate::store::file::schema;
use crate::store::file::side_file::{self, SideFileKind, refuse_open_folder, second_name};
use crate::store::{InvalidRequest, StoreError, UnusableStore};

/// A store file and the files beside it.
#[derive(Clone, Debug)]
pub(super) struct StorePaths {
    pub(super) database: PathBuf,
    pub(super) wal: PathBuf,
    pub(super) shm: PathBuf,
    pub(super) lock: PathBuf,
    pub(super) notifier: PathBuf,
    pub(super) epoch: PathBuf,
}

impl StorePaths {
    /// Makes the folder if it is missing, and refuses one that cannot hold a shared store, and what is there already and is no store.
    ///
    /// All processes that share a store must agree on its side files, so links are resolved first.
    pub(super) fn prepare(path: &Path) -> Result<StorePaths, StoreError> {
        let no_file = || InvalidRequest::Other(format!("{} names no file", path.display()));
        let name = path.file_name().ok_or_else(no_file)?;
        refuse_other_kinds(path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| of_side_file(&format!("cannot make the folder {}", folder.display()), &error))?;
        let resolve = |path: &Path| {
            path.canonicalize().map_err(|error| of_side_file(&path.display().to_string(), &error))
        };
        let mut database = resolve(folder)?.join(name);
        if database.is_symlink() {
            database = resolve(&database)?;
        }
        let folder = database.parent().unwrap_or(Path::new("/"));
        file_system::refuse_shared(folder)?;
        refuse_open_folder(folder)?;
        let paths = StorePaths::of_database(database);
        paths.refuse_second_names()?;
        paths.refuse_foreign_file()?;
        Ok(paths)
    }

    /// Refuses files that are reached under a second name: a process that uses the other name has other side files, and both would
    /// grant the same lock. Refuses files that another user planted as well.
    pub(super) fn refuse_second_names(&self) -> Result<(), StoreError> {
        for path in [&self.database, &self.wal, &self.shm] {
            let found = match std::fs::symlink_metadata(path) {
                Ok(found) => found,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(of_side_file(&path.display().to_string(), &error)),
            };
            if found.nlink() > 1 {
                return Err(second_name(path, found.nlink()));
            }
            side_file::refuse_untrusted(path, &found, SideFileKind::Regular)?;
            file_system::refuse_mount_point(path)?;
        }
        Ok(())
    }

    /// Refuses a file that is no store before anything is made beside it or changed about it.
    fn refuse_foreign_file(&self) -> Result<(), StoreError> {
        // An opener creates these files first. From then on the store may be written at any moment, and is checked inside the write lock.
        let is_opened = || [&self.lock, &self.wal, &self.epoch].into_iter().any(|path| path.exists());
        if is_opened() || self.database.metadata().map_or(true, |found| found.len() == 0) {
            return Ok(());
        }
        match schema::peek(&self.database) {
            // Another process is creating the store at this moment.
            Err(_) if is_opened() => Ok(()),
            seen => seen,
        }
    }

    fn of_database(database: PathBuf) -> StorePaths {
        let with_suffix = |suffix: &str| {
            let mut path = OsString::from(database.as_os_str());
            path.push(suffix);
            PathBuf::from(path)
        };
        StorePaths {
            wal: with_suffix("-wal"),
            shm: with_suffix("-shm"),
            lock: with_suffix(".lock"),
            notifier: with_suffix(".bell"),
            epoch: with_suffix(".epoch"),
            database,
        }
    }
}

/// Refuses what is there and is not a file: a device would lose its mode, and a pipe would wait for ever.
fn refuse_other_kinds(path: &Path) -> Result<(), StoreError> {
    // A path without metadata fails with its own error when it is opened.
    let Ok(found) = path.metadata() else { return Ok(()) };
    let kind = found.file_type();
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => {
            return Err(
                InvalidRequest::Other(format!("{} is a folder; name a file in it", path.display())).into()
            );
        }
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() || kind.is_char_device() => "a device",
        () => "no file",
    };
    Err(StoreError::Unusable(UnusableStore::NotAStore(what.to_owned())))
}

#[cfg(target_os = "linux")]
mod file_system {
    use std::path::Path;

    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

    use crate::store::file::error::of_side_file;
    use crate::store::{StoreError, UnusableStore};

    /// What `statfs` calls the file systems that reach beyond one kernel, or may: numbers from `linux/magic.h` and the file
    /// systems' own headers. FUSE may be anything; virtiofs, sshfs and gcsfuse are among it.
    const REFUSED: [(u32, &str); 19] = [
        (0x6969, "nfs"),
        (0x517B, "smb"),
        (0xFF53_4D42, "cifs"),
        (0xFE53_4D42, "smb2"),
        (0x0102_1997, "9p"),
        (0x6573_5546, "fuse"),
        (0x00C3_6400, "ceph"),
        (0x7375_7245, "coda"),
        (0x5346_414F, "afs"),
        (0x6B41_4653, "kafs"),
        (0x564C, "ncp"),
        (0x0BD0_0BD0, "lustre"),
        (0x4750_4653, "gpfs"),
        (0x7461_636F, "ocfs2"),
        (0x0116_1970, "gfs2"),
        (0x786F_4256, "vboxsf"),
        (0x1983_0326, "beegfs"),
        (0x2003_0528, "orangefs"),
        (0xBACB_ACBC, "vmhgfs"),
    ];

    pub(super) fn refuse_shared(folder: &Path) -> Result<(), StoreError> {
        let what = rustix::fs::statfs(folder)
            .map_err(|error| of_side_file(&folder.display().to_string(), &error.into()))?;
        match network_name(what.f_type) {
            Some(name) => Err(StoreError::Unusable(UnusableStore::NetworkFileSystem(name.into()))),
            None => Ok(()),
        }
    }

    /// The magic number is signed on some machines, and 32 bits wide on all.
    fn network_name(magic: impl TryInto<i64>) -> Option<&'static str> {
        let low = magic.try_into().ok()? & 0xFFFF_FFFF;
        REFUSED.iter().find(|(magic, _)| i64::from(*magic) == low).map(|(_, name)| *name)
    }

    /// Refuses a file that is a bind mount of a single file: it has another name in its own folder.
    pub(super) fn refuse_mount_point(file: &Path) -> Result<(), StoreError> {
        let Some(folder) = file.parent() else { return Ok(()) };
        let [file_mount, folder_mount] = [file, folder].map(mount_of);
        if file_mount.is_some() && folder_mount.is_some() && file_mount != folder_mount {
            let reason = format!("{} is a mount of a single file; mount its folder", file.display());
            return Err(StoreError::Unusable(UnusableStore::SecondName(reason)));
        }
        Ok(())
    }

    /// The mount through which a path is reached; none before Linux 5.8.
    fn mount_of(path: &Path) -> Option<u64> {
        let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID).ok()?;
        (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn network_file_systems_are_known_by_number() {
            let network = [0x6969, 0xFF53_4D42, 0x0102_1997, 0x6573_5546, 0x00C3_6400_i64];
            assert!(network.into_iter().all(|magic| network_name(magic).is_some()));
            // As on a 32-bit machine.
            assert_eq!(network_name(0xFF53_4D42_u32.cast_signed()), Some("cifs"));
            // ext4, xfs, btrfs, tmpfs, overlayfs, zfs, f2fs, bcachefs.
            let local = [
                0xEF53,
                0x5846_5342,
                0x9123_683E,
                0x0102_1994,
                0x794C_7630,
                0x2FC1_2FC1,
                0xF2F5_2010,
                0xCA45_1A4E_i64,
            ];
            assert!(local.into_iter().all(|magic| network_name(magic).is_none()));
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod file_system {
    use std::path::Path;

    use crate::store::StoreError;

    /// Other systems have no portable way to detect it.
    pub(super) fn refuse_mount_point(_file: &Path) -> Result<(), StoreError> {
        Ok(())
    }

    /// Other systems have no portable way to detect it; the documentation requires a local disk.
    pub(super) fn refuse_shared(_folder: &Path) -> Result<(), StoreError> {
        Ok(())
    }
}
