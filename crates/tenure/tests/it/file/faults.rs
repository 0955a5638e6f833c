//! Files that are removed, exchanged or destroyed: nobody goes on believing in what is gone, and no revision comes twice.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use tenure::store::{
    Get, LeaseChoice, Revision, Store, StoreError, StoreReplaced, UnusableStore, WatchError, WatchStart,
};

use super::child::Process;
use super::sharing::{next, watch_all};
use super::{Home, options};

/// A process that wrote 300 keys was killed; says the last revision that it was given.
async fn killed_after_300_puts(home: &Home) -> Revision {
    let mut writer = Process::start("puts", &home.path());
    let last = Revision(writer.hear().await.unwrap().parse().unwrap());
    writer.kill().await;
    last
}

/// X03.
#[tokio::test]
async fn a_shm_that_is_garbage_after_a_crash_loses_nothing() {
    let home = Home::new();
    let last = killed_after_300_puts(&home).await;
    std::fs::write(home.beside("-shm"), [0xA5; 32_768]).unwrap();
    let store = home.store().await;
    let page = store.get(Get::prefix("/n/")).await.unwrap();
    assert_eq!((page.pairs.len(), page.revision), (300, last));
}

/// X03.
#[tokio::test]
async fn a_shm_that_is_removed_after_a_crash_loses_nothing() {
    let home = Home::new();
    let last = killed_after_300_puts(&home).await;
    std::fs::remove_file(home.beside("-shm")).unwrap();
    let store = home.store().await;
    let page = store.get(Get::prefix("/n/")).await.unwrap();
    assert_eq!((page.pairs.len(), page.revision), (300, last));
}

