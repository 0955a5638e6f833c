//! Requests that the store has carried out and whose answers never came, on a real etcd behind a proxy.
//!
//! Leases live for a minute here: whatever is gone within seconds was taken away, and did not just lapse.

use tenure::election::CampaignError;
use tenure::lock::{LockError, ReleaseError};
use tenure::session::LeaseHandle;
use tenure_fixture::{Mode, Proxy};
use tokio::task::JoinHandle;

use super::*;

/// Why a lock or leadership was not acquired.
#[derive(Debug)]
enum Refusal {
    Lock(LockError),
    Election(CampaignError),
}

impl Refusal {
    fn is_timeout(&self) -> bool {
        matches!(
            self,
            Refusal::Lock(LockError::Timeout { .. }) | Refusal::Election(CampaignError::Timeout { .. })
        )
    }
}

/// Somebody who asks.
type Asking = JoinHandle<Result<Claim, Refusal>>;

/// One who holds or waits behind a proxy, beside those who reach the store directly.
struct Scene {
    proxy: Proxy,
    near: Store,
    /// Behind the proxy, with a lease: what is asked of the store from here on is about places alone.
    far: Session,
    /// Keeps that lease.
    loan: Option<LeaseHandle>,
    _etcd: Etcd,
}

impl Scene {
    async fn new() -> Scene {
        let etcd = Etcd::start();
        let proxy = Proxy::to(etcd.member(0).client_addr());
        let near = connect(&etcd).await;
        let url = format!("etcd://{}", proxy.addr());
        let far = open(Store::open(&url.parse().unwrap()).await.unwrap());
        let loan = far.lease().await.unwrap();
        Scene { proxy, near, far, loan: Some(loan), _etcd: etcd }
    }

    /// From here on the store does what it is asked, and nobody hears of it.
    fn lose_answers(&self) {
        self.proxy.set(Mode::BlackHoleAnswers);
    }

    /// The connection that lost bytes breaks, and the next one works.
    fn mend(&self) {
        self.proxy.set(Mode::Pass);
    }

    /// The tokens of all queue keys, the oldest first.
    async fn places(&self) -> Vec<Token> {
        let mut places = Vec::new();
        for queues in ["/t/locks/", "/t/elections/"] {
            let keys = self.near.list(Selection::prefix(queues)).await.unwrap().pairs;
            places.extend(keys.into_iter().map(|pair| Token(pair.created)));
        }
        places.sort();
        places
    }

