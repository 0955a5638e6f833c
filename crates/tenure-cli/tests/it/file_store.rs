//! The file store from the shell: which commands create it, and what happens when its files change under a holder.

use std::path::Path;

use futures_util::future::join_all;
use rustix::process::Signal;

use crate::ledger::{beating_file, intervals, overlap};
use crate::sandbox::{Running, Sandbox};

/// Commands that only read, or that change only existing records.
const READERS: [&[&str]; 26] = [
    &["status"],
    &["locks", "ls"],
    &["locks", "show", "a"],
    &["election", "ls"],
    &["election", "show", "a"],
    &["task", "ls"],
    &["node", "ls"],
    &["service", "ls"],
    &["lease", "ls"],
    &["kv", "get", "/a"],
    &["kv", "range", "/a/"],
    &["kv", "del", "/a"],
    &["once", "ls"],
    &["task", "show", "a"],
    &["task", "kill", "a"],
    &["node", "freeze", "a"],
    &["task", "history", "a"],
    &["task", "wait", "a", "--wait", "1s"],
    &["node", "show", "a"],
    &["node", "drain", "a"],
    &["service", "show", "a"],
    &["lease", "show", "1f"],
    &["events"],
    &["events", "--after", "0"],
    &["election", "resign", "a"],
    &["doctor"],
];

/// Commands that report changes until they are stopped.
const FOLLOWERS: [&[&str]; 6] = [
    &["events", "-f"],
    &["election", "watch", "a"],
    &["service", "watch", "a"],
    &["kv", "watch", "/a"],
    &["kv", "watch", "--prefix", "/a/"],
    &["kv", "watch", "/a", "--after", "1", "--count", "1"],
];

/// A follower has nothing to wait for: it would have to create the store, or to miss the change that creates it.
#[tokio::test]
async fn following_commands_create_no_store() {
    for follower in FOLLOWERS {
        for local in [&["--local"][..], &[]] {
            let sandbox = Sandbox::new();
            let ran = sandbox.run(&[follower, local].concat()).await;
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""), "{follower:?} {ran:?}");
            assert!(ran.stderr.contains("the file does not exist"), "{follower:?} {ran:?}");
            assert!(
                ran.stderr.contains("hint: ") && ran.stderr.contains("tenure lock"),
                "{follower:?} {ran:?}"
            );
            assert_eq!(std::fs::read_dir(sandbox.path("")).unwrap().count(), 0, "{follower:?}");
        }
    }
}

#[tokio::test]
async fn reading_commands_create_no_store() {
    for reader in READERS {
        let sandbox = Sandbox::new();
        let ran = sandbox.run(&[reader, &["--local"]].concat()).await;
        // Exit code 3 (not found) is a valid result.
        assert!(matches!(ran.code, Some(0 | 3)), "{reader:?} {ran:?}");
        assert!(ran.code == Some(0) || ran.stderr.contains("error: "), "{reader:?} {ran:?}");
        assert_eq!(std::fs::read_dir(sandbox.path("")).unwrap().count(), 0, "{reader:?}");
    }
}

#[tokio::test]
async fn mistyped_path_names_missing_folder() {
    let sandbox = Sandbox::new();
    let (typo, folder) = (sandbox.path("typo/deep/store.db"), sandbox.path("typo"));
    let store = format!("file://{typo}");
    let writers: [&[&str]; 3] = [&["kv", "put", "/a", "1"], &["submit", "a"], &["lock", "a", "--", "true"]];
    for command in READERS.iter().chain(&FOLLOWERS).chain(&writers).filter(|command| command[0] != "doctor") {
        let ran = sandbox.run(&[&["--store", &store], *command].concat()).await;
        // Commands that wrap another command exit with 125, which no wrapped command uses.
        let code = if matches!(command[0], "lock" | "once") { 125 } else { 3 };
        assert_eq!(ran.code, Some(code), "{command:?} {ran:?}");
        assert!(ran.stderr.contains(&format!("the folder {folder} does not exist")), "{command:?} {ran:?}");
        assert!(ran.stderr.contains("hint: "), "{command:?} {ran:?}");
        assert!(!Path::new(&folder).exists(), "{command:?}");
    }
    // In a folder that exists a reader names the file, and a writer creates it.
    let store = format!("file://{}", sandbox.path("store.db"));
    let ran = sandbox.run(&["--store", &store, "status"]).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("store.db: the file does not exist"), "{ran:?}");
    sandbox.ok(&["--store", &store, "kv", "put", "/a", "1"]).await;
    sandbox.ok(&["--store", &store, "status"]).await;
}

