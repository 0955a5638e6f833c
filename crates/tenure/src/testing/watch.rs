//! A watch at the end of a wire: it stalls in silence while nothing comes through, and goes on where it was.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio_util::sync::CancellationToken;

use super::participant::{Participant, Way};
use crate::store::{StoreError, WatchError, WatchItem, WatchStream};

type Item = Result<WatchItem, WatchError>;

pub(super) struct Watch {
    participant: Arc<Participant>,
    inner: WatchStream,
    closing: CancellationToken,
    /// What is on its way, and when it arrives in the world's time.
    on_the_way: VecDeque<(Duration, Item)>,
    /// The store has said its last word, which may still be on its way.
    has_ended: bool,
    /// It has arrived.
    is_over: bool,
}

impl Watch {
    pub(super) fn stream(
        participant: Arc<Participant>,
        inner: WatchStream,
        closing: CancellationToken,
    ) -> WatchStream {
        let watch = Watch {
            participant,
            inner,
            closing,
            on_the_way: VecDeque::new(),
            has_ended: false,
            is_over: false,
        };
        Box::pin(stream::unfold(watch, |mut watch| async move {
            let item = watch.next().await?;
            watch.is_over = item.is_err();
            Some((item, watch))
        }))
    }

    async fn next(&mut self) -> Option<Item> {
        if self.is_over {
            return None;
        }
        let Watch { participant, inner, closing, on_the_way, has_ended, .. } = self;
        loop {
            let changed = participant.changed();
            // While nothing comes through, history is not read: what is compacted meanwhile is missed, as on a real wire.
            let is_open = participant.passes(Way::Back) == Ok(true);
            let head = on_the_way.front().map(|(arrives, _)| *arrives);
            tokio::select! {
                biased;
                () = closing.cancelled() => return Some(Err(WatchError::Lost(StoreError::Closed))),
                () = changed => {}
                () = participant.time.sleep_until(head.unwrap_or_default()), if is_open && head.is_some() => {
                    return on_the_way.pop_front().map(|(_, item)| item);
                }
                item = inner.next(), if is_open && !*has_ended => {
                    // A watch ends with an error; one that ends without is over as soon as it is known.
                    let item = item?;
                    *has_ended = item.is_err();
                    on_the_way.push_back((participant.time.elapsed() + participant.latency(), item));
                }
            }
        }
    }
}
