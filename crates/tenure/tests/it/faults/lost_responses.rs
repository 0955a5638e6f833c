//! Requests that the store has applied while their responses were lost, on a real etcd behind a proxy.
//!
//! Leases have a TTL of a minute here: a key that disappears within seconds was deleted, and did not expire.

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

/// A request in the background.
type Acquiring = JoinHandle<Result<TestHold, Refusal>>;

/// A session behind a proxy, and a direct connection to the same store.
struct ProxiedStore {
    proxy: Proxy,
    near: Store,
    /// Behind the proxy, with a lease: all further requests are about queue keys.
    far: Session,
    /// Keeps that lease in use.
    lease: Option<LeaseHandle>,
    _etcd: Etcd,
}

impl ProxiedStore {
    async fn new() -> ProxiedStore {
        let etcd = Etcd::start();
        let proxy = Proxy::to(etcd.member(0).client_addr());
        let near = connect(&etcd).await;
        let url = format!("etcd://{}", proxy.addr());
        let far = open(Store::open(&url.parse().unwrap()).await.unwrap());
        let lease = far.lease().await.unwrap();
        ProxiedStore { proxy, near, far, lease: Some(lease), _etcd: etcd }
    }

    /// From here on the store applies requests, and their responses are lost.
    fn drop_responses(&self) {
        self.proxy.set(Mode::BlackHoleAnswers);
    }

    /// The connection that lost bytes breaks, and the next one works.
    fn heal(&self) {
        self.proxy.set(Mode::Pass);
    }

    /// The tokens of all queue keys, the oldest first.
    async fn queue_keys(&self) -> Vec<Token> {
        let mut tokens = Vec::new();
        for queues in ["/t/locks/", "/t/elections/"] {
            let keys = self.near.list(Selection::prefix(queues)).await.unwrap().pairs;
            tokens.extend(keys.into_iter().map(|pair| Token(pair.created)));
        }
        tokens.sort();
        tokens
    }