    async fn wait_for_places(&self, count: usize) {
        soon(async {
            while self.places().await.len() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

fn open(store: Store) -> Session {
    Session::options().ttl(Duration::from_secs(60)).open(store).unwrap()
}

/// Asks for it in the background, for so long.
fn ask(kind: Kind, session: &Session, wait: Duration) -> Asking {
    let namespace = Namespace::parse("t").unwrap();
    match kind {
        Kind::Lock => {
            let asking = Locks::new(session, &namespace).lock("x").timeout(wait).into_future();
            tokio::spawn(async move {
                match asking.await {
                    Ok(guard) => Ok(Claim::Lock(Box::new(guard))),
                    Err(error) => Err(Refusal::Lock(error)),
                }
            })
        }
        Kind::Election => {
            let election = Elections::new(session, &namespace).election("x");
            let asking = election.campaign().value("v").timeout(wait).into_future();
            tokio::spawn(async move {
                match asking.await {
                    Ok(term) => Ok(Claim::Election(Box::new(term))),
                    Err(error) => Err(Refusal::Election(error)),
                }
            })
        }
    }
}

async fn release(claim: Claim) -> Result<(), ReleaseError> {
    match claim {
        Claim::Lock(guard) => guard.release().await,
        Claim::Election(term) => term.resign().await,
    }
}

/// Long enough for everything in these tests.
const LONG: Duration = Duration::from_secs(30);

/// The release is asked again when somebody else holds already: it must find nothing of ours, and leave what is not ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_is_lost_on_etcd_is_asked_again_and_frees_nobody_else() {
    let scene = Scene::new().await;
    let next = open(scene.near.clone());
    for kind in KINDS {
        for _ in 0..3 {
            let held = soon(ask(kind, &scene.far, LONG)).await.unwrap().unwrap();
            let waiting = ask(kind, &next, LONG);
            scene.wait_for_places(2).await;
            scene.lose_answers();
            let releasing = tokio::spawn(release(held));
            let later = soon(waiting).await.unwrap().unwrap();
            assert!(!releasing.is_finished(), "{kind:?}: nobody has told it");
            scene.mend();
            let released = soon(releasing).await.unwrap();
            assert_eq!(released, Ok(()), "{kind:?}: it was there, as far as anybody can say");
            assert_eq!(scene.places().await, [later.token()], "{kind:?}");
            let third = soon(ask(kind, &scene.far, Duration::from_millis(500))).await.unwrap();
            assert!(third.is_err_and(|error| error.is_timeout()), "{kind:?}: it is still held");
            assert!(later.is_valid(), "{kind:?}");
            assert_eq!(release(later).await, Ok(()), "{kind:?}: it was not freed by the release before");
            scene.wait_for_places(0).await;
        }
    }
}

/// What never arrived looks the same to whoever sent it, and must be asked again: nobody else can wait for a lease of a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_never_reached_etcd_is_asked_again() {
    let scene = Scene::new().await;
    let next = open(scene.near.clone());
    for kind in KINDS {
        let held = soon(ask(kind, &scene.far, LONG)).await.unwrap().unwrap();
        let waiting = ask(kind, &next, LONG);
        scene.wait_for_places(2).await;
        scene.proxy.set(Mode::BlackHole);
        let mut releasing = tokio::spawn(release(held));
        let early = tokio::time::timeout(Duration::from_millis(300), &mut releasing).await;
        assert!(early.is_err() && !waiting.is_finished(), "{kind:?}");
        scene.mend();
        assert_eq!(soon(releasing).await.unwrap(), Ok(()), "{kind:?}");
        assert_eq!(release(soon(waiting).await.unwrap().unwrap()).await, Ok(()), "{kind:?}");
        scene.wait_for_places(0).await;
    }
}

/// Nobody is told that it has a place; once it does not want one any more, it has none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_whose_answer_is_lost_on_etcd_leaves_no_place() {
    let scene = Scene::new().await;
    for kind in KINDS {
        // Dropped.
        scene.lose_answers();
        let asking = ask(kind, &scene.far, LONG);
        scene.wait_for_places(1).await;
        asking.abort();
        assert!(asking.await.is_err());
        scene.mend();
        scene.wait_for_places(0).await;
        // Out of patience, on a connection that works.
        soon(async { while scene.far.store().get_key("/warm").await.is_err() {} }).await;
        scene.lose_answers();
        let asking = ask(kind, &scene.far, Duration::from_millis(300));
        scene.wait_for_places(1).await;
        let asked = soon(asking).await.unwrap();
        assert!(
            matches!(
                asked,
                Err(Refusal::Lock(LockError::Unavailable { .. })
                    | Refusal::Election(CampaignError::Unavailable { .. }))
            ),
            "{kind:?}"
        );
        scene.mend();
        scene.wait_for_places(0).await;
    }
}

/// It asks what became of its request, and holds the one place that it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_whose_answer_is_lost_on_etcd_holds_one_place() {
    let scene = Scene::new().await;
    for kind in KINDS {
        for _ in 0..3 {
            scene.lose_answers();
            let asking = ask(kind, &scene.far, LONG);
            scene.wait_for_places(1).await;
            let first = scene.places().await;
            scene.mend();
            let held = soon(asking).await.unwrap().unwrap();
            assert_eq!(first, [held.token()], "{kind:?}: it did not stand in line again");
            assert_eq!(scene.places().await, first, "{kind:?}");
            assert_eq!(release(held).await, Ok(()), "{kind:?}");
            scene.wait_for_places(0).await;
        }
    }
}

/// The session ends while nobody knows whether there is a place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_closed_before_the_answer_on_etcd_leaves_no_place() {
    for kind in KINDS {
        let mut scene = Scene::new().await;
        scene.lose_answers();
        let asking = ask(kind, &scene.far, LONG);
        scene.wait_for_places(1).await;
        scene.loan = None;
        let far = scene.far.clone();
        let closing = tokio::spawn(async move { far.close().await });
        scene.mend();
        soon(closing).await.unwrap().unwrap();
        let asked = soon(asking).await.unwrap();
        assert!(
            matches!(asked, Err(Refusal::Lock(LockError::Closed) | Refusal::Election(CampaignError::Closed))),
            "{kind:?}"
        );
        scene.wait_for_places(0).await;
    }
}
