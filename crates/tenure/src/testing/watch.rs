//! A watch behind a link with faults: while the link is cut it delivers nothing, without an error; then it continues without a gap.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio_util::sync::CancellationToken;

use super::link::{Direction, ProcessLink};
use crate::store::{StoreError, WatchError, WatchItem, WatchStream};

type WatchResult = Result<WatchItem, WatchError>;

pub(super) struct FaultyWatch {
    link: Arc<ProcessLink>,
    inner: WatchStream,
    closing: CancellationToken,
    /// Items on their way to the process, and when they arrive in the world's time.
    in_flight: VecDeque<(Duration, WatchResult)>,
    /// The store has ended the watch. The error may still be in flight.
    has_ended: bool,
    /// The process has received the end.
    is_over: bool,
}

impl FaultyWatch {
    pub(super) fn stream(
        link: Arc<ProcessLink>,
        inner: WatchStream,
        closing: CancellationToken,
    ) -> WatchStream {
        let watch = FaultyWatch {
            link,
            inner,
            closing,
            in_flight: VecDeque::new(),
            has_ended: false,
            is_over: false,
        };
        Box::pin(stream::unfold(watch, |mut watch| async move {
            let item = watch.next().await?;
            watch.is_over = item.is_err();
            Some((item, watch))
        }))
    }

    async fn next(&mut self) -> Option<WatchResult> {
        if self.is_over {
            return None;
        }
        let FaultyWatch { link, inner, closing, in_flight, has_ended, .. } = self;
        loop {
            let changed = link.changed();
            // While the link is cut, history is not read: what is compacted meanwhile is missed, as on a real network.
            let is_open = link.passes(Direction::Response) == Ok(true);
            let head = in_flight.front().map(|(arrives, _)| *arrives);
            tokio::select! {
                biased;
                () = closing.cancelled() => return Some(Err(WatchError::Lost(StoreError::Closed))),
                () = changed => {}
                () = link.time.sleep_until(head.unwrap_or_default()), if is_open && head.is_some() => {
                    return in_flight.pop_front().map(|(_, item)| item);
                }
                item = inner.next(), if is_open && !*has_ended => {
                    // A watch ends with an error. One that ends without an error ends here immediately.
                    let item = item?;
                    *has_ended = item.is_err();
                    in_flight.push_back((link.time.elapsed() + link.latency(), item));
                }
            }
        }
    }
}
