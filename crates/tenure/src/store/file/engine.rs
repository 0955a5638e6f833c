//! The running parts of one open store file, and how they start and end.
//!
//! Four threads, each with one duty: *write* applies every change, *read* serves reads, *follow* reads the log for the
//! watchers and expires leases on time, *keep* is the watchdog of the write lock and outlives the other three. They are plain
//! threads, because SQLite blocks, and because a dropped future must not stop a transaction half-way.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::clock::{BootClock, Clock};
use crate::store::file::commit_notifier::ListenerWaker;
use crate::store::file::hub::Hub;
use crate::store::file::job::{Job, JobQueue};
use crate::store::file::lock_watchdog::{BUSY_AFTER, LockWatchdog};
use crate::store::file::occupancy::Occupancy;
use crate::store::file::options::FileOptions;
use crate::store::file::paths::StorePaths;
use crate::store::file::rows::Tables;
use crate::store::file::time::{duration, floor_ms};
use crate::store::file::writer;
use crate::store::{Cause, Revision, StoreError};

/// What the threads of one open store share.
pub(super) struct Core {
    pub(super) paths: StorePaths,
    pub(super) options: FileOptions,
    pub(super) writes: JobQueue,
    pub(super) reads: JobQueue,
    pub(super) watchdog: LockWatchdog,
    pub(super) hub: Hub,
    /// Wakes the thread that follows the log, once there is one.
    pub(super) follower_waker: OnceLock<ListenerWaker>,
    /// The highest revision that this process has seen; a store below it is another one.
    seen: AtomicI64,
    /// When the next lease ends, in boot time, as far as this process knows.
    next_deadline_ms: AtomicI64,
    over: OnceLock<StoreError>,
    /// Until when, in boot time, a holder may rely on a lease that this process granted or renewed.
    valid_until_ms: AtomicI64,
    leaving: Mutex<CloseState>,
    left: Condvar,
    /// Why the store was lost, if it was.
    lost: watch::Sender<Option<StoreError>>,
}

/// What remains of a store after its end.
#[derive(Default)]
struct CloseState {
    /// The marks on the files, until no holder of this process relies on them.
    occupancy: Option<Occupancy>,
    /// The last handle was closed or dropped.
    is_left: bool,
}

impl Core {
    fn new(paths: StorePaths, options: FileOptions) -> Core {
        Core {
            paths,
            options,
            writes: JobQueue::new(),
            reads: JobQueue::new(),
            watchdog: LockWatchdog::default(),
            hub: Hub::new(),
            follower_waker: OnceLock::new(),
            seen: AtomicI64::new(0),
            next_deadline_ms: AtomicI64::new(i64::MAX),
            over: OnceLock::new(),
            valid_until_ms: AtomicI64::new(0),
            leaving: Mutex::default(),
            left: Condvar::new(),
            lost: watch::channel(None).0,
        }
    }

    /// Keeps the marks on the files for as long as a holder may rely on them.
    pub(super) fn keep_occupancy(&self, occupancy: Occupancy) {
        self.leaving().occupancy = Some(occupancy);
    }

    /// Notes that a holder may rely on a lease for `ttl` from now at the longest.
    pub(super) fn note_valid(&self, ttl: Duration) {
        self.valid_until_ms.fetch_max(floor_ms(BootClock.now() + ttl), Ordering::AcqRel);
    }

    /// Notes that the caller has no use for the store any more.
    fn leave(&self) {
        self.leaving().is_left = true;
        self.left.notify_all();
    }

