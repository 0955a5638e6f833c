//! Sessions on memory and on real etcd: what other clients of the store see of them.

mod child;
mod closing;
mod costs;
mod flaky;
mod hanging;
mod input;
mod keys;
mod lease_handles;
mod observing;
mod outages;
mod stopped;

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tenure::session::{KeyEvent, RegisterError, Session, SessionState};
use tenure::store::{Change, Op, PreviousValues, Selection, Store, Txn, WatchItem, WatchStart, WatchStream};
use tenure_fixture::Etcd;

async fn connect(etcd: &Etcd) -> Store {
    Store::open(&format!("etcd://{}", etcd.endpoints()).parse().unwrap()).await.unwrap()
}

async fn stored(store: &Store) -> Vec<Bytes> {
    store.list(Selection::everything()).await.unwrap().pairs.into_iter().map(|pair| pair.key).collect()
}

/// Waits until the store's keys are as wanted, looking again at each change; the answer must come within a bounded time.
async fn wait_until(store: &Store, within: Duration, is_wanted: impl Fn(&[Bytes]) -> bool) {
    let mut watch =
        store.watch(Selection::everything(), WatchStart::Now, PreviousValues::Omitted).await.unwrap();
    let deadline = tokio::time::Instant::now() + within;
    loop {
        let keys = stored(store).await;
        if is_wanted(&keys) {
            return;
        }
        let change = tokio::time::timeout_at(deadline, watch.next()).await;
        assert!(change.is_ok(), "{} keys after {within:?}", keys.len());
    }
}

async fn wait_for_keys(store: &Store, count: usize, within: Duration) {
    wait_until(store, within, |keys| keys.len() == count).await;
}

/// Registers this many keys at once.
async fn register_many(session: &Session, count: usize) {
    let wishes = (0..count).map(|n| {
        session.register_raw(format!("/r/{n:05}"), "v").timeout(Duration::from_secs(30)).into_future()
    });
    for answer in futures_util::future::join_all(wishes).await {
        answer.unwrap();
    }
}

/// The full size only when it is asked for: `TENURE_SOAK=1`.
fn is_soak() -> bool {
    std::env::var_os("TENURE_SOAK").is_some()
}

/// Waits for a state of the session, within a bounded time.
async fn wait_for_state(session: &Session, is_wanted: impl Fn(&SessionState) -> bool) {
    let mut state = session.state();
    let waited =
        tokio::time::timeout(Duration::from_secs(20), state.wait_for(|state| is_wanted(state))).await;
    assert!(waited.is_ok(), "the session stays {:?}", *session.state().borrow());
}

/// How many deletes a watch has shown up to a marker key that is put now.
async fn deletes_so_far(store: &Store, watch: &mut WatchStream) -> usize {
    let marker = store.put("/marker", "").await.unwrap();
    let mut deletes = 0;
    while let Some(item) = watch.next().await {
        if let WatchItem::Batch { revision, changes } = item.unwrap() {
            deletes += changes.iter().filter(|change| matches!(change, Change::Delete { .. })).count();
            if revision >= marker {
                break;
            }
        }
    }
    deletes
}