    async fn wait_for_queue_keys(&self, count: usize) {
        soon(async {
            while self.queue_keys().await.len() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

fn open(store: Store) -> Session {
    Session::options().ttl(Duration::from_secs(60)).open(store).unwrap()
}

/// Acquires it in the background, with this timeout.
fn acquire(kind: HoldKind, session: &Session, wait: Duration) -> Acquiring {
    let namespace = Namespace::parse("t").unwrap();
    match kind {
        HoldKind::Lock => {
            let acquiring = Locks::new(session, &namespace).lock("x").timeout(wait).into_future();
            tokio::spawn(async move {
                match acquiring.await {
                    Ok(guard) => Ok(TestHold::Lock(Box::new(guard))),
                    Err(error) => Err(Refusal::Lock(error)),
                }
            })
        }
        HoldKind::Election => {
            let election = Elections::new(session, &namespace).election("x");
            let acquiring = election.campaign().value("v").timeout(wait).into_future();
            tokio::spawn(async move {
                match acquiring.await {
                    Ok(term) => Ok(TestHold::Election(Box::new(term))),
                    Err(error) => Err(Refusal::Election(error)),
                }
            })
        }
    }
}

async fn release(claim: TestHold) -> Result<(), ReleaseError> {
    match claim {
        TestHold::Lock(guard) => guard.release().await,
        TestHold::Election(term) => term.resign().await,
    }
}

/// Longer than any step of these tests takes.
const LONG: Duration = Duration::from_secs(30);

/// The release is retried when another waiter holds already: it must find its key deleted, and leave the other key alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_release_response_is_retried_on_etcd() {
    let store = ProxiedStore::new().await;
    let next = open(store.near.clone());
    for kind in KINDS {
        for _ in 0..3 {
            let held = soon(acquire(kind, &store.far, LONG)).await.unwrap().unwrap();
            let waiting = acquire(kind, &next, LONG);
            store.wait_for_queue_keys(2).await;
            store.drop_responses();
            let releasing = tokio::spawn(release(held));
            let later = soon(waiting).await.unwrap().unwrap();
            assert!(!releasing.is_finished(), "{kind:?}: it has no response yet");
            store.heal();
            let released = soon(releasing).await.unwrap();
            assert_eq!(released, Ok(()), "{kind:?}: the key may have existed until then");
            assert_eq!(store.queue_keys().await, [later.token()], "{kind:?}");
            let third = soon(acquire(kind, &store.far, Duration::from_millis(500))).await.unwrap();
            assert!(third.is_err_and(|error| error.is_timeout()), "{kind:?}: it is still held");
            assert!(later.is_valid(), "{kind:?}");
            assert_eq!(release(later).await, Ok(()), "{kind:?}: it was not freed by the release before");
            store.wait_for_queue_keys(0).await;
        }
    }
}

/// The sender cannot distinguish an undelivered request from a lost response, so it retries: no waiter can wait for a lease of a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undelivered_release_is_retried_on_etcd() {
    let store = ProxiedStore::new().await;
    let next = open(store.near.clone());
    for kind in KINDS {
        let held = soon(acquire(kind, &store.far, LONG)).await.unwrap().unwrap();
        let waiting = acquire(kind, &next, LONG);
        store.wait_for_queue_keys(2).await;
        store.proxy.set(Mode::BlackHole);
        let mut releasing = tokio::spawn(release(held));
        let early = tokio::time::timeout(Duration::from_millis(300), &mut releasing).await;
        assert!(early.is_err() && !waiting.is_finished(), "{kind:?}");
        store.heal();
        assert_eq!(soon(releasing).await.unwrap(), Ok(()), "{kind:?}");
        assert_eq!(release(soon(waiting).await.unwrap().unwrap()).await, Ok(()), "{kind:?}");
        store.wait_for_queue_keys(0).await;
    }
}

/// The caller never learns of its queue key; when it stops waiting, the key is deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_ambiguous_acquire_leaves_no_key_on_etcd() {
    let store = ProxiedStore::new().await;
    for kind in KINDS {
        // The future is dropped.
        store.drop_responses();
        let acquiring = acquire(kind, &store.far, LONG);
        store.wait_for_queue_keys(1).await;
        acquiring.abort();
        assert!(acquiring.await.is_err());
        store.heal();
        store.wait_for_queue_keys(0).await;
        // The wait times out, on a working connection.
        soon(async { while store.far.store().get_key("/warm").await.is_err() {} }).await;
        store.drop_responses();
        let acquiring = acquire(kind, &store.far, Duration::from_millis(300));
        store.wait_for_queue_keys(1).await;
        let result = soon(acquiring).await.unwrap();
        assert!(
            matches!(
                result,
                Err(Refusal::Lock(LockError::Unavailable { .. })
                    | Refusal::Election(CampaignError::Unavailable { .. }))
            ),
            "{kind:?}"
        );
        store.heal();
        store.wait_for_queue_keys(0).await;
    }
}

/// The driver reads the outcome of its request, and holds with the one key that it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ambiguous_acquire_keeps_one_key_on_etcd() {
    let store = ProxiedStore::new().await;
    for kind in KINDS {
        for _ in 0..3 {
            store.drop_responses();
            let acquiring = acquire(kind, &store.far, LONG);
            store.wait_for_queue_keys(1).await;
            let first = store.queue_keys().await;
            store.heal();
            let held = soon(acquiring).await.unwrap().unwrap();
            assert_eq!(first, [held.token()], "{kind:?}: it did not enter the queue again");
            assert_eq!(store.queue_keys().await, first, "{kind:?}");
            assert_eq!(release(held).await, Ok(()), "{kind:?}");
            store.wait_for_queue_keys(0).await;
        }
    }
}

/// The session is closed while it is unknown whether there is a queue key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_closed_early_leaves_no_key_on_etcd() {
    for kind in KINDS {
        let mut store = ProxiedStore::new().await;
        store.drop_responses();
        let acquiring = acquire(kind, &store.far, LONG);
        store.wait_for_queue_keys(1).await;
        store.lease = None;
        let far = store.far.clone();
        let closing = tokio::spawn(async move { far.close().await });
        store.heal();
        soon(closing).await.unwrap().unwrap();
        let result = soon(acquiring).await.unwrap();
        assert!(
            matches!(
                result,
                Err(Refusal::Lock(LockError::Closed) | Refusal::Election(CampaignError::Closed))
            ),
            "{kind:?}"
        );
        store.wait_for_queue_keys(0).await;
    }
}
