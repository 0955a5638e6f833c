//! The rows of a store file inside one SQLite transaction: what the evaluator of the core works on.
//!
//! It decides nothing about conditions, versions or limits. It only keeps the current revision: several store
//! transactions may share one SQLite transaction, and each must see the revisions of those before it.
//!
//! **Invariant**: `meta.revision` is the newest sealed revision; rows of the one after it are written but not yet sealed
//! exactly while `written > 0`.

use bytes::Bytes;
use rusqlite::{OptionalExtension, Row, params};
use tenure_core::keyspace::Rows;
use tenure_core::time::Moment;

use crate::store::file::error::before_commit;
use crate::store::file::schema::FORMAT;
use crate::store::file::sql::{Query, Statements};
use crate::store::file::time::floor_ms;
use crate::store::{Change, KeyValue, LeaseId, Revision, Selection, StoreError, StoreReplaced};

/// The largest revision that is accepted: a million changes each second for a hundred thousand years come nowhere near it.
pub(super) const REVISION_MAX: i64 = i64::MAX / 2;

/// The row that every transaction reads first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Meta {
    pub(super) store_id: [u8; 16],
    pub(super) format: u32,
    pub(super) revision: Revision,
    /// History begins after this revision.
    pub(super) compacted: Revision,
    /// Up to here, rows that compaction made useless are gone from the log.
    pub(super) swept: Revision,
    /// The time of the last compaction, in boot time.
    pub(super) compacted_at_ms: i64,
}

impl Meta {
    pub(super) fn read(sql: &Statements<'_>) -> Result<Meta, StoreError> {
        let meta = sql.with(Query::Meta, |statement| {
            statement.query_row([], |row| {
                Ok(Meta {
                    store_id: row.get(0)?,
                    format: row.get(1)?,
                    revision: Revision(row.get(2)?),
                    compacted: Revision(row.get(3)?),
                    swept: Revision(row.get(4)?),
                    compacted_at_ms: row.get(5)?,
                })
            })
        });
        meta.map_err(before_commit)?.plausible()
    }

    /// Refuses numbers that no store ever writes: counting on from them would overflow.
    fn plausible(self) -> Result<Meta, StoreError> {
        for (name, Revision(number)) in
            [("revision", self.revision), ("compacted", self.compacted), ("swept", self.swept)]
        {
            if !(0..=REVISION_MAX).contains(&number) {
                return Err(StoreError::Corrupt(format!("{name} is {number}")));
            }
        }
        Ok(self)
    }

    /// Fails if the file is no longer the same store.
    pub(super) fn check(&self, store_id: &[u8; 16], seen: Revision) -> Result<(), StoreError> {
        if self.format != FORMAT {
            let found = self.format;
            return Err(StoreError::Replaced(StoreReplaced::FormatChanged { found, supported: FORMAT }));
        }
        if self.store_id != *store_id {
            let [expected, found] = [store_id, &self.store_id].map(show_id);
            return Err(StoreError::Replaced(StoreReplaced::Identity { expected, found }));
        }
        if self.revision < seen {
            return Err(StoreError::Replaced(StoreReplaced::RevisionRegress { seen, found: self.revision }));
        }
        Ok(())
    }
}

/// A store's id as people see it.
pub(super) fn show_id(id: &[u8; 16]) -> String {
    format!("file-{:032x}", u128::from_be_bytes(*id))
}

/// The rows inside one SQLite transaction.
pub(super) struct Tables<'s, 'c> {
    pub(super) sql: &'s Statements<'c>,
    pub(super) meta: Meta,
    /// What time it is in this transaction.
    pub(super) now: Moment,
    /// The wall clock, for leases that outlive this boot.
    pub(super) wall_ms: i64,
    /// Rows of the revision that is being written.
    written: i64,
    before: Meta,
}

impl<'s, 'c> Tables<'s, 'c> {
    /// The rows at the beginning of a transaction.
    pub(super) fn new(sql: &'s Statements<'c>, meta: Meta, now: Moment, wall_ms: i64) -> Tables<'s, 'c> {
        Tables { sql, meta, now, wall_ms, written: 0, before: meta }
    }

    /// Makes what was written since the last call a revision. Called after each store transaction.
    pub(super) fn seal(&mut self) {
        if self.written > 0 {
            self.meta.revision = self.meta.revision.next();
            self.written = 0;
        }
    }

    /// Whether rows are written that belong to no revision yet.
    pub(super) fn is_open(&self) -> bool {
        self.written > 0
    }

    /// Whether this transaction made revisions.
    pub(super) fn has_revisions(&self) -> bool {
        self.meta.revision != self.before.revision
    }

    /// The store's revision when the transaction began.
    pub(super) fn revision_before(&self) -> Revision {
        self.before.revision
    }

