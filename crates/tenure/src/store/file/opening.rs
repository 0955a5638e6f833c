//! What happens when a store file is opened, inside the write lock: is it a store, is it whole, is it of this boot?
//!
//! A store that went back, because its write-ahead log was removed or the power was lost, continues from the ceiling: no revision
//! is ever used twice, and watchers are told to list again. Leases that ended while nobody was there end now, before the first read.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::store::file::alarm::GIVE_UP_AFTER;
use crate::store::file::bell::Bell;
use crate::store::file::ceiling::{Ceiling, RESERVED};
use crate::store::file::engine::Core;
use crate::store::file::fault::{before_commit, of_commit, of_side_file};
use crate::store::file::guard::{Guard, Identity};
use crate::store::file::rows::{Meta, Tables};
use crate::store::file::schema;
use crate::store::file::sql::{Query, Statements};
use crate::store::file::time::floor_ms;
use crate::store::{Replaced, Revision, StoreError};

/// How long one sleeps who finds SQLite's lock taken, at first and at most. Inside the queue that happens only while
/// somebody who does not queue writes, or while the file is being recovered.
const BUSY_SLEEP_MIN: Duration = Duration::from_micros(200);
const BUSY_SLEEP_MAX: Duration = Duration::from_millis(2);

/// A store file that was opened.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) guard: Guard,
    pub(super) ceiling: Ceiling,
    pub(super) bell: Bell,
    pub(super) store_id: [u8; 16],
}

/// Opens the store, and makes it if there is none. Called inside the write lock.
pub(super) fn open(core: &Arc<Core>) -> Result<Opened, StoreError> {
    let place = &core.place;
    let (found, found_wal) = (Identity::at(&place.database)?, Identity::at(&place.wal)?);
    let connection = connect(core)?;
    let is_store = schema::is_store(&connection)?;
    if !is_store {
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&place.database, private)
            .map_err(|error| of_side_file(&place.database.display().to_string(), &error))?;
    }
    schema::share(&connection)?;
    let mut ceiling = Ceiling::open(&place.epoch)?;
    let bell = Bell::open(&place.bell)?;

    let time = &core.options.time;
    let boot_id = time.boot_id()?;
    let sql = Statements::new(&connection);
    sql.execute(Query::BeginImmediate, [])?;
    if !is_store {
        schema::create(&connection, &boot_id)?;
    }
    let meta = Meta::read(&sql)?;
    meta.check(&meta.store_id, Revision::ZERO)?;
    let mut tables = Tables::new(&sql, meta, time.boot(), time.wall_ms());
    let known_boot: String =
        connection.query_row("SELECT boot_id FROM meta", [], |row| row.get(0)).map_err(before_commit)?;
    let is_new_boot = known_boot != boot_id;
    if is_new_boot {
        tables.adopt_leases()?;
        connection.execute("UPDATE meta SET boot_id = ?1", [&boot_id]).map_err(before_commit)?;
    }
    let lost_its_wal = is_store && found_wal.is_none();
    let (top, rung) = (ceiling.known(), bell.last()?);
    let went_back = meta.revision < rung || meta.revision.0 < top.0.saturating_sub(RESERVED);
    if is_new_boot || lost_its_wal || went_back {
        let least = if top == Revision::ZERO { meta.revision.0.saturating_add(RESERVED) } else { 0 };
        let to = Revision(top.0.max(rung.0).max(least).max(meta.revision.0));
        tracing::info!(store = %place.database.display(), from = %meta.revision, %to, "revision was moved up");
        tables.meta.revision = to;
        tables.meta.compacted = to;
        tables.meta.compacted_at_ms = floor_ms(tables.now);
    }
    tables.reap()?;
    tables.write_meta()?;
    let meta = tables.meta;
    ceiling.reserve(meta.revision, meta.revision)?;
    sql.with(Query::Commit, |statement| statement.execute([])).map_err(of_commit)?;
    bell.ring(meta.revision);
    core.note_seen(meta.revision);
    drop(sql);

    // SQLite has all three files open now. They must be those that were there before.
    let guard = Guard::remember(place)?;
    if found.is_some() && Identity::at(&place.database)? != found {
        return Err(StoreError::Replaced(Replaced::Files));
    }
    Ok(Opened { connection, guard, ceiling, bell, store_id: meta.store_id })
}

/// A connection that waits in short sleeps where SQLite has to wait.
pub(super) fn connect(core: &Arc<Core>) -> Result<Connection, StoreError> {
    let mut connection = schema::connect(&core.place.database, core.options.durability)?;
    let waiting = core.clone();
    let mut since = Instant::now();
    let patience = move |count: i32| {
        if count == 0 {
            since = Instant::now();
            waiting.alarm.arm();
        }
        std::thread::sleep((BUSY_SLEEP_MIN * count.unsigned_abs()).clamp(BUSY_SLEEP_MIN, BUSY_SLEEP_MAX));
        since.elapsed() < GIVE_UP_AFTER && !waiting.is_over()
    };
    connection.busy_handler(Some(patience)).map_err(before_commit)?;
    Ok(connection)
}

/// A connection for those who only read. It sees what was committed before each of its transactions.
pub(super) fn connect_reader(core: &Arc<Core>) -> Result<Connection, StoreError> {
    let connection = connect(core)?;
    connection.execute_batch("PRAGMA query_only = ON").map_err(before_commit)?;
    // Opens the write-ahead log and its index now, inside the write lock, and not at the first read.
    let _: i64 = connection.query_row("SELECT rev FROM meta", [], |row| row.get(0)).map_err(before_commit)?;
    Ok(connection)
}
