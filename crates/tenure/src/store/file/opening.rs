//! Opens a store file inside the write lock: is it a store, is it complete, is it of this boot?
//!
//! A store that has lost revisions, because its write-ahead log was removed or the power failed, continues above the reserved revision.
//! No revision is ever used twice, and watchers have to list again. Leases that ended while no process had the file open expire now,
//! before the first read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::store::file::commit_notifier::CommitNotifier;
use crate::store::file::engine::Core;
use crate::store::file::error::{before_commit, of_commit};
use crate::store::file::identity::{FileIdentity, FileIdentityCheck};
use crate::store::file::lock_watchdog::BUSY_AFTER;
use crate::store::file::occupancy::Occupancy;
use crate::store::file::revision_reserve::{RESERVED, RevisionReserve, first_revision};
use crate::store::file::rows::{Meta, Tables};
use crate::store::file::schema;
use crate::store::file::sql::{Query, Statements};
use crate::store::file::time::floor_ms;
use crate::store::{Revision, StoreError, StoreReplaced};

/// How long a process sleeps that finds SQLite's lock taken, at first and at most. Inside the queue this happens only while a
/// program outside the queue writes, or during recovery.
const BUSY_SLEEP_MIN: Duration = Duration::from_micros(200);
const BUSY_SLEEP_MAX: Duration = Duration::from_millis(2);

/// A store file that was opened.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) files: FileIdentityCheck,
    pub(super) reserve: RevisionReserve,
    pub(super) notifier: CommitNotifier,
    pub(super) store_id: [u8; 16],
}

/// Opens the store, and makes it if there is none. Called inside the write lock, when no process uses other files under this path.
pub(super) fn open(core: &Arc<Core>, occupancy: &mut Occupancy) -> Result<Opened, StoreError> {
    let paths = &core.paths;
    paths.refuse_second_names()?;
    let (found, found_wal) = (FileIdentity::at(&paths.database)?, FileIdentity::at(&paths.wal)?);
    let connection = connect(core)?;
    let is_store = schema::is_store(&connection)?;
    if !is_store {
        // SQLite gave it the mode that the user's umask allows, and gives the files beside it the same mode.
        occupancy.make_private(paths)?;
    }
    schema::share(&connection)?;
    let mut reserve = RevisionReserve::open(&paths.epoch)?;
    let notifier = CommitNotifier::open(&paths.notifier);

    let time = &core.options.time;
    // Deadlines count from boot, so they mean nothing under another boot id.
    let boot_id = time.boot_id()?;
    let sql = Statements::new(&connection);
    sql.execute(Query::BeginImmediate, [])?;
    if !is_store {
        schema::create(&connection, &boot_id, first_revision(time.wall_ms()))?;
    }
    let meta = Meta::read(&sql)?;
    meta.check(&meta.store_id, Revision::ZERO)?;
    let mut tables = Tables::new(&sql, meta, time.boot(), time.wall_ms());
    let known_boot: String =
        connection.query_row("SELECT boot_id FROM meta", [], |row| row.get(0)).map_err(before_commit)?;
    let is_new_boot = known_boot != boot_id;
    if is_new_boot {
        // Before `reap`, which compares the deadlines with the time since this boot.
        tables.adopt_leases()?;
        connection.execute("UPDATE meta SET boot_id = ?1", [&boot_id]).map_err(before_commit)?;
    }
    let (top, last) = (reserve.known(), reserve.last()?);
    let database = FileIdentity::at(&paths.database)?.ok_or(StoreError::Replaced(StoreReplaced::Files))?;
    let is_copy = reserve.adopt(database)?;
    let why = match () {
        () if is_new_boot => Some("the machine was rebooted"),
        () if is_store && found_wal.is_none() => {
            Some("the write-ahead log is missing, as after a use of sqlite3")
        }
        () if is_store && top == Revision::ZERO => Some("the file with the highest revision is missing"),
        () if is_store && is_copy => Some("the database is a copy"),
        () if meta.revision < last => Some("the last revisions are missing"),
        () if meta.revision.0 < top.0.saturating_sub(RESERVED) => Some("many revisions are missing"),
        () => None,
    };
    if let Some(why) = why {
        // Tokens above this revision may have been handed out. The wall clock is above all of them, whatever is lost.
        let least = meta.revision.0.saturating_add(RESERVED).max(first_revision(time.wall_ms()).0);
        let to = Revision(top.0.max(last.0).max(least));
        tracing::info!(store = %paths.database.display(), from = %meta.revision, %to, why, "revisions jumped, history restarted");
        tables.meta.revision = to;
        // Watchers below must list again: the lost revisions are not in the log.
        tables.meta.compacted = to;
        tables.meta.compacted_at_ms = floor_ms(tables.now);
    }
    tables.reap()?;
    tables.write_meta()?;
    let meta = tables.meta;
    // Before COMMIT, as for every write.
    reserve.ensure(meta.revision, meta.revision)?;
    sql.with(Query::Commit, |statement| statement.execute([])).map_err(of_commit)?;
    reserve.note(meta.revision);
    notifier.notify();
    core.note_seen(meta.revision);
    drop(sql);

    // SQLite has all three files open now. They must be those that were there before.
    let files = FileIdentityCheck::remember(paths)?;
    if found.is_some() && FileIdentity::at(&paths.database)? != found {
        return Err(StoreError::Replaced(StoreReplaced::Files));
    }
    occupancy.mark(paths, files.files())?;
    Ok(Opened { connection, files, reserve, notifier, store_id: meta.store_id })
}

/// A connection that waits in short sleeps where SQLite has to wait.
pub(super) fn connect(core: &Arc<Core>) -> Result<Connection, StoreError> {
    let mut connection = schema::connect(&core.paths.database, core.options.durability)?;
    let waiting = core.clone();
    let mut since = Instant::now();
    // SQLite's own busy handler sleeps for up to 100 ms at a time, which is a long time within a lease.
    let wait = move |count: i32| {
        if count == 0 {
            since = Instant::now();
            waiting.watchdog.arm();
        }
        std::thread::sleep((BUSY_SLEEP_MIN * count.unsigned_abs()).clamp(BUSY_SLEEP_MIN, BUSY_SLEEP_MAX));
        since.elapsed() < BUSY_AFTER && !waiting.is_over()
    };
    connection.busy_handler(Some(wait)).map_err(before_commit)?;
    Ok(connection)
}

/// A connection for reads. It sees what was committed before each of its transactions.
pub(super) fn connect_reader(core: &Arc<Core>) -> Result<Connection, StoreError> {
    let connection = connect(core)?;
    connection.execute_batch("PRAGMA query_only = ON").map_err(before_commit)?;
    // Opens the write-ahead log and its index now, inside the write lock, and not at the first read.
    let _: i64 = connection.query_row("SELECT rev FROM meta", [], |row| row.get(0)).map_err(before_commit)?;
    Ok(connection)
}