    /// Removes the marks on the files, when the caller has closed the store or no lease of this process can be valid.
    ///
    /// A store that was lost under a holder stays marked while the holder stops its work. A handle that is never closed must
    /// not block the path for ever, so the marks last as long as the longest lease at most.
    fn remove_marks(&self) {
        let mut leaving = self.leaving();
        while !leaving.is_left {
            let valid_until_ms = self.valid_until_ms.load(Ordering::Acquire);
            let left_ms = valid_until_ms.saturating_sub(floor_ms(BootClock.now()));
            if left_ms <= 0 {
                break;
            }
            let waited = self.left.wait_timeout(leaving, duration(left_ms));
            leaving = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        leaving.occupancy = None;
    }

    fn leaving(&self) -> MutexGuard<'_, CloseState> {
        // No change of it can panic between two steps.
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the store was closed or lost.
    pub(super) fn is_over(&self) -> bool {
        self.over.get().is_some()
    }

    /// Why the store can take no request any more; none while it can.
    pub(super) fn check_open(&self) -> Result<(), StoreError> {
        self.over.get().map_or(Ok(()), |reason| Err(reason.clone()))
    }

    /// Ends everything for this process. The first reason stays.
    pub(super) fn end(&self, reason: &StoreError) {
        if self.over.set(reason.clone()).is_err() {
            return;
        }
        if !matches!(reason, StoreError::Closed) {
            tracing::error!(store = %self.paths.database.display(), error = %reason, "store lost");
            self.lost.send_replace(Some(reason.clone()));
        }
        self.stop(reason);
    }

    /// Ends a store that could not be opened. `open` returns the reason; a log line would report it a second time.
    pub(super) fn refuse(&self, reason: &StoreError) {
        if self.over.set(reason.clone()).is_ok() {
            self.stop(reason);
        }
    }

    fn stop(&self, reason: &StoreError) {
        self.writes.end(reason);
        self.reads.end(reason);
        self.hub.end(reason);
        self.wake_follower();
        self.watchdog.end();
    }

    /// The highest revision that this process has seen.
    pub(super) fn seen(&self) -> Revision {
        Revision(self.seen.load(Ordering::Acquire))
    }

    pub(super) fn note_seen(&self, revision: Revision) {
        self.seen.fetch_max(revision.0, Ordering::AcqRel);
    }

    /// When the next lease ends, in boot time; `i64::MAX` if there is none.
    pub(super) fn next_deadline_ms(&self) -> i64 {
        self.next_deadline_ms.load(Ordering::Acquire)
    }

    /// Notes when the next lease ends; returns whether that is sooner than was known.
    pub(super) fn note_deadline(&self, deadline_ms: Option<i64>) -> bool {
        let deadline_ms = deadline_ms.unwrap_or(i64::MAX);
        self.next_deadline_ms.swap(deadline_ms, Ordering::AcqRel) > deadline_ms
    }

    /// Wakes the thread that follows the log.
    pub(super) fn wake_follower(&self) {
        if let Some(waker) = self.follower_waker.get() {
            waker.wake();
        }
    }
}

/// One open store. When the last handle drops it, the threads end.
pub(super) struct OpenStore {
    pub(super) core: Arc<Core>,
    finished: watch::Receiver<bool>,
}

impl OpenStore {
    /// Starts the threads. The store is open, or known to be unusable, when the first job has its result.
    pub(super) async fn start(options: FileOptions, path: PathBuf) -> Result<OpenStore, StoreError> {
        let (placed, core) = oneshot::channel();
        let (finish, finished) = watch::channel(false);
        spawn("tenure-file-keep", move || {
            keep(options, &path, placed);
            // The receiver may be dropped already.
            let _ = finish.send(true);
        })?;
        let core = core.await.map_err(|_| StoreError::Closed)??;
        Ok(OpenStore { core, finished })
    }

    /// Runs `work` in a write transaction, which it shares with the other writes that wait at the same time.
    pub(super) async fn write<T, F>(&self, size: usize, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Tables<'_, '_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (job, answer) = Job::new(size, work);
        self.core.writes.join(vec![job]);
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Runs `work` on a snapshot; it must not write.
    pub(super) async fn read<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Tables<'_, '_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (job, answer) = Job::new(0, work);
        self.core.reads.join(vec![job]);
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Waits until the store is lost; closing it does not count.
    pub(super) async fn lost(&self) -> StoreError {
        let mut lost = self.core.lost.subscribe();
        match lost.wait_for(Option::is_some).await.map(|reason| reason.clone()) {
            Ok(Some(reason)) => reason,
            // `core` owns the sender, so the channel does not close here.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Ends the threads and waits for them.
    pub(super) async fn close(&self) {
        self.core.end(&StoreError::Closed);
        self.core.leave();
        let mut finished = self.finished.clone();
        // An error means that the thread has ended, which is what `close` waits for.
        let _ = finished.wait_for(|&finished| finished).await;
    }
}

impl Drop for OpenStore {
    fn drop(&mut self) {
        self.core.end(&StoreError::Closed);
        self.core.leave();
    }
}

/// Starts a thread with a name, so that `top` shows which one is busy.
pub(super) fn spawn(
    name: &'static str,
    body: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, StoreError> {
    let cannot = |error| StoreError::Unavailable(Cause::new(format!("cannot start a thread: {error}")));
    thread::Builder::new().name(name.into()).spawn(body).map_err(cannot)
}

/// Ends the store when a thread ends, also by a panic: no caller may wait for a thread that has ended.
pub(super) struct EndOnDrop<'a>(pub(super) &'a Core);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end(&StoreError::Closed);
    }
}

/// The thread that starts the writer, runs the watchdog, and joins the writer at the end.
fn keep(
    options: FileOptions,
    path: &std::path::Path,
    placed: oneshot::Sender<Result<Arc<Core>, StoreError>>,
) {
    let start = || {
        let core = Arc::new(Core::new(StorePaths::prepare(path)?, options));
        let writing = core.clone();
        let writer = spawn("tenure-file-write", move || writer::run(&writing))?;
        Ok((core, writer))
    };
    let (core, writer) = match start() {
        Ok(started) => started,
        Err(error) => {
            // The caller may have dropped its future meanwhile.
            let _ = placed.send(Err(error));
            return;
        }
    };
    if placed.send(Ok(core.clone())).is_err() {
        core.end(&StoreError::Closed);
    }
    core.watchdog.run(&core.writes, &core.paths.lock);
    // The writer may sleep in the kernel behind a stopped process, and ends when that process continues. Waiting for it without
    // a bound would block this process as well.
    let deadline = Instant::now() + BUSY_AFTER;
    while !writer.is_finished() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    if writer.is_finished() {
        // A panic was reported by the thread itself.
        let _ = writer.join();
        core.remove_marks();
    } else {
        tracing::warn!(store = %core.paths.database.display(), "writer thread still waits for the write lock");
    }
}