#[tokio::test]
async fn memory_store_is_refused_for_exclusive_commands() {
    let sandbox = Sandbox::new().with("PATH", "/usr/bin:/bin");
    let commands: [(&[&str], i32); 6] = [
        (&["lock", "a", "--", "touch", "ran"], 125),
        (&["elect", "a", "--", "touch", "ran"], 125),
        (&["once", "a", "--every", "1h", "--", "touch", "ran"], 125),
        (&["register", "web/1=a:1"], 2),
        (&["register", "web/1=a:1", "--", "touch", "ran"], 125),
        (&["worker", "--exec", "touch ran"], 2),
    ];
    for (command, code) in commands {
        let ran = sandbox.run(&[&["--store", "memory:"], command].concat()).await;
        assert_eq!(ran.code, Some(code), "{command:?} {ran:?}");
        assert!(ran.stderr.contains("excludes no other process"), "{ran:?}");
        assert!(ran.stderr.contains("--local"), "{ran:?}");
    }
    sandbox.ok(&["--store", "memory:", "kv", "put", "/a", "1"]).await;
}

#[tokio::test]
async fn relative_file_address_is_refused() {
    let sandbox = Sandbox::new();
    for store in ["file:x.db", "file:./x.db", "file://x.db"] {
        let ran = sandbox.run(&["--store", store, "kv", "get", "/a"]).await;
        assert_eq!(ran.code, Some(2), "{store} {ran:?}");
        assert!(ran.stderr.contains("needs an absolute path"), "{store} {ran:?}");
    }
}

#[tokio::test]
async fn unsafe_folder_and_hard_link_get_hints() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    let store = format!("file://{}", sandbox.path("own/store.db"));
    sandbox.ok(&["--store", &store, "kv", "put", "/a", "1"]).await;
    std::fs::hard_link(sandbox.path("own/store.db"), sandbox.path("other.db")).unwrap();
    let ran = sandbox.run(&["--store", &store, "kv", "get", "/a"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("2 hard links") && ran.stderr.contains("remove the other hard link"),
        "{ran:?}"
    );
    std::fs::remove_file(sandbox.path("other.db")).unwrap();
    std::fs::set_permissions(sandbox.path("own"), PermissionsExt::from_mode(0o777)).unwrap();
    let ran = sandbox.run(&["--store", &store, "kv", "get", "/a"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("mode 0777") && ran.stderr.contains("chmod 700"), "{ran:?}");
}

fn hold(sandbox: &Sandbox, store: &str, script: &str) -> Running {
    let args = ["--store", store, "lock", "L", "--ttl", "30s", "--grace", "2s", "--", "sh", script];
    sandbox.start(&args)
}

/// Each loss of files has a store of its own, so the cases run concurrently.
#[tokio::test]
async fn removed_files_never_let_commands_overlap() {
    let folder_removed = |own: &Path| std::fs::remove_dir_all(own).unwrap();
    let folder_renamed = |own: &Path| std::fs::rename(own, own.with_file_name("renamed")).unwrap();
    let side_file_removed = |own: &Path| std::fs::remove_file(own.join("store.db-shm")).unwrap();
    let lost = [folder_removed as fn(&Path), folder_renamed, side_file_removed];
    join_all(lost.map(never_lets_commands_overlap)).await;
}

/// The job ignores SIGTERM, so ending it takes the holder's grace period; the next holder waits for that.
async fn never_lets_commands_overlap(lose: fn(&Path)) {
    let sandbox = Sandbox::new().with("PATH", "/usr/bin:/bin");
    let store = format!("file://{}", sandbox.path("own/store.db"));
    let script = beating_file(&sandbox, "ledger");
    let mut first = hold(&sandbox, &store, &script);
    first.line().await;
    lose(Path::new(&sandbox.path("own")));
    // A command that starts while the first is being stopped may be refused; it never overlaps the first.
    let second = loop {
        let mut second = hold(&sandbox, &store, &script);
        match second.hear_before_line("removed or renamed").await {
            Ok(_) => assert_eq!(second.end().await.0, Some(125)),
            Err(line) => break (second, line),
        }
    };
    let (code, output) = first.end().await;
    assert_eq!(code, Some(122), "{output}");
    let intervals = intervals(&sandbox);
    assert_eq!(intervals.len(), 2, "two holders: {intervals:?}");
    assert_eq!(overlap(&intervals), None);
    second.0.signal(Signal::TERM);
    second.0.end().await;
}

/// 40 concurrent starts on one store file, 500 with `TENURE_SOAK=1`: 28 % of the 500 once failed.
#[tokio::test]
async fn soak_concurrent_starts_are_all_served() {
    let count = if std::env::var_os("TENURE_SOAK").is_some() { 500 } else { 40 };
    let sandbox = Sandbox::new().with("PATH", "/usr/bin:/bin");
    let starts = (0..count).map(|_| {
        let child = sandbox.command(&["lock", "L", "--", "true"]).spawn().unwrap();
        async move { child.wait_with_output().await.unwrap() }
    });
    let ended = join_all(starts.collect::<Vec<_>>()).await;
    let failed: Vec<_> = ended.iter().filter(|output| !output.status.success()).collect();
    assert!(failed.is_empty(), "{} of {count}: {:?}", failed.len(), failed.first());
}
