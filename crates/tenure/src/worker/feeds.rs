//! The four prefixes that a worker follows.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use tenure_core::layout::Layout;
use tenure_core::worker::FeedId;

use crate::feed::{Feed, FeedItem};
use crate::store::{Store, StoreError};

/// How many items are handled in one turn. A turn of the driver costs about as much as ten items; with many more of them a timer that is due
/// waits for milliseconds.
const TOGETHER_MAX: usize = 512;

/// The four feeds of a worker.
pub(super) struct WorkerFeeds {
    feeds: Option<[(FeedId, Feed); 4]>,
}

/// Items of one feed.
#[derive(Default)]
pub(super) struct FeedUpdate {
    pub(super) items: Vec<FeedItem>,
    /// Why the feed has ended.
    pub(super) end: Option<StoreError>,
}

impl WorkerFeeds {
    pub(super) fn open(store: &Store, layout: &Layout) -> Result<WorkerFeeds, StoreError> {
        let open = |select| Feed::open(store.clone(), select);
        Ok(WorkerFeeds {
            feeds: Some([
                (FeedId::Frozen, open(layout.frozen())?),
                (FeedId::Nodes, open(layout.nodes())?),
                (FeedId::Commands, open(layout.task_commands())?),
                (FeedId::Tasks, open(layout.tasks())?),
            ]),
        })
    }

    /// Waits for items. Feeds that rarely have some come first, so that a burst of tasks does not delay a command.
    pub(super) async fn next(&mut self) -> (FeedId, FeedUpdate) {
        std::future::poll_fn(|context| {
            let feeds = self.feeds.iter_mut().flatten();
            for (followed, feed) in feeds {
                let update = read_items(feed, context);
                if !update.items.is_empty() || update.end.is_some() {
                    return Poll::Ready((*followed, update));
                }
            }
            Poll::Pending
        })
        .await
    }

    pub(super) fn close(&mut self) {
        self.feeds = None;
    }
}

/// Reads the items that have arrived.
fn read_items(feed: &mut Feed, context: &mut Context<'_>) -> FeedUpdate {
    let mut update = FeedUpdate::default();
    while update.items.len() < TOGETHER_MAX {
        match Pin::new(&mut *feed).poll_next(context) {
            Poll::Ready(Some(Ok(item))) => update.items.push(item),
            Poll::Ready(Some(Err(error))) => {
                update.end = Some(error);
                break;
            }
            Poll::Ready(None) => {
                update.end = Some(StoreError::Closed);
                break;
            }
            Poll::Pending => break,
        }
    }
    update
}
