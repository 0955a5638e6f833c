//! The time that the store itself takes for a change that a watcher waits for: one transaction, and
//! then one delivery.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tenure::store::{Change, PreviousValues, Selection, Store, WatchItem, WatchStart, WatchStream};

use crate::failure::BenchFailure;
use crate::sample::Sample;
use crate::workload::wrong;

/// A key that is put before the eyes of a watch.
pub(super) struct StoreProbe {
    store: Store,
    key: String,
    events: WatchStream,
    took: Vec<Duration>,
}

impl StoreProbe {
    pub(super) async fn open(store: &Store, prefix: &str) -> Result<StoreProbe, BenchFailure> {
        let key = format!("{prefix}probe");
        let events =
            store.watch(Selection::key(key.clone()), WatchStart::Now, PreviousValues::Omitted).await?;
        Ok(StoreProbe { store: store.clone(), key, events, took: Vec::new() })
    }

    /// Puts once. The two run side by side; a change of leader has one after the other, so their times are added.
    pub(super) async fn put(&mut self) -> Result<(), BenchFailure> {
        let began = Instant::now();
        let transaction = async {
            self.store.put(self.key.clone(), "").await?;
            Ok::<_, BenchFailure>(began.elapsed())
        };
        let delivery = async {
            loop {
                match self.events.next().await {
                    Some(Ok(WatchItem::Batch { .. })) => return Ok(began.elapsed()),
                    Some(Ok(WatchItem::Progress(_))) => {}
                    Some(Err(end)) => return Err(BenchFailure::from(end)),
                    None => return Err(wrong("the watch ended")),
                }
            }
        };
        let (transaction, delivery) = tokio::try_join!(transaction, delivery)?;
        self.took.push(transaction + delivery);
        Ok(())
    }

    pub(super) fn sample(self) -> Sample {
        let (total, count) = (self.took.iter().sum(), self.took.len());
        Sample::new(self.took, total, count)
    }
}

/// An observer that counts candidates as they enter.
pub(super) struct CandidateWatch {
    events: WatchStream,
    seen: usize,
}

/// A candidate that has not entered after this long never does.
const PATIENCE: Duration = Duration::from_secs(60);

impl CandidateWatch {
    pub(super) async fn open(store: &Store, line: &str) -> Result<CandidateWatch, BenchFailure> {
        let select = Selection::prefix(line.to_owned());
        Ok(CandidateWatch {
            events: store.watch(select, WatchStart::Now, PreviousValues::Omitted).await?,
            seen: 0,
        })
    }

    /// Waits until this many have entered in all.
    pub(super) async fn came(&mut self, count: usize) -> Result<(), BenchFailure> {
        let coming = async {
            while self.seen < count {
                match self.events.next().await {
                    Some(Ok(WatchItem::Batch { changes, .. })) => {
                        self.seen += changes.iter().filter(|change| is_new(change)).count();
                    }
                    Some(Ok(WatchItem::Progress(_))) => {}
                    Some(Err(end)) => return Err(BenchFailure::from(end)),
                    None => return Err(wrong("the watch ended")),
                }
            }
            Ok(())
        };
        let came = tokio::time::timeout(PATIENCE, coming).await;
        came.unwrap_or_else(|_| Err(wrong(format!("not all candidates entered within {PATIENCE:?}"))))
    }
}

fn is_new(change: &Change) -> bool {
    matches!(change, Change::Put { pair, .. } if pair.version == 1)
}

/// After this time the work of the setup is done: a waiter watches its own key only after a delay.
pub(super) const SETTLED_AFTER: Duration = Duration::from_millis(300);
