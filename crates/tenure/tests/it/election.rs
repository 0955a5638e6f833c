//! Elections on every engine: what leaders, candidates and observers see.

mod candidates;
pub(crate) mod child;
mod holders;
mod leading;
mod many_candidates;
mod observing;
mod since;
mod step_down;
mod transfer;

use std::time::Duration;

use futures_util::StreamExt;
use tenure::election::{CampaignError, Election, Elections, Observation, Observe, Term};
use tenure::session::Session;
use tenure::store::{Selection, Store};
use tenure_core::id::Namespace;
use tenure_fixture::Etcd;
use tokio::task::JoinHandle;

async fn connect(etcd: &Etcd) -> Store {
    Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap()
}

fn namespace() -> Namespace {
    Namespace::parse("t").unwrap()
}

/// A process of its own: a session and one election.
fn process(store: &Store, candidate: &str) -> (Session, Election) {
    let session = Session::options().ttl(Duration::from_secs(6)).open(store.clone()).unwrap();
    let election = Elections::new(&session, &namespace()).identity(candidate).election("x");
    (session, election)
}

async fn keys(store: &Store) -> usize {
    store.list(Selection::prefix("/t/elections/")).await.unwrap().pairs.len()
}

/// Waits for a future that must complete soon.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it must come soon")
}

/// Waits until an election has so many candidates, the leader among them.
async fn wait_for_keys(store: &Store, count: usize) {
    soon(async {
        while keys(store).await != count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Campaigns in the background, and waits until the queue has so many keys.
async fn enter(
    store: &Store,
    election: &Election,
    value: &str,
    count: usize,
) -> JoinHandle<Result<Term, CampaignError>> {
    let waiting = tokio::spawn(election.campaign().value(value).into_future());
    wait_for_keys(store, count).await;
    waiting
}

/// What an observer sees next.
async fn next(observe: &mut Observe) -> Observation {
    soon(observe.next()).await.unwrap().unwrap()
}

/// The value of the leader that an observer sees next; none without a leader.
async fn next_value(observe: &mut Observe) -> Option<String> {
    next(observe).await.leader.map(|leader| leader.record.value)
}

/// Runs a claim on memory, on a file and on real etcd.
macro_rules! on_every_engine {
    ($($claim:ident;)+) => {$(
        mod $claim {
            use crate::election::{Etcd, Store, connect};

            #[tokio::test]
            async fn on_memory() {
                super::claims::$claim(Store::memory()).await;
            }

            #[tokio::test]
            async fn on_a_file() {
                let folder = tempfile::tempdir().unwrap();
                let url = format!("file://{}/store.db", folder.path().display());
                super::claims::$claim(Store::open(&url.parse().unwrap()).await.unwrap()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_etcd() {
                let etcd = Etcd::start();
                super::claims::$claim(connect(&etcd).await).await;
            }
        }
    )+};
}

use on_every_engine;
