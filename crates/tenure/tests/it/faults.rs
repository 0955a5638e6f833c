//! What locks and elections do when something fails: the rows of docs/guarantees.md.
//!
//! Both stand on the same line, so each claim is tried with both.

#![allow(clippy::print_stderr, reason = "standard error is how a child speaks to its test")]

mod lost_answers;

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

/// What is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Lock,
    Election,
}

const KINDS: [Kind; 2] = [Kind::Lock, Kind::Election];

/// Something that is held.
enum Claim {
    Lock(Box<Guard>),
    Election(Box<Term>),
}

impl Claim {
    async fn get(kind: Kind, session: &Session) -> Claim {
        Claim::named(kind, session, "x").await
    }

    async fn named(kind: Kind, session: &Session, name: &str) -> Claim {
        let namespace = Namespace::parse("t").unwrap();
        match kind {
            Kind::Lock => Claim::Lock(Box::new(Locks::new(session, &namespace).lock(name).await.unwrap())),
            Kind::Election => {
                let election = Elections::new(session, &namespace).election(name);
                Claim::Election(Box::new(election.campaign().value("v").await.unwrap()))
            }
        }
    }
}

impl Deref for Claim {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        match self {
            Claim::Lock(guard) => guard,
            Claim::Election(term) => term,
        }
    }
}

const TTL: Duration = Duration::from_secs(10);

fn session(world: &World, who: &str) -> Session {
    Session::options().ttl(TTL).clock(world.process(who).clock()).open(world.process(who).store()).unwrap()
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what).await.expect("it must come soon")
}

#[tokio::test]
async fn a_partition_ends_it_before_anybody_else_can_hold() {
    for kind in KINDS {
        let world = World::new();
        let (first, second) = (session(&world, "a"), session(&world, "b"));
        let held = Claim::get(kind, &first).await;
        world.process("a").partition();
        let began = world.elapsed();
        assert_eq!(held.lost().await.reason, LossReason::Lapsed, "{kind:?}");
        let lost = world.elapsed() - began;
        let next = Claim::get(kind, &second).await;
        let taken = world.elapsed() - began;
        assert!(lost < taken && lost <= TTL - Duration::from_millis(500), "{kind:?} {lost:?} {taken:?}");
        assert!(!held.is_valid() && next.token() > held.token(), "{kind:?}");
    }
}

#[tokio::test]
async fn a_partition_shorter_than_the_ttl_is_not_noticed() {
    for kind in KINDS {
        let world = World::new();
        let first = session(&world, "a");
        let held = Claim::get(kind, &first).await;
        world.process("a").partition();
        world.advance(TTL / 3).await;
        world.process("a").heal();
        world.advance(3 * TTL).await;
        assert!(held.is_valid(), "{kind:?}");
    }
}

