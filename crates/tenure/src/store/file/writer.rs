//! The thread that applies every change: one SQLite transaction for all writes that wait at that moment.
//!
//! It never waits for more writes: those that arrive while it waits for the lock or for the disk are in the next group.
//!
//! **Invariant**: a result is sent after COMMIT, and an error other than `Ambiguous` only after a rollback.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::file::commit_notifier::{CommitListener, CommitNotifier};
use crate::store::file::engine::{Core, EndOnDrop, spawn};
use crate::store::file::error::of_commit;
use crate::store::file::identity::FileIdentityCheck;
use crate::store::file::job::{Job, QueueWakeup};
use crate::store::file::leases::next_deadline_ms;
use crate::store::file::lock::WriteQueue;
use crate::store::file::log::STEP_REVISIONS;
use crate::store::file::occupancy::{Occupancy, Occupied};
use crate::store::file::opening::{Opened, connect_reader, open};
use crate::store::file::revision_reserve::RevisionReserve;
use crate::store::file::rows::{Meta, Tables};
use crate::store::file::sql::{Query, Statements};
use crate::store::file::{follower, reader};
use crate::store::{Cause, StoreError};

/// How much one SQLite transaction carries: beyond 64 jobs little is gained, and every caller waits for all of it.
const GROUP_LEN_MAX: usize = 256;
const GROUP_BYTES_MAX: usize = 1 << 20;

/// How long the writer waits before it checks again for history that is old enough to be compacted.
const RETAIN_EVERY: Duration = Duration::from_secs(1);

/// How long an opener waits for processes that use files which were removed or renamed. They notice within milliseconds and stop
/// what relies on them; a command that does not stop takes longer. This must be less than the five seconds after which the opener gets `Busy`.
const LEAVE_WITHIN: Duration = Duration::from_secs(3);

/// How often an opener polls meanwhile.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Opens the store and serves it until the end.
pub(super) fn run(core: &Arc<Core>) {
    let _end = EndOnDrop(core);
    if let Err(error) = serve(core) {
        core.refuse(&error);
    }
}

fn serve(core: &Arc<Core>) -> Result<(), StoreError> {
    let mut queue = WriteQueue::open(&core.paths.lock)?;
    let mut occupancy = Occupancy::open(&core.paths)?;
    let until = Instant::now() + LEAVE_WITHIN;
    let turn = loop {
        let turn = queue.wait(|| core.watchdog.arm())?;
        if core.is_over() {
            return Ok(());
        }
        match check_occupancy(core, &mut occupancy, until)? {
            Occupied::No => break turn,
            // Released while sleeping: another opener may need the lock meanwhile.
            Occupied::ByOthers => drop(turn),
        }
        std::thread::sleep(POLL_EVERY);
    };
    // Still inside the write lock that `turn` holds: no other process can create the store at the same time.
    let opened = open(core, &mut occupancy);
    // Kept with the handle, also if opening failed: SQLite may have the database open until the end of this function.
    core.keep_occupancy(occupancy);
    let Opened { connection, files, reserve, notifier, store_id } = opened?;
    let [reading, following] = [connect_reader(core)?, connect_reader(core)?];
    turn.succeed();

    let listener = CommitListener::listen(&core.paths)?;
    // Set once: this is the only place, and runs once for each core.
    let _ = core.follower_waker.set(listener.waker());
    let (reader, follower) = (core.clone(), core.clone());
    let (reader_guard, follower_guard) = (files.clone(), files.clone());
    let others = [
        spawn("tenure-file-read", move || reader::run(&reader, &reading, &reader_guard, &store_id))?,
        spawn("tenure-file-watch", move || {
            follower::run(&follower, &following, &follower_guard, &store_id, &listener);
        })?,
    ];

    let sql = Statements::new(&connection);
    let retain_after = Instant::now();
    let mut writer =
        Writer { core, sql, queue, files, reserve, notifier, store_id, retain_after, sweep_in: None };
    writer.write_until_over();
    writer.tidy();
    for thread in others {
        // A panic was reported by the thread itself, and has ended the store.
        let _ = thread.join();
    }
    Ok(())
}

