//! The format of a store file: tables, pragmas and versions. What is written here is part of the specification.
//!
//! Current rows and history are separate tables: a read of the current state never scans history. `meta` is one row
//! that every transaction reads first, so a change of format or of identity is noticed before anything is written.

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::store::file::error::before_commit;
use crate::store::{Durability, Revision, StoreError, UnusableStore};

use std::path::Path;

/// "TENU": identifies the file as a store, also for SQLite's tools.
pub(super) const APPLICATION_ID: i32 = 0x5445_4E55;

/// The format that this program reads and writes. A file of a newer one is refused, one of an older one is migrated.
pub(super) const FORMAT: u32 = 1;

/// How many frames the write-ahead log holds before a commit moves them into the database: 4 MiB, SQLite's own default.
/// Half of it moves twice as often; double it makes each move, which the commit waits for, twice as long.
const WAL_FRAMES: u32 = 1_000;

/// How large the write-ahead log may stay after a burst, in bytes: ten times its usual size.
const WAL_BYTES_KEPT: u32 = 40 << 20;

/// The tables of format 1.
///
/// * `kv`: what is now. `lease` is null for a key that stays.
/// * `log`: every change after `meta.compact`, and the newest version of each living key before that. `value` is null for a
///   delete. `at` is boot time in milliseconds.
/// * `lease`: `deadline` is boot time in milliseconds, `wall_deadline` the same moment on the wall clock, which counts only
///   when the boot id has changed.
/// * `meta`: `swept` is how far rows below `compact` were removed, `compact_at` is the time of the last compaction.
const TABLES: &str = "
CREATE TABLE meta (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    store_id    BLOB    NOT NULL,
    format      INTEGER NOT NULL,
    min_reader  INTEGER NOT NULL,
    min_writer  INTEGER NOT NULL,
    rev         INTEGER NOT NULL,
    compact     INTEGER NOT NULL,
    swept       INTEGER NOT NULL,
    compact_at  INTEGER NOT NULL,
    boot_id     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE kv (
    key         BLOB    PRIMARY KEY NOT NULL,
    value       BLOB    NOT NULL,
    created     INTEGER NOT NULL,
    modified    INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    lease       INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX kv_lease ON kv (lease, key) WHERE lease IS NOT NULL;
CREATE TABLE log (
    rev         INTEGER NOT NULL,
    sub         INTEGER NOT NULL,
    key         BLOB    NOT NULL,
    value       BLOB,
    created     INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    lease       INTEGER,
    at          INTEGER NOT NULL,
    PRIMARY KEY (rev, sub)
) STRICT, WITHOUT ROWID;
CREATE INDEX log_key ON log (key, rev);
CREATE TABLE lease (
    id            INTEGER PRIMARY KEY NOT NULL,
    ttl           INTEGER NOT NULL,
    deadline      INTEGER NOT NULL,
    wall_deadline INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX lease_deadline ON lease (deadline);
";

/// Opens a connection and sets what must be set on each. Nothing is read or written yet.
pub(super) fn connect(path: &Path, durability: Durability) -> Result<Connection, StoreError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(before_commit)?;
    let synchronous = match durability {
        Durability::Process | Durability::Machine => "NORMAL",
        Durability::PowerLoss => "FULL",
    };
    // The last to close must not remove the side files by their names: they may be another store's by then.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(before_commit)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false).map_err(before_commit)?;
    connection
        .execute_batch(&format!(
            "PRAGMA synchronous = {synchronous};
             PRAGMA wal_autocheckpoint = {WAL_FRAMES};
             PRAGMA journal_size_limit = {WAL_BYTES_KEPT};
             PRAGMA temp_store = MEMORY;"
        ))
        .map_err(before_commit)?;
    Ok(connection)
}

/// Whether there is a store in the file already; refuses what is neither a store nor empty, and a format that is newer than this program.
pub(super) fn is_store(connection: &Connection) -> Result<bool, StoreError> {
    let pragma = |name: &str| -> Result<i32, StoreError> {
        connection.pragma_query_value(None, name, |row| row.get(0)).map_err(before_commit)
    };
    let application_id = pragma("application_id")?;
    let objects: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(before_commit)?;
    if application_id == 0 && objects == 0 {
        return Ok(false);
    }
    if application_id != APPLICATION_ID {
        let found = format!("a database with application id {application_id:#010x}");
        return Err(StoreError::Unusable(UnusableStore::NotAStore(found)));
    }
    let found = u32::try_from(pragma("user_version")?).unwrap_or(0);
    match found {
        0 => Err(StoreError::Unusable(UnusableStore::NotAStore("a store without a format".into()))),
        FORMAT => Ok(true),
        _ => Err(StoreError::Unusable(UnusableStore::NewerFormat { found, supported: FORMAT })),
    }
}

/// Refuses a file that is neither a store nor an empty database, without a lock and without leaving anything behind. Only for a file that
/// no process has open as a store.
///
/// The check opens the file through SQLite: any other descriptor of the file drops SQLite's locks when this process closes it.
pub(super) fn peek(path: &Path) -> Result<(), StoreError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'-' | b'_');
    let mut uri = String::from("file:");
    for &byte in path.as_os_str().as_encoded_bytes() {
        if plain(byte) {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
    uri.push_str("?immutable=1");
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri, flags).map_err(before_commit)?;
    is_store(&connection).map(drop)
}

/// Makes the file one that many processes can read while one writes.
pub(super) fn share(connection: &Connection) -> Result<(), StoreError> {
    let mode: String =
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(before_commit)?;
    if mode != "wal" {
        return Err(StoreError::Corrupt(format!("the journal stays in mode {mode}, wal is needed")));
    }
    Ok(())
}

/// Writes an empty store into the open transaction. History begins at its first revision.
///
/// etcd begins at 1. Here a store may take the place of one that was removed, and tokens must not shrink: see `first_revision`.
pub(super) fn create(connection: &Connection, boot_id: &str, first: Revision) -> Result<(), StoreError> {
    let mut store_id = [0; 16];
    getrandom::fill(&mut store_id).expect("the operating system gives random bytes");
    connection.execute_batch(TABLES).map_err(before_commit)?;
    connection
        .execute(
            "INSERT INTO meta VALUES (1, ?1, ?2, ?2, ?2, ?4, ?4, ?4, 0, ?3)",
            rusqlite::params![&store_id[..], FORMAT, boot_id, first.0],
        )
        .map_err(before_commit)?;
    connection
        .execute_batch(&format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};"))
        .map_err(before_commit)
}
