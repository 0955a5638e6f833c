//! Events and snapshots of a namespace: its changes, and its state at one revision.

mod events;
mod snapshot;

use tenure::NewTask;
use tenure::lock::{Guard, Locks};
use tenure::session::Session;
use tenure::store::Store;
use tenure_core::id::Namespace;

use crate::client::tenure_on;

fn namespace() -> Namespace {
    Namespace::parse("t").unwrap()
}

fn locks(store: &Store) -> Locks {
    Locks::new(&Session::open(store.clone()).unwrap(), &namespace())
}

async fn submit(store: &Store, id: &str) {
    tenure_on(store, &namespace()).submit(NewTask::new("mail").id(id)).await.unwrap();
}

/// Holds a lock and releases it.
async fn hold(locks: &Locks, name: &str) {
    let guard: Guard = locks.lock(name).await.unwrap();
    guard.release().await.unwrap();
}
