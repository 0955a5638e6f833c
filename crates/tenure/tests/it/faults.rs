//! Locks and elections under faults: the rows of docs/guarantees.md.
//!
//! Both use the same queue, so each test runs with both.

#![allow(clippy::print_stderr, reason = "a child reports to its test through standard error")]

mod lost_responses;

use std::ops::Deref;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure::clock::{BootClock, Clock};
use tenure::election::{Elections, Term};
use tenure::lock::{Guard, Locks};
use tenure::session::Session;
use tenure::store::{Selection, Store};
use tenure::testing::{ClockSkew, World};
use tenure::{Hold, LossReason, Lost};
use tenure_core::id::Namespace;
use tenure_core::revision::Token;
use tenure_fixture::Etcd;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

/// What a test holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HoldKind {
    Lock,
    Election,
}

const KINDS: [HoldKind; 2] = [HoldKind::Lock, HoldKind::Election];

/// A lock or an election that is held.
enum TestHold {
    Lock(Box<Guard>),
    Election(Box<Term>),
}

impl TestHold {
    async fn get(kind: HoldKind, session: &Session) -> TestHold {
        TestHold::named(kind, session, "x").await
    }

    async fn named(kind: HoldKind, session: &Session, name: &str) -> TestHold {
        let namespace = Namespace::parse("t").unwrap();
        match kind {
            HoldKind::Lock => {
                TestHold::Lock(Box::new(Locks::new(session, &namespace).lock(name).await.unwrap()))
            }
            HoldKind::Election => {
                let election = Elections::new(session, &namespace).election(name);
                TestHold::Election(Box::new(election.campaign().value("v").await.unwrap()))
            }
        }
    }
}

impl Deref for TestHold {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        match self {
            TestHold::Lock(guard) => guard,
            TestHold::Election(term) => term,
        }
    }
}

const TTL: Duration = Duration::from_secs(10);

fn session(world: &World, name: &str) -> Session {
    Session::options().ttl(TTL).clock(world.process(name).clock()).open(world.process(name).store()).unwrap()
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("it completes within 30 s")
}

#[tokio::test]
async fn partition_ends_hold_before_next() {
    for kind in KINDS {
        let world = World::new();
        let (first, second) = (session(&world, "a"), session(&world, "b"));
        let held = TestHold::get(kind, &first).await;
        world.process("a").partition();
        let began = world.elapsed();
        assert_eq!(held.lost().await.reason, LossReason::Lapsed, "{kind:?}");
        let lost = world.elapsed() - began;
        let next = TestHold::get(kind, &second).await;
        let taken = world.elapsed() - began;
        assert!(lost < taken && lost <= TTL - Duration::from_millis(500), "{kind:?} {lost:?} {taken:?}");
        assert!(!held.is_valid() && next.token() > held.token(), "{kind:?}");
    }
}

#[tokio::test]
async fn short_partition_keeps_hold() {
    for kind in KINDS {
        let world = World::new();
        let first = session(&world, "a");
        let held = TestHold::get(kind, &first).await;
        world.process("a").partition();
        world.advance(TTL / 3).await;
        world.process("a").heal();
        world.advance(3 * TTL).await;
        assert!(held.is_valid(), "{kind:?}");
    }
}

#[tokio::test]
async fn clock_jump_past_ttl_ends_hold() {
    for kind in KINDS {
        let world = World::new();
        let first = session(&world, "a");
        let held = TestHold::get(kind, &first).await;
        let worked = held.run(async {
            world.process("a").set_clock_skew(ClockSkew::Ahead(2 * TTL));
            std::future::pending::<()>().await;
        });
        let began = world.elapsed();
        assert_eq!(worked.await.unwrap_err().reason, LossReason::Lapsed, "{kind:?}");
        assert_eq!(world.elapsed(), began, "{kind:?}");
    }
}

#[tokio::test]
async fn paused_holder_learns_loss_before_acting() {
    for kind in KINDS {
        let world = World::new();
        let (first, second) = (session(&world, "a"), session(&world, "b"));
        let held = TestHold::get(kind, &first).await;
        world.process("a").pause();
        let next = TestHold::get(kind, &second).await;
        world.process("a").resume();
        let mut polled = false;
        let worked = held.run(async { polled = true }).await;
        assert_eq!((worked.unwrap_err().reason, polled), (LossReason::Lapsed, false), "{kind:?}");
        assert!(next.is_valid(), "{kind:?}");
    }
}

async fn connect(etcd: &Etcd) -> Store {
    Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap()
}

