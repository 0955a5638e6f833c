//! The temporary folder with the checkpoint files of a worker, removed at its end.
//!
//! A killed worker removes nothing. So each folder contains a file that its worker keeps locked: the kernel releases the lock when the process ends, however
//! it ends. A starting worker removes the folders that have an unlocked file.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tempfile::TempDir;

const PREFIX: &str = "tenure-worker-";

/// The file that a live worker keeps locked.
const MARK: &str = "alive";

/// The name of that file before it is locked. No worker tests it, so a folder that is just created does not look abandoned.
const UNLOCKED: &str = "alive.new";

/// The checkpoint folder of this worker.
pub(super) struct CheckpointDir {
    // Dropped first: the folder is removed while the file is still locked.
    folder: TempDir,
    _mark: File,
}

impl CheckpointDir {
    /// Removes the folders of killed workers, and creates one with mode 0700.
    pub(super) fn create() -> io::Result<CheckpointDir> {
        let temporary = std::env::temp_dir();
        sweep(&temporary);
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(temporary)?;
        let unlocked = folder.path().join(UNLOCKED);
        let mark = File::create(&unlocked)?;
        mark.lock()?;
        fs::rename(unlocked, folder.path().join(MARK))?;
        Ok(CheckpointDir { folder, _mark: mark })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folders of this user's dead workers. A failure is logged only: an old folder is harmless.
fn sweep(temporary: &Path) {
    let entries = match fs::read_dir(temporary) {
        Ok(entries) => entries,
        Err(error) => return tracing::debug!(%error, "temporary folder not listed"),
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_checkpoint_dir =
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX));
        if !is_checkpoint_dir {
            continue;
        }
        match remove_if_dead(&path) {
            Ok(true) => tracing::debug!(path = %path.display(), "dead worker's folder removed"),
            Ok(false) => {}
            Err(error) => tracing::debug!(path = %path.display(), %error, "dead worker's folder not removed"),
        }
    }
}

/// Removes a folder if it belongs to a dead worker of this user.
fn remove_if_dead(path: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(false);
    }
    let mark = match File::open(path.join(MARK)) {
        Ok(mark) => mark,
        // Its worker is just creating the file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match mark.try_lock() {
        Ok(()) => fs::remove_dir_all(path).map(|()| true),
        Err(fs::TryLockError::WouldBlock) => Ok(false),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_dead_workers_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let lay = |name: &str| {
            let folder = temporary.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("1"), "progress").unwrap();
            File::create(folder.join(MARK)).unwrap()
        };
        drop(lay("tenure-worker-dead"));
        drop(lay("other-program"));
        let alive = lay("tenure-worker-alive");
        alive.lock().unwrap();
        fs::create_dir(temporary.path().join("tenure-worker-new")).unwrap();
        std::os::unix::fs::symlink("other-program", temporary.path().join("tenure-worker-link")).unwrap();
        sweep(temporary.path());
        let mut left: Vec<_> =
            fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["other-program", "tenure-worker-alive", "tenure-worker-link", "tenure-worker-new"]);
        assert_eq!(fs::read_dir(temporary.path().join("other-program")).unwrap().count(), 2);
    }
}
