//! Candidates and parties of a barrier in processes of their own, which can be killed.

#![allow(clippy::print_stderr, reason = "standard error is how a child speaks to its test")]

use std::process::Stdio;
use std::time::{Duration, Instant};

use tenure::election::{Elections, ResumeToken};
use tenure::lock::Locks;
use tenure::session::Session;
use tenure::store::Store;
use tenure_fixture::Etcd;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use super::{connect, enter, namespace, process, soon, wait_for_keys};

const ROLE: &str = "TENURE_ELECTION_ROLE";
const STORE: &str = "TENURE_ELECTION_STORE";
const TTL: Duration = Duration::from_secs(3);

/// Another process, which is killed at the latest when it is dropped.
pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Process {
    pub(crate) fn start(role: &str, store: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "election::child::another_process_plays_its_role", "--nocapture"])
            .env(ROLE, role)
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

    /// Waits for its next message, and returns it.
    pub(crate) async fn hear(&mut self) -> String {
        soon(async {
            loop {
                let line = self.lines.next_line().await.unwrap().expect("the child is not over");
                match line.strip_prefix("> ") {
                    Some(said) => return said.to_owned(),
                    None => eprintln!("{line}"),
                }
            }
        })
        .await
    }

    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

/// Does nothing unless another test has started this binary again.
#[test]
fn another_process_plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let store = std::env::var(STORE).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&store.parse().unwrap()).await.unwrap();
        let session = Session::options().ttl(TTL).open(store).unwrap();
        let election = Elections::new(&session, &namespace()).identity(role.as_str()).election("x");
        match role.as_str() {
            "leader" => {
                let term = election.campaign().value("child").await.unwrap();
                eprintln!("> {}", term.resume_token());
                std::future::pending::<()>().await;
            }
            // Twenty candidates, each of them for as long as it takes.
            "candidates" => {
                let mut crowd = tokio::task::JoinSet::new();
                for _ in 0..20 {
                    crowd.spawn(election.campaign().value("child").into_future());
                }
                eprintln!("> entered");
                crowd.join_all().await;
            }
            "party" => {
                let locks = Locks::new(&session, &namespace());
                eprintln!("> comes");
                locks.barrier("gate", 3).wait().await.unwrap();
                eprintln!("> passed");
                session.close().await.unwrap();
            }
            _ => panic!("no role {role}"),
        }
    });
}

/// What takes over has to wait for the lease of the dead; not a moment longer than the store and a watch take.
async fn killed_leader_is_followed(url: &str, store: Store) {
    let (_session, election) = process(&store, "heir");
    let mut leader = Process::start("leader", url);
    leader.hear().await;
    let waiting = enter(&store, &election, "heir", 2).await;
    leader.kill().await;
    let killed = Instant::now();
    let term = soon(waiting).await.unwrap().unwrap();
    let took = killed.elapsed();
    assert!(took < TTL + Duration::from_millis(700), "a new leader after {took:?}");
    assert!(term.is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_leader_is_followed_within_ttl_on_etcd() {
    let etcd = Etcd::start();
    killed_leader_is_followed(&format!("etcd://{}", etcd.endpoints()), connect(&etcd).await).await;
}

#[tokio::test]
async fn killed_leader_is_followed_within_ttl_on_file() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/store.db", folder.path().display());
    killed_leader_is_followed(&url, Store::open(&url.parse().unwrap()).await.unwrap()).await;
}

/// The restart of a process that was killed: no other candidate leads meanwhile, although one waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_leader_resumes_its_term() {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let mut leader = Process::start("leader", &format!("etcd://{}", etcd.endpoints()));
    let said = leader.hear().await;
    let former_term: ResumeToken = said.parse().unwrap();
    let ((_a, other), (_b, restarted)) = (process(&store, "other"), process(&store, "leader"));
    let token = other.leader().await.unwrap().unwrap().token;
    let waiting = enter(&store, &other, "other", 2).await;
    leader.kill().await;
    let term = soon(restarted.campaign().value("again").resume(&former_term).into_future()).await.unwrap();
    assert!(term.token() > token && !waiting.is_finished());
    wait_for_keys(&store, 2).await;
}