/// Both outages in one test, because starting etcd takes most of the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_outage_ends_hold_only_after_ttl() {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let session = Session::options().ttl(Duration::from_secs(5)).open(store.clone()).unwrap();
    let lasting = Session::options().ttl(Duration::from_secs(60)).open(store.clone()).unwrap();
    let (lock, term) =
        (TestHold::get(HoldKind::Lock, &session).await, TestHold::get(HoldKind::Election, &session).await);
    let lasting_lock = TestHold::named(HoldKind::Lock, &lasting, "y").await;
    let lasting_term = TestHold::named(HoldKind::Election, &lasting, "y").await;
    etcd.member(0).kill();
    let killed = Instant::now();
    assert_eq!(
        (soon(lock.lost()).await.reason, soon(term.lost()).await.reason),
        (LossReason::Lapsed, LossReason::Lapsed)
    );
    // The store cannot have expired the lease: its TTL counts from the last renewal, which was before the kill.
    assert!(killed.elapsed() <= Duration::from_millis(4_700), "{:?}", killed.elapsed());
    etcd.member(0).restart();
    // The leases are renewed again, and no other candidate has acquired: the keys are unchanged.
    let keys = soon(async {
        loop {
            match store.list(Selection::prefix("/t/")).await {
                Ok(page) if page.pairs.len() == 2 => return page.pairs,
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    })
    .await;
    for held in [lasting_lock, lasting_term] {
        assert!(held.is_valid() && keys.iter().any(|pair| pair.created == held.token().0));
    }
}

/// A process of its own that works while it holds, and reports that with the time of the machine.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

const ROLE: &str = "TENURE_FAULTS_ROLE";
const STORE: &str = "TENURE_FAULTS_STORE";
const CHILD_TTL: Duration = Duration::from_secs(2);

impl Process {
    fn start(kind: HoldKind, store: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "faults::child_process_plays_its_role", "--nocapture"])
            .env(ROLE, format!("{kind:?}"))
            .env(STORE, store)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Process { child, lines }
    }

    /// Returns its next report: when it worked, or none when its hold is lost.
    async fn next_report(&mut self) -> Option<Duration> {
        soon(async {
            loop {
                let line = self.lines.next_line().await.unwrap().expect("the child still runs");
                match line.strip_prefix("> works ") {
                    Some(at) => return Some(Duration::from_micros(at.parse().unwrap())),
                    None if line == "> lost" => return None,
                    None => eprintln!("{line}"),
                }
            }
        })
        .await
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().unwrap().cast_signed();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }
}

fn now() -> Duration {
    BootClock.now().since_origin()
}

/// Does nothing unless another test has started this binary again.
#[test]
fn child_process_plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let store = std::env::var(STORE).unwrap();
    let kind = if role == "Lock" { HoldKind::Lock } else { HoldKind::Election };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&store.parse().unwrap()).await.unwrap();
        let session = Session::options().ttl(CHILD_TTL).open(store).unwrap();
        let held = TestHold::get(kind, &session).await;
        let work = async {
            loop {
                eprintln!("> works {}", now().as_micros());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let ended: Result<(), Lost> = held.run(work).await;
        assert!(ended.is_err());
        eprintln!("> lost");
    });
}

/// A holder is stopped past its TTL, and continued when another one holds: their work never overlaps.
async fn stopped_holder_never_overlaps_next(url: &str, store: Store) {
    for kind in KINDS {
        let session = Session::options().ttl(Duration::from_secs(5)).open(store.clone()).unwrap();
        let mut first = Process::start(kind, url);
        assert!(first.next_report().await.is_some());
        first.signal(Signal::STOP);
        let next = soon(TestHold::get(kind, &session)).await;
        let held_at = now();
        first.signal(Signal::CONT);
        while let Some(worked_at) = first.next_report().await {
            assert!(worked_at < held_at, "{kind:?}: its work overlapped with the next holder");
        }
        assert!(next.is_valid());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_holder_never_overlaps_next_on_etcd() {
    let etcd = Etcd::start();
    let url = format!("etcd://{}", etcd.endpoints());
    stopped_holder_never_overlaps_next(&url, connect(&etcd).await).await;
}

#[tokio::test]
async fn stopped_holder_never_overlaps_next_on_file() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/store.db", folder.path().display());
    let store = Store::open(&url.parse().unwrap()).await.unwrap();
    stopped_holder_never_overlaps_next(&url, store).await;
}

/// The successor has to wait for the lease of the killed holder, and no longer than the store and a watch take.
async fn killed_holder_is_followed(url: &str, store: Store) {
    for kind in KINDS {
        let session = Session::options().ttl(Duration::from_secs(5)).open(store.clone()).unwrap();
        let mut first = Process::start(kind, url);
        assert!(first.next_report().await.is_some());
        first.child.kill().await.unwrap();
        let killed = Instant::now();
        let next = soon(TestHold::get(kind, &session)).await;
        let took = killed.elapsed();
        assert!(took < CHILD_TTL + Duration::from_millis(700), "{kind:?}: the next holds after {took:?}");
        assert!(next.is_valid());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_holder_is_followed_on_etcd() {
    let etcd = Etcd::start();
    let url = format!("etcd://{}", etcd.endpoints());
    killed_holder_is_followed(&url, connect(&etcd).await).await;
}

#[tokio::test]
async fn killed_holder_is_followed_on_file() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/store.db", folder.path().display());
    let store = Store::open(&url.parse().unwrap()).await.unwrap();
    killed_holder_is_followed(&url, store).await;
}
