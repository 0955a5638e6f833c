//! The commit notifier: a pipe that is written after each commit, so that other processes need not poll the database.
//!
//! A watch on the write-ahead log would not do: it changes before the commit is visible. A notification is only a
//! hint. A writer may die between its commit and the notification, so the receivers also poll at intervals.
//!
//! All processes have the pipe open and wait for the edge of a write (`EPOLLET`); its content means nothing. inotify
//! is not used for this: each user has 128 instances, and the 129th process would receive nothing.

use std::path::Path;

pub(super) use crate::store::file::commit_listener::{CommitListener, ListenerWaker};

/// The notifier, as the writer sees it.
#[derive(Debug)]
pub(super) struct CommitNotifier {
    #[cfg(target_os = "linux")]
    pipe: Option<std::fs::File>,
}

#[cfg(target_os = "linux")]
impl CommitNotifier {
    /// Opens the pipe, and replaces whatever else has its name. Called inside the write lock.
    ///
    /// Without a pipe others are notified late, so it is no error.
    pub(super) fn open(path: &Path) -> CommitNotifier {
        let pipe = open(path).or_else(|_| {
            create(path)?;
            open(path)
        });
        let pipe = pipe.inspect_err(|error| {
            tracing::warn!(file = %path.display(), %error, "commit notifier not opened");
        });
        CommitNotifier { pipe: pipe.ok() }
    }

    /// Notifies all processes of a new revision. Called inside the write lock.
    pub(super) fn notify(&self) {
        let Some(pipe) = &self.pipe else { return };
        // An empty pipe that is written wakes every kernel's waiters; a full one would wake none.
        let mut old = [0; 64];
        let _ = rustix::io::read(pipe, &mut old);
        if let Err(error) = rustix::io::write(pipe, &[1]) {
            tracing::debug!(%error, "commit notification failed");
        }
    }
}

#[cfg(target_os = "linux")]
fn open(path: &Path) -> Result<std::fs::File, crate::store::StoreError> {
    use crate::store::file::side_file::{SideFileKind, open_with};
    open_with(path, SideFileKind::Fifo, std::fs::OpenOptions::new().read(true).write(true))
}

/// Replaces what has the name by a new pipe. A process that still has the old one finds commits by polling.
#[cfg(target_os = "linux")]
fn create(path: &Path) -> Result<(), crate::store::StoreError> {
    use crate::store::file::error::of_side_file;
    let cannot = |error: std::io::Error| of_side_file(&path.display().to_string(), &error);
    // A link is removed, not what it points to.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(cannot(error)),
        _ => {}
    }
    let private = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, path, private).map_err(|error| cannot(error.into()))
}

#[cfg(not(target_os = "linux"))]
impl CommitNotifier {
    /// On systems other than Linux all processes poll.
    pub(super) fn open(_path: &Path) -> CommitNotifier {
        CommitNotifier {}
    }

    pub(super) fn notify(&self) {}
}
