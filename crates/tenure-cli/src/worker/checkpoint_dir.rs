//! Where the checkpoint files of a worker lie: a folder that goes with the worker, or with the next one if this one was killed.
//!
//! Whoever is killed removes nothing. So each folder has a mark in it that is locked for as long as its worker lives: the kernel lets go of a lock whatever
//! ends its process. A worker that starts takes folders away whose mark nobody holds.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tempfile::TempDir;

const PREFIX: &str = "tenure-worker-";

/// Locked by the worker whose folder it is.
const MARK: &str = "alive";

/// A mark that is not locked yet. Nobody looks at it: between two steps a folder must not seem to be that of somebody dead.
const UNLOCKED: &str = "alive.new";

/// The folder of this worker.
pub(super) struct CheckpointDir {
    // Removed before the mark is let go of.
    folder: TempDir,
    _mark: File,
}

impl CheckpointDir {
    /// A new one, for us alone. Those that the killed have left go first.
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

/// Removes what dead workers of this user have left. What cannot be removed keeps nobody from working.
fn sweep(temporary: &Path) {
    let entries = match fs::read_dir(temporary) {
        Ok(entries) => entries,
        Err(error) => return tracing::debug!(%error, "temporary folders were not looked at"),
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_ours =
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX));
        if !is_ours {
            continue;
        }
        match remove_if_dead(&path) {
            Ok(true) => tracing::debug!(path = %path.display(), "the folder of a dead worker was removed"),
            Ok(false) => {}
            Err(error) => tracing::debug!(path = %path.display(), %error, "the folder of a worker stays"),
        }
    }
}

/// Removes a folder if it is one of a worker of this user that is dead.
fn remove_if_dead(path: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(false);
    }
    let mark = match File::open(path.join(MARK)) {
        Ok(mark) => mark,
        // Its worker is about to make it, or is one of a version that makes none.
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
    fn only_what_nobody_holds_any_more_is_swept_away() {
        let temporary = tempfile::tempdir().unwrap();
        let lay = |name: &str| {
            let folder = temporary.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("1"), "progress").unwrap();
            File::create(folder.join(MARK)).unwrap()
        };
        drop(lay("tenure-worker-dead"));
        drop(lay("somebody-else"));
        let alive = lay("tenure-worker-alive");
        alive.lock().unwrap();
        fs::create_dir(temporary.path().join("tenure-worker-new")).unwrap();
        std::os::unix::fs::symlink("somebody-else", temporary.path().join("tenure-worker-link")).unwrap();
        sweep(temporary.path());
        let mut left: Vec<_> =
            fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["somebody-else", "tenure-worker-alive", "tenure-worker-link", "tenure-worker-new"]);
        assert_eq!(fs::read_dir(temporary.path().join("somebody-else")).unwrap().count(), 2);
    }
}