    /// Writes `meta` if it changed; the last step before COMMIT.
    pub(super) fn write_meta(&self) -> Result<(), StoreError> {
        assert!(self.written == 0, "every change belongs to a sealed revision before COMMIT");
        if self.meta == self.before {
            return Ok(());
        }
        let Meta { revision, compacted, swept, compacted_at_ms, .. } = self.meta;
        self.sql.execute(Query::SetMeta, params![revision.0, compacted.0, swept.0, compacted_at_ms])?;
        Ok(())
    }
}

impl Rows for Tables<'_, '_> {
    fn revision(&self) -> Revision {
        self.meta.revision
    }

    fn compacted(&self) -> Revision {
        self.meta.compacted
    }

    fn current(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
        self.sql
            .with(Query::Current, |statement| statement.query_row([key], pair).optional())
            .map_err(before_commit)
    }

    fn select(&self, select: &Selection, limit: Option<usize>) -> Result<Vec<KeyValue>, StoreError> {
        let (from, limit) = (&select.first()[..], sql_limit(limit));
        match select.end() {
            Some(end) => self.sql.with(Query::Between, |statement| {
                statement.query_map(params![from, &end[..], limit], pair)?.collect()
            }),
            None => self
                .sql
                .with(Query::From, |statement| statement.query_map(params![from, limit], pair)?.collect()),
        }
        .map_err(before_commit)
    }

    fn select_at(
        &self,
        select: &Selection,
        at: Revision,
        limit: Option<usize>,
    ) -> Result<Vec<KeyValue>, StoreError> {
        let (from, limit) = (&select.first()[..], sql_limit(limit));
        match select.end() {
            Some(end) => self.sql.with(Query::BetweenAt, |statement| {
                statement.query_map(params![from, &end[..], at.0, limit], pair)?.collect()
            }),
            None => self.sql.with(Query::FromAt, |statement| {
                statement.query_map(params![from, at.0, limit], pair)?.collect()
            }),
        }
        .map_err(before_commit)
    }

    fn has_lease(&self, lease: LeaseId) -> Result<bool, StoreError> {
        self.sql.with(Query::Lease, |statement| statement.exists([lease.get()])).map_err(before_commit)
    }

    fn write(&mut self, change: Change) -> Result<(), StoreError> {
        let (sub, at) = (self.written, floor_ms(self.now));
        assert!(change.revision() == self.meta.revision.next(), "a change belongs to the next revision");
        match &change {
            Change::Put { pair, .. } => {
                let KeyValue { key, value, created, modified, version, lease } = pair;
                let (key, value, lease) = (&key[..], &value[..], lease.map(LeaseId::get));
                let row = params![key, value, created.0, modified.0, version, lease];
                self.sql.execute(Query::Put, row)?;
                let row = params![modified.0, sub, key, value, created.0, version, lease, at];
                self.sql.execute(Query::Append, row)?;
            }
            Change::Delete { key, revision, .. } => {
                let nothing = None::<&[u8]>;
                self.sql.execute(Query::Delete, [&key[..]])?;
                let row = params![revision.0, sub, &key[..], nothing, 0, 0, None::<i64>, at];
                self.sql.execute(Query::Append, row)?;
            }
        }
        self.written += 1;
        Ok(())
    }
}

/// To SQLite a negative limit means none.
fn sql_limit(limit: Option<usize>) -> i64 {
    limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX))
}

/// A row of `key, value, created, modified, version, lease`.
pub(super) fn pair(row: &Row<'_>) -> rusqlite::Result<KeyValue> {
    Ok(KeyValue {
        key: bytes(row, 0)?,
        value: bytes(row, 1)?,
        created: Revision(row.get(2)?),
        modified: Revision(row.get(3)?),
        version: row.get(4)?,
        lease: row.get::<_, Option<i64>>(5)?.and_then(LeaseId::new),
    })
}

/// A column of bytes.
pub(super) fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Bytes> {
    Ok(Bytes::copy_from_slice(row.get_ref(column)?.as_blob()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::file::schema;

    /// Found by the fuzz target `file_log`: counting on from such a number overflowed.
    #[test]
    fn unreachable_revision_is_refused() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        schema::create(&connection, "boot", Revision(1)).unwrap();
        assert!(Meta::read(&Statements::new(&connection)).is_ok());
        for column in ["rev", "compact", "swept"] {
            for number in [i64::MAX, -1] {
                connection.execute(&format!("UPDATE meta SET {column} = ?1"), [number]).unwrap();
                let read = Meta::read(&Statements::new(&connection));
                assert!(matches!(read, Err(StoreError::Corrupt(_))), "{column} {number}: {read:?}");
            }
            connection.execute(&format!("UPDATE meta SET {column} = 1"), []).unwrap();
        }
    }
}
