//! Files that are removed, exchanged or destroyed: every handle notices it, and no revision is used twice.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use tenure::store::{
    Get, LeaseChoice, Revision, Store, StoreError, StoreReplaced, UnusableStore, WatchError, WatchStart,
};

use super::child::ChildProcess;
use super::sharing::{next, watch_all};
use super::{Home, options};

/// Kills a process that has written 300 keys; returns its last revision.
async fn killed_after_300_puts(home: &Home) -> Revision {
    let mut writer = ChildProcess::start("puts", &home.path());
    let last = Revision(writer.next_report().await.unwrap().parse().unwrap());
    writer.kill().await;
    last
}

/// X03.
#[tokio::test]
async fn garbage_shm_after_crash_loses_nothing() {
    let home = Home::new();
    let last = killed_after_300_puts(&home).await;
    std::fs::write(home.side_file("-shm"), [0xA5; 32_768]).unwrap();
    let store = home.store().await;
    let page = store.get(Get::prefix("/n/")).await.unwrap();
    assert_eq!((page.pairs.len(), page.revision), (300, last));
}

/// X03.
#[tokio::test]
async fn removed_shm_after_crash_loses_nothing() {
    let home = Home::new();
    let last = killed_after_300_puts(&home).await;
    std::fs::remove_file(home.side_file("-shm")).unwrap();
    let store = home.store().await;
    let page = store.get(Get::prefix("/n/")).await.unwrap();
    assert_eq!((page.pairs.len(), page.revision), (300, last));
}

/// X04. SQLite opens the database without an error, 100 revisions back.
#[tokio::test]
async fn removed_wal_after_crash_repeats_no_revision() {
    let home = Home::new();
    let last = killed_after_300_puts(&home).await;
    std::fs::remove_file(home.side_file("-wal")).unwrap();
    let store = home.store().await;
    let found = store.get(Get::prefix("/n/")).await.unwrap();
    assert!(found.pairs.len() < 300, "the log held commits, or the test proves nothing");
    assert!(store.put("/next", "").await.unwrap() > last);
    let mut watch = watch_all(&store, WatchStart::After(last)).await;
    assert!(matches!(next(&mut watch).await, Err(WatchError::Compacted { .. })));
    store.close().await;
    // It jumps once, not at each opening.
    let store = home.store().await;
    let revision = store.get(Get::key("/next")).await.unwrap().revision;
    assert_eq!(store.put("/next", "").await.unwrap(), revision.next());
}

/// X04, with an older copy in place of the removed log, as after a restored backup.
#[tokio::test]
async fn older_wal_lets_no_revision_come_twice() {
    let home = Home::new();
    let store = home.store().await;
    store.put("/first", "").await.unwrap();
    let older = std::fs::read(home.side_file("-wal")).unwrap();
    store.close().await;
    let last = killed_after_300_puts(&home).await;
    std::fs::write(home.side_file("-wal"), older).unwrap();
    std::fs::remove_file(home.side_file("-shm")).unwrap();
    let store = home.store().await;
    assert!(store.put("/next", "").await.unwrap() > last);
}

/// The reserved revision alone is enough, and the notifier file alone is.
#[tokio::test]
async fn lost_wal_is_detected_without_side_files() {
    for suffix in [".bell", ".epoch"] {
        let home = Home::new();
        let last = killed_after_300_puts(&home).await;
        std::fs::remove_file(home.side_file("-wal")).unwrap();
        std::fs::remove_file(home.side_file(suffix)).unwrap();
        let store = home.store().await;
        assert!(store.put("/next", "").await.unwrap() > last, "without {suffix}");
    }
}

async fn leads(store: &Store) -> Result<bool, StoreError> {
    Ok(store.create("/leader", "", LeaseChoice::Detach).await?.is_some())
}

/// X05, S4. Measured without the identity check: both lead.
#[tokio::test]
async fn unlinked_files_never_make_two_leaders() {
    let home = Home::new();
    let store = home.store().await;
    assert!(leads(&store).await.unwrap());
    let mut watch = watch_all(&store, WatchStart::Now).await;
    for suffix in ["", "-wal", "-shm", ".lock", ".bell", ".epoch"] {
        std::fs::remove_file(home.side_file(suffix)).unwrap();
    }
    let mut other = ChildProcess::start("lead", &home.path());
    other.expect("true").await;
    assert!(matches!(
        next(&mut watch).await,
        Err(WatchError::Lost(StoreError::Replaced(StoreReplaced::Files)))
    ));
    for _ in 0..3 {
        assert!(matches!(leads(&store).await, Err(StoreError::Replaced(StoreReplaced::Files))));
        assert!(matches!(store.get_key("/leader").await, Err(StoreError::Replaced(StoreReplaced::Files))));
    }
    // Closing must not remove the files of the other process.
    store.close().await;
    drop(store);
    for suffix in ["", "-wal", "-shm"] {
        assert!(home.side_file(suffix).exists(), "store.db{suffix}");
    }
    let third = home.store().await;
    assert!(!leads(&third).await.unwrap());
}

/// X05: within one request, without a watcher.
#[tokio::test]
async fn unlinked_file_fails_the_next_request() {
    for suffix in ["", "-wal", "-shm"] {
        for request in [0, 1, 2] {
            let home = Home::new();
            let store = home.store().await;
            let lease = store.grant(Duration::from_secs(60), None).await.unwrap().id;
            std::fs::remove_file(home.side_file(suffix)).unwrap();
            let result = match request {
                0 => store.put("/a", "").await.map(drop),
                1 => store.renew(lease).await.map(drop),
                _ => store.get_key("/a").await.map(drop),
            };
            assert!(
                matches!(result, Err(StoreError::Replaced(StoreReplaced::Files))),
                "{suffix} {request} {result:?}"
            );
        }
    }
}

