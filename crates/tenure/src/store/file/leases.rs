//! Leases in a store file: granted, renewed and ended inside the write lock, against boot time read inside it.
//!
//! **Invariant**: after [`Tables::reap`] no lease exists beyond its deadline, so the following operations of the same
//! transaction cannot see, compare with, or renew one.

use std::time::Duration;

use rusqlite::{OptionalExtension, params};
use tenure_core::keyspace::Rows;

use crate::store::file::error::before_commit;
use crate::store::file::rows::{Tables, bytes, pair};
use crate::store::file::sql::{Query, Statements};
use crate::store::file::time::{ceil_ms, deadline_ms, duration, floor_ms};
use crate::store::{Change, LeaseId, LeaseView, Limits, Revision, StoreError};

/// When the next lease ends, in boot time; none if there is no lease.
pub(super) fn next_deadline_ms(sql: &Statements<'_>) -> Result<Option<i64>, StoreError> {
    sql.with(Query::NextDeadline, |statement| statement.query_row([], |row| row.get(0)))
        .map_err(before_commit)
}

impl Tables<'_, '_> {
    /// Whether a lease is past its deadline, so that its keys must not be shown.
    pub(super) fn has_due(&self) -> Result<bool, StoreError> {
        let now = floor_ms(self.now);
        Ok(next_deadline_ms(self.sql)?.is_some_and(|deadline| deadline <= now))
    }

    /// Ends every lease past its deadline, each in a revision of its own.
    pub(super) fn reap(&mut self) -> Result<(), StoreError> {
        if !self.has_due()? {
            return Ok(());
        }
        for id in self.lease_ids(Query::Due, params![floor_ms(self.now)])? {
            self.end(id)?;
            self.seal();
        }
        Ok(())
    }

    /// Grants a lease; returns its TTL.
    pub(super) fn grant(
        &mut self,
        id: LeaseId,
        ttl: Duration,
        limits: &Limits,
    ) -> Result<Duration, StoreError> {
        let ttl_ms = ceil_ms(limits.grant_ttl(ttl)?);
        if self.has_lease(id)? {
            return Err(StoreError::LeaseExists);
        }
        let (deadline, wall_deadline) = (deadline_ms(self.now, ttl_ms), self.wall_ms.saturating_add(ttl_ms));
        self.sql.execute(Query::Grant, params![id.get(), ttl_ms, deadline, wall_deadline])?;
        Ok(duration(ttl_ms))
    }

    /// Renews a lease for its whole TTL, which is returned; none if it is gone.
    pub(super) fn renew(&mut self, id: LeaseId) -> Result<Option<Duration>, StoreError> {
        let Some((ttl_ms, _)) = self.lease_row(id)? else { return Ok(None) };
        // Both clocks: after a reboot only the wall deadline has a meaning.
        let (deadline, wall_deadline) = (deadline_ms(self.now, ttl_ms), self.wall_ms.saturating_add(ttl_ms));
        self.sql.execute(Query::Renew, params![id.get(), deadline, wall_deadline])?;
        Ok(Some(duration(ttl_ms)))
    }

    /// Ends a lease and deletes its keys; returns the revision of that.
    pub(super) fn revoke(&mut self, id: LeaseId) -> Result<Revision, StoreError> {
        if !self.has_lease(id)? {
            return Err(StoreError::LeaseNotFound);
        }
        self.end(id)?;
        Ok(if self.is_open() { self.revision().next() } else { self.revision() })
    }

    /// A lease as it is now.
    pub(super) fn lease_view(&self, id: LeaseId) -> Result<Option<LeaseView>, StoreError> {
        let Some((ttl_ms, deadline_ms)) = self.lease_row(id)? else { return Ok(None) };
        let keys = self
            .sql
            .with(Query::LeasedKeys, |statement| {
                statement.query_map([id.get()], |row| bytes(row, 0))?.collect()
            })
            .map_err(before_commit)?;
        // The deadline is rounded up, so a fresh lease would seem to have more left than it was granted.
        let granted = duration(ttl_ms);
        let remaining = duration(deadline_ms).saturating_sub(self.now.since_origin()).min(granted);
        Ok(Some(LeaseView { granted, remaining, keys }))
    }

    /// All leases, by id.
    pub(super) fn leases(&self) -> Result<Vec<LeaseId>, StoreError> {
        self.lease_ids(Query::LeaseIds, [])
    }

    /// Carries the leases of an earlier boot over into this one. Each keeps its remaining time by the wall clock, and
    /// never more than its TTL, however wrong that clock is.
    pub(super) fn adopt_leases(&mut self) -> Result<(), StoreError> {
        self.sql
            .connection()
            .execute(
                "UPDATE lease SET deadline = ?1 + max(0, min(ttl, wall_deadline - ?2))",
                params![deadline_ms(self.now, 0), self.wall_ms],
            )
            .map_err(before_commit)?;
        Ok(())
    }

    /// Ends a lease and deletes its keys, in key order, in the revision that is open.
    fn end(&mut self, id: LeaseId) -> Result<(), StoreError> {
        let doomed: Vec<_> = self
            .sql
            .with(Query::Leased, |statement| statement.query_map([id.get()], pair)?.collect())
            .map_err(before_commit)?;
        self.sql.execute(Query::EndLease, [id.get()])?;
        let revision = self.revision().next();
        for pair in doomed {
            self.write(Change::Delete { key: pair.key.clone(), revision, previous: Some(pair) })?;
        }
        Ok(())
    }

    fn lease_row(&self, id: LeaseId) -> Result<Option<(i64, i64)>, StoreError> {
        self.sql
            .with(Query::Lease, |statement| {
                statement.query_row([id.get()], |row| Ok((row.get(0)?, row.get(1)?))).optional()
            })
            .map_err(before_commit)
    }

    fn lease_ids(&self, query: Query, params: impl rusqlite::Params) -> Result<Vec<LeaseId>, StoreError> {
        let ids: Vec<i64> = self
            .sql
            .with(query, |statement| statement.query_map(params, |row| row.get(0))?.collect())
            .map_err(before_commit)?;
        Ok(ids.into_iter().filter_map(LeaseId::new).collect())
    }
}
