//! The file engine: a store in a SQLite file that the processes of one machine share. It needs no set-up.
//!
//! Every process opens the file itself; there is no server. Writes are committed in groups, inside a lock that all processes
//! queue for. Reads see snapshots and wait for no writer. A pipe beside the file notifies the other processes of a commit. The
//! evaluator of the core decides what a transaction does, as in the memory engine.
//!
//! Each of these modules exists because the engine failed without it: `identity` detects exchanged files, `occupancy` prevents a second
//! store beside a live one, `side_file` refuses planted files, `lock` makes the queue fair, `revision_reserve` keeps revisions from
//! repeating, `leases` expires leases before a read, `paths` refuses folders where sharing does not work, and `lock_watchdog` reports
//! the process that blocks the write lock.

mod options;
mod paths;

mod error;
mod leases;
mod log;
mod rows;
mod schema;
mod sql;
mod time;

mod commit_listener;
mod commit_notifier;
mod identity;
mod lock;
mod lock_watchdog;
mod occupancy;
mod revision_reserve;
mod side_file;

mod engine;
mod follower;
mod hub;
mod job;
mod opening;
mod reader;
mod watch;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::keyspace::{Rows, evaluate, read};

use crate::clock::{BootClock, Clock};
use crate::store::{
    Durability, Engine, Get, Grant, LeaseId, LeaseView, Page, PreviousValues, Reach, Renewal, Revision,
    Selection, StoreError, StoreInfo, Txn, TxnReply, WatchStart, WatchStream,
};

use engine::OpenStore;
use job::Job;
use watch::FileWatch;

pub use options::{FileOptions, Retention, default_path};

/// A store in a file that the processes of one machine share. Cheap to clone; all clones are one.
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use tenure::store::{Store, file::FileEngine};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("app").join("store.db");
/// let store = Store::new(FileEngine::open(path).await?);
/// store.put("/greeting", "hello").await?;
/// assert_eq!(store.get_key("/greeting").await?.unwrap().value, "hello");
/// store.close().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Guarantees
///
/// An acknowledged write survives the death of any process, and power loss too with [`Durability::PowerLoss`]. No revision is
/// used twice, whatever is lost. A lease never ends early. Any live process expires it, usually within milliseconds,
/// and no read shows a key after its lease has ended. If the write lock makes no progress for five seconds, requests end with [`StoreError::Busy`].
/// Files that are removed or renamed under a process end its handle, and no new store is created in their place before that process
/// has closed its handle or its leases are over.
///
/// # Not guaranteed
///
/// A process that is stopped (SIGSTOP, a debugger) inside a transaction blocks every writer until it continues or dies; a
/// warning names its pid. After `fork` the child must open the store itself.
#[derive(Clone)]
pub struct FileEngine {
    info: Arc<StoreInfo>,
    running: Arc<OpenStore>,
}

impl FileEngine {
    /// Opens the store in a file, with defaults, and makes it (in a folder of mode 0700) if there is none.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] for a file that is no store, that a newer program made, that lies on a network file system, that has a
    /// second name, or that other users can exchange; [`StoreError::Busy`] if the write lock makes no progress for five seconds, or if
    /// processes use files that were removed or renamed here.
    ///
    /// # Cancellation
    ///
    /// Leaves at most an empty store behind.
    pub async fn open(path: impl Into<PathBuf>) -> Result<FileEngine, StoreError> {
        FileEngine::options().open(path).await
    }

    /// Other ways to open it.
    pub fn options() -> FileOptions {
        FileOptions::new()
    }

    async fn open_with(options: FileOptions, path: PathBuf) -> Result<FileEngine, StoreError> {
        let durable = options.durability.max(Durability::Machine);
        let limits = options.limits;
        let running = OpenStore::start(options, path).await?;
        let store_id = running.write(0, |tables| Ok(tables.meta.store_id)).await?;
        let info = StoreInfo {
            kind: "file",
            id: rows::show_id(&store_id),
            limits,
            ttl_step: Duration::from_millis(1),
            durable,
            reach: Reach::Machine,
        };
        Ok(FileEngine { info: Arc::new(info), running: Arc::new(running) })
    }

    /// Where the store lies, links followed.
    pub fn path(&self) -> &Path {
        &self.running.core.paths.database
    }

