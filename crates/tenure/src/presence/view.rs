//! A local copy of a presence set that many tasks read while one task keeps it current.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::StreamExt;
use tenure_core::time::Moment;
use tokio::task::JoinHandle;

use super::{PresenceKind, PresenceOf, PresenceSet, PresenceSnapshotOf, PresenceWatch, lock};
use crate::clock::Clock;
use crate::ordered_watch;
use crate::store::{Revision, StoreError};

/// A local copy of a presence set. Cheap to clone; all clones are one copy, kept current by one watch.
///
/// # Guarantees
///
/// * It shows what the store held at one revision, never an incomplete listing.
/// * The last snapshot stays when the store cannot be reached; [`PresenceView::age`] returns its age.
///
/// # Not guaranteed
///
/// That it is the newest snapshot: for that, list.
///
/// # Cancellation
///
/// Dropping a waiting future leaves nothing behind. Dropping the last clone ends the watch.
pub struct PresenceView<K: PresenceKind> {
    shared: Arc<ViewShared<K>>,
    seen: ordered_watch::OrderedReceiver<ViewProgress>,
}

struct ViewShared<K: PresenceKind> {
    set: Arc<Mutex<PresenceSet<K>>>,
    clock: Arc<dyn Clock>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The progress that the clones of a view wait for.
#[derive(Clone, Debug, Default)]
struct ViewProgress {
    /// How many events there were.
    count: u64,
    /// Why no further event will come.
    end: Option<StoreError>,
}

impl<K: PresenceKind> Drop for ViewShared<K> {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

impl<K: PresenceKind> Clone for PresenceView<K> {
    fn clone(&self) -> PresenceView<K> {
        PresenceView { shared: self.shared.clone(), seen: self.seen.clone() }
    }
}

impl<K: PresenceKind> PresenceView<K> {
    /// A view that a stream keeps current. Must be called inside a tokio runtime.
    pub fn new(mut watch: PresenceWatch<K>) -> PresenceView<K> {
        let (progress, seen) = ordered_watch::channel(ViewProgress::default());
        let (set, clock) = (watch.set.clone(), watch.clock.clone());
        let task = tokio::spawn(async move {
            while let Some(event) = watch.next().await {
                match event {
                    Ok(_) => progress.send_modify(|progress| progress.count += 1),
                    Err(error) => {
                        progress.send_modify(|progress| progress.end = Some(error));
                        return;
                    }
                }
            }
        });
        PresenceView { shared: Arc::new(ViewShared { set, clock, task: Mutex::new(Some(task)) }), seen }
    }

    /// The last known snapshot; none before the first one has arrived.
    pub fn snapshot(&self) -> Option<PresenceSnapshotOf<K>> {
        lock(&self.shared.set).snapshot()
    }

    /// One entry of the last known snapshot.
    pub fn get(&self, id: &K::Id) -> Option<Arc<PresenceOf<K>>> {
        lock(&self.shared.set).get(id).cloned()
    }

    /// How many entries the last known snapshot has.
    pub fn len(&self) -> usize {
        lock(&self.shared.set).len()
    }

    /// Whether the last known snapshot has no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The revision of the snapshot; none before the first one has arrived.
    pub fn revision(&self) -> Option<Revision> {
        lock(&self.shared.set).synced_at()
    }

    /// How long ago the snapshot was certainly current; none before the first one has arrived.
    ///
    /// While the store replies this is a few seconds at most, because a quiet watch is probed every 5 s.
    pub fn age(&self) -> Option<Duration> {
        lock(&self.shared.set).age(self.shared.clock.now())
    }

    /// The time on the clock of the view.
    pub(crate) fn now(&self) -> Moment {
        self.shared.clock.now()
    }

    /// Whether the snapshot is kept current, as far as this process knows.
    pub fn is_fresh(&self) -> bool {
        lock(&self.shared.set).is_fresh()
    }

    /// Waits for the next event: a change, or that the snapshot became stale or fresh.
    ///
    /// # Errors
    ///
    /// The error after which no event will come; the last snapshot stays.
    pub async fn changed(&mut self) -> Result<(), StoreError> {
        // Read without being marked as seen: an event since the caller last waited must wake it.
        if let Some(error) = self.seen.borrow().end.clone() {
            return Err(error);
        }
        match self.seen.changed().await {
            Ok(()) => self.seen.borrow().end.clone().map_or(Ok(()), Err),
            Err(_) => Err(StoreError::Closed),
        }
    }

    /// Waits until a snapshot satisfies the condition, the present one first.
    ///
    /// # Errors
    ///
    /// The error after which no other snapshot will come.
    pub async fn wait_for(
        &mut self,
        mut is_satisfied: impl FnMut(&PresenceSnapshotOf<K>) -> bool,
    ) -> Result<PresenceSnapshotOf<K>, StoreError> {
        loop {
            self.seen.mark_unchanged();
            if let Some(snapshot) = self.snapshot().filter(&mut is_satisfied) {
                return Ok(snapshot);
            }
            self.changed().await?;
        }
    }

    /// Waits for the first snapshot.
    ///
    /// # Errors
    ///
    /// The error after which none will come.
    pub async fn ready(&mut self) -> Result<PresenceSnapshotOf<K>, StoreError> {
        self.wait_for(|_| true).await
    }

    /// Ends the watch for all clones and waits for it. The last snapshot stays.
    pub async fn close(&self) {
        let task = self.shared.task.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(task) = task {
            task.abort();
            // It was aborted: its result is known.
            let _ = task.await;
        }
    }
}

impl<K: PresenceKind> fmt::Debug for PresenceView<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PresenceView({} members at {:?}, {:?} old)", self.len(), self.revision(), self.age())
    }
}
