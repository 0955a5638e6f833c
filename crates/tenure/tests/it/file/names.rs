//! Files that are renamed, removed, linked or planted under living processes: never two owners, and tokens only grow.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use tenure::session::Session;
use tenure::store::{Get, LeaseChoice, Store, StoreError, StoreReplaced, UnusableStore};
use tokio::time::timeout;

use super::child::ChildProcess;
use super::{Home, PATIENCE, options};

/// What is done to the files of a store; returns the path under which the next process opens one.
type Damage = fn(&Home) -> PathBuf;

fn files(home: &Home) -> Vec<PathBuf> {
    let folder = home.path().parent().unwrap().to_owned();
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn move_all(home: &Home) -> PathBuf {
    let to = home.folder.path().join("moved");
    std::fs::create_dir(&to).unwrap();
    for file in files(home) {
        std::fs::rename(&file, to.join(file.file_name().unwrap())).unwrap();
    }
    to
}

const DAMAGES: [(&str, Damage); 8] = [
    ("all files removed", |home| {
        files(home).iter().for_each(|file| std::fs::remove_file(file).unwrap());
        home.path()
    }),
    ("all files moved", |home| {
        move_all(home);
        home.path()
    }),
    ("database moved", |home| {
        std::fs::rename(home.path(), home.folder.path().join("moved.db")).unwrap();
        home.path()
    }),
    ("side files removed", |home| {
        let side = files(home).into_iter().filter(|file| *file != home.path());
        side.for_each(|file| std::fs::remove_file(file).unwrap());
        home.path()
    }),
    ("folder renamed", |home| {
        std::fs::rename(home.path().parent().unwrap(), home.folder.path().join("renamed")).unwrap();
        home.path()
    }),
    ("files copied back", |home| {
        let moved = move_all(home);
        for file in std::fs::read_dir(moved).unwrap().map(|entry| entry.unwrap().path()) {
            // A pipe has no content to copy.
            if file.metadata().unwrap().is_file() {
                let to = home.path().with_file_name(file.file_name().unwrap());
                std::fs::copy(&file, to).unwrap();
            }
        }
        home.path()
    }),
    ("database moved and opened there", |home| {
        let to = home.folder.path().join("elsewhere");
        std::fs::create_dir(&to).unwrap();
        std::fs::rename(home.path(), to.join("store.db")).unwrap();
        to.join("store.db")
    }),
    ("database linked, and its first name removed", |home| {
        let to = home.folder.path().join("elsewhere");
        std::fs::create_dir(&to).unwrap();
        std::fs::hard_link(home.path(), to.join("store.db")).unwrap();
        std::fs::remove_file(home.path()).unwrap();
        to.join("store.db")
    }),
];

/// A3. A stopped holder notices nothing, so only the second process can keep the two apart.
#[tokio::test]
async fn second_owner_is_refused_while_holder_lives() {
    join_all(DAMAGES.map(|(what, damage)| async move {
        let home = Home::new();
        let mut holder = ChildProcess::start("keep", &home.path());
        let held: i64 = holder.next_report().await.unwrap().parse().unwrap();
        holder.signal(rustix::process::Signal::STOP);
        let path = damage(&home);
        let refused = options().open(&path).await;
        assert!(matches!(refused, Err(StoreError::Busy(_))), "{what}: {refused:?}");
        let reason = refused.unwrap_err().to_string();
        assert!(reason.contains("removed or renamed"), "{what}: {reason}");
        // With the holder the right to refuse ends. Where its files are found again, its lease counts.
        holder.kill().await;
        let store = Store::new(options().open(&path).await.unwrap());
        let current = store.get(Get::key("/leader")).await.unwrap();
        assert!(current.revision.0 >= held, "{what}: {} after {held}", current.revision);
        let token = store.create("/leader", "second", LeaseChoice::Detach).await.unwrap();
        if let Some(token) = token {
            assert!(token.0.0 > held, "{what}: {} after {held}", token.0);
        }
        let next = store.put("/next", "").await.unwrap();
        assert!(next.0 > held, "{what}: {next} after {held}");
    }))
    .await;
}

/// A3. Without a request or a watch, and long before the next renewal.
#[tokio::test]
async fn renamed_files_end_session_at_once() {
    for (what, damage) in DAMAGES {
        let home = Home::new();
        let store = home.store().await;
        let session = Session::options().ttl(Duration::from_secs(60)).open(store.clone()).unwrap();
        session.register_raw("/held", "").await.unwrap();
        session.synced().await;
        damage(&home);
        let lost = timeout(Duration::from_secs(2), store.lost()).await.expect(what);
        assert!(matches!(lost, StoreError::Replaced(StoreReplaced::Files)), "{what}: {lost}");
        assert!(timeout(PATIENCE, session.close()).await.is_ok(), "{what}");
    }
}

/// A process that has lost its store stays marked while a holder in it may still act, and no longer.
#[tokio::test]
async fn lost_handle_blocks_path_until_leases_end() {
    let home = Home::new();
    let store = home.store().await;
    store.grant(Duration::from_secs(60), None).await.unwrap();
    let before = store.put("/a", "").await.unwrap();
    DAMAGES[0].1(&home);
    timeout(PATIENCE, store.lost()).await.unwrap();
    assert!(matches!(options().open(home.path()).await, Err(StoreError::Busy(_))));
    store.close().await;
    let next = home.store().await;
    assert!(next.put("/a", "").await.unwrap() > before);

    next.grant(Duration::from_millis(500), None).await.unwrap();
    DAMAGES[0].1(&home);
    timeout(PATIENCE, next.lost()).await.unwrap();
    // It is never closed, and its lease ends during the wait of the next process.
    home.store().await.put("/a", "").await.unwrap();
    drop(next);
}

/// A4.
#[tokio::test]
async fn hard_linked_database_is_refused() {
    let home = Home::new();
    let store = home.store().await;
    store.put("/a", "").await.unwrap();
    let other = home.folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let link = other.join("linked.db");
    std::fs::hard_link(home.path(), &link).unwrap();
    for path in [home.path(), link.clone()] {
        let error = options().open(&path).await.unwrap_err();
        assert!(matches!(error, StoreError::Unusable(UnusableStore::SecondName(_))), "{error}");
        assert!(error.to_string().contains("2 hard links"), "{error}");
    }
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 1, "nothing was made beside the link");
    // The process that has it open goes on: no other process can open it under the second name.
    store.put("/a", "").await.unwrap();
    std::fs::remove_file(&link).unwrap();
    home.store().await.put("/a", "").await.unwrap();
}

