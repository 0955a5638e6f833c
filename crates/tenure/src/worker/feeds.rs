//! What a node follows: four prefixes, of which whatever is there is taken at once.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use tenure_core::layout::Layout;
use tenure_core::worker::FeedId;

use crate::feed::{Feed, FeedItem};
use crate::store::{Store, StoreError};

/// How many items are taken at once. A turn of the node's task costs about as much as ten items; with many more of them a timer that is due
/// would have to wait for milliseconds.
const TOGETHER_MAX: usize = 512;

/// The four prefixes that a node follows.
pub(super) struct Feeds {
    feeds: Option<[(FeedId, Feed); 4]>,
}

/// What one of them says.
#[derive(Default)]
pub(super) struct News {
    pub(super) items: Vec<FeedItem>,
    /// Why it says nothing more.
    pub(super) end: Option<StoreError>,
}

impl Feeds {
    pub(super) fn open(store: &Store, layout: &Layout) -> Result<Feeds, StoreError> {
        let open = |select| Feed::open(store.clone(), select);
        Ok(Feeds {
            feeds: Some([
                (FeedId::Frozen, open(layout.frozen())?),
                (FeedId::Nodes, open(layout.nodes())?),
                (FeedId::Commands, open(layout.task_commands())?),
                (FeedId::Tasks, open(layout.tasks())?),
            ]),
        })
    }

    /// Waits until one of them has something to say; those that rarely speak are heard first.
    pub(super) async fn next(&mut self) -> (FeedId, News) {
        std::future::poll_fn(|context| {
            let feeds = self.feeds.iter_mut().flatten();
            for (followed, feed) in feeds {
                let news = hear(feed, context);
                if !news.items.is_empty() || news.end.is_some() {
                    return Poll::Ready((*followed, news));
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

/// Takes what is there.
fn hear(feed: &mut Feed, context: &mut Context<'_>) -> News {
    let mut news = News::default();
    while news.items.len() < TOGETHER_MAX {
        match Pin::new(&mut *feed).poll_next(context) {
            Poll::Ready(Some(Ok(item))) => news.items.push(item),
            Poll::Ready(Some(Err(error))) => {
                news.end = Some(error);
                break;
            }
            Poll::Ready(None) => {
                news.end = Some(StoreError::Closed);
                break;
            }
            Poll::Pending => break,
        }
    }
    news
}
