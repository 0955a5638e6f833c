//! The thread that answers what needs no change, on snapshots of its own: it never waits for one who writes.
//!
//! **Invariant**: no answer shows a key whose lease is over. If there is such a lease, the questions go to the writer, which
//! ends it first.

use std::sync::Arc;

use rusqlite::Connection;

use crate::store::StoreError;
use crate::store::file::engine::{Core, EndOnDrop};
use crate::store::file::identity::FileIdentityCheck;
use crate::store::file::job::{Job, QueueWakeup};
use crate::store::file::rows::{Meta, Tables};
use crate::store::file::sql::{Query, Statements};

/// How many questions one snapshot answers: those who ask meanwhile must not wait for long.
const GROUP_LEN_MAX: usize = 64;

/// Answers until the end.
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
        answer(core, &sql, jobs, |sql| {
            files.check()?;
            let meta = Meta::read(sql)?;
            meta.check(store_id, seen)?;
            Ok(meta)
        });
    }
}

fn answer(
    core: &Core,
    sql: &Statements<'_>,
    mut jobs: Vec<Job>,
    look: impl FnOnce(&Statements<'_>) -> Result<Meta, StoreError>,
) {
    match read(core, sql, &mut jobs, look) {
        Ok(Snapshot::Answers) => jobs.into_iter().for_each(Job::finish),
        Ok(Snapshot::HasDueLease) => core.writes.join(jobs),
        Err(error) => {
            if error.is_fatal() {
                core.end(&error);
            }
            jobs.into_iter().for_each(|job| job.fail(error.clone()));
        }
    }
}

/// What became of the questions.
enum Snapshot {
    /// They are answered.
    Answers,
    /// A lease is over, so nothing may be shown yet.
    HasDueLease,
}

fn read(
    core: &Core,
    sql: &Statements<'_>,
    jobs: &mut [Job],
    look: impl FnOnce(&Statements<'_>) -> Result<Meta, StoreError>,
) -> Result<Snapshot, StoreError> {
    let _snapshot = ReadTransaction::begin(sql)?;
    let meta = look(sql)?;
    core.note_seen(meta.revision);
    let time = &core.options.time;
    let mut tables = Tables::new(sql, meta, time.boot(), time.wall_ms());
    if tables.has_due()? {
        return Ok(Snapshot::HasDueLease);
    }
    for job in jobs {
        job.run(&mut tables)?;
    }
    Ok(Snapshot::Answers)
}

/// A snapshot, until it is dropped. Those who keep one for long let the write-ahead log grow.
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
            tracing::warn!(%error, "snapshot could not be ended");
        }
    }
}
