//! One random script gives the same replies, events and final picture on every engine.
//!
//! The memory engine is the specification behind a mutex, so it is what the others are compared with. Cases of the
//! conformance suite check the known rules; these scripts find the differences that no case describes.

mod lane;
mod normalize;
mod script;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use tenure::clock::VirtualClock;
use tenure::store::etcd::{Config as Connection, EtcdEngine};
use tenure::store::file::FileEngine;
use tenure::store::memory::MemoryEngine;
use tenure::store::{Engine, Get, LeaseChoice, Limits, Op, Store, StoreError, Txn, TxnReply};
use tenure_fixture::Etcd as Server;
use tokio::runtime::Runtime;

use lane::{Lane, Transcript};
use script::{Script, scripts};

use crate::twisted::{Twist, Twisted};

/// How many steps a random script has at most.
const STEPS_MAX: usize = 80;

/// How many scripts run, unless the machine has the night for it.
fn times(usual: u32) -> u32 {
    if std::env::var_os("TENURE_SOAK").is_some() { usual * 50 } else { usual }
}

fn specification() -> (Store, VirtualClock) {
    let clock = VirtualClock::new();
    (Store::new(MemoryEngine::with_clock(clock.clone(), Limits::EMBEDDED)), clock)
}

/// How much two stores agreed on.
struct Compared {
    ops: usize,
    /// How many leases ended by themselves and took keys with them.
    ended: usize,
}

/// Runs a script on a fresh memory store and on the other one, and compares.
async fn compare(script: &Script, other: &Store) -> Result<Compared, String> {
    let (memory, clock) = specification();
    let expected = Lane::new(memory, Some(clock), script).run().await?;
    let found = Lane::new(other.clone(), None, script).run().await?;
    if let Some(difference) = difference(script, &expected, &found) {
        return Err(difference);
    }
    Ok(Compared { ops: script.steps.len(), ended: found.ended })
}

/// The first place where two stores disagree, with the whole script up to there.
fn difference(script: &Script, expected: &Transcript, found: &Transcript) -> Option<String> {
    let told = expected.lines.iter().zip(&found.lines).position(|(expected, found)| expected != found);
    let at = match told {
        Some(at) => at,
        None if expected.lines.len() == found.lines.len() => return None,
        None => expected.lines.len().min(found.lines.len()),
    };
    let none = "nothing".to_owned();
    let line = |transcript: &Transcript| transcript.lines.get(at).unwrap_or(&none).clone();
    let so_far: Vec<_> = expected.lines[..at].iter().map(|line| format!("    {line}")).collect();
    Some(format!(
        "the stores disagree after\n{}\n  memory: {}\n  other:  {}\nscript: {script:?}",
        so_far.join("\n"),
        line(expected),
        line(found)
    ))
}

/// Runs random scripts, returns how many operations ran, and panics with the shortest script that shows a difference.
fn must_agree(runtime: &Runtime, count: u32, other: &Store) -> usize {
    match run_scripts(runtime, count, other) {
        Ok(ops) => ops,
        Err((why, _)) => panic!("{why}"),
    }
}

/// Runs random scripts; returns how many operations ran, or why and on which script the stores disagree, once it is shrunk.
fn run_scripts(runtime: &Runtime, count: u32, other: &Store) -> Result<usize, (String, Script)> {
    let config =
        Config { cases: count, failure_persistence: None, max_shrink_iters: 500, ..Config::default() };
    let ops = std::cell::Cell::new(0);
    let outcome = TestRunner::new(config).run(&scripts(STEPS_MAX), |script| {
        let compared = runtime.block_on(compare(&script, other));
        ops.set(ops.get() + compared.map_err(TestCaseError::fail)?.ops);
        Ok(())
    });
    match outcome {
        Ok(()) => Ok(ops.get()),
        Err(TestError::Fail(why, script)) => Err((why.to_string(), script)),
        Err(TestError::Abort(why)) => panic!("no scripts: {why}"),
    }
}

/// One random script with leases that end while it runs. Not shrunk: each run takes seconds.
fn with_expiry(runner: &mut TestRunner) -> Script {
    let tree = script::with_expiry(60).new_tree(runner).expect("a script can always be made");
    tree.current()
}

/// Compares a script with leases that end in real time, several times if the machine was too busy to be on time.
async fn compare_with_expiry(script: &Script, other: &Store) {
    for _ in 0..3 {
        match compare(script, other).await {
            Ok(compared) => {
                assert!(compared.ended > 0, "no lease ended: {script:?}");
                return;
            }
            Err(why) if why == lane::TOO_SLOW => {}
            Err(why) => panic!("{why}"),
        }
    }
    panic!("{}", lane::TOO_SLOW);
}

async fn open_file(folder: &tempfile::TempDir) -> Store {
    let path = folder.path().join("state").join("store.db");
    Store::new(FileEngine::options().open(path).await.expect("a fresh folder takes a store"))
}

async fn open_etcd(server: &Server) -> Store {
    Store::new(EtcdEngine::connect(Connection::new(server.client_urls())).await.expect("a healthy etcd"))
}

#[test]
fn memory_and_memory_agree() {
    let runtime = Runtime::new().unwrap();
    let other = runtime.block_on(async { Store::memory() });
    let ops = must_agree(&runtime, times(60), &other);
    assert!(ops >= 1_000, "only {ops} operations");
}

/// A negative control: the comparing finds an engine that is wrong in one way, and shows it with few steps.
#[test]
fn missing_detach_is_found_with_short_script() {
    struct Sticky;
    impl Twist for Sticky {
        async fn txn(&self, memory: &MemoryEngine, mut txn: Txn) -> Result<TxnReply, StoreError> {
            for op in &mut txn.then {
                if let Op::Put { key, lease, .. } = op
                    && *lease == LeaseChoice::Detach
                    && !Engine::get(memory, Get::key(key.clone())).await?.pairs.is_empty()
                {
                    *lease = LeaseChoice::Keep;
                }
            }
            Engine::txn(memory, txn).await
        }
    }
    let runtime = Runtime::new().unwrap();
    let other = runtime.block_on(async { Twisted::store(MemoryEngine::new(), Sticky) });
    let (why, script) = run_scripts(&runtime, 100, &other).expect_err("the stores differ");
    assert!(script.steps.len() <= 6, "{why}");
    assert!(why.starts_with("the stores disagree after"), "{why}");
}

#[test]
fn file_agrees_with_the_specification() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = runtime.block_on(open_file(&folder));
    let ops = must_agree(&runtime, times(180), &store);
    assert!(ops >= 5_000, "only {ops} operations");
    runtime.block_on(store.close());
}

#[test]
fn etcd_conformance_on_random_scripts() {
    let runtime = Runtime::new().unwrap();
    let server = Server::start();
    let store = runtime.block_on(open_etcd(&server));
    let ops = must_agree(&runtime, times(75), &store);
    assert!(ops >= 2_000, "only {ops} operations");
    runtime.block_on(store.close());
}

#[tokio::test]
async fn leases_end_alike_on_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_file(&folder).await;
    for _ in 0..times(1) {
        compare_with_expiry(&with_expiry(&mut TestRunner::new(Config::default())), &store).await;
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_conformance_of_leases_that_end() {
    let server = Server::start();
    let store = open_etcd(&server).await;
    for _ in 0..times(2) {
        compare_with_expiry(&with_expiry(&mut TestRunner::new(Config::default())), &store).await;
    }
    store.close().await;
}