/// X04. SQLite opens the rest without a word, 100 revisions back.
#[tokio::test]
async fn a_wal_that_is_removed_after_a_crash_lets_no_revision_come_twice() {
    let home = Home::new();
    let last = killed_after_300_puts(&home).await;
    std::fs::remove_file(home.beside("-wal")).unwrap();
    let store = home.store().await;
    let found = store.get(Get::prefix("/n/")).await.unwrap();
    assert!(found.pairs.len() < 300, "the log held something, or the test tries nothing");
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
async fn an_older_wal_lets_no_revision_come_twice() {
    let home = Home::new();
    let store = home.store().await;
    store.put("/first", "").await.unwrap();
    let older = std::fs::read(home.beside("-wal")).unwrap();
    store.close().await;
    let last = killed_after_300_puts(&home).await;
    std::fs::write(home.beside("-wal"), older).unwrap();
    std::fs::remove_file(home.beside("-shm")).unwrap();
    let store = home.store().await;
    assert!(store.put("/next", "").await.unwrap() > last);
}

/// The ceiling alone is enough, and the bell alone is.
#[tokio::test]
async fn a_lost_wal_is_noticed_without_the_other_side_files_too() {
    for suffix in [".bell", ".epoch"] {
        let home = Home::new();
        let last = killed_after_300_puts(&home).await;
        std::fs::remove_file(home.beside("-wal")).unwrap();
        std::fs::remove_file(home.beside(suffix)).unwrap();
        let store = home.store().await;
        assert!(store.put("/next", "").await.unwrap() > last, "without {suffix}");
    }
}

async fn leads(store: &Store) -> Result<bool, StoreError> {
    Ok(store.create("/leader", "", LeaseChoice::Detach).await?.is_some())
}

/// X05, S4. Measured without the guard: both lead.
#[tokio::test]
async fn unlinked_files_make_the_first_process_stop_and_never_two_leaders() {
    let home = Home::new();
    let store = home.store().await;
    assert!(leads(&store).await.unwrap());
    let mut watch = watch_all(&store, WatchStart::Now).await;
    for suffix in ["", "-wal", "-shm", ".lock", ".bell", ".epoch"] {
        std::fs::remove_file(home.beside(suffix)).unwrap();
    }
    let mut other = Process::start("lead", &home.path());
    other.expect("true").await;
    assert!(matches!(
        next(&mut watch).await,
        Err(WatchError::Lost(StoreError::Replaced(StoreReplaced::Files)))
    ));
    for _ in 0..3 {
        assert!(matches!(leads(&store).await, Err(StoreError::Replaced(StoreReplaced::Files))));
        assert!(matches!(store.get_key("/leader").await, Err(StoreError::Replaced(StoreReplaced::Files))));
    }
    // Its end must not take the other's files with it.
    store.close().await;
    drop(store);
    for suffix in ["", "-wal", "-shm"] {
        assert!(home.beside(suffix).exists(), "store.db{suffix}");
    }
    let third = home.store().await;
    assert!(!leads(&third).await.unwrap());
}

/// X05: within one write, without anybody watching.
#[tokio::test]
async fn each_unlinked_file_is_noticed_by_the_next_write_renewal_and_read() {
    for suffix in ["", "-wal", "-shm"] {
        for try_one in [0, 1, 2] {
            let home = Home::new();
            let store = home.store().await;
            let lease = store.grant(Duration::from_secs(60), None).await.unwrap().id;
            std::fs::remove_file(home.beside(suffix)).unwrap();
            let noticed = match try_one {
                0 => store.put("/a", "").await.map(drop),
                1 => store.renew(lease).await.map(drop),
                _ => store.get_key("/a").await.map(drop),
            };
            assert!(
                matches!(noticed, Err(StoreError::Replaced(StoreReplaced::Files))),
                "{suffix} {try_one} {noticed:?}"
            );
        }
    }
}

/// S5. Measured without the guard: two leaders and a malformed database.
#[tokio::test]
async fn a_shm_unlinked_under_a_live_process_destroys_nothing() {
    let home = Home::new();
    let store = home.store().await;
    store.put("/a", "1").await.unwrap();
    std::fs::remove_file(home.beside("-shm")).unwrap();
    let mut other = Process::start("lead", &home.path());
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
async fn another_store_in_the_same_file_ends_the_handle() {
    let home = Home::new();
    let store = home.store().await;
    let mut watch = watch_all(&store, WatchStart::Now).await;
    let connection = rusqlite::Connection::open(home.path()).unwrap();
    connection.execute("UPDATE meta SET store_id = randomblob(16)", []).unwrap();
    assert!(matches!(store.put("/a", "").await, Err(StoreError::Replaced(StoreReplaced::Identity { .. }))));
    let Err(WatchError::Lost(error)) = next(&mut watch).await else { panic!("the watch goes on") };
    assert!(matches!(error, StoreError::Replaced(StoreReplaced::Identity { .. })));
}

#[tokio::test]
async fn a_revision_that_goes_back_under_a_live_process_ends_the_handle() {
    let home = Home::new();
    let store = home.store().await;
    store.put("/a", "").await.unwrap();
    let connection = rusqlite::Connection::open(home.path()).unwrap();
    connection.execute("UPDATE meta SET rev = 1", []).unwrap();
    let error = store.put("/a", "").await.unwrap_err();
    assert!(matches!(error, StoreError::Replaced(StoreReplaced::RevisionRegress { .. })), "{error}");
}

#[tokio::test]
async fn what_is_no_store_is_refused_and_left_as_it_is() {
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
        .execute_batch("PRAGMA application_id = 42; PRAGMA user_version = 1; CREATE TABLE theirs (a)")
        .unwrap();
    drop(connection);
    let before = std::fs::read(home.path()).unwrap();
    let error = options().open(home.path()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(UnusableStore::NotAStore(_))), "{error}");
    assert_eq!(std::fs::read(home.path()).unwrap(), before);
    assert!(!home.beside("-wal").exists());
}

#[tokio::test]
async fn a_store_is_private_and_its_folder_is_made() {
    let home = Home::new();
    let store = home.store().await;
    store.put("/a", "").await.unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(home.path().parent().unwrap()), 0o700);
    for suffix in ["", "-wal", "-shm", ".lock", ".bell", ".epoch"] {
        assert_eq!(mode(&home.beside(suffix)), 0o600, "store.db{suffix}");
    }
}

#[tokio::test]
async fn paths_that_name_no_file_are_refused_at_once() {
    let home = Home::new();
    let began = Instant::now();
    for path in ["/", "", "/proc/no/such/place/store.db", "/dev/null/store.db"] {
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
async fn the_default_place_is_the_state_folder_of_the_user() {
    let home = Home::new();
    let mut child = Process::start_with("where", &home.path(), |command| {
        command.env("XDG_STATE_HOME", "/state").env("HOME", "/home/me");
    });
    child.expect("/state/tenure/app/store.db").await;
    let mut child = Process::start_with("where", &home.path(), |command| {
        command.env_remove("XDG_STATE_HOME").env("HOME", "/home/me");
    });
    child.expect("/home/me/.local/state/tenure/app/store.db").await;
    let mut child = Process::start_with("where", &home.path(), |command| {
        command.env("XDG_STATE_HOME", "relative").env("HOME", "/home/me");
    });
    child.expect("/home/me/.local/state/tenure/app/store.db").await;
    for namespace in ["", "/", "a//b", "a\0"] {
        assert!(tenure::store::file::default_path(namespace).is_err());
    }
}
