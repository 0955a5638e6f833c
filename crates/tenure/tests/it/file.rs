//! The file engine: one file, many processes, and everything that can happen to either.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "all of this is test code"
)]

mod child;
mod faults;
mod format;
mod kills;
mod names;
mod revision_reserve;
mod sharing;
mod stalls;

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tenure::conformance;
use tenure::store::file::{FileEngine, FileOptions};
use tenure::store::{Limits, Store};

/// How long anything here may take before it counts as never: far more than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A folder of its own for each test, and the path of a store in it.
struct Home {
    folder: TempDir,
}

impl Home {
    fn new() -> Home {
        Home { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("state").join("store.db")
    }

    /// A file beside the store.
    fn side_file(&self, suffix: &str) -> PathBuf {
        self.folder.path().join("state").join(format!("store.db{suffix}"))
    }

    async fn open(&self) -> FileEngine {
        options().open(self.path()).await.unwrap()
    }

    async fn store(&self) -> Store {
        Store::new(self.open().await)
    }
}

/// As usual, but with TTLs of milliseconds, so that no test waits for seconds.
fn options() -> FileOptions {
    let limits = Limits { ttl_min: Duration::from_millis(1), ..Limits::EMBEDDED };
    FileEngine::options().limits(limits)
}

#[tokio::test]
async fn file_conformance() {
    let home = Home::new();
    let report = conformance::run(|| async { home.store().await }).await;
    report.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_conformance_on_many_threads() {
    let home = Home::new();
    let report = conformance::run(|| async { home.store().await }).await;
    report.assert_passed();
}
