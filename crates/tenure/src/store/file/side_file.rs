//! How the files beside the database are opened: never through a link, and only if they belong to a trusted user.
//!
//! In a folder that other users may write, such as `/tmp`, another user can create `store.db.lock` first: as a link to a file of
//! the victim, or as a file that the other user may change later. Both are refused before a byte is written.
//!
//! **Invariant**: no function here writes to a file that has a second name or an untrusted owner.

use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::store::file::error::of_side_file;
use crate::store::{StoreError, UnusableStore};

/// What kind of file is expected under a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SideFileKind {
    Regular,
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only the notifier of Linux is a pipe"))]
    Fifo,
}

/// Opens a side file for reading and writing, and creates it with mode 0600 if there is none.
pub(super) fn open(path: &Path) -> Result<File, StoreError> {
    open_with(
        path,
        SideFileKind::Regular,
        OpenOptions::new().read(true).write(true).create(true).truncate(false),
    )
}

/// Opens a file beside the database, without following a link and without waiting for a writer of a pipe.
pub(super) fn open_with(path: &Path, kind: SideFileKind, how: &mut OpenOptions) -> Result<File, StoreError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = how.mode(0o600).custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => is_link(path),
        _ => of_side_file(&path.display().to_string(), &error),
    })?;
    let found = file.metadata().map_err(|error| of_side_file(&path.display().to_string(), &error))?;
    refuse_untrusted(path, &found, kind)?;
    Ok(file)
}

/// Refuses a file that another user controls, or that is a file of another purpose under a second name.
pub(super) fn refuse_untrusted(path: &Path, found: &Metadata, kind: SideFileKind) -> Result<(), StoreError> {
    let file_type = found.file_type();
    if file_type.is_symlink() {
        return Err(is_link(path));
    }
    let is_expected = match kind {
        SideFileKind::Regular => file_type.is_file(),
        SideFileKind::Fifo => file_type.is_fifo(),
    };
    if !is_expected {
        return Err(untrusted(format!("{} is not a {kind:?} file", path.display())));
    }
    if found.nlink() > 1 {
        return Err(second_name(path, found.nlink()));
    }
    let folder = path.parent().and_then(|folder| folder.metadata().ok());
    let owner = found.uid();
    let is_trusted = owner == rustix::process::geteuid().as_raw()
        || owner == 0
        // The owner of the folder can exchange the file at any time.
        || folder.is_some_and(|folder| folder.uid() == owner);
    if is_trusted { Ok(()) } else { Err(untrusted(format!("{} belongs to user {owner}", path.display()))) }
}

/// Refuses a folder in which every user may rename and remove the files of every other user.
pub(super) fn refuse_open_folder(folder: &Path) -> Result<(), StoreError> {
    const OTHERS_WRITE: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let found = folder.metadata().map_err(|error| of_side_file(&folder.display().to_string(), &error))?;
    let mode = found.mode() & 0o7777;
    if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
        let folder = folder.display();
        return Err(untrusted(format!("every user may write to the folder {folder} (mode {mode:04o})")));
    }
    Ok(())
}

/// The error for a file with several hard links.
pub(super) fn second_name(path: &Path, links: u64) -> StoreError {
    StoreError::Unusable(UnusableStore::SecondName(format!("{} has {links} hard links", path.display())))
}

fn is_link(path: &Path) -> StoreError {
    untrusted(format!("{} is a symbolic link", path.display()))
}

fn untrusted(reason: String) -> StoreError {
    StoreError::Unusable(UnusableStore::Untrusted(reason))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn planted_links_are_refused_and_their_targets_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let [victim, soft, hard] = ["victim", "soft", "hard"].map(|name| folder.path().join(name));
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &soft).unwrap();
        assert!(matches!(open(&soft), Err(StoreError::Unusable(UnusableStore::Untrusted(_)))));
        std::fs::hard_link(&victim, &hard).unwrap();
        assert!(matches!(open(&hard), Err(StoreError::Unusable(UnusableStore::SecondName(_)))));
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        // A link to nothing creates nothing.
        let (dangling, target) = (folder.path().join("dangling"), folder.path().join("target"));
        std::os::unix::fs::symlink(&target, &dangling).unwrap();
        assert!(open(&dangling).is_err() && !target.exists());
        assert!(open(&folder.path().join("new")).is_ok());
    }

    #[test]
    fn planted_pipe_is_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .unwrap();
        assert!(matches!(open(&path), Err(StoreError::Unusable(UnusableStore::Untrusted(_)))));
    }

    #[test]
    fn world_writable_folder_needs_sticky_bit() {
        let folder = tempfile::tempdir().unwrap();
        for (mode, is_accepted) in
            [(0o700, true), (0o755, true), (0o770, true), (0o1777, true), (0o777, false), (0o702, false)]
        {
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(refuse_open_folder(folder.path()).is_ok(), is_accepted, "{mode:o}");
        }
    }
}
