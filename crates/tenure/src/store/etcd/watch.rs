//! Watches, from the client's items to the contract's.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_util::stream;
use tenure_etcd as etcd;

use crate::store::etcd::{EtcdEngine, error, translate};
use crate::store::{
    PreviousValues, Revision, Selection, StoreError, WatchError, WatchItem, WatchStart, WatchStream,
};

/// Opens a watch; see [`Engine::watch`](crate::store::Engine::watch).
pub(super) async fn open(
    engine: &EtcdEngine,
    select: &Selection,
    start: WatchStart,
    previous: PreviousValues,
) -> Result<WatchStream, StoreError> {
    let span = translate::span(select);
    if span.is_empty {
        // No server takes such a watch, and the contract has nothing against it: it is silent until the store is closed.
        let closing = engine.closing.clone();
        return Ok(Box::pin(stream::once(async move {
            closing.cancelled().await;
            Err(WatchError::Lost(StoreError::Closed))
        })));
    }
    let spec = etcd::WatchSpec {
        key: span.key,
        range_end: span.range_end,
        start: match start {
            WatchStart::Now => etcd::WatchFrom::Now,
            WatchStart::Recent => etcd::WatchFrom::Recent,
            WatchStart::After(revision) => etcd::WatchFrom::After(revision.0),
        },
        prev: previous == PreviousValues::Included,
    };
    match engine.client.watch(spec).await {
        Ok(watcher) => Ok(Box::pin(Translated(watcher))),
        Err(etcd::Error::Compacted { at: Some(at) }) => {
            Ok(Box::pin(stream::iter([Err(WatchError::Compacted { at: Revision(at) })])))
        }
        Err(error) => Err(error::from(error)),
    }
}

struct Translated(etcd::Watcher);

impl Stream for Translated {
    type Item = Result<WatchItem, WatchError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = ready!(Pin::new(&mut self.0).poll_next(context));
        Poll::Ready(item.map(|item| match item {
            Ok(etcd::WatchItem::Batch { revision, events }) => Ok(WatchItem::Batch {
                revision: Revision(revision),
                changes: events.into_iter().map(translate::change).collect(),
            }),
            Ok(etcd::WatchItem::Progress(revision)) => Ok(WatchItem::Progress(Revision(revision))),
            Err(etcd::WatchError::Compacted { at }) => Err(WatchError::Compacted { at: Revision(at) }),
            Err(etcd::WatchError::Lost(error)) => Err(WatchError::Lost(error::from(error))),
        }))
    }
}
