//! The checks of a file store: its folder, its file system and its format.
//!
//! **Invariant**: called before the engine has opened the file in this process. Closing any descriptor of the file would drop
//! the locks that SQLite holds on it.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::DoctorCheck;

pub(super) fn checks(path: &Path) -> Vec<DoctorCheck> {
    let mut checks = Vec::new();
    let folder = path.parent().unwrap_or(Path::new("/"));
    match folder.metadata() {
        Ok(metadata) => checks.push(mode(folder, &metadata)),
        Err(_) => checks.push(DoctorCheck::ok(
            "folder",
            format!("{} does not exist, so there is no store yet", folder.display()),
        )),
    }
    checks.extend(folder.ancestors().find(|folder| folder.exists()).and_then(file_system));
    checks.extend(format(path));
    checks
}

fn mode(folder: &Path, metadata: &Metadata) -> DoctorCheck {
    let mode = metadata.mode() & 0o7777;
    let detail = format!("{} has mode {mode:04o}", folder.display());
    if mode & 0o077 == 0 {
        return DoctorCheck::ok("folder", detail);
    }
    DoctorCheck::warn(
        "folder",
        format!("{detail}: other users can read it"),
        format!("chmod 700 {}", folder.display()),
    )
}

/// File systems by their magic number (`man 2 statfs`). The engine refuses those that several hosts share.
const KNOWN: [(i64, &str); 12] = [
    (0xef53, "ext"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x794c_7630, "overlay"),
    (0x2fc1_2fc1, "zfs"),
    (0xf2f5_2010, "f2fs"),
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "fuse"),
];

#[cfg(target_os = "linux")]
fn file_system(folder: &Path) -> Option<DoctorCheck> {
    let kind = rustix::fs::statfs(folder).ok()?.f_type;
    // The type of this field differs between platforms.
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
    let kind = kind as i64;
    let name = KNOWN.iter().find(|(number, _)| *number == kind & 0xffff_ffff).map(|(_, name)| *name);
    let shown = name.map_or_else(|| format!("of kind {kind:#x}"), ToOwned::to_owned);
    Some(match name {
        Some("nfs" | "cifs" | "smb2" | "9p" | "fuse") => DoctorCheck::warn(
            "disk",
            format!("the file system is {shown}, where processes cannot share memory"),
            "move the store to a local disk with --store file:///path/store.db",
        ),
        Some("tmpfs") => DoctorCheck::warn(
            "disk",
            "the file system is tmpfs: the store is lost at a reboot",
            "move the store to a disk with --store file:///path/store.db, unless that is intended",
        ),
        _ => DoctorCheck::ok("disk", format!("the file system is {shown}")),
    })
}

#[cfg(not(target_os = "linux"))]
fn file_system(_folder: &Path) -> Option<DoctorCheck> {
    None
}

/// "TENU", in SQLite's header.
const APPLICATION_ID: u32 = 0x5445_4e55;

/// Checks the format. SQLite stores the application id and the format at fixed offsets of the first page.
fn format(path: &Path) -> Option<DoctorCheck> {
    let metadata = path.metadata().ok()?;
    if metadata.is_file() && metadata.len() == 0 {
        return Some(DoctorCheck::ok("format", format!("{} is new", path.display())));
    }
    let mut header = [0; 100];
    // A pipe is not opened, because that would wait for a writer. For a file shorter than a header, the zeros fail the check below.
    if metadata.is_file() {
        let _ = File::open(path).ok()?.read_exact(&mut header);
    }
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (format, mark) = (number(60), number(68));
    if !header.starts_with(b"SQLite format 3\0") || mark != APPLICATION_ID {
        return Some(DoctorCheck::warn(
            "format",
            format!("{} does not look like a store", path.display()),
            "choose another path with --store file:///path/store.db",
        ));
    }
    Some(DoctorCheck::ok("format", format!("{} has format {format}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::super::CheckState;
    use super::*;

    #[test]
    fn folder_open_to_others_is_warned() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        for (bits, state) in [(0o700, CheckState::Ok), (0o750, CheckState::Warn), (0o701, CheckState::Warn)] {
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(bits)).unwrap();
            assert_eq!(mode(folder.path(), &folder.path().metadata().unwrap()).state, state, "{bits:o}");
        }
    }

    #[test]
    fn foreign_file_is_warned() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        assert!(format(&path).is_none());
        std::fs::write(&path, b"").unwrap();
        assert_eq!(format(&path).unwrap().state, CheckState::Ok);
        std::fs::write(&path, b"text").unwrap();
        assert_eq!(format(&path).unwrap().state, CheckState::Warn, "short, and not new");
        std::fs::write(&path, [b'x'; 4096]).unwrap();
        assert_eq!(format(&path).unwrap().state, CheckState::Warn);
    }
}
