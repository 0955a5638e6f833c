//! Every query of a store in use, prepared once for each connection.

use std::cell::RefCell;

use rusqlite::{Connection, Statement};

use crate::store::StoreError;
use crate::store::file::error::before_commit;

macro_rules! queries {
    ($($name:ident = $sql:literal;)*) => {
        /// A prepared question.
        #[derive(Clone, Copy, Debug)]
        pub(super) enum Query { $($name,)* }

        const SQL: &[&str] = &[$($sql,)*];
    };
}

queries! {
    Begin = "BEGIN";
    BeginImmediate = "BEGIN IMMEDIATE";
    Commit = "COMMIT";
    Rollback = "ROLLBACK";

    Meta = "SELECT store_id, format, rev, compact, swept, compact_at FROM meta";
    SetMeta = "UPDATE meta SET rev = ?1, compact = ?2, swept = ?3, compact_at = ?4";

    Current = "SELECT key, value, created, modified, version, lease FROM kv WHERE key = ?1";
    Between = "SELECT key, value, created, modified, version, lease FROM kv
               WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3";
    From = "SELECT key, value, created, modified, version, lease FROM kv
            WHERE key >= ?1 ORDER BY key LIMIT ?2";
    BetweenAt = "SELECT key, value, created, rev, version, lease FROM log AS this
                 WHERE key >= ?1 AND key < ?2 AND rev <= ?3 AND value IS NOT NULL
                   AND NOT EXISTS (SELECT 1 FROM log AS next
                                   WHERE next.key = this.key AND next.rev > this.rev AND next.rev <= ?3)
                 ORDER BY key LIMIT ?4";
    FromAt = "SELECT key, value, created, rev, version, lease FROM log AS this
              WHERE key >= ?1 AND rev <= ?2 AND value IS NOT NULL
                AND NOT EXISTS (SELECT 1 FROM log AS next
                                WHERE next.key = this.key AND next.rev > this.rev AND next.rev <= ?2)
              ORDER BY key LIMIT ?3";
    Put = "INSERT INTO kv (key, value, created, modified, version, lease) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
           ON CONFLICT (key) DO UPDATE SET value = ?2, created = ?3, modified = ?4, version = ?5, lease = ?6";
    Delete = "DELETE FROM kv WHERE key = ?1";
    Append = "INSERT INTO log (rev, sub, key, value, created, version, lease, at)
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

    NextDeadline = "SELECT min(deadline) FROM lease";
    Due = "SELECT id FROM lease WHERE deadline <= ?1 ORDER BY deadline, id";
    Lease = "SELECT ttl, deadline FROM lease WHERE id = ?1";
    LeaseIds = "SELECT id FROM lease ORDER BY id";
    Leased = "SELECT key, value, created, modified, version, lease FROM kv WHERE lease = ?1 ORDER BY key";
    LeasedKeys = "SELECT key FROM kv WHERE lease = ?1 ORDER BY key";
    Grant = "INSERT INTO lease (id, ttl, deadline, wall_deadline) VALUES (?1, ?2, ?3, ?4)";
    Renew = "UPDATE lease SET deadline = ?2, wall_deadline = ?3 WHERE id = ?1";
    EndLease = "DELETE FROM lease WHERE id = ?1";

    History = "SELECT rev, key, value, created, version, lease FROM log
               WHERE rev > ?1 AND rev <= ?2 ORDER BY rev, sub";
    HistoryOfKey = "SELECT rev, key, value, created, version, lease FROM log
                    WHERE key = ?3 AND rev > ?1 AND rev <= ?2 ORDER BY rev";
    Before = "SELECT key, value, created, rev, version, lease FROM log
              WHERE key = ?1 AND rev < ?2 ORDER BY rev DESC LIMIT 1";

    LastUpTo = "SELECT rev, at FROM log WHERE rev <= ?1 ORDER BY rev DESC LIMIT 1";
    FirstAfter = "SELECT rev FROM log WHERE rev > ?1 ORDER BY rev LIMIT 1";
    NthAfter = "SELECT rev FROM log WHERE rev > ?1 AND rev <= ?2 ORDER BY rev, sub LIMIT 1 OFFSET ?3";
    Superseded = "SELECT old.rev, old.sub FROM log AS old
                  WHERE old.key IN (SELECT key FROM log WHERE rev > ?1 AND rev <= ?2) AND old.rev <= ?2
                    AND (old.value IS NULL OR EXISTS (SELECT 1 FROM log AS newer
                         WHERE newer.key = old.key AND newer.rev > old.rev AND newer.rev <= ?3))";
    Forget = "DELETE FROM log WHERE rev = ?1 AND sub = ?2";
}

/// The prepared questions of one connection; each is prepared when it is first put.
pub(super) struct Statements<'c> {
    connection: &'c Connection,
    prepared: Vec<RefCell<Option<Statement<'c>>>>,
}

impl<'c> Statements<'c> {
    pub(super) fn new(connection: &'c Connection) -> Statements<'c> {
        Statements { connection, prepared: SQL.iter().map(|_| RefCell::new(None)).collect() }
    }

    /// The connection that they are put to.
    pub(super) fn connection(&self) -> &'c Connection {
        self.connection
    }

    /// Puts a question. `run` must not put the same one again.
    pub(super) fn with<T>(
        &self,
        query: Query,
        run: impl FnOnce(&mut Statement<'c>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let index = query as usize;
        let mut slot = self.prepared[index].borrow_mut();
        let statement = match &mut *slot {
            Some(statement) => statement,
            empty => empty.insert(self.connection.prepare(SQL[index])?),
        };
        run(statement)
    }

    /// Executes a statement without rows; returns how many rows it changed.
    pub(super) fn execute(&self, query: Query, params: impl rusqlite::Params) -> Result<usize, StoreError> {
        self.with(query, |statement| statement.execute(params)).map_err(before_commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Revision;
    use crate::store::file::schema;

    #[test]
    fn every_query_fits_the_tables() {
        let connection = Connection::open_in_memory().unwrap();
        schema::create(&connection, "boot", Revision(1)).unwrap();
        for sql in SQL {
            connection.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        }
    }

    /// The plan decides whether a question costs microseconds or a walk over all of history.
    #[test]
    fn no_query_scans_a_whole_table() {
        let connection = Connection::open_in_memory().unwrap();
        schema::create(&connection, "boot", Revision(1)).unwrap();
        for sql in SQL.iter().filter(|sql| !sql.contains("meta") && !sql.ends_with("ORDER BY id")) {
            let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let parameters = explain.parameter_count();
            let plan: Vec<String> = explain
                .query_map(rusqlite::params_from_iter(vec![1_i64; parameters]), |row| row.get(3))
                .unwrap()
                .map(Result::unwrap)
                .collect();
            let walks = plan.iter().any(|step| step.starts_with("SCAN") && !step.contains("CONSTANT"));
            let sorts = plan.iter().any(|step| step.contains("TEMP B-TREE"));
            assert!(!walks && !sorts, "{sql}\n{plan:#?}");
        }
    }
}
