//! History in a store file: what watchers read, and how it is compacted.
//!
//! Compaction has two steps. `compact` sets the compacted revision at once, and reads below it are refused. The
//! rows are deleted later and a few at a time: the write lock is never held for long, and a watcher that was up to date at the
//! compaction still finds what it had not yet read.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row, params};

use crate::store::file::error::before_commit;
use crate::store::file::options::Retention;
use crate::store::file::rows::{Tables, bytes, pair};
use crate::store::file::sql::{Query, Statements};
use crate::store::file::time::{ceil_ms, floor_ms};
use crate::store::{Change, KeyValue, LeaseId, PreviousValues, Revision, Selection, StoreError};

/// How many revisions one step compacts. 49,000 at once held the write lock for 0.12 to 0.18 s; a thousand take 3 ms.
pub(super) const STEP_REVISIONS: i64 = 1_000;

/// How many rows one step reads, because a revision may have many.
const STEP_ROWS: i64 = 2_000;

/// How long rows outlive their compaction. A watcher polls at least every 50 ms; a second is ample on a busy machine.
pub(super) const SWEEP_GRACE_MS: i64 = 1_000;

/// The changes of one revision.
#[derive(Clone, Debug)]
pub(super) struct LogBatch {
    pub(super) revision: Revision,
    pub(super) changes: Vec<Change>,
}

impl LogBatch {
    /// About how much memory it takes.
    pub(super) fn size(&self) -> usize {
        self.changes.iter().map(change_size).sum()
    }
}

fn change_size(change: &Change) -> usize {
    let pair_size = |pair: &KeyValue| pair.key.len() + pair.value.len() + size_of::<KeyValue>();
    match change {
        Change::Put { pair, previous } => pair_size(pair) + previous.as_ref().map_or(0, pair_size),
        Change::Delete { key, previous, .. } => key.len() + previous.as_ref().map_or(0, pair_size),
    }
}

/// How much of history one read takes: enough to be fast, little enough that other readers are served.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadLimit {
    pub(super) batches: usize,
    pub(super) bytes: usize,
}

/// What one read of history gave.
#[derive(Debug)]
pub(super) struct LogSlice {
    /// Every revision with selected changes, in order and whole.
    pub(super) batches: Vec<LogBatch>,
    /// Everything up to here was read.
    pub(super) up_to: Revision,
}

/// Reads the changes in `after < revision <= up_to`, up to the limit.
pub(super) fn read_log(
    sql: &Statements<'_>,
    select: &Selection,
    (after, up_to): (Revision, Revision),
    previous: PreviousValues,
    limit: ReadLimit,
) -> Result<LogSlice, StoreError> {
    let read = |rows: &mut rusqlite::Rows<'_>| -> rusqlite::Result<LogSlice> {
        let mut batches: Vec<LogBatch> = Vec::new();
        let (mut revisions, mut size) = (0, 0);
        let mut at = after;
        while let Some(row) = rows.next()? {
            let revision = Revision(row.get(0)?);
            // Only between revisions: a revision is delivered whole, also if it exceeds the limit.
            if revision != at {
                let is_enough = revisions >= limit.batches || size >= limit.bytes;
                if is_enough {
                    return Ok(LogSlice { batches, up_to: at });
                }
                revisions += 1;
                at = revision;
            }
            if !select.contains(row.get_ref(1)?.as_blob()?) {
                continue;
            }
            let mut change = change(row, revision)?;
            if previous == PreviousValues::Included {
                add_previous(sql, &mut change)?;
            }
            size += change_size(&change);
            match batches.last_mut() {
                Some(batch) if batch.revision == revision => batch.changes.push(change),
                _ => batches.push(LogBatch { revision, changes: vec![change] }),
            }
        }
        Ok(LogSlice { batches, up_to })
    };
    match select {
        Selection::Key(key) => sql.with(Query::HistoryOfKey, |statement| {
            read(&mut statement.query(params![after.0, up_to.0, &key[..]])?)
        }),
        Selection::Prefix(_) | Selection::Range(..) | Selection::From(_) => {
            sql.with(Query::History, |statement| read(&mut statement.query([after.0, up_to.0])?))
        }
    }
    .map_err(before_commit)
}