/// A4. Needs the right to mount.
#[tokio::test]
async fn bind_mounted_database_is_refused() {
    let home = Home::new();
    let store = home.store().await;
    store.put("/a", "1").await.unwrap();
    let [other, folder] = ["other", "folder"].map(|name| home.folder.path().join(name));
    std::fs::create_dir(&other).unwrap();
    std::fs::create_dir(&folder).unwrap();
    let mounted = other.join("store.db");
    std::fs::write(&mounted, "").unwrap();
    let Some(_file) = Mount::bind(&home.path(), &mounted) else { return };
    let error = options().open(&mounted).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(UnusableStore::SecondName(_))), "{error}");
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 1, "nothing was made beside the mount");
    // The folder brings the side files along.
    let Some(_folder) = Mount::bind(home.path().parent().unwrap(), &folder) else { return };
    let shared = Store::new(options().open(folder.join("store.db")).await.unwrap());
    shared.put("/a", "2").await.unwrap();
    assert_eq!(store.get_key("/a").await.unwrap().unwrap().value, "2");
    shared.close().await;
}

struct Mount(PathBuf);

impl Mount {
    /// None, with the reason on stderr, where this user must not mount.
    fn bind(from: &Path, to: &Path) -> Option<Mount> {
        let output = std::process::Command::new("mount").arg("--bind").args([from, to]).output();
        match output {
            Ok(output) if output.status.success() => Some(Mount(to.to_owned())),
            Ok(output) => {
                eprintln!("skipped: mount --bind: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                eprintln!("skipped: mount --bind: {error}");
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// A5.
#[tokio::test]
async fn open_folder_needs_sticky_bit() {
    let home = Home::new();
    let folder = home.path().parent().unwrap().to_owned();
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    let error = options().open(home.path()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(UnusableStore::Untrusted(_))), "{error}");
    assert!(error.to_string().contains("mode 0777"), "{error}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o1777)).unwrap();
    home.store().await.put("/a", "").await.unwrap();
}

/// A5, A6. A link to a file of the user is never written through; a planted notifier is replaced.
#[tokio::test]
async fn planted_links_change_nothing_outside_the_store() {
    for suffix in ["-wal", "-shm", ".lock", ".bell", ".epoch"] {
        for is_hard in [false, true] {
            let home = Home::new();
            std::fs::create_dir(home.path().parent().unwrap()).unwrap();
            let victim = home.folder.path().join("victim");
            std::fs::write(&victim, "precious").unwrap();
            let before = std::fs::metadata(&victim).unwrap();
            if is_hard {
                std::fs::hard_link(&victim, home.side_file(suffix)).unwrap();
            } else {
                std::os::unix::fs::symlink(&victim, home.side_file(suffix)).unwrap();
            }
            let opened = options().open(home.path()).await;
            assert_eq!(opened.is_ok(), suffix == ".bell", "{suffix}: {opened:?}");
            if let Ok(opened) = opened {
                Store::new(opened).put("/a", "").await.unwrap();
            }
            assert_eq!(std::fs::read(&victim).unwrap(), b"precious", "{suffix}");
            let after = std::fs::metadata(&victim).unwrap();
            assert_eq!((before.mode(), before.len()), (after.mode(), after.len()), "{suffix}");
        }
    }
}

/// A5. Only root can create a file of another user.
#[tokio::test]
async fn side_file_of_another_user_is_refused() {
    const OTHER: u32 = 12_345;
    for suffix in ["", "-wal", ".lock", ".epoch"] {
        let home = Home::new();
        let folder = home.path().parent().unwrap().to_owned();
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o1777)).unwrap();
        std::fs::write(home.side_file(suffix), "").unwrap();
        if let Err(error) = std::os::unix::fs::chown(home.side_file(suffix), Some(OTHER), None) {
            eprintln!("skipped: chown needs root: {error}");
            return;
        }
        let error = options().open(home.path()).await.unwrap_err();
        assert!(matches!(error, StoreError::Unusable(UnusableStore::Untrusted(_))), "{suffix}: {error}");
        assert!(error.to_string().contains("belongs to user 12345"), "{suffix}: {error}");
        // The owner of the folder controls all names in it.
        std::os::unix::fs::chown(&folder, Some(OTHER), None).unwrap();
        home.store().await.put("/a", "").await.unwrap();
    }
}

/// A6.
#[tokio::test]
async fn garbage_in_notifier_keeps_store_usable() {
    for garbage in [&[0xFF; 4_096][..], &[0x7F; 8], b"", b"text"] {
        let home = Home::new();
        let store = home.store().await;
        let before = store.put("/a", "").await.unwrap();
        store.close().await;
        std::fs::remove_file(home.side_file(".bell")).unwrap();
        std::fs::write(home.side_file(".bell"), garbage).unwrap();
        let store = home.store().await;
        assert_eq!(store.put("/a", "").await.unwrap(), before.next());
    }
}

/// A copy of a store may be older than the original: tokens go on above all that the original can have handed out.
#[tokio::test]
async fn restored_copy_continues_above_later_tokens() {
    let home = Home::new();
    let store = home.store().await;
    store.put("/a", "").await.unwrap();
    store.close().await;
    let saved = move_all(&home);
    let copy_back = || {
        for file in std::fs::read_dir(&saved).unwrap().map(|entry| entry.unwrap().path()) {
            let to = home.path().with_file_name(file.file_name().unwrap());
            if file.metadata().unwrap().is_file() {
                std::fs::copy(&file, to).unwrap();
            }
        }
    };
    copy_back();
    let store = home.store().await;
    let mut last = store.put("/a", "").await.unwrap();
    for _ in 0..100 {
        last = store.put("/a", "").await.unwrap();
    }
    store.close().await;
    files(&home).iter().for_each(|file| std::fs::remove_file(file).unwrap());
    copy_back();
    assert!(home.store().await.put("/a", "").await.unwrap() > last);
}
