//! A picture of who is there that many tasks look at while one keeps it up to date.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::task::JoinHandle;

use super::{PresenceKind, PresenceOf, PresenceSet, PresenceSnapshotOf, PresenceWatch, lock};
use crate::clock::Clock;
use crate::ordered_watch;
use crate::store::{Revision, StoreError};

/// Who is there, as last known. Cheap to clone; all clones look at one picture, kept by one watch.
///
/// # Guarantees
///
/// * What is shown is what the store held at one revision, never half of a listing.
/// * The last picture stays when the store cannot be reached; [`PresenceView::age`] says how old it is.
///
/// # Not guaranteed
///
/// That it is the newest picture: for that, list.
///
/// # Cancellation
///
/// Dropping a waiting future leaves nothing behind. Dropping the last clone ends the watch.
pub struct PresenceView<K: PresenceKind> {
    shared: Arc<ViewShared<K>>,
    seen: ordered_watch::OrderedReceiver<ViewProgress>,
}

struct ViewShared<K: PresenceKind> {
    roster: Arc<Mutex<PresenceSet<K>>>,
    clock: Arc<dyn Clock>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// What the clones of a view wait for.
#[derive(Clone, Debug, Default)]
struct ViewProgress {
    /// How many pieces of news there were.
    count: u64,
    /// Why nothing will come any more.
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
    /// A view that a follower keeps up to date. Must be called inside a tokio runtime.
    pub fn new(mut follower: PresenceWatch<K>) -> PresenceView<K> {
        let (progress, seen) = ordered_watch::channel(ViewProgress::default());
        let (roster, clock) = (follower.roster.clone(), follower.clock.clone());
        let task = tokio::spawn(async move {
            while let Some(news) = follower.next().await {
                match news {
                    Ok(_) => progress.send_modify(|progress| progress.count += 1),
                    Err(error) => {
                        progress.send_modify(|progress| progress.end = Some(error));
                        return;
                    }
                }
            }
        });
        PresenceView { shared: Arc::new(ViewShared { roster, clock, task: Mutex::new(Some(task)) }), seen }
    }

    /// The whole picture as last known; none before the first one has come.
    pub fn snapshot(&self) -> Option<PresenceSnapshotOf<K>> {
        lock(&self.shared.roster).snapshot()
    }

    /// One member as last known.
    pub fn get(&self, id: &K::Id) -> Option<Arc<PresenceOf<K>>> {
        lock(&self.shared.roster).get(id).cloned()
    }

    /// How many there are, as last known.
    pub fn len(&self) -> usize {
        lock(&self.shared.roster).len()
    }

    /// Whether nobody is known to be there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The revision of the picture; none before the first one has come.
    pub fn revision(&self) -> Option<Revision> {
        lock(&self.shared.roster).whole_at()
    }

    /// How long ago the picture was certainly right; none before the first one has come.
    ///
    /// While the store answers this is a few seconds at most, because a quiet watch is asked only now and then.
    pub fn age(&self) -> Option<Duration> {
        lock(&self.shared.roster).age(self.shared.clock.now())
    }

    /// Whether the picture is kept up to date, as far as anybody knows.
    pub fn is_fresh(&self) -> bool {
        lock(&self.shared.roster).is_fresh()
    }

    /// Waits for the next news: a change, or that the picture became old or fresh.
    ///
    /// # Errors
    ///
    /// Why no news will come any more; the last picture stays.
    pub async fn changed(&mut self) -> Result<(), StoreError> {
        // Looked at without being marked as seen: what came since the caller last looked must wake it.
        if let Some(error) = self.seen.borrow().end.clone() {
            return Err(error);
        }
        match self.seen.changed().await {
            Ok(()) => self.seen.borrow().end.clone().map_or(Ok(()), Err),
            Err(_) => Err(StoreError::Closed),
        }
    }

    /// Waits until the picture is as wanted, looking at each one that comes; at once if it is so already.
    ///
    /// # Errors
    ///
    /// Why no other picture will come any more.
    pub async fn wait_for(
        &mut self,
        mut is_wanted: impl FnMut(&PresenceSnapshotOf<K>) -> bool,
    ) -> Result<PresenceSnapshotOf<K>, StoreError> {
        loop {
            self.seen.mark_unchanged();
            if let Some(snapshot) = self.snapshot().filter(&mut is_wanted) {
                return Ok(snapshot);
            }
            self.changed().await?;
        }
    }

    /// Waits for the first whole picture.
    ///
    /// # Errors
    ///
    /// Why none will come.
    pub async fn ready(&mut self) -> Result<PresenceSnapshotOf<K>, StoreError> {
        self.wait_for(|_| true).await
    }

    /// Ends the watch for all clones and waits for it. The last picture stays.
    pub async fn close(&self) {
        let task = self.shared.task.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(task) = task {
            task.abort();
            // It was aborted, so it has nothing to say.
            let _ = task.await;
        }
    }
}

impl<K: PresenceKind> fmt::Debug for PresenceView<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PresenceView({} members at {:?}, {:?} old)", self.len(), self.revision(), self.age())
    }
}
