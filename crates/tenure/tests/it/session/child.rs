//! Other processes: this test binary again, in a role that its environment names.
//!
//! Only a real process can be stopped past its TTL, and only a process of its own shares its descriptors with no other test.

#![allow(clippy::print_stderr, reason = "standard error is how a child speaks to its test")]

use std::process::Stdio;
use std::time::Duration;

use tenure::session::{Session, SessionState};
use tenure::store::{PreviousValues, Selection, Store, WatchStart};
use tenure_fixture::Etcd;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStderr, Command};
use tokio::time::timeout;

const ROLE: &str = "TENURE_SESSION_ROLE";
const STORE: &str = "TENURE_SESSION_STORE";

/// Messages of children begin with this, unlike those of the test harness.
const PREFIX: &str = "> ";

/// How long a child may be silent.
const PATIENCE: Duration = Duration::from_secs(60);

/// The TTL of the child that is stopped: it believes for 2.5 s.
const STOPPED_TTL: Duration = Duration::from_secs(3);

/// Another process, which is killed at the latest when it is dropped.
pub(super) struct Process {
    child: tokio::process::Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Process {
    /// Starts this binary again in a role.
    pub(super) fn start(role: &str, etcd: &Etcd) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "session::child::another_process_plays_its_role", "--nocapture"])
            .env(ROLE, role)
            .env(STORE, format!("etcd://{}", etcd.endpoints()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Process { child, lines }
    }

    /// Its next message.
    pub(super) async fn hear(&mut self) -> String {
        loop {
            let line = timeout(PATIENCE, self.lines.next_line()).await.expect("a child sends a message");
            let line = line.unwrap().expect("a child does not end before its time");
            match line.strip_prefix(PREFIX) {
                Some(said) => return said.to_owned(),
                // A panic, most likely: let the reader of the test see it.
                None => eprintln!("{line}"),
            }
        }
    }

    /// Waits for this message.
    pub(super) async fn expect(&mut self, what: &str) {
        assert_eq!(self.hear().await, what);
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: rustix::process::Signal) {
        let id = self.child.id().expect("it was not waited for").cast_signed();
        rustix::process::kill_process(rustix::process::Pid::from_raw(id).unwrap(), signal).unwrap();
    }
}

/// Does nothing unless another test has started this binary again.
#[test]
fn another_process_plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&std::env::var(STORE).unwrap().parse().unwrap()).await.unwrap();
        match role.as_str() {
            "beats" => beat(store).await,
            "cycles" => cycle(store).await,
            "idle" => idle(store).await,
            _ => panic!("no role {role}"),
        }
    });
}

fn send(what: impl std::fmt::Display) {
    eprintln!("{PREFIX}{what}");
}

/// Writes one key again and again, and reports the results and the state of the session.
async fn beat(store: Store) {
    let session = Session::options().ttl(STOPPED_TTL).open(store).unwrap();
    let mut state = session.state();
    tokio::spawn(async move {
        while state.changed().await.is_ok() {
            match &*state.borrow_and_update() {
                SessionState::Live { incarnation } => send(format!("live {incarnation}")),
                SessionState::Lost { .. } => send("lost"),
                SessionState::Idle | SessionState::Suspect { .. } | SessionState::Closed { .. } => {}
            }
        }
    });
    for n in 0_u64.. {
        match session.register_raw("/s/beat", n.to_string()).await {
            Ok(registration) => {
                send(format!("wrote {} {}", registration.lease, session.remaining().as_millis()));
            }
            Err(error) => send(format!("failed {error}")),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Opens and closes two hundred sessions, and reports whether the process is as before.
async fn cycle(store: Store) {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let once = async || {
        let session = Session::open(store.clone()).unwrap();
        session.register_raw("/r/a", "v").await.unwrap();
        drop(session.lease().await.unwrap());
        session.close().await.unwrap();
    };
    // The first watch or renewal opens the client's streams, and they stay open for later ones.
    drop(store.watch(Selection::prefix("/r/"), WatchStart::Now, PreviousValues::Omitted).await.unwrap());
    let lease = store.grant(Duration::from_secs(10), None).await.unwrap().id;
    store.renew(lease).await.unwrap();
    store.revoke(lease).await.unwrap();
    once().await;
    let before = (tasks(), descriptors());
    for _ in 0..200 {
        once().await;
    }
    // A task that is ending may need a moment.
    let settled = timeout(Duration::from_secs(5), async {
        // The first session's own tasks may have been among those counted before.
        while tasks() > before.0 || descriptors() > before.1 {
            tokio::task::yield_now().await;
        }
    });
    let is_same = settled.await.is_ok();
    let after = (tasks(), descriptors());
    send(if is_same || after.0 <= before.0 {
        "the same tasks".into()
    } else {
        format!("{after:?} not {before:?}")
    });
    send(if is_same || after.1 <= before.1 {
        "the same descriptors".into()
    } else {
        format!("{after:?} not {before:?}")
    });
}

/// Registers a thousand keys, does nothing for twelve seconds, and reports how long the process was busy with that.
async fn idle(store: Store) {
    let session = Session::options().ttl(Duration::from_secs(6)).open(store).unwrap();
    super::register_many(&session, 1_000).await;
    // What is left of registering is over when the first renewal is.
    tokio::time::sleep(Duration::from_secs(2)).await;
    send("idle");
    let before = busy();
    tokio::time::sleep(Duration::from_secs(12)).await;
    send(format!("busy {}", (busy() - before).as_millis()));
    std::future::pending::<()>().await;
}

/// How long all threads of this process have been on a core.
fn busy() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    // A thread may end between the listing and the read of its statistics.
    let times = threads.filter_map(|thread| std::fs::read_to_string(thread.join("schedstat")).ok());
    times.map(|text| Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())).sum()
}