    fn job(&self, txn: Txn) -> (Job, tokio::sync::oneshot::Receiver<Result<TxnReply, StoreError>>) {
        let limits = self.info.limits;
        Job::new(txn.size(), move |tables| evaluate(tables, &txn, &limits))
    }
}

impl fmt::Debug for FileEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileEngine({} {})", self.path().display(), self.info.id)
    }
}

impl Engine for FileEngine {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn get(&self, get: Get) -> Result<Page, StoreError> {
        get.check()?;
        self.running.read(move |tables| read(tables, &get)).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnReply, StoreError> {
        let reply = self.batch(vec![txn]).await.pop();
        reply.expect("a batch has as many replies as transactions")
    }

    async fn batch(&self, txns: Vec<Txn>) -> Vec<Result<TxnReply, StoreError>> {
        let (mut writes, mut reads, mut results) = (Vec::new(), Vec::new(), Vec::new());
        for txn in txns {
            // An invalid transaction is refused before it is queued.
            if let Err(error) = txn.check(&self.info.limits) {
                results.push(Err(error));
                continue;
            }
            let queue = if txn.may_write() { &mut writes } else { &mut reads };
            let (job, result) = self.job(txn);
            queue.push(job);
            results.push(Ok(result));
        }
        let core = &self.running.core;
        for (queue, jobs) in [(&core.writes, writes), (&core.reads, reads)] {
            // All at once, so that one SQLite transaction can take them together.
            if !jobs.is_empty() {
                queue.join(jobs);
            }
        }
        let mut replies = Vec::with_capacity(results.len());
        for result in results {
            replies.push(match result {
                Ok(result) => result.await.unwrap_or(Err(StoreError::Closed)),
                Err(error) => Err(error),
            });
        }
        replies
    }

    async fn watch(
        &self,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        select.check()?;
        // Read first: a watch from `Now` then includes every write that begins after this call returns.
        let (revision, compacted) =
            self.running.read(|tables| Ok((tables.revision(), tables.compacted()))).await?;
        let after = match start {
            WatchStart::Now | WatchStart::Recent => revision,
            WatchStart::After(after) => after,
        };
        let core = &self.running.core;
        let id = core.hub.add(select.clone(), after, previous, (revision, compacted));
        // It may be asleep, because there was no watcher.
        core.wake_follower();
        Ok(Box::pin(FileWatch::new(self.running.clone(), id, select, previous)))
    }

    async fn grant(&self, ttl: Duration, id: Option<LeaseId>) -> Result<Grant, StoreError> {
        let limits = self.info.limits;
        limits.grant_ttl(ttl)?;
        let id = id.unwrap_or_else(random_lease);
        // Before the request: the store counts the TTL from a later moment, so validity ends before the lease.
        let asked_at = BootClock.now();
        let ttl = self.running.write(0, move |tables| tables.grant(id, ttl, &limits)).await?;
        self.running.core.note_valid(ttl);
        Ok(Grant { id, ttl, asked_at })
    }

    async fn renew(&self, id: LeaseId) -> Result<Renewal, StoreError> {
        let asked_at = BootClock.now();
        let ttl = self.running.write(0, move |tables| tables.renew(id)).await?;
        self.running.core.note_valid(ttl.unwrap_or_default());
        Ok(ttl.map_or(Renewal::Gone, |ttl| Renewal::Renewed { ttl, asked_at }))
    }

    async fn revoke(&self, id: LeaseId) -> Result<Revision, StoreError> {
        self.running.write(0, move |tables| tables.revoke(id)).await
    }

    async fn lease(&self, id: LeaseId) -> Result<Option<LeaseView>, StoreError> {
        self.running.read(move |tables| tables.lease_view(id)).await
    }

    async fn leases(&self) -> Result<Vec<LeaseId>, StoreError> {
        self.running.read(|tables| tables.leases()).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.running.write(0, move |tables| tables.compact(revision)).await
    }

    async fn lost(&self) -> StoreError {
        self.running.lost().await
    }

    async fn close(&self) {
        self.running.close().await;
    }
}

fn random_lease() -> LeaseId {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    LeaseId::from_random(bytes)
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests;
