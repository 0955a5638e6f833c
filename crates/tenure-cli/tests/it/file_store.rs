//! The file store from the shell: which commands create it, and what happens when its files change under a holder.

use std::path::Path;

use futures_util::future::join_all;
use rustix::process::Signal;

use crate::ledger::{beating_file, intervals, overlap};
use crate::machine::{Machine, Running};

/// Commands that only look, or that change only what is there.
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
            let machine = Machine::new();
            let ran = machine.run(&[follower, local].concat()).await;
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""), "{follower:?} {ran:?}");
            assert!(ran.stderr.contains("the file does not exist"), "{follower:?} {ran:?}");
            assert!(
                ran.stderr.contains("hint: ") && ran.stderr.contains("tenure lock"),
                "{follower:?} {ran:?}"
            );
            assert_eq!(std::fs::read_dir(machine.path("")).unwrap().count(), 0, "{follower:?}");
        }
    }
}

#[tokio::test]
async fn reading_commands_create_no_store() {
    for reader in READERS {
        let machine = Machine::new();
        let ran = machine.run(&[reader, &["--local"]].concat()).await;
        // Not found is an answer too.
        assert!(matches!(ran.code, Some(0 | 3)), "{reader:?} {ran:?}");
        assert!(ran.code == Some(0) || ran.stderr.contains("error: "), "{reader:?} {ran:?}");
        assert_eq!(std::fs::read_dir(machine.path("")).unwrap().count(), 0, "{reader:?}");
    }
}

#[tokio::test]
async fn mistyped_path_is_an_error_that_names_the_missing_folder() {
    let machine = Machine::new();
    let (typo, folder) = (machine.path("typo/deep/store.db"), machine.path("typo"));
    let store = format!("file://{typo}");
    let writers: [&[&str]; 3] = [&["kv", "put", "/a", "1"], &["submit", "a"], &["lock", "a", "--", "true"]];
    for command in READERS.iter().chain(&FOLLOWERS).chain(&writers).filter(|command| command[0] != "doctor") {
        let ran = machine.run(&[&["--store", &store], *command].concat()).await;
        // Those that run a command answer with a code that no command has.
        let code = if matches!(command[0], "lock" | "once") { 125 } else { 3 };
        assert_eq!(ran.code, Some(code), "{command:?} {ran:?}");
        assert!(ran.stderr.contains(&format!("the folder {folder} does not exist")), "{command:?} {ran:?}");
        assert!(ran.stderr.contains("hint: "), "{command:?} {ran:?}");
        assert!(!Path::new(&folder).exists(), "{command:?}");
    }
    // In a folder that exists a reader names the file, and a writer creates it.
    let store = format!("file://{}", machine.path("store.db"));
    let ran = machine.run(&["--store", &store, "status"]).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("store.db: the file does not exist"), "{ran:?}");
    machine.ok(&["--store", &store, "kv", "put", "/a", "1"]).await;
    machine.ok(&["--store", &store, "status"]).await;
}

#[tokio::test]
async fn memory_store_is_refused_by_commands_that_exclude_others() {
    let machine = Machine::new().with("PATH", "/usr/bin:/bin");
    let commands: [(&[&str], i32); 6] = [
        (&["lock", "a", "--", "touch", "ran"], 125),
        (&["elect", "a", "--", "touch", "ran"], 125),
        (&["once", "a", "--every", "1h", "--", "touch", "ran"], 125),
        (&["register", "web/1=a:1"], 2),
        (&["register", "web/1=a:1", "--", "touch", "ran"], 125),
        (&["worker", "--exec", "touch ran"], 2),
    ];
    for (command, code) in commands {
        let ran = machine.run(&[&["--store", "memory:"], command].concat()).await;
        assert_eq!(ran.code, Some(code), "{command:?} {ran:?}");
        assert!(ran.stderr.contains("excludes no other process"), "{ran:?}");
        assert!(ran.stderr.contains("--local"), "{ran:?}");
    }
    machine.ok(&["--store", "memory:", "kv", "put", "/a", "1"]).await;
}