#[tokio::test]
async fn a_clock_that_jumps_past_the_end_ends_it_at_once() {
    for kind in KINDS {
        let world = World::new();
        let first = session(&world, "a");
        let held = Claim::get(kind, &first).await;
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
async fn a_process_that_was_paused_does_nothing_before_it_knows_that_it_is_over() {
    for kind in KINDS {
        let world = World::new();
        let (first, second) = (session(&world, "a"), session(&world, "b"));
        let held = Claim::get(kind, &first).await;
        world.process("a").pause();
        let next = Claim::get(kind, &second).await;
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

/// Both at once, because starting etcd is what takes the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_etcd_shorter_than_the_ttl_is_not_noticed_and_a_longer_outage_ends_it_in_time() {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let session = Session::options().ttl(Duration::from_secs(5)).open(store.clone()).unwrap();
    let lasting = Session::options().ttl(Duration::from_secs(60)).open(store.clone()).unwrap();
    let (lock, term) = (Claim::get(Kind::Lock, &session).await, Claim::get(Kind::Election, &session).await);
    let lasting_lock = Claim::named(Kind::Lock, &lasting, "y").await;
    let lasting_term = Claim::named(Kind::Election, &lasting, "y").await;
    etcd.member(0).kill();
    let killed = Instant::now();
    assert_eq!(
        (soon(lock.lost()).await.reason, soon(term.lost()).await.reason),
        (LossReason::Lapsed, LossReason::Lapsed)
    );
    // The store cannot have ended the lease: it counts from when it was last renewed, and that was before the kill.
    assert!(killed.elapsed() <= Duration::from_millis(4_700), "{:?}", killed.elapsed());
    etcd.member(0).restart();
    // Renewed again, and nobody else has had a chance: the places are where they were.
    let places = soon(async {
        loop {
            match store.list(Selection::prefix("/t/")).await {
                Ok(page) if page.pairs.len() == 2 => return page.pairs,
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    })
    .await;
    for held in [lasting_lock, lasting_term] {
        assert!(held.is_valid() && places.iter().any(|pair| pair.created == held.token().0));
    }
}

/// A process of its own that works while it holds, and says so with the time of the machine.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

const ROLE: &str = "TENURE_FAULTS_ROLE";
const STORE: &str = "TENURE_FAULTS_STORE";
const CHILD_TTL: Duration = Duration::from_secs(2);

impl Process {
    fn start(kind: Kind, store: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "faults::another_process_plays_its_role", "--nocapture"])
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

    /// What it says next: that it works, and when, or that it is over.
    async fn hear(&mut self) -> Option<Duration> {
        soon(async {
            loop {
                let line = self.lines.next_line().await.unwrap().expect("the child is not over");
                match line.strip_prefix("> works ") {
                    Some(at) => return Some(Duration::from_micros(at.parse().unwrap())),
                    None if line == "> over" => return None,
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
fn another_process_plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let store = std::env::var(STORE).unwrap();
    let kind = if role == "Lock" { Kind::Lock } else { Kind::Election };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&store.parse().unwrap()).await.unwrap();
        let session = Session::options().ttl(CHILD_TTL).open(store).unwrap();
        let held = Claim::get(kind, &session).await;
        let work = async {
            loop {
                eprintln!("> works {}", now().as_micros());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let ended: Result<(), Lost> = held.run(work).await;
        assert!(ended.is_err());
        eprintln!("> over");
    });
}

/// Stopped past its TTL, and let go on after somebody else holds: it never works beside the other.
async fn a_stopped_holder_never_works_beside_the_next(url: &str, store: Store) {
    for kind in KINDS {
        let session = Session::options().ttl(Duration::from_secs(5)).open(store.clone()).unwrap();
        let mut first = Process::start(kind, url);
        assert!(first.hear().await.is_some());
        first.signal(Signal::STOP);
        let next = soon(Claim::get(kind, &session)).await;
        let held_at = now();
        first.signal(Signal::CONT);
        while let Some(worked_at) = first.hear().await {
            assert!(worked_at < held_at, "{kind:?}: it worked beside the next");
        }
        assert!(next.is_valid());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_never_works_beside_the_next_on_etcd() {
    let etcd = Etcd::start();
    let url = format!("etcd://{}", etcd.endpoints());
    a_stopped_holder_never_works_beside_the_next(&url, connect(&etcd).await).await;
}

#[tokio::test]
async fn a_stopped_holder_never_works_beside_the_next_on_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/store.db", folder.path().display());
    let store = Store::open(&url.parse().unwrap()).await.unwrap();
    a_stopped_holder_never_works_beside_the_next(&url, store).await;
}

/// Whoever follows has to wait for the lease of the dead; not a moment longer than the store and a watch take.
async fn a_killed_holder_is_followed_in_time(url: &str, store: Store) {
    for kind in KINDS {
        let session = Session::options().ttl(Duration::from_secs(5)).open(store.clone()).unwrap();
        let mut first = Process::start(kind, url);
        assert!(first.hear().await.is_some());
        first.child.kill().await.unwrap();
        let killed = Instant::now();
        let next = soon(Claim::get(kind, &session)).await;
        let took = killed.elapsed();
        assert!(took < CHILD_TTL + Duration::from_millis(700), "{kind:?}: the next holds after {took:?}");
        assert!(next.is_valid());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_is_followed_in_time_on_etcd() {
    let etcd = Etcd::start();
    let url = format!("etcd://{}", etcd.endpoints());
    a_killed_holder_is_followed_in_time(&url, connect(&etcd).await).await;
}

#[tokio::test]
async fn a_killed_holder_is_followed_in_time_on_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/store.db", folder.path().display());
    let store = Store::open(&url.parse().unwrap()).await.unwrap();
    a_killed_holder_is_followed_in_time(&url, store).await;
}
