//! However a write-ahead log is cut, flipped or shuffled, what is read is a prefix of what was committed, or is refused: nothing is invented.

use std::path::Path;
use std::sync::OnceLock;

use bytes::Bytes;
use tenure_core::keyspace::Rows;
use tenure_core::time::Moment;

use crate::store::file::log::{ReadLimit, read_log};
use crate::store::file::rows::{Meta, Tables};
use crate::store::file::schema;
use crate::store::file::sql::{Query, Statements};
use crate::store::{Change, Durability, KeyValue, PreviousValues, Revision, Selection, StoreError};

/// How many revisions are committed.
const REVISIONS: i64 = 6;

/// The bytes before the first frame, and those before each page.
const HEADER_BYTES: usize = 32;
const FRAME_BYTES: usize = 24 + PAGE_BYTES;
const PAGE_BYTES: usize = 512;

/// A store with all its commits in the write-ahead log: the database, and the log.
fn store() -> &'static (Vec<u8>, Vec<u8>) {
    static STORE: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    STORE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let connection = schema::connect(&path, Durability::Process).expect("an empty file can be opened");
        connection
            .execute_batch(&format!("PRAGMA page_size = {PAGE_BYTES}"))
            .expect("small pages are allowed");
        schema::share(&connection).expect("it has a log");
        connection.execute_batch("BEGIN").expect("the only writer");
        schema::create(&connection, "boot", Revision(1)).expect("it takes our tables");
        connection.execute_batch("COMMIT").expect("the only writer");
        let sql = Statements::new(&connection);
        for _ in 0..REVISIONS {
            sql.execute(Query::BeginImmediate, []).expect("the only writer");
            let now = Moment::from_ms(1_000);
            let mut tables = Tables::new(&sql, Meta::read(&sql).expect("the row is there"), now, 0);
            let next = tables.meta.revision.next();
            tables.write(Change::Put { pair: pair(next), previous: None }).expect("it can be written");
            tables.seal();
            tables.write_meta().expect("it can be written");
            sql.execute(Query::Commit, []).expect("the only writer");
        }
        let read = |path: &Path| std::fs::read(path).expect("what was written can be read");
        (read(&path), read(&folder.path().join("s-wal")))
    })
}

/// What is written in a revision.
fn pair(revision: Revision) -> KeyValue {
    KeyValue {
        key: Bytes::from(format!("k/{:03}", revision.0)),
        value: Bytes::from(format!("value of {}", revision.0)),
        created: revision,
        modified: revision,
        version: 1,
        lease: None,
    }
}

/// Lines as `flip BYTE BIT`, `cut LEN`, `zero FROM LEN`, `swap FRAME FRAME` and `repeat FRAME`; what is none of them is added at the end as it is.
pub(super) fn wal(bytes: &[u8]) -> String {
    let (database, wal) = store();
    let mut wal = wal.clone();
    for line in bytes.split(|byte| *byte == b'\n') {
        spoil(&mut wal, line);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    std::fs::write(&path, database).expect("it can be written");
    std::fs::write(folder.path().join("s-wal"), &wal).expect("it can be written");
    match read(&path) {
        Ok(None) => "empty".to_owned(),
        Ok(Some(revision)) => format!("up to {revision}"),
        Err(error) => format!("refused: {error}"),
    }
}

fn spoil(wal: &mut Vec<u8>, line: &[u8]) {
    let text = String::from_utf8_lossy(line);
    let words: Vec<&str> = text.split(' ').collect();
    let number = |at: usize, below: usize| {
        let number = words.get(at).and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
        if below == 0 { 0 } else { number % below }
    };
    let frames = wal.len().saturating_sub(HEADER_BYTES) / FRAME_BYTES;
    let frame = |at: usize| {
        let from = HEADER_BYTES + number(at, frames) * FRAME_BYTES;
        from..from + FRAME_BYTES
    };
    match words[0] {
        "flip" if !wal.is_empty() => {
            let at = number(1, wal.len());
            wal[at] ^= 1 << number(2, 8);
        }
        "cut" => wal.truncate(number(1, wal.len() + 1)),
        "zero" if !wal.is_empty() => {
            let from = number(1, wal.len());
            let to = (from + number(2, wal.len())).min(wal.len());
            wal[from..to].fill(0);
        }
        "swap" if frames > 1 => {
            let (one, other) = (wal[frame(1)].to_vec(), wal[frame(2)].to_vec());
            wal[frame(1)].copy_from_slice(&other);
            wal[frame(2)].copy_from_slice(&one);
        }
        "repeat" if frames > 0 => {
            let one = wal[frame(1)].to_vec();
            wal.extend(one);
        }
        _ => wal.extend_from_slice(line),
    }
}

/// Reads all of it; the newest revision, or none if there is no store.
fn read(path: &Path) -> Result<Option<i64>, StoreError> {
    let connection = schema::connect(path, Durability::Process)?;
    if !schema::is_store(&connection)? {
        return Ok(None);
    }
    let sql = Statements::new(&connection);
    let meta = Meta::read(&sql)?;
    let tables = Tables::new(&sql, meta, Moment::from_ms(1_000), 0);
    let wanted: Vec<KeyValue> = (2..=meta.revision.0).map(|revision| pair(Revision(revision))).collect();
    assert!((1..=REVISIONS + 1).contains(&meta.revision.0), "revision {} was never committed", meta.revision);
    assert_eq!(
        tables.select(&Selection::everything(), None)?,
        wanted,
        "keys that were never committed together"
    );
    let all = ReadLimit { batches: usize::MAX, bytes: usize::MAX };
    let ends = (Revision::ZERO, meta.revision);
    let history = read_log(&sql, &Selection::everything(), ends, PreviousValues::Omitted, all)?;
    let changes: Vec<Change> = history.batches.into_iter().flat_map(|batch| batch.changes).collect();
    let wanted: Vec<Change> = wanted.into_iter().map(|pair| Change::Put { pair, previous: None }).collect();
    assert_eq!(changes, wanted, "history that never was");
    Ok(Some(meta.revision.0))
}
