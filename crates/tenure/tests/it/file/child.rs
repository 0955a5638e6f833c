//! Child processes: this test binary again, in a role from its environment.
//!
//! Only real processes can be killed, stopped, and lose their locks as processes do.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tenure::store::file::default_path;
use tenure::store::{LeaseChoice, Op, PreviousValues, Selection, Store, Txn, WatchStart};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStderr, Command};
use tokio::time::timeout;

use super::{PATIENCE, options};

const ROLE: &str = "TENURE_FILE_ROLE";
const STORE: &str = "TENURE_FILE_STORE";

/// The prefix of a child's reports, which distinguishes them from the output of the test harness.
const REPORT: &str = "> ";

/// A child process, which is killed at the latest when it is dropped.
pub(super) struct ChildProcess {
    child: tokio::process::Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl ChildProcess {
    /// Starts this binary again in a role.
    pub(super) fn start(role: &str, store: &Path) -> ChildProcess {
        ChildProcess::start_with(role, store, |_| {})
    }

    pub(super) fn start_with(role: &str, store: &Path, more: impl FnOnce(&mut Command)) -> ChildProcess {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "file::child::child_process_plays_its_role", "--nocapture"])
            .env(ROLE, role)
            .env(STORE, store)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        more(&mut command);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        ChildProcess { child, lines }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id().expect("the child was not reaped")
    }

    /// Returns its next report; none when it has ended.
    pub(super) async fn next_report(&mut self) -> Option<String> {
        loop {
            let line =
                timeout(PATIENCE, self.lines.next_line()).await.expect("a child reports something").unwrap();
            match line {
                None => return None,
                Some(line) => match line.strip_prefix(REPORT) {
                    Some(report) => return Some(report.to_owned()),
                    // Probably a panic: print it with the output of the test.
                    None => eprintln!("{line}"),
                },
            }
        }
    }

    /// Waits for its next report, which must be this one.
    pub(super) async fn expect(&mut self, what: &str) {
        assert_eq!(self.next_report().await.as_deref(), Some(what));
    }

    /// Kills it with SIGKILL, and waits until it has ended.
    pub(super) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

/// Does nothing unless another test has started this binary again.
#[test]
fn child_process_plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let path = PathBuf::from(std::env::var_os(STORE).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match role.as_str() {
            "pairs" => write_pairs(&path).await,
            "puts" => write_then_wait(&path).await,
            "lead" => lead(&path).await,
            "hold" => hold(&path).await,
            "watch" => watch(&path).await,
            "lease" => lease(&path).await,
            "keep" => keep(&path).await,
            "threads" => threads(&path).await,
            "where" => report(default_path("app").unwrap().display()),
            _ => panic!("no role {role}"),
        }
    });
}

fn report(what: impl std::fmt::Display) {
    eprintln!("{REPORT}{what}");
}

async fn open(path: &Path) -> Store {
    Store::new(options().open(path).await.unwrap())
}

/// Writes two keys in each transaction, and reports what was acknowledged, until it is killed.
async fn write_pairs(path: &Path) {
    let store = open(path).await;
    let pid = std::process::id();
    for n in 1_u64.. {
        let [left, right] = ["left", "right"].map(|side| Op::put(format!("/{side}/{pid}"), n.to_string()));
        let reply = store.txn(Txn::new().then(left).then(right)).await.unwrap();
        report(format!("{} {n}", reply.revision));
    }
}

/// Writes 300 keys, and waits to be killed.
async fn write_then_wait(path: &Path) {
    let store = open(path).await;
    let mut last = None;
    for n in 0..300 {
        last = Some(store.put(format!("/n/{n}"), "v").await.unwrap());
    }
    report(last.unwrap());
    wait_to_be_killed().await;
}

/// Tries to become the leader, and reports whether it is.
async fn lead(path: &Path) {
    let store = open(path).await;
    let token = store.create("/leader", "child", LeaseChoice::Detach).await.unwrap();
    report(token.is_some());
    wait_to_be_killed().await;
}

/// Takes the write lock as the engine does, and keeps it.
async fn hold(path: &Path) {
    let store = open(path).await;
    let lock = path.with_file_name("store.db.lock");
    let lock = std::fs::File::options().read(true).write(true).open(lock).unwrap();
    lock.lock().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&lock, format!("{:<11}\n", std::process::id()).as_bytes(), 0)
        .unwrap();
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    report("holding");
    wait_to_be_killed().await;
    drop(store);
}

/// Watches everything, so that this process expires leases too.
async fn watch(path: &Path) {
    let store = open(path).await;
    let mut watch =
        store.watch(Selection::everything(), WatchStart::Now, PreviousValues::Omitted).await.unwrap();
    report("watching");
    while let Some(item) = watch.next().await {
        drop(item.unwrap());
    }
}

/// Puts a key under a lease, reports when that ends at the earliest, and waits to be killed.
async fn lease(path: &Path) {
    let store = open(path).await;
    let grant = store.grant(Duration::from_millis(1_500), None).await.unwrap();
    store.put_leased("/held", "", grant.id).await.unwrap();
    report((grant.asked_at + grant.ttl).since_origin().as_nanos());
    wait_to_be_killed().await;
}

/// Creates a key under a lease of a minute, reports its token, and keeps the handle open.
async fn keep(path: &Path) {
    let store = open(path).await;
    let grant = store.grant(Duration::from_secs(60), None).await.unwrap();
    let token = store.create("/leader", "child", LeaseChoice::Attach(grant.id)).await.unwrap();
    report(token.expect("no other process leads"));
    wait_to_be_killed().await;
    drop(store);
}

/// Opens and closes a store, and reports how many threads it has.
async fn threads(path: &Path) {
    let count = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        // A thread may end between the listing and the read.
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.join("comm")).ok());
        names.filter(|name| name.starts_with("tenure-file-")).count()
    };
    let none_within = async |within: Duration| {
        let began = Instant::now();
        while count() > 0 {
            assert!(began.elapsed() < within, "{} threads are left", count());
            tokio::task::yield_now().await;
        }
    };
    let store = open(path).await;
    report(format!("{} while open", count()));
    store.close().await;
    // The thread that completed the close is about to end.
    none_within(Duration::from_millis(500)).await;
    report("none after close");
    drop(open(path).await);
    none_within(PATIENCE).await;
    report("none after drop");
}

async fn wait_to_be_killed() {
    tokio::time::sleep(PATIENCE * 3).await;
}
