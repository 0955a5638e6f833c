//! A namespace at one revision: its members, tasks, locks and elections, or the parts of it that are of interest.

use std::collections::BTreeSet;
use std::future::{Future, IntoFuture};
use std::pin::Pin;

use tenure_core::cluster::ClusterFold;
use tenure_core::id::Namespace;
use tenure_core::layout::Layout;

use crate::store::{Get, KeyValue, Revision, Selection, Store, StoreError};

pub use tenure_core::cluster::{
    Candidate, ClusterPart, ClusterSnapshot, ElectionSnapshot, Holder, Leader, LockSnapshot,
};

/// How often a snapshot begins again because the store has compacted its revision meanwhile. A store that compacts faster than it can be read
/// this often will do so the next time too.
const TRIES_MAX: usize = 3;

/// A snapshot of a namespace, about to be read. Awaiting it gives a [`ClusterSnapshot`].
///
/// ```
/// use tenure::Namespace;
/// use tenure::lock::Locks;
/// use tenure::session::Session;
/// use tenure::snapshot::{ClusterPart, SnapshotRequest};
/// use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, namespace) = (Store::memory(), Namespace::parse("shop")?);
/// let locks = Locks::new(&Session::open(store.clone())?, &namespace);
/// let guard = locks.lock("deploy").await?;
///
/// let snapshot = SnapshotRequest::new(&store, &namespace).parts([ClusterPart::Locks, ClusterPart::Elections]).await?;
/// assert_eq!(snapshot.locks[0].holders[0].token, guard.token());
/// assert!(snapshot.elections.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * All parts are of one revision, [`ClusterSnapshot::revision`], however many pages they take: a task never has an owner that
///   left before the snapshot shows it.
/// * Only the selected parts are read. The states of tasks that have ended are never read.
/// * Reading needs read access to the namespace, no lease, and writes nothing.
///
/// # Not guaranteed
///
/// * That it is still so: others go on. Follow a prefix with a [`Feed`](crate::feed::Feed) for that.
/// * That a member or a holder is alive: its key stays until its lease ends.
///
/// # Cancellation
///
/// Leaves nothing behind.
///
/// # Errors
///
/// The errors of a read. A compaction during the read begins it again, three times at most; for a revision that was chosen with
/// [`SnapshotRequest::at`] it is [`StoreError::Compacted`].
#[derive(Clone, Debug)]
#[must_use = "nothing is read before this is awaited"]
pub struct SnapshotRequest {
    store: Store,
    layout: Layout,
    parts: BTreeSet<ClusterPart>,
    at: Option<Revision>,
}

impl SnapshotRequest {
    /// All parts of a namespace, as they are now.
    pub fn new(store: &Store, namespace: &Namespace) -> SnapshotRequest {
        SnapshotRequest {
            store: store.clone(),
            layout: Layout::new(namespace),
            parts: ClusterPart::ALL.into(),
            at: None,
        }
    }

    /// Only these parts.
    pub fn parts(mut self, parts: impl IntoIterator<Item = ClusterPart>) -> SnapshotRequest {
        self.parts = parts.into_iter().collect();
        self
    }

    /// As it was at this revision, as far back as the store's history reaches.
    pub fn at(mut self, revision: Revision) -> SnapshotRequest {
        self.at = Some(revision);
        self
    }

    async fn read(self) -> Result<ClusterSnapshot, StoreError> {
        let mut tries = 1;
        loop {
            match self.read_once().await {
                Err(StoreError::Compacted { .. }) if self.at.is_none() && tries < TRIES_MAX => tries += 1,
                result => return result,
            }
        }
    }

    async fn read_once(&self) -> Result<ClusterSnapshot, StoreError> {
        let revision = match self.at {
            Some(revision) => revision,
            // The smallest read that has a revision.
            None => self.store.get(Get::new(self.layout.everything()).limit(1).keys_only()).await?.revision,
        };
        let mut fold = ClusterFold::new(self.layout.clone(), revision, self.parts.iter().copied());
        let parts = fold.parts().clone();
        for select in parts.iter().flat_map(|part| part.reads(&self.layout)) {
            fold.handle(self.list(select, revision).await?);
        }
        if parts.contains(&ClusterPart::States) {
            let keys = fold.state_keys();
            fold.handle(self.store.get_each(&keys, revision).await?);
        }
        if parts.contains(&ClusterPart::Owners) && !parts.contains(&ClusterPart::Tasks) {
            let keys = Get::new(self.layout.tasks()).at(revision).keys_only();
            let owners = fold.handle_task_keys(self.store.list_all(keys).await?.pairs);
            fold.handle(self.store.get_each(&owners, revision).await?);
        }
        Ok(fold.finish())
    }

    async fn list(&self, select: Selection, revision: Revision) -> Result<Vec<KeyValue>, StoreError> {
        Ok(self.store.list_all(Get::new(select).at(revision)).await?.pairs)
    }
}

impl IntoFuture for SnapshotRequest {
    type Output = Result<ClusterSnapshot, StoreError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.read())
    }
}
