//! The thread that serves reads, on snapshots of its own: it never waits for a writer.
//!
//! **Invariant**: no result shows a key after its lease has ended. If there is such a lease, the reads go to the writer, which
//! expires it first.

use std::sync::Arc;

use rusqlite::Connection;

use crate::store::StoreError;
use crate::store::file::engine::{Core, EndOnDrop};
use crate::store::file::identity::FileIdentityCheck;
use crate::store::file::job::{Job, QueueWakeup};
use crate::store::file::rows::{Meta, Tables};
use crate::store::file::sql::{Query, Statements};

/// How many reads one snapshot serves: reads that arrive meanwhile must not wait for long.
const GROUP_LEN_MAX: usize = 64;

/// Serves reads until the end.
pub(super) fn run(core: &Arc<Core>, connection: &Connection, files: &FileIdentityCheck, store_id: &[u8; 16]) {
    let _end = EndOnDrop(core);
    let sql = Statements::new(connection);
    loop {
        match core.reads.wait(None) {
            QueueWakeup::Over => return,
            QueueWakeup::Jobs | QueueWakeup::Idle => {}
        }
        // Before the snapshot: it must hold at least what was seen.
        let seen = core.seen();
        let jobs = core.reads.take(GROUP_LEN_MAX, usize::MAX);
        serve_group(core, &sql, jobs, |sql| {
            files.check()?;
            let meta = Meta::read(sql)?;
            meta.check(store_id, seen)?;
            Ok(meta)
        });
    }
}

fn serve_group(
    core: &Core,
    sql: &Statements<'_>,
    mut jobs: Vec<Job>,
    check: impl FnOnce(&Statements<'_>) -> Result<Meta, StoreError>,
) {
    match read(core, sql, &mut jobs, check) {
        Ok(Snapshot::Served) => jobs.into_iter().for_each(Job::finish),
        Ok(Snapshot::HasDueLease) => core.writes.join(jobs),
        Err(error) => {
            if error.is_fatal() {
                core.end(&error);
            }
            jobs.into_iter().for_each(|job| job.fail(error.clone()));
        }
    }
}

/// The outcome of a group of reads.
enum Snapshot {
    /// They have their results.
    Served,
    /// A lease has ended, so no result may be sent yet.
    HasDueLease,
}

fn read(
    core: &Core,
    sql: &Statements<'_>,
    jobs: &mut [Job],
    check: impl FnOnce(&Statements<'_>) -> Result<Meta, StoreError>,
) -> Result<Snapshot, StoreError> {
    let _snapshot = ReadTransaction::begin(sql)?;
    // The first read fixes the snapshot. The files are checked inside it, so that a replaced database is never served.
    let meta = check(sql)?;
    core.note_seen(meta.revision);
    let time = &core.options.time;
    let mut tables = Tables::new(sql, meta, time.boot(), time.wall_ms());
    // Only a write can expire a lease, and a snapshot cannot write.
    if tables.has_due()? {
        return Ok(Snapshot::HasDueLease);
    }
    for job in jobs {
        job.run(&mut tables)?;
    }
    Ok(Snapshot::Served)
}

/// A snapshot, until it is dropped. While it is open, the write-ahead log grows.
pub(super) struct ReadTransaction<'s, 'c>(&'s Statements<'c>);

impl<'s, 'c> ReadTransaction<'s, 'c> {
    pub(super) fn begin(sql: &'s Statements<'c>) -> Result<ReadTransaction<'s, 'c>, StoreError> {
        sql.execute(Query::Begin, [])?;
        Ok(ReadTransaction(sql))
    }
}

impl Drop for ReadTransaction<'_, '_> {
    fn drop(&mut self) {
        if !self.0.connection().is_autocommit()
            && let Err(error) = self.0.execute(Query::Commit, [])
        {
            tracing::warn!(%error, "snapshot not ended");
        }
    }
}