/// Whether processes use other files that had the path of this store. Called inside the write lock.
fn check_occupancy(core: &Core, occupancy: &mut Occupancy, until: Instant) -> Result<Occupied, StoreError> {
    core.paths.refuse_second_names()?;
    let occupied = occupancy.check(&core.paths)?;
    if occupied == Occupied::ByOthers && Instant::now() >= until {
        let path = core.paths.database.display();
        let reason = format!("processes still use files of a store that were removed or renamed at {path}");
        return Err(StoreError::Busy(Cause::new(reason)));
    }
    Ok(occupied)
}

struct Writer<'c> {
    core: &'c Arc<Core>,
    sql: Statements<'c>,
    queue: WriteQueue,
    files: FileIdentityCheck,
    reserve: RevisionReserve,
    notifier: CommitNotifier,
    store_id: [u8; 16],
    /// Not before this does it check for history to compact.
    retain_after: Instant,
    /// How long until compacted rows may be deleted, if there are any.
    sweep_in: Option<Duration>,
}

impl Writer<'_> {
    fn write_until_over(&mut self) {
        loop {
            match self.core.writes.wait(self.sweep_in) {
                QueueWakeup::Over => return,
                QueueWakeup::Jobs => self.write_group(),
                QueueWakeup::Idle => self.compact_step(),
            }
        }
    }

    /// One transaction for all jobs that wait now.
    fn write_group(&mut self) {
        let core = self.core;
        // The watchdog must see jobs that arrive while this thread sleeps on the lock or the disk.
        core.watchdog.arm();
        let mut jobs = Vec::new();
        let outcome = self.transact(|tables| {
            // Taken only now, so that jobs that arrived while this thread waited for the lock are in the group.
            jobs = core.writes.take(GROUP_LEN_MAX, GROUP_BYTES_MAX);
            run_all(&mut jobs, tables)
        });
        match outcome {
            Ok(meta) => {
                jobs.into_iter().for_each(Job::finish);
                self.compact_some(&meta);
            }
            Err(error) => self.recover(jobs, &error),
        }
    }

    /// Handles a group after its transaction failed.
    fn recover(&mut self, jobs: Vec<Job>, error: &StoreError) {
        if error.is_fatal() {
            self.core.end(error);
        }
        if jobs.is_empty() && !matches!(error, StoreError::Busy(_)) {
            // The transaction failed before any job was taken: all jobs would fail in the same way.
            self.core.writes.take(usize::MAX, usize::MAX).into_iter().for_each(|job| job.fail(error.clone()));
        }
        // An ambiguous COMMIT must not be repeated: it may have been applied.
        let is_settled = jobs.len() <= 1 || error.is_fatal() || error.is_ambiguous();
        for mut job in jobs {
            if is_settled {
                job.fail(error.clone());
                continue;
            }
            // One job may have failed the group, for example on a full disk. Alone, the others can succeed.
            match self.transact(|tables| run_all(std::slice::from_mut(&mut job), tables)) {
                Ok(_) => job.finish(),
                Err(error) => {
                    if error.is_fatal() {
                        self.core.end(&error);
                    }
                    job.fail(error);
                }
            }
        }
    }

    /// Compacts some history after a write, if there is more than must be kept.
    fn compact_some(&mut self, meta: &Meta) {
        let keep = i64::try_from(self.core.options.retention.revisions).unwrap_or(i64::MAX);
        let kept = meta.revision.0 - meta.compacted.0;
        let is_much = kept > keep.saturating_add(STEP_REVISIONS) && Instant::now() >= self.retain_after;
        if is_much || self.sweep_in == Some(Duration::ZERO) {
            self.compact_step();
        }
    }

    /// Takes one step of compaction, in a transaction of its own.
    fn compact_step(&mut self) {
        let retention = self.core.options.retention;
        let mut has_retained = false;
        let outcome = self.transact(|tables| {
            has_retained = tables.retain(&retention)?;
            if tables.sweep_in() == Some(Duration::ZERO) {
                tables.sweep()?;
            }
            Ok(())
        });
        if !has_retained {
            self.retain_after = Instant::now() + RETAIN_EVERY;
        }
        if let Err(error) = outcome {
            // No caller waits for it, and the next write tries again.
            tracing::debug!(%error, "compaction failed");
            self.sweep_in = None;
            if error.is_fatal() {
                self.core.end(&error);
            }
        }
    }

    /// One SQLite transaction, from the queue for the lock to the notification.
    fn transact(
        &mut self,
        work: impl FnOnce(&mut Tables<'_, '_>) -> Result<(), StoreError>,
    ) -> Result<Meta, StoreError> {
        let Writer { core, sql, queue, files, reserve, notifier, store_id, sweep_in, .. } = self;
        let turn = queue.wait(|| core.watchdog.arm())?;
        // The store may have been lost while this thread waited; that reason is reported, not `Closed`.
        core.check_open()?;
        // Immediate, so that the first read already holds SQLite's lock: a deferred transaction could fail at its first write.
        sql.execute(Query::BeginImmediate, [])?;
        let mut transaction = OpenTransaction { sql, is_done: false };

        // Inside the lock and before any row is used: the files, the identity of the store, and that no revision was lost.
        files.check()?;
        let meta = Meta::read(sql)?;
        meta.check(store_id, core.seen())?;
        let time = &core.options.time;
        let mut tables = Tables::new(sql, meta, time.boot(), time.wall_ms());
        // Before the work: it must not see, compare with or renew a lease that has ended.
        tables.reap()?;
        work(&mut tables)?;
        tables.write_meta()?;
        // Before COMMIT: a committed revision above the reserved one could be used twice after a power loss.
        if tables.has_revisions() {
            reserve.ensure(tables.revision_before(), tables.meta.revision)?;
        }
        let deadline_ms = next_deadline_ms(sql)?;
        transaction.commit()?;

        let meta = tables.meta;
        if tables.has_revisions() {
            reserve.note(meta.revision);
            notifier.notify();
        }
        *sweep_in = tables.sweep_in();
        // Only now: a turn that failed is no progress, and must not keep waiting processes patient.
        turn.succeed();
        core.note_seen(meta.revision);
        // A sooner deadline than the follower sleeps for.
        if core.note_deadline(deadline_ms) {
            core.wake_follower();
        }
        Ok(meta)
    }

    /// Moves the write-ahead log into the database at the end, unless another process is writing.
    fn tidy(&mut self) {
        let Writer { sql, queue, files, .. } = self;
        let Some(_turn) = queue.try_now() else { return };
        if files.check().is_ok() {
            // It fails while another process reads; then the last process, or the next opener, does it.
            let _ = sql.connection().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
        }
    }
}

/// Runs jobs one after another, each as a revision of its own.
fn run_all(jobs: &mut [Job], tables: &mut Tables<'_, '_>) -> Result<(), StoreError> {
    for job in jobs {
        // A refused job has written nothing, so the others of the group can continue.
        job.run(tables)?;
        tables.seal();
    }
    Ok(())
}

/// A transaction that is rolled back unless it was committed.
struct OpenTransaction<'s, 'c> {
    sql: &'s Statements<'c>,
    is_done: bool,
}

impl OpenTransaction<'_, '_> {
    fn commit(&mut self) -> Result<(), StoreError> {
        self.sql.with(Query::Commit, |statement| statement.execute([])).map_err(of_commit)?;
        self.is_done = true;
        Ok(())
    }
}

impl Drop for OpenTransaction<'_, '_> {
    fn drop(&mut self) {
        // After some errors SQLite has rolled back by itself.
        if !self.is_done
            && !self.sql.connection().is_autocommit()
            && let Err(error) = self.sql.execute(Query::Rollback, [])
        {
            tracing::warn!(%error, "rollback failed");
        }
    }
}
