//! Whatever rows there are, history is read whole, in order and to its end, in parts of any size; sweeping takes nothing from a read at the compacted revision.

use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, params};
use tenure_core::keyspace::Rows;
use tenure_core::time::Moment;

use crate::store::file::log::{LogBatch, ReadLimit, read_log};
use crate::store::file::options::Retention;
use crate::store::file::rows::{Meta, Tables};
use crate::store::file::schema;
use crate::store::file::sql::Statements;
use crate::store::{PreviousValues, Revision, Selection, StoreError};

/// How many rows are written: more only repeat themselves.
const LINES_MAX: usize = 60;

/// Lines as `meta REV COMPACT SWEPT`, `row REV SUB KEY VALUE CREATED VERSION LEASE`, where a value `-` is a delete, `lease ID TTL DEADLINE WALL`,
/// `now MS` and `compact REV`.
pub(super) fn log(bytes: &[u8]) -> String {
    let connection = Connection::open_in_memory().expect("memory is there");
    schema::create(&connection, "boot", Revision(1)).expect("an empty database takes our tables");
    let (mut now_ms, mut compact_at) = (0, None);
    for line in bytes.split(|byte| *byte == b'\n').take(LINES_MAX) {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let number = |at: usize| {
            words.get(at).and_then(|word| std::str::from_utf8(word).ok()?.parse::<i64>().ok()).unwrap_or(0)
        };
        let word = |at: usize| words.get(at).copied().unwrap_or_default();
        // What the tables do not take cannot be in a file.
        let _ = match words[0] {
            b"meta" => connection.execute(
                "UPDATE meta SET rev = ?1, compact = ?2, swept = ?3",
                params![number(1), number(2), number(3)],
            ),
            b"row" => connection.execute(
                "INSERT INTO log VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0)",
                params![
                    number(1),
                    number(2),
                    word(3),
                    (word(4) != b"-").then(|| word(4)),
                    number(5),
                    number(6),
                    (number(7) != 0).then(|| number(7))
                ],
            ),
            b"lease" => connection.execute(
                "INSERT INTO lease VALUES (?1, ?2, ?3, ?4)",
                params![number(1), number(2), number(3), number(4)],
            ),
            b"now" => {
                now_ms = number(1).unsigned_abs();
                Ok(0)
            }
            b"compact" => {
                compact_at = Some(Revision(number(1)));
                Ok(0)
            }
            _ => Ok(0),
        };
    }
    read(&connection, now_ms, compact_at)
}

fn read(connection: &Connection, now_ms: u64, compact_at: Option<Revision>) -> String {
    let sql = Statements::new(connection);
    let meta = match Meta::read(&sql) {
        Ok(meta) => meta,
        Err(error) => {
            assert!(matches!(error, StoreError::Corrupt(_)), "{error:?}");
            return "refused".to_owned();
        }
    };
    let mut batches = 0;
    let key = Bytes::from_static(b"k/a");
    for select in [Selection::everything(), Selection::key(key.clone()), Selection::prefix("k/")] {
        for previous in [PreviousValues::Included, PreviousValues::Omitted] {
            let ends = (meta.compacted, meta.revision);
            let most = ReadLimit { batches: usize::MAX, bytes: usize::MAX };
            let whole = match read_log(&sql, &select, ends, previous, most) {
                Ok(whole) => whole,
                // A delete of a deleted key: no store writes that.
                Err(StoreError::Corrupt(_)) if previous == PreviousValues::Included => continue,
                Err(error) => panic!("every row can be read: {error:?}"),
            };
            assert_eq!(whole.up_to, meta.revision, "all of it is read");
            check(&whole.batches, ends, &select);
            batches = batches.max(whole.batches.len());
            assert_eq!(
                read_lock_file(&whole.batches),
                in_helpings(&sql, &select, ends, previous),
                "{select:?}"
            );
        }
    }
    let now = Moment::from_ms(now_ms);
    let mut tables = Tables::new(&sql, meta, now, 0);
    let mut told = vec![format!("{}", batches.min(4))];
    if let Some(revision) = compact_at {
        told.push(format!("compact {}", tables.compact(revision).is_ok()));
    }
    let retained = tables.retain(&Retention { revisions: 2, age: Duration::ZERO });
    told.push(format!("retain {:?}", retained.ok()));
    let line = tables.meta.compacted;
    let at_line = |tables: &Tables<'_, '_>| tables.select_at(&Selection::everything(), line, None).ok();
    let before = at_line(&tables);
    for _ in 0..4 {
        if tables.sweep_in().is_none() {
            break;
        }
        tables.sweep().expect("rows can be removed");
        assert_eq!(at_line(&tables), before, "a read at the line misses something");
    }
    told.push(format!("adopt {} reap {}", tables.adopt_leases().is_ok(), tables.reap().is_ok()));
    told.join(" ")
}

fn check(batches: &[LogBatch], (after, up_to): (Revision, Revision), select: &Selection) {
    let mut at = after;
    for batch in batches {
        assert!(batch.revision > at && batch.revision <= up_to, "{:?} after {at:?}", batch.revision);
        assert!(!batch.changes.is_empty(), "a revision without changes is none");
        assert!(batch.changes.iter().all(|change| change.revision() == batch.revision));
        assert!(batch.changes.iter().all(|change| select.contains(change.key())));
        at = batch.revision;
    }
}

/// The same, one revision at a time: each look must get further, or there is nothing left.
fn in_helpings(
    sql: &Statements<'_>,
    select: &Selection,
    (after, up_to): (Revision, Revision),
    previous: PreviousValues,
) -> Vec<String> {
    let (mut at, mut batches) = (after, Vec::new());
    for _ in 0..=LINES_MAX {
        let least = ReadLimit { batches: 1, bytes: 1 };
        let some = read_log(sql, select, (at, up_to), previous, least).expect("every row can be read");
        batches.extend(some.batches);
        if some.up_to >= up_to {
            return read_lock_file(&batches);
        }
        assert!(some.up_to > at, "a read at {at:?} makes no progress");
        at = some.up_to;
    }
    panic!("history has no end");
}

fn read_lock_file(batches: &[LogBatch]) -> Vec<String> {
    batches.iter().map(|batch| format!("{batch:?}")).collect()
}
