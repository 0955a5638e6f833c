//! Reads the history for the fold: seeds it, watches from there, and starts again after an outage or a compaction.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tenure_core::backoff::Backoff;
use tenure_core::events::{Event, EventFold, EventKind};
use tenure_core::layout::Layout;
use tracing::warn;

use super::{Events, Extent};
use crate::clock::Clock;
use crate::retry::Attempts;
use crate::store::{
    Get, PreviousValues, Revision, Selection, Store, StoreError, WatchError, WatchItem, WatchStart,
    WatchStream,
};

/// How long the store may be silent before its history counts as read. A bounded read ends with the revision that was current when it was
/// opened; only a store in which an operator moved the revisions has none there, and one that reports progress for the namespace alone
/// may report it late.
const QUIET_MAX: Duration = Duration::from_secs(5);

pub(super) struct Reader {
    store: Store,
    layout: Layout,
    clock: Arc<dyn Clock>,
    /// Everything up to here was read.
    at: Revision,
    /// Where a bounded read ends.
    until: Option<Revision>,
    /// Whether a compaction up to the first event is no gap, because the reader did not name a revision.
    is_from_beginning: bool,
    fold: EventFold,
    watch: Option<WatchStream>,
    ready: VecDeque<Result<Event, StoreError>>,
    is_over: bool,
    /// The failures since the last item that was read; none while the store answers.
    failing: Option<Attempts>,
    /// The failure after which the next attempt has to wait.
    failed: Option<StoreError>,
}

/// Why reading stopped.
enum Break {
    /// The history up to this revision is gone.
    Compacted(Revision),
    Failed(StoreError),
}

impl Reader {
    pub(super) async fn open(events: Events) -> Result<Reader, StoreError> {
        let Events { store, layout, clock, after, extent } = events;
        let now = store.get(Get::new(layout.everything()).limit(1).keys_only()).await?.revision;
        let at = after.unwrap_or(Revision::ZERO);
        if at > now {
            return Err(StoreError::FutureRevision);
        }
        Ok(Reader {
            fold: EventFold::new(layout.clone()),
            store,
            layout,
            clock,
            at,
            until: (extent == Extent::Now).then_some(now),
            is_from_beginning: after.is_none(),
            watch: None,
            ready: VecDeque::new(),
            is_over: false,
            failing: None,
            failed: None,
        })
    }

    /// The next item; none at the end.
    pub(super) async fn next(&mut self) -> Option<Result<Event, StoreError>> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Some(item);
            }
            if self.is_over || self.until.is_some_and(|until| self.at >= until || until <= Revision(1)) {
                return None;
            }
            if let (Some(attempts), Some(error)) = (&mut self.failing, self.failed.take()) {
                attempts.wait("event history", &error).await;
            }
            match self.step().await {
                Ok(()) => {}
                Err(Break::Compacted(at)) => self.handle_compaction(at),
                Err(Break::Failed(error)) => self.handle_failure(error),
            }
        }
    }

    async fn step(&mut self) -> Result<(), Break> {
        let Some(watch) = &mut self.watch else {
            self.watch = Some(self.start().await?);
            return Ok(());
        };
        let item = match self.until {
            None => watch.next().await,
            Some(_) => {
                let quiet = self.clock.sleep_until(self.clock.now() + QUIET_MAX);
                tokio::select! {
                    biased;
                    item = watch.next() => item,
                    () = quiet => {
                        self.is_over = true;
                        return Ok(());
                    }
                }
            }
        };
        let item = match item {
            Some(Ok(item)) => item,
            Some(Err(WatchError::Compacted { at })) => return Err(Break::Compacted(at)),
            Some(Err(WatchError::Lost(error))) => return Err(Break::Failed(error)),
            None => return Err(Break::Failed(StoreError::Closed)),
        };
        self.failing = None;
        self.at = item.revision();
        if self.until.is_some_and(|until| self.at > until) {
            return Ok(());
        }
        if let WatchItem::Batch { changes, .. } = item {
            self.ready.extend(self.fold.handle(&changes).into_iter().map(Ok));
        }
        Ok(())
    }

    /// Seeds the fold with the queues as they are at `at`, and watches from there: the history contains only the keys that
    /// came and went after it.
    async fn start(&mut self) -> Result<WatchStream, Break> {
        let mut fold = EventFold::new(self.layout.clone());
        if self.at > Revision(1) {
            let mut pairs = Vec::new();
            for select in [self.layout.locks(), self.layout.elections()] {
                match self.store.list_all(Get::new(select).at(self.at)).await {
                    Ok(page) => pairs.extend(page.pairs),
                    Err(StoreError::Compacted { at: Some(at) }) => return Err(Break::Compacted(at)),
                    // The store did not report the compacted revision; the watch reports it.
                    Err(StoreError::Compacted { at: None }) => break,
                    Err(error) => return Err(Break::Failed(error)),
                }
            }
            fold.seed(pairs);
        }
        self.fold = fold;
        let select = match self.until {
            // The last revision may be one of other keys: only all keys together certainly show it.
            Some(_) => Selection::everything(),
            None => self.layout.everything(),
        };
        let start = WatchStart::After(self.at);
        match self.store.watch(select, start, PreviousValues::Included).await {
            // A user with a grant on the namespace alone: the store itself reports its progress there, a little later.
            Err(StoreError::Denied(_)) if self.until.is_some() => {
                self.store.watch(self.layout.everything(), start, PreviousValues::Included).await
            }
            watch => watch,
        }
        .map_err(Break::Failed)
    }

    fn handle_compaction(&mut self, up_to: Revision) {
        self.watch = None;
        let after = self.at;
        self.at = up_to.max(Revision(after.0 + 1));
        if !self.is_from_beginning {
            let kind = EventKind::HistoryCompacted { after };
            self.ready.push_back(Ok(Event::new(up_to, kind)));
        }
        self.is_from_beginning = false;
    }

    /// Starts again later, if the stream follows and a retry can help.
    fn handle_failure(&mut self, error: StoreError) {
        self.watch = None;
        self.is_from_beginning = false;
        if self.until.is_some() || error.is_fatal() || matches!(error, StoreError::Invalid(_)) {
            self.is_over = true;
            self.ready.push_back(Err(error));
            return;
        }
        // One event for an outage, however often the retry fails.
        if self.failing.is_none() {
            warn!(%error, revision = %self.at, "event history interrupted");
            let kind = EventKind::Interrupted { reason: error.to_string() };
            self.ready.push_back(Ok(Event::new(self.at, kind)));
        }
        self.failing.get_or_insert_with(|| Attempts::new(&self.clock, Backoff::REQUEST));
        self.failed = Some(error);
    }
}