/// S5. Measured without the identity check: two leaders and a malformed database.
#[tokio::test]
async fn shm_unlinked_while_open_destroys_nothing() {
    let home = Home::new();
    let store = home.store().await;
    store.put("/a", "1").await.unwrap();
    std::fs::remove_file(home.side_file("-shm")).unwrap();
    let mut other = ChildProcess::start("lead", &home.path());
    other.expect("true").await;
    assert!(matches!(leads(&store).await, Err(StoreError::Replaced(StoreReplaced::Files))));
    store.close().await;
    other.kill().await;
    let store = home.store().await;
    assert_eq!(store.get_key("/a").await.unwrap().unwrap().value, "1");
    assert!(!leads(&store).await.unwrap());
    let connection = rusqlite::Connection::open(home.path()).unwrap();
    let check: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

/// X18.
#[tokio::test]
async fn replaced_store_ends_handle() {
    let home = Home::new();
    let store = home.store().await;
    let mut watch = watch_all(&store, WatchStart::Now).await;
    let connection = rusqlite::Connection::open(home.path()).unwrap();
    connection.execute("UPDATE meta SET store_id = randomblob(16)", []).unwrap();
    assert!(matches!(store.put("/a", "").await, Err(StoreError::Replaced(StoreReplaced::Identity { .. }))));
    let Err(WatchError::Lost(error)) = next(&mut watch).await else { panic!("the watch continues") };
    assert!(matches!(error, StoreError::Replaced(StoreReplaced::Identity { .. })));
}

#[tokio::test]
async fn decreased_revision_ends_handle() {
    let home = Home::new();
    let store = home.store().await;
    store.put("/a", "").await.unwrap();
    let connection = rusqlite::Connection::open(home.path()).unwrap();
    connection.execute("UPDATE meta SET rev = 1", []).unwrap();
    let error = store.put("/a", "").await.unwrap_err();
    assert!(matches!(error, StoreError::Replaced(StoreReplaced::RevisionRegress { .. })), "{error}");
}

#[tokio::test]
async fn foreign_file_is_refused_and_unchanged() {
    let home = Home::new();
    std::fs::create_dir(home.path().parent().unwrap()).unwrap();
    let text = "this is a letter, not a database, and it is longer than a header ".repeat(20);
    std::fs::write(home.path(), &text).unwrap();
    let error = options().open(home.path()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(UnusableStore::NotAStore(_))), "{error}");
    assert_eq!(std::fs::read_to_string(home.path()).unwrap(), text);

    let home = Home::new();
    std::fs::create_dir(home.path().parent().unwrap()).unwrap();
    let connection = rusqlite::Connection::open(home.path()).unwrap();
    connection
        .execute_batch("PRAGMA application_id = 42; PRAGMA user_version = 1; CREATE TABLE foreign_table (a)")
        .unwrap();
    drop(connection);
    let before = std::fs::read(home.path()).unwrap();
    let error = options().open(home.path()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(UnusableStore::NotAStore(_))), "{error}");
    assert_eq!(std::fs::read(home.path()).unwrap(), before);
    assert!(!home.side_file("-wal").exists());
}

#[tokio::test]
async fn store_and_folder_are_private() {
    let home = Home::new();
    let store = home.store().await;
    store.put("/a", "").await.unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(home.path().parent().unwrap()), 0o700);
    for suffix in ["", "-wal", "-shm", ".lock", ".bell", ".epoch"] {
        assert_eq!(mode(&home.side_file(suffix)), 0o600, "store.db{suffix}");
    }
}

#[tokio::test]
async fn invalid_paths_are_refused_at_once() {
    let home = Home::new();
    let began = Instant::now();
    for path in ["/", "", "/proc/no/such/folder/store.db", "/dev/null/store.db"] {
        let error = options().open(path).await.unwrap_err();
        assert!(!error.to_string().is_empty(), "{path:?}");
    }
    assert!(options().open(home.folder.path()).await.is_err());
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn links_to_one_store_are_one_store() {
    let home = Home::new();
    let store = home.store().await;
    let link = home.folder.path().join("link");
    std::os::unix::fs::symlink(home.path().parent().unwrap(), &link).unwrap();
    let other = Store::new(options().open(link.join("store.db")).await.unwrap());
    assert!(leads(&store).await.unwrap());
    assert!(!leads(&other).await.unwrap());
    let direct = home.folder.path().join("direct.db");
    std::os::unix::fs::symlink(home.path(), &direct).unwrap();
    let third = options().open(&direct).await.unwrap();
    assert_eq!(third.path(), home.path().canonicalize().unwrap());
}

#[tokio::test]
async fn default_path_is_in_user_state_folder() {
    let home = Home::new();
    let mut child = ChildProcess::start_with("where", &home.path(), |command| {
        command.env("XDG_STATE_HOME", "/state").env("HOME", "/home/me");
    });
    child.expect("/state/tenure/app/store.db").await;
    let mut child = ChildProcess::start_with("where", &home.path(), |command| {
        command.env_remove("XDG_STATE_HOME").env("HOME", "/home/me");
    });
    child.expect("/home/me/.local/state/tenure/app/store.db").await;
    let mut child = ChildProcess::start_with("where", &home.path(), |command| {
        command.env("XDG_STATE_HOME", "relative").env("HOME", "/home/me");
    });
    child.expect("/home/me/.local/state/tenure/app/store.db").await;
    for namespace in ["", "/", "a//b", "a\0"] {
        assert!(tenure::store::file::default_path(namespace).is_err());
    }
}
