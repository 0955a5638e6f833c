//! Reads a watch with a deadline, and checks the rules for every watch.
//!
//! Each item is checked, independent of the case: revisions only grow, progress is not followed by what it
//! covered, a batch is not empty, and holds only what was selected, of its own revision.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::{Instant, timeout, timeout_at};

use super::check::{CheckFailure, CheckResult, ensure};
use crate::store::{Change, Revision, Selection, WatchError, WatchItem, WatchStart, WatchStream};

/// How long an item that must come may take. A second is plenty; a machine that runs ten tests at once may need ten.
const ITEM_MAX: Duration = Duration::from_secs(10);

/// A watch that is being read.
pub(super) struct Watching {
    stream: WatchStream,
    select: Selection,
    /// Everything up to here was delivered.
    delivered: Revision,
    /// What came while nothing was expected yet, but not before it might.
    held: Option<RevisionChanges>,
}

/// The changes of one revision.
type RevisionChanges = (Revision, Vec<Change>);

impl Watching {
    pub(super) fn new(stream: WatchStream, select: Selection, start: WatchStart) -> Watching {
        let delivered = match start {
            WatchStart::Now | WatchStart::Recent => Revision::ZERO,
            WatchStart::After(revision) => revision,
        };
        Watching { stream, select, delivered, held: None }
    }

    /// Everything up to here was delivered.
    pub(super) fn delivered(&self) -> Revision {
        self.delivered
    }

    /// The changes of the next revision that has any.
    pub(super) async fn batch(&mut self) -> CheckResult<RevisionChanges> {
        match self.batch_or_end().await? {
            Ok(batch) => Ok(batch),
            Err(end) => Err(CheckFailure::new(format!("the watch ended: {end:?}"))),
        }
    }

    /// The changes of the next revision that has any, or how the watch ended.
    pub(super) async fn batch_or_end(&mut self) -> CheckResult<Result<RevisionChanges, WatchError>> {
        if let Some(batch) = self.held.take() {
            return Ok(Ok(batch));
        }
        loop {
            let item = timeout(ITEM_MAX, self.stream.next()).await;
            let item =
                item.map_err(|_| CheckFailure::new(format!("the watch was silent for {ITEM_MAX:?}")))?;
            let item = item.ok_or_else(|| CheckFailure::new("the watch ended without an error"))?;
            match item {
                Ok(item) => {
                    if let Some(batch) = self.check(item)? {
                        return Ok(Ok(batch));
                    }
                }
                Err(end) => return Ok(Err(end)),
            }
        }
    }

    /// The changes of the next revisions, until there are this many.
    pub(super) async fn changes(&mut self, count: usize) -> CheckResult<Vec<Change>> {
        let mut changes = Vec::new();
        while changes.len() < count {
            changes.extend(self.batch().await?.1);
        }
        ensure(changes.len() == count, || {
            format!("expected {count} changes, found {}: {changes:?}", changes.len())
        })?;
        Ok(changes)
    }

    /// Returns the error that ends the watch. It must be the next item, and the last one.
    pub(super) async fn end(&mut self) -> CheckResult<WatchError> {
        match self.batch_or_end().await? {
            Err(end) => {
                let last = timeout(ITEM_MAX, self.stream.next()).await;
                let is_last = matches!(last, Ok(None));
                ensure(is_last, || format!("after its end the watch returned {last:?}"))?;
                Ok(end)
            }
            Ok((revision, changes)) => {
                Err(CheckFailure::new(format!("expected the watch's end, found {revision:?}: {changes:?}")))
            }
        }
    }

    /// Waits until `at`, in which time nothing may change.
    pub(super) async fn quiet_until(&mut self, at: Instant) -> CheckResult {
        while self.held.is_none()
            && let Ok(item) = timeout_at(at, self.stream.next()).await
        {
            match item {
                Some(Ok(item)) => {
                    self.held = self.check(item)?;
                    let early = at.saturating_duration_since(Instant::now());
                    ensure(self.held.is_none() || early.is_zero(), || {
                        format!("expected no change yet, {early:?} too early came {:?}", self.held)
                    })?;
                }
                Some(Err(end)) => return Err(CheckFailure::new(format!("the watch ended: {end:?}"))),
                None => return Err(CheckFailure::new("the watch ended without an error")),
            }
        }
        Ok(())
    }

    /// Checks what every item must keep to.
    fn check(&mut self, item: WatchItem) -> CheckResult<Option<RevisionChanges>> {
        match item {
            WatchItem::Progress(revision) => {
                ensure(revision >= self.delivered, || {
                    format!("progress decreased from {:?} to {revision:?}", self.delivered)
                })?;
                self.delivered = revision;
                Ok(None)
            }
            WatchItem::Batch { revision, changes } => {
                ensure(revision > self.delivered, || {
                    format!("{revision:?} came after {:?} was delivered", self.delivered)
                })?;
                self.delivered = revision;
                ensure(!changes.is_empty(), || format!("the batch of {revision:?} is empty"))?;
                for change in &changes {
                    ensure(change.revision() == revision, || {
                        format!("the batch of {revision:?} holds a change of another revision: {change:?}")
                    })?;
                    ensure(self.select.contains(change.key()), || {
                        format!("a change that was not selected came: {change:?}")
                    })?;
                }
                Ok(Some((revision, changes)))
            }
        }
    }
}
