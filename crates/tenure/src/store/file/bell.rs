//! The doorbell: a file that is written after each commit, so that other processes need not keep asking.
//!
//! Looking at the write-ahead log instead would not do: it changes before the commit can be seen. Ringing is only a
//! hint. A writer may die between its commit and the bell, so whoever listens also looks by itself now and then.
//!
//! What is written is the revision. It is not forced to disk, but it outlives every process of this boot: a store that is found below
//! it has lost something.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::store::file::fault::of_side_file;
use crate::store::{Revision, StoreError};

pub(super) use ear::{Ear, Nudge};

/// One page, so that ringing never changes the file's size.
const BELL_BYTES: u64 = 4_096;

/// The bell, as the writer sees it.
#[derive(Debug)]
pub(super) struct Bell {
    file: File,
    what: String,
}

impl Bell {
    pub(super) fn open(path: &Path) -> Result<Bell, StoreError> {
        let what = path.display().to_string();
        let open = || -> std::io::Result<File> {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)?;
            if file.metadata()?.len() < BELL_BYTES {
                file.set_len(BELL_BYTES)?;
            }
            Ok(file)
        };
        let file = open().map_err(|error| of_side_file(&what, &error))?;
        Ok(Bell { file, what })
    }

    /// Tells everyone that there is a new revision. A bell that cannot be rung delays others, nothing more.
    pub(super) fn ring(&self, revision: Revision) {
        if let Err(error) = self.file.write_all_at(&revision.0.to_le_bytes(), 0) {
            tracing::debug!(bell = self.what, %error, "bell could not be rung");
        }
    }

    /// The revision that was last rung; zero if none was.
    pub(super) fn last(&self) -> Result<Revision, StoreError> {
        let mut revision = [0; 8];
        self.file.read_exact_at(&mut revision, 0).map_err(|error| of_side_file(&self.what, &error))?;
        Ok(Revision(i64::from_le_bytes(revision)))
    }
}

#[cfg(target_os = "linux")]
mod ear {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};

    use crate::store::StoreError;
    use crate::store::file::fault::of_side_file;

    /// Waits for the bell and for nudges from inside the process.
    #[derive(Debug)]
    pub(in crate::store::file) struct Ear {
        /// None if the system would not let us listen: it allows each user only so many.
        bell: Option<OwnedFd>,
        nudge: Arc<OwnedFd>,
    }

    /// Wakes an [`Ear`] of this process.
    #[derive(Clone, Debug)]
    pub(in crate::store::file) struct Nudge(Arc<OwnedFd>);

    impl Ear {
        /// Listens to the bell. Without it the caller still looks by itself, so it is not an error.
        pub(in crate::store::file) fn listen(bell: &Path) -> Result<Ear, StoreError> {
            let listen = || -> rustix::io::Result<OwnedFd> {
                let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
                add_watch(&inotify, bell, WatchFlags::MODIFY)?;
                Ok(inotify)
            };
            let heard = listen()
                .inspect_err(|error| {
                    tracing::warn!(bell = %bell.display(), %error, "bell could not be listened to, events may be 50 ms late");
                })
                .ok();
            let nudge = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|error| of_side_file("cannot make an eventfd", &error.into()))?;
            Ok(Ear { bell: heard, nudge: Arc::new(nudge) })
        }

        pub(in crate::store::file) fn nudge(&self) -> Nudge {
            Nudge(self.nudge.clone())
        }

        /// Sleeps until nudged, until the time is over, or until the bell rings, if that matters now.
        pub(in crate::store::file) fn wait(&self, to_bell: bool, timeout: Option<Duration>) {
            let timeout = timeout.map(|timeout| Timespec {
                tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            });
            let mut sources = vec![PollFd::new(&*self.nudge, PollFlags::IN)];
            if let Some(bell) = self.bell.as_ref().filter(|_| to_bell) {
                sources.push(PollFd::new(bell, PollFlags::IN));
            }
            // An interrupted sleep is a short one: the caller looks and sleeps again.
            let _ = poll(&mut sources, timeout.as_ref());
            self.drain();
        }

        /// Empties both, so that only what comes from now on wakes again.
        fn drain(&self) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&*self.nudge, &mut count);
            if let Some(bell) = &self.bell {
                let mut events = [MaybeUninit::uninit(); 1_024];
                let mut reader = Reader::new(bell, &mut events);
                while reader.next().is_ok() {}
            }
        }
    }

    impl Nudge {
        pub(in crate::store::file) fn give(&self) {
            // Full means that it has been nudged already.
            let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod ear {
    use std::path::Path;
    use std::sync::{Arc, Condvar, Mutex, PoisonError};
    use std::time::Duration;

    use crate::store::StoreError;

    /// Waits for nudges from inside the process; elsewhere than on Linux the caller looks by itself.
    #[derive(Debug)]
    pub(in crate::store::file) struct Ear(Nudge);

    /// Wakes an [`Ear`] of this process.
    #[derive(Clone, Debug, Default)]
    pub(in crate::store::file) struct Nudge(Arc<(Mutex<bool>, Condvar)>);

    impl Ear {
        pub(in crate::store::file) fn listen(_bell: &Path) -> Result<Ear, StoreError> {
            Ok(Ear(Nudge::default()))
        }

        pub(in crate::store::file) fn nudge(&self) -> Nudge {
            self.0.clone()
        }

        pub(in crate::store::file) fn wait(&self, _to_bell: bool, timeout: Option<Duration>) {
            let (nudged, condition) = &*self.0.0;
            let mut nudged = nudged.lock().unwrap_or_else(PoisonError::into_inner);
            match timeout {
                None => {
                    while !*nudged {
                        nudged = condition.wait(nudged).unwrap_or_else(PoisonError::into_inner);
                    }
                }
                Some(timeout) if !*nudged => {
                    nudged =
                        condition.wait_timeout(nudged, timeout).unwrap_or_else(PoisonError::into_inner).0;
                }
                Some(_) => {}
            }
            *nudged = false;
        }
    }

    impl Nudge {
        pub(in crate::store::file) fn give(&self) {
            let (nudged, condition) = &*self.0;
            *nudged.lock().unwrap_or_else(PoisonError::into_inner) = true;
            condition.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_ring_ends_the_wait_and_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db.bell");
        let bell = Bell::open(&path).unwrap();
        assert_eq!(bell.last().unwrap(), Revision::ZERO);
        let ear = Ear::listen(&path).unwrap();
        bell.ring(Revision(7));
        let began = Instant::now();
        // Elsewhere than on Linux only the nudge is heard.
        ear.nudge().give();
        ear.wait(true, Some(LONG));
        assert!(began.elapsed() < LONG);
        assert_eq!(Bell::open(&path).unwrap().last().unwrap(), Revision(7));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), BELL_BYTES);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_bell_alone_is_heard_when_it_matters_and_only_then() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db.bell");
        let bell = Bell::open(&path).unwrap();
        let ear = Ear::listen(&path).unwrap();
        bell.ring(Revision(1));
        let began = Instant::now();
        ear.wait(true, Some(LONG));
        assert!(began.elapsed() < LONG);
        bell.ring(Revision(2));
        let (short, began) = (Duration::from_millis(20), Instant::now());
        ear.wait(false, Some(short));
        assert!(began.elapsed() >= short);
    }

    #[test]
    fn without_a_bell_there_are_still_nudges() {
        let folder = tempfile::tempdir().unwrap();
        let ear = Ear::listen(&folder.path().join("missing")).unwrap();
        ear.nudge().give();
        let began = Instant::now();
        ear.wait(true, Some(LONG));
        assert!(began.elapsed() < LONG);
    }
}
