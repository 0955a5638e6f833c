//! A client's wall clock, which a fault sets: libfaketime answers the client's reads of the time,
//! with an offset that it reads from a file.
//!
//! Only the wall is lied about. Time since boot, by which validity is counted and histories are stamped, stays true: a step of the wall must change nothing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// By how much a fault sets it, in seconds.
pub(super) const STEP_S: i64 = 3_600;

/// The clock of one client, over all its incarnations.
#[derive(Clone, Debug)]
pub(super) struct WallClock {
    library: PathBuf,
    file: PathBuf,
}

impl WallClock {
    /// A clock that is right.
    pub(super) fn new(library: &Path, file: PathBuf) -> Result<WallClock, String> {
        let clock = WallClock { library: library.to_owned(), file };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets it so many seconds beside the truth; it is seen within a second.
    pub(super) fn set(&self, beside_s: i64) -> Result<(), String> {
        // In one step: a file that is read while it is empty is no time at all.
        let fresh = self.file.with_extension("fresh");
        std::fs::write(&fresh, format!("{beside_s:+}\n"))
            .and_then(|()| std::fs::rename(&fresh, &self.file))
            .map_err(|error| format!("{}: {error}", self.file.display()))
    }

    /// The environment that makes a command read this clock.
    pub(super) fn env_args(&self) -> Vec<OsString> {
        let with = |name: &str, value: &Path| {
            let mut word = OsString::from(name);
            word.push(value);
            word
        };
        vec![
            "env".into(),
            with("LD_PRELOAD=", &self.library),
            with("FAKETIME_TIMESTAMP_FILE=", &self.file),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".into(),
            "FAKETIME_CACHE_DURATION=1".into(),
        ]
    }
}
