//! What wakes the thread that follows the log: the notifier, requests of this process, and files that are renamed or removed.

pub(super) use waiting::{Ear, Nudge};

#[cfg(target_os = "linux")]
mod waiting {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
    use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};

    use crate::store::StoreError;
    use crate::store::file::fault::of_side_file;
    use crate::store::file::place::Place;
    use crate::store::file::side_file::{Kind, open_with};

    /// Waits for notifications, for requests from inside the process, and for changes of the files' names.
    #[derive(Debug)]
    pub(in crate::store::file) struct Ear {
        /// None if there is no pipe: the caller looks by itself.
        bell: Option<Pipe>,
        /// None if the user has no inotify instance left: the caller looks by itself.
        names: Option<OwnedFd>,
        nudge: Arc<OwnedFd>,
    }

    #[derive(Debug)]
    struct Pipe {
        /// Keeps the pipe open; never read here.
        _pipe: std::fs::File,
        /// Becomes ready once for each write, because the pipe itself stays readable.
        edges: OwnedFd,
    }

    /// Wakes an [`Ear`] of this process.
    #[derive(Clone, Debug)]
    pub(in crate::store::file) struct Nudge(Arc<OwnedFd>);

    impl Ear {
        /// Listens. What cannot be listened to is looked at by the caller, so it is no error.
        pub(in crate::store::file) fn listen(place: &Place) -> Result<Ear, StoreError> {
            let bell = listen_to_pipe(&place.bell)
                .inspect_err(|error| {
                    tracing::warn!(file = %place.bell.display(), %error, "notifier is not available, events may be 50 ms late");
                })
                .ok();
            let names = listen_to_names(place)
                .inspect_err(|error| tracing::debug!(%error, "renamed files will be noticed within a second"))
                .ok();
            let nudge = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|error| of_side_file("cannot make an eventfd", &error.into()))?;
            Ok(Ear { bell, names, nudge: Arc::new(nudge) })
        }

        pub(in crate::store::file) fn nudge(&self) -> Nudge {
            Nudge(self.nudge.clone())
        }

        /// Whether a renamed or removed file ends the wait.
        pub(in crate::store::file) fn hears_names(&self) -> bool {
            self.names.is_some()
        }

        /// Sleeps until nudged, until a file is renamed or removed, until the time is over, or until a notification, if that
        /// matters now.
        pub(in crate::store::file) fn wait(&self, to_bell: bool, timeout: Option<Duration>) {
            let timeout = timeout.map(|timeout| Timespec {
                tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            });
            let mut sources = vec![PollFd::new(&*self.nudge, PollFlags::IN)];
            if let Some(bell) = self.bell.as_ref().filter(|_| to_bell) {
                sources.push(PollFd::new(&bell.edges, PollFlags::IN));
            }
            if let Some(names) = &self.names {
                sources.push(PollFd::new(names, PollFlags::IN));
            }
            // An interrupted sleep is a short one: the caller looks and sleeps again.
            let _ = poll(&mut sources, timeout.as_ref());
            self.drain();
        }

        /// Empties all, so that only what comes from now on wakes again.
        fn drain(&self) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&*self.nudge, &mut count);
            if let Some(bell) = &self.bell {
                let mut events = [MaybeUninit::uninit(); 1];
                let _ = epoll::wait(&bell.edges, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            }
            if let Some(names) = &self.names {
                let mut events = [MaybeUninit::uninit(); 1_024];
                let mut reader = Reader::new(names, &mut events);
                while reader.next().is_ok() {}
            }
        }
    }

    fn listen_to_pipe(path: &Path) -> Result<Pipe, StoreError> {
        // For writing as well: a pipe without writers would be ready all the time.
        let pipe = open_with(path, Kind::Fifo, std::fs::OpenOptions::new().read(true).write(true))?;
        let listen = || -> rustix::io::Result<OwnedFd> {
            let edges = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&edges, &pipe, epoll::EventData::new_u64(0), flags)?;
            Ok(edges)
        };
        let edges = listen().map_err(|error| of_side_file("cannot wait for the notifier", &error.into()))?;
        Ok(Pipe { _pipe: pipe, edges })
    }

    /// Watches the names of the files and of all folders above them.
    fn listen_to_names(place: &Place) -> rustix::io::Result<OwnedFd> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let gone = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        // A file that is open is deleted later; that it has no name left is a change of its attributes.
        for file in [&place.database, &place.wal, &place.shm] {
            add_watch(&inotify, file, gone | WatchFlags::ATTRIB)?;
        }
        for folder in place.database.ancestors().skip(1) {
            // Folders above may be closed to this user; a rename there is found at the next look.
            let _ = add_watch(&inotify, folder, gone | WatchFlags::ONLYDIR);
        }
        Ok(inotify)
    }

    impl Nudge {
        pub(in crate::store::file) fn give(&self) {
            // Full means that it has been nudged already.
            let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod waiting {
    use std::sync::{Arc, Condvar, Mutex, PoisonError};
    use std::time::Duration;

    use crate::store::StoreError;
    use crate::store::file::place::Place;

    /// Waits for nudges from inside the process; elsewhere than on Linux the caller looks by itself.
    #[derive(Debug)]
    pub(in crate::store::file) struct Ear(Nudge);

    /// Wakes an [`Ear`] of this process.
    #[derive(Clone, Debug, Default)]
    pub(in crate::store::file) struct Nudge(Arc<(Mutex<bool>, Condvar)>);

    impl Ear {
        pub(in crate::store::file) fn listen(_place: &Place) -> Result<Ear, StoreError> {
            Ok(Ear(Nudge::default()))
        }

        pub(in crate::store::file) fn nudge(&self) -> Nudge {
            self.0.clone()
        }

        pub(in crate::store::file) fn hears_names(&self) -> bool {
            false
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

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use tempfile::TempDir;

    use super::*;
    use crate::store::file::bell::Bell;
    use crate::store::file::place::Place;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(20);

    struct Files {
        folder: TempDir,
        place: Place,
    }

    impl Files {
        fn new() -> Files {
            let folder = tempfile::tempdir().unwrap();
            let place = Place::prepare(&folder.path().join("inner").join("store.db")).unwrap();
            for file in [&place.database, &place.wal, &place.shm] {
                std::fs::write(file, "").unwrap();
            }
            Files { folder, place }
        }
    }

    fn is_woken(ear: &Ear, to_bell: bool) -> bool {
        let began = Instant::now();
        ear.wait(to_bell, Some(LONG));
        began.elapsed() < LONG
    }

    fn sleeps(ear: &Ear, to_bell: bool) -> bool {
        let began = Instant::now();
        ear.wait(to_bell, Some(SHORT));
        began.elapsed() >= SHORT
    }

    #[test]
    fn every_notification_wakes_all_listeners_once() {
        let files = Files::new();
        let bell = Bell::open(&files.place.bell);
        let ears = [Ear::listen(&files.place).unwrap(), Ear::listen(&files.place).unwrap()];
        for ear in &ears {
            // A pipe that was written before may wake a new listener once.
            ear.wait(true, Some(SHORT));
        }
        for _ in 0..200 {
            bell.ring();
            assert!(ears.iter().all(|ear| is_woken(ear, true)));
        }
        assert!(ears.iter().all(|ear| sleeps(ear, true)), "no notification is left");
        bell.ring();
        assert!(ears.iter().all(|ear| sleeps(ear, false)), "it does not matter now");
    }

    #[test]
    fn garbage_in_place_of_the_notifier_is_replaced() {
        let files = Files::new();
        let victim = files.folder.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        let path = &files.place.bell;
        let plant: [&dyn Fn(); 3] = [
            &|| std::fs::write(path, [0xFF; 4_096]).unwrap(),
            &|| std::os::unix::fs::symlink(&victim, path).unwrap(),
            &|| std::fs::hard_link(&victim, path).unwrap(),
        ];
        for plant in plant {
            let _ = std::fs::remove_file(path);
            plant();
            let bell = Bell::open(path);
            let ear = Ear::listen(&files.place).unwrap();
            bell.ring();
            assert!(is_woken(&ear, true));
            assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        }
    }

    #[test]
    fn notifier_that_cannot_be_created_leaves_nudges() {
        let files = Files::new();
        std::fs::create_dir(&files.place.bell).unwrap();
        Bell::open(&files.place.bell).ring();
        let ear = Ear::listen(&files.place).unwrap();
        ear.nudge().give();
        assert!(is_woken(&ear, true));
    }

    #[test]
    fn renamed_and_removed_files_end_the_wait() {
        type Change = fn(&Place, PathBuf);
        let changes: [Change; 4] = [
            |place, _| std::fs::remove_file(&place.database).unwrap(),
            |place, to| std::fs::rename(&place.wal, to).unwrap(),
            |place, to| std::fs::hard_link(&place.database, to).unwrap(),
            |place, to| std::fs::rename(place.database.parent().unwrap(), to).unwrap(),
        ];
        for change in changes {
            let files = Files::new();
            let ear = Ear::listen(&files.place).unwrap();
            assert!(ear.hears_names(), "an inotify instance is left for this test");
            // A removal is reported when the last descriptor closes; a change of the links at once.
            let _open = std::fs::File::open(&files.place.database).unwrap();
            change(&files.place, files.folder.path().join("elsewhere"));
            assert!(is_woken(&ear, false));
        }
    }
}