/// A row of `rev, key, value, created, version, lease`.
fn change(row: &Row<'_>, revision: Revision) -> rusqlite::Result<Change> {
    let key = bytes(row, 1)?;
    if row.get_ref(2)?.as_blob_or_null()?.is_none() {
        return Ok(Change::Delete { key, revision, previous: None });
    }
    let pair = KeyValue {
        key,
        value: bytes(row, 2)?,
        created: Revision(row.get(3)?),
        modified: revision,
        version: row.get(4)?,
        lease: row.get::<_, Option<i64>>(5)?.and_then(LeaseId::new),
    };
    Ok(Change::Put { pair, previous: None })
}

/// Finds the value before a change. It always exists: compaction keeps what a read at the compacted revision needs.
fn add_previous(sql: &Statements<'_>, change: &mut Change) -> rusqlite::Result<()> {
    let find = |key: &[u8], revision: Revision| {
        sql.with(Query::Before, |statement| statement.query_row(params![key, revision.0], pair).optional())
    };
    match change {
        // The first version of a key has no previous value; the log holds a delete before it.
        Change::Put { pair, previous } if pair.version > 1 => *previous = find(&pair.key, pair.modified)?,
        Change::Put { .. } => {}
        Change::Delete { key, revision, previous } => *previous = find(key, *revision)?,
    }
    Ok(())
}

impl Tables<'_, '_> {
    /// Compacts history up to and including `revision`, except what a read at `revision` needs.
    pub(super) fn compact(&mut self, revision: Revision) -> Result<(), StoreError> {
        if revision > self.meta.revision {
            return Err(StoreError::FutureRevision);
        }
        if revision <= self.meta.compacted {
            return Err(StoreError::Compacted { at: Some(self.meta.compacted) });
        }
        self.meta.compacted = revision;
        self.meta.compacted_at_ms = floor_ms(self.now);
        Ok(())
    }

    /// Compacts one step of history if there is more than must be kept; returns whether it did.
    pub(super) fn retain(&mut self, retention: &Retention) -> Result<bool, StoreError> {
        let keep = i64::try_from(retention.revisions).unwrap_or(i64::MAX);
        let target = self.meta.revision.0.saturating_sub(keep).min(self.meta.compacted.0 + STEP_REVISIONS);
        if target <= self.meta.compacted.0 {
            return Ok(false);
        }
        let newest: Option<(i64, i64)> = self
            .sql
            .with(Query::LastUpTo, |statement| {
                statement.query_row([target], |row| Ok((row.get(0)?, row.get(1)?))).optional()
            })
            .map_err(before_commit)?;
        let since = floor_ms(self.now).saturating_sub(ceil_ms(retention.age));
        // Too young: watchers were promised that history is kept this long.
        if newest.is_some_and(|(revision, at)| revision > self.meta.compacted.0 && at >= since) {
            return Ok(false);
        }
        self.meta.compacted = Revision(target);
        Ok(true)
    }

    /// How long until rows below the compacted revision may be deleted; none if there are none.
    pub(super) fn sweep_in(&self) -> Option<Duration> {
        let due_ms = self.meta.compacted_at_ms.saturating_add(SWEEP_GRACE_MS);
        let wait = u64::try_from(due_ms.saturating_sub(floor_ms(self.now))).unwrap_or(0);
        (self.meta.swept < self.meta.compacted).then(|| Duration::from_millis(wait))
    }

    /// Deletes one step of the rows below the compacted revision that no read at or above it needs.
    pub(super) fn sweep(&mut self) -> Result<(), StoreError> {
        let line = self.meta.compacted.0;
        // Revisions may have jumped far ahead: a gap without rows is one step of any width.
        let first: Option<i64> = self
            .sql
            .with(Query::FirstAfter, |statement| {
                statement.query_row([self.meta.swept.0], |row| row.get(0)).optional()
            })
            .map_err(before_commit)?;
        let from = first.map_or(line, |first| line.min(first - 1));
        let far = line.min(from + STEP_REVISIONS);
        let too_far: Option<i64> = self
            .sql
            .with(Query::NthAfter, |statement| {
                statement.query_row(params![from, far, STEP_ROWS], |row| row.get(0)).optional()
            })
            .map_err(before_commit)?;
        let to = too_far.map_or(far, |too_far| far.min((too_far - 1).max(from + 1)));
        // The newest version of a live key stays: a read at the compacted revision needs it.
        let useless: Vec<(i64, i64)> = self
            .sql
            .with(Query::Superseded, |statement| {
                statement.query_map(params![from, to, line], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
            })
            .map_err(before_commit)?;
        for (revision, sub) in useless {
            self.sql.execute(Query::Forget, [revision, sub])?;
        }
        self.meta.swept = Revision(to);
        Ok(())
    }
}