#[tokio::test]
async fn relative_file_address_is_named_as_such() {
    let machine = Machine::new();
    for store in ["file:x.db", "file:./x.db", "file://x.db"] {
        let ran = machine.run(&["--store", store, "kv", "get", "/a"]).await;
        assert_eq!(ran.code, Some(2), "{store} {ran:?}");
        assert!(ran.stderr.contains("needs an absolute path"), "{store} {ran:?}");
    }
}

#[tokio::test]
async fn unsafe_folder_and_second_name_get_a_hint() {
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new();
    let store = format!("file://{}", machine.path("own/store.db"));
    machine.ok(&["--store", &store, "kv", "put", "/a", "1"]).await;
    std::fs::hard_link(machine.path("own/store.db"), machine.path("other.db")).unwrap();
    let ran = machine.run(&["--store", &store, "kv", "get", "/a"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("2 hard links") && ran.stderr.contains("remove the other hard link"),
        "{ran:?}"
    );
    std::fs::remove_file(machine.path("other.db")).unwrap();
    std::fs::set_permissions(machine.path("own"), PermissionsExt::from_mode(0o777)).unwrap();
    let ran = machine.run(&["--store", &store, "kv", "get", "/a"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("mode 0777") && ran.stderr.contains("chmod 700"), "{ran:?}");
}

fn hold(machine: &Machine, store: &str, script: &str) -> Running {
    let args = ["--store", store, "lock", "L", "--ttl", "30s", "--grace", "2s", "--", "sh", script];
    machine.start(&args)
}

/// A3. Each loss of files is in a store of its own, so they are awaited side by side.
#[tokio::test]
async fn files_removed_under_a_lock_never_give_two_running_commands() {
    let folder_removed = |own: &Path| std::fs::remove_dir_all(own).unwrap();
    let folder_renamed = |own: &Path| std::fs::rename(own, own.with_file_name("renamed")).unwrap();
    let side_file_removed = |own: &Path| std::fs::remove_file(own.join("store.db-shm")).unwrap();
    let lost = [folder_removed as fn(&Path), folder_renamed, side_file_removed];
    join_all(lost.map(never_gives_two_running_commands)).await;
}

/// The job ignores SIGTERM, so the holder needs its time to end it; the next waits for that.
async fn never_gives_two_running_commands(lose: fn(&Path)) {
    let machine = Machine::new().with("PATH", "/usr/bin:/bin");
    let store = format!("file://{}", machine.path("own/store.db"));
    let script = beating_file(&machine, "ledger");
    let mut first = hold(&machine, &store, &script);
    first.line().await;
    lose(Path::new(&machine.path("own")));
    // One that comes while the first is being stopped may be refused; it never runs beside the first.
    let second = loop {
        let mut second = hold(&machine, &store, &script);
        match second.hear_before_line("removed or renamed").await {
            Ok(_) => assert_eq!(second.end().await.0, Some(125)),
            Err(line) => break (second, line),
        }
    };
    let (code, told) = first.end().await;
    assert_eq!(code, Some(122), "{told}");
    let intervals = intervals(&machine);
    assert_eq!(intervals.len(), 2, "two tokens: {intervals:?}");
    assert_eq!(overlap(&intervals), None);
    second.0.signal(Signal::TERM);
    second.0.end().await;
}

/// A10, on a smaller scale than the five hundred of the soak run.
#[tokio::test]
async fn soak_many_starts_at_once_are_all_served() {
    let count = if std::env::var_os("TENURE_SOAK").is_some() { 500 } else { 40 };
    let machine = Machine::new().with("PATH", "/usr/bin:/bin");
    let starts = (0..count).map(|_| {
        let child = machine.command(&["lock", "L", "--", "true"]).spawn().unwrap();
        async move { child.wait_with_output().await.unwrap() }
    });
    let ended = join_all(starts.collect::<Vec<_>>()).await;
    let failed: Vec<_> = ended.iter().filter(|output| !output.status.success()).collect();
    assert!(failed.is_empty(), "{} of {count}: {:?}", failed.len(), failed.first());
}
