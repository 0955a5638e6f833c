//! Files of other formats: an old one is read for ever, a newer one is refused by name, and a process that runs while
//! another migrates stops writing.

use std::time::Duration;

use tenure::store::{Get, LeaseId, StoreError, StoreReplaced, UnusableStore};

use super::{Home, options};

/// Written by `make_golden_file` of the version that introduced the format, and never again.
const GOLDEN_1: &[u8] = include_bytes!("golden/format-1.db");

#[tokio::test]
async fn file_of_format_1_is_readable() {
    let home = Home::new();
    std::fs::create_dir(home.path().parent().unwrap()).unwrap();
    std::fs::write(home.path(), GOLDEN_1).unwrap();
    let store = home.store().await;
    let page = store.get(Get::prefix("/")).await.unwrap();
    let held: Vec<_> = page
        .pairs
        .iter()
        .map(|pair| (&pair.key[..], &pair.value[..], [pair.created.0, pair.modified.0, pair.version]))
        .collect();
    let expected: [(&[u8], &[u8], [i64; 3]); 3] = [
        (b"/bytes\x00\xff", b"", [4, 4, 1]),
        (b"/leased", b"week", [7, 7, 1]),
        (b"/twice", b"two", [2, 3, 2]),
    ];
    assert_eq!(held, expected);
    let lease = LeaseId::new(0x7e57).unwrap();
    assert_eq!(page.pairs[1].lease, Some(lease));
    let view = store.lease(lease).await.unwrap().unwrap();
    assert_eq!(view.granted, GOLDEN_TTL);
    // It comes from another boot, so history begins anew, above all that was.
    assert!(page.revision.0 > 7);
    assert_eq!(store.put("/more", "").await.unwrap(), page.revision.next());
}

/// A hundred years: it must still be there when this test runs.
const GOLDEN_TTL: Duration = Duration::from_secs(3_155_760_000);

/// Makes what the golden file holds, and shows that it is what it should be. `TENURE_GOLDEN=path` keeps the file.
#[tokio::test]
async fn make_golden_file() {
    let home = Home::new();
    let store = home.store().await;
    let first = store.get(Get::key("/twice")).await.unwrap().revision;
    store.put("/twice", "one").await.unwrap();
    store.put("/twice", "two").await.unwrap();
    store.put(&b"/bytes\x00\xff"[..], "").await.unwrap();
    store.put("/gone", "").await.unwrap();
    store.delete(tenure::store::Selection::key("/gone")).await.unwrap();
    let lease = store.grant(GOLDEN_TTL, LeaseId::new(0x7e57)).await.unwrap();
    let last = store.put_leased("/leased", "week", lease.id).await.unwrap();
    assert_eq!(last.0, first.0 + 6);
    store.close().await;
    // Closing leaves everything in one file.
    assert_eq!(std::fs::metadata(home.side_file("-wal")).unwrap().len(), 0);
    if let Some(path) = std::env::var_os("TENURE_GOLDEN") {
        std::fs::copy(home.path(), path).unwrap();
    }
}

#[tokio::test]
async fn newer_format_error_names_both_versions() {
    let home = Home::new();
    home.store().await.close().await;
    let connection = rusqlite::Connection::open(home.path()).unwrap();
    connection.execute_batch("PRAGMA user_version = 7; UPDATE meta SET format = 7").unwrap();
    drop(connection);
    let error = options().open(home.path()).await.unwrap_err();
    assert!(
        matches!(error, StoreError::Unusable(UnusableStore::NewerFormat { found: 7, supported: 1 })),
        "{error}"
    );
    assert!(error.to_string().contains('7') && error.to_string().contains('1'), "{error}");
}

/// X15.
#[tokio::test]
async fn migration_stops_writers_of_old_format() {
    let home = Home::new();
    let store = home.store().await;
    store.put("/a", "1").await.unwrap();
    let connection = rusqlite::Connection::open(home.path()).unwrap();
    connection
        .execute_batch("BEGIN IMMEDIATE; PRAGMA user_version = 2; UPDATE meta SET format = 2; COMMIT")
        .unwrap();
    for _ in 0..2 {
        let error = store.put("/a", "2").await.unwrap_err();
        assert!(
            matches!(error, StoreError::Replaced(StoreReplaced::FormatChanged { found: 2, supported: 1 })),
            "{error}"
        );
    }
    let value: Vec<u8> = connection.query_row("SELECT value FROM kv", [], |row| row.get(0)).unwrap();
    assert_eq!(value, b"1");
}
