//! What wakes the thread that follows the log: the notifier, requests of this process, and files that are renamed or removed.

#[cfg(target_os = "linux")]
pub(super) use waiting::{CommitListener, ListenerWaker};
#[cfg(not(target_os = "linux"))]
pub(super) use waiting::{ConditionWaker as ListenerWaker, WakeupListener as CommitListener};

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
    use crate::store::file::error::of_side_file;
    use crate::store::file::paths::StorePaths;
    use crate::store::file::side_file::{SideFileKind, open_with};

    /// Waits for notifications, for requests from inside the process, and for changes of the files' names.
    #[derive(Debug)]
    pub(in crate::store::file) struct CommitListener {
        /// None if there is no pipe: the caller polls.
        notifier: Option<Pipe>,
        /// None if the user has no inotify instance left: the caller polls.
        names: Option<OwnedFd>,
        wakeups: Arc<OwnedFd>,
    }

    #[derive(Debug)]
    struct Pipe {
        /// Keeps the pipe open; never read here.
        _pipe: std::fs::File,
        /// Becomes ready once for each write, because the pipe itself stays readable.
        edges: OwnedFd,
    }

    /// Wakes an [`CommitListener`] of this process.
    #[derive(Clone, Debug)]
    pub(in crate::store::file) struct ListenerWaker(Arc<OwnedFd>);

    impl CommitListener {
        /// Starts to listen. A source that is not available is no error: the caller polls instead.
        pub(in crate::store::file) fn listen(paths: &StorePaths) -> Result<CommitListener, StoreError> {
            let notifier = open_pipe(&paths.notifier)
                .inspect_err(|error| {
                    tracing::warn!(file = %paths.notifier.display(), %error, "commit notifier not available");
                })
                .ok();
            let names = watch_names(paths)
                .inspect_err(|error| tracing::debug!(%error, "file names not watched"))
                .ok();
            let wakeups = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|error| of_side_file("cannot make an eventfd", &error.into()))?;
            Ok(CommitListener { notifier, names, wakeups: Arc::new(wakeups) })
        }

        pub(in crate::store::file) fn waker(&self) -> ListenerWaker {
            ListenerWaker(self.wakeups.clone())
        }

        /// Whether a renamed or removed file ends the wait.
        pub(in crate::store::file) fn watches_names(&self) -> bool {
            self.names.is_some()
        }

        /// Sleeps until woken, until a file is renamed or removed, until the time is over, or until a notification, if that
        /// matters now.
        pub(in crate::store::file) fn wait(&self, for_commits: bool, timeout: Option<Duration>) {
            let timeout = timeout.map(|timeout| Timespec {
                tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            });
            let mut sources = vec![PollFd::new(&*self.wakeups, PollFlags::IN)];
            if let Some(notifier) = self.notifier.as_ref().filter(|_| for_commits) {
                sources.push(PollFd::new(&notifier.edges, PollFlags::IN));
            }
            if let Some(names) = &self.names {
                sources.push(PollFd::new(names, PollFlags::IN));
            }
            // An interrupted sleep is a short one: the caller polls and sleeps again.
            let _ = poll(&mut sources, timeout.as_ref());
            self.drain();
        }

        /// Empties all, so that only what comes from now on wakes again.
        fn drain(&self) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&*self.wakeups, &mut count);
            if let Some(notifier) = &self.notifier {
                let mut events = [MaybeUninit::uninit(); 1];
                let _ = epoll::wait(&notifier.edges, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            }
            if let Some(names) = &self.names {
                let mut events = [MaybeUninit::uninit(); 1_024];
                let mut reader = Reader::new(names, &mut events);
                while reader.next().is_ok() {}
            }
        }
    }

    fn open_pipe(path: &Path) -> Result<Pipe, StoreError> {
        // For writing as well: a pipe without writers would be ready all the time.
        let pipe = open_with(path, SideFileKind::Fifo, std::fs::OpenOptions::new().read(true).write(true))?;
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
    fn watch_names(paths: &StorePaths) -> rustix::io::Result<OwnedFd> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let gone = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        // A file that is open is deleted later; that it has no name left is a change of its attributes.
        for file in [&paths.database, &paths.wal, &paths.shm] {
            add_watch(&inotify, file, gone | WatchFlags::ATTRIB)?;
        }
        for folder in paths.database.ancestors().skip(1) {
            // Folders above may be closed to this user; a rename there is found at the next poll.
            let _ = add_watch(&inotify, folder, gone | WatchFlags::ONLYDIR);
        }
        Ok(inotify)
    }

    impl ListenerWaker {
        pub(in crate::store::file) fn wake(&self) {
            // A full counter means that the listener has been woken already.
            let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod waiting {
    use std::sync::{Arc, Condvar, Mutex, PoisonError};
    use std::time::Duration;

    use crate::store::StoreError;
    use crate::store::file::paths::StorePaths;

    /// Waits for requests from inside the process. On systems other than Linux the caller polls for commits.
    #[derive(Debug)]
    pub(in crate::store::file) struct WakeupListener(ConditionWaker);

    /// Wakes an [`WakeupListener`] of this process.
    #[derive(Clone, Debug, Default)]
    pub(in crate::store::file) struct ConditionWaker(Arc<(Mutex<bool>, Condvar)>);

    impl WakeupListener {
        pub(in crate::store::file) fn listen(_paths: &StorePaths) -> Result<WakeupListener, StoreError> {
            Ok(WakeupListener(ConditionWaker::default()))
        }

        pub(in crate::store::file) fn waker(&self) -> ConditionWaker {
            self.0.clone()
        }

        pub(in crate::store::file) fn watches_names(&self) -> bool {
            false
        }

        pub(in crate::store::file) fn wait(&self, _for_commits: bool, timeout: Option<Duration>) {
            let (woken, condition) = &*self.0.0;
            let mut woken = woken.lock().unwrap_or_else(PoisonError::into_inner);
            match timeout {
                None => {
                    while !*woken {
                        woken = condition.wait(woken).unwrap_or_else(PoisonError::into_inner);
                    }
                }
                Some(timeout) if !*woken => {
                    woken = condition.wait_timeout(woken, timeout).unwrap_or_else(PoisonError::into_inner).0;
                }
                Some(_) => {}
            }
            *woken = false;
        }
    }

    impl ConditionWaker {
        pub(in crate::store::file) fn wake(&self) {
            let (woken, condition) = &*self.0;
            *woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
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
    use crate::store::file::commit_notifier::CommitNotifier;
    use crate::store::file::paths::StorePaths;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(20);

    struct Files {
        folder: TempDir,
        paths: StorePaths,
    }

    impl Files {
        fn new() -> Files {
            let folder = tempfile::tempdir().unwrap();
            let paths = StorePaths::prepare(&folder.path().join("inner").join("store.db")).unwrap();
            for file in [&paths.database, &paths.wal, &paths.shm] {
                std::fs::write(file, "").unwrap();
            }
            Files { folder, paths }
        }
    }

    fn is_woken(listener: &CommitListener, for_commits: bool) -> bool {
        let began = Instant::now();
        listener.wait(for_commits, Some(LONG));
        began.elapsed() < LONG
    }

    fn sleeps(listener: &CommitListener, for_commits: bool) -> bool {
        let began = Instant::now();
        listener.wait(for_commits, Some(SHORT));
        began.elapsed() >= SHORT
    }

    #[test]
    fn every_notification_wakes_all_listeners_once() {
        let files = Files::new();
        let notifier = CommitNotifier::open(&files.paths.notifier);
        let ears =
            [CommitListener::listen(&files.paths).unwrap(), CommitListener::listen(&files.paths).unwrap()];
        for listener in &ears {
            // A pipe that was written before may wake a new listener once.
            listener.wait(true, Some(SHORT));
        }
        for _ in 0..200 {
            notifier.notify();
            assert!(ears.iter().all(|listener| is_woken(listener, true)));
        }
        assert!(ears.iter().all(|listener| sleeps(listener, true)), "no notification is left");
        notifier.notify();
        assert!(ears.iter().all(|listener| sleeps(listener, false)), "it does not matter now");
    }

    #[test]
    fn garbage_notifier_file_is_replaced() {
        let files = Files::new();
        let victim = files.folder.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        let path = &files.paths.notifier;
        let plant: [&dyn Fn(); 3] = [
            &|| std::fs::write(path, [0xFF; 4_096]).unwrap(),
            &|| std::os::unix::fs::symlink(&victim, path).unwrap(),
            &|| std::fs::hard_link(&victim, path).unwrap(),
        ];
        for plant in plant {
            let _ = std::fs::remove_file(path);
            plant();
            let notifier = CommitNotifier::open(path);
            let listener = CommitListener::listen(&files.paths).unwrap();
            notifier.notify();
            assert!(is_woken(&listener, true));
            assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        }
    }

    #[test]
    fn listener_without_notifier_can_be_woken() {
        let files = Files::new();
        std::fs::create_dir(&files.paths.notifier).unwrap();
        CommitNotifier::open(&files.paths.notifier).notify();
        let listener = CommitListener::listen(&files.paths).unwrap();
        listener.waker().wake();
        assert!(is_woken(&listener, true));
    }

    #[test]
    fn renamed_and_removed_files_end_the_wait() {
        type Change = fn(&StorePaths, PathBuf);
        let changes: [Change; 4] = [
            |paths, _| std::fs::remove_file(&paths.database).unwrap(),
            |paths, to| std::fs::rename(&paths.wal, to).unwrap(),
            |paths, to| std::fs::hard_link(&paths.database, to).unwrap(),
            |paths, to| std::fs::rename(paths.database.parent().unwrap(), to).unwrap(),
        ];
        for change in changes {
            let files = Files::new();
            let listener = CommitListener::listen(&files.paths).unwrap();
            assert!(listener.watches_names(), "an inotify instance is left for this test");
            // A removal is reported when the last descriptor closes; a change of the links at once.
            let _open = std::fs::File::open(&files.paths.database).unwrap();
            change(&files.paths, files.folder.path().join("elsewhere"));
            assert!(is_woken(&listener, false));
        }
    }
}
