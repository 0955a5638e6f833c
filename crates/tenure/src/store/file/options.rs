//! Options for opening a store file, and its default path.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::id::Namespace;
use tenure_core::layout;

use crate::store::file::FileEngine;
use crate::store::file::time::{MachineTime, Time};
use crate::store::{Durability, InvalidRequest, Limits, StoreError};

/// How much history is kept for interrupted watchers: at least so many revisions, and at least for so long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retention {
    /// The newest revisions that are always kept.
    pub revisions: u64,
    /// How long every revision is kept, however many there are.
    pub age: Duration,
}

impl Retention {
    /// 10,000 revisions and ten minutes: a program can restart without listing again.
    pub const DEFAULT: Retention = Retention { revisions: 10_000, age: Duration::from_secs(600) };
}

/// How to open a store file; made by [`FileEngine::options`].
#[derive(Clone)]
pub struct FileOptions {
    pub(super) durability: Durability,
    pub(super) limits: Limits,
    pub(super) retention: Retention,
    pub(super) time: Arc<dyn Time>,
}

impl FileOptions {
    pub(super) fn new() -> FileOptions {
        FileOptions {
            durability: Durability::Machine,
            limits: Limits::EMBEDDED,
            retention: Retention::DEFAULT,
            time: Arc::new(MachineTime),
        }
    }

    /// What an acknowledged write survives. Default: [`Durability::Machine`], the death of any process.
    ///
    /// [`Durability::PowerLoss`] waits for the disk at every commit: five times slower. Without it a power loss may take the last
    /// moments away, but never lets a revision be used twice.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> FileOptions {
        self.durability = durability;
        self
    }

    /// The limits of requests. Default: [`Limits::EMBEDDED`]. All processes that share a file should use the same.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> FileOptions {
        self.limits = limits;
        self
    }

    /// How much history is kept. Default: [`Retention::DEFAULT`].
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> FileOptions {
        self.retention = retention;
        self
    }

    /// Another source of time, for tests of reboots and stepped clocks.
    #[cfg(test)]
    #[must_use]
    pub(super) fn time(mut self, time: impl Time) -> FileOptions {
        self.time = Arc::new(time);
        self
    }

    /// Opens the store in a file, and makes it if there is none; see [`FileEngine::open`].
    pub async fn open(self, path: impl Into<PathBuf>) -> Result<FileEngine, StoreError> {
        FileEngine::open_with(self, path.into()).await
    }
}

impl std::fmt::Debug for FileOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let FileOptions { durability, limits, retention, .. } = self;
        write!(f, "FileOptions({durability:?}, {limits:?}, {retention:?})")
    }
}

/// The default path of the store of a namespace: `$XDG_STATE_HOME/tenure/<namespace>/store.db`, and below
/// `~/.local/state` if that is not set. A namespace of several segments is one folder too: `shop/eu` lies in `shop%2Feu`.
///
/// # Errors
///
/// An invalid namespace, and a user without a home folder.
pub fn default_path(namespace: &str) -> Result<PathBuf, StoreError> {
    let namespace = Namespace::parse(namespace).map_err(|error| InvalidRequest::Other(error.to_string()))?;
    let state = match (absolute("XDG_STATE_HOME"), absolute("HOME")) {
        (Some(state), _) => state,
        (None, Some(home)) => home.join(".local/state"),
        (None, None) => {
            let reason = "neither XDG_STATE_HOME nor HOME names a folder; name the store's path";
            return Err(InvalidRequest::Other(reason.into()).into());
        }
    };
    Ok(state.join("tenure").join(layout::folder_name(&namespace)).join("store.db"))
}

/// A folder from the environment. By the XDG rules a relative one counts as not set.
fn absolute(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| Path::is_absolute(path))
}
