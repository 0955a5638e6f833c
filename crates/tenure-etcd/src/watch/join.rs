//! Joins the fragments that etcd sends into whole revisions.
//!
//! A large response arrives in fragments that are cut anywhere, also in the middle of a revision,
//! and one response may hold a thousand revisions. Consumers get one batch per revision. Therefore
//! this keeps back exactly the last revision of a fragment and delivers everything before it:
//! memory stays at one revision however long the catch-up is.
//!
//! **Invariant**: a batch that comes out holds all events of its revision, and revisions only grow.

use super::{RevisionBatch, WatchEvent};

/// Joins the responses of one watcher.
#[derive(Debug, Default)]
pub(super) struct Join {
    /// The revision that may go on in the next fragment.
    tail: Option<RevisionBatch>,
}

/// An event came before one of a smaller revision: the stream cannot be trusted any more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutOfOrder;

impl Join {
    /// Takes the events of one message and appends the revisions that are complete with it.
    ///
    /// Events at or below `last` were delivered before (some servers repeat them) and are dropped.
    pub(super) fn push(
        &mut self,
        events: Vec<WatchEvent>,
        more: More,
        last: i64,
        whole: &mut Vec<RevisionBatch>,
    ) -> Result<(), OutOfOrder> {
        for event in events {
            let revision = event.revision();
            if revision <= last {
                continue;
            }
            match &mut self.tail {
                Some(tail) if tail.revision == revision => tail.events.push(event),
                Some(tail) if tail.revision > revision => return Err(OutOfOrder),
                _ => whole.extend(self.tail.replace(RevisionBatch { revision, events: vec![event] })),
            }
        }
        if more == More::No {
            whole.extend(self.tail.take());
        }
        Ok(())
    }

    /// Whether the last revision is still incomplete.
    pub(super) fn is_open(&self) -> bool {
        self.tail.is_some()
    }
}

/// Whether the response goes on in the next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum More {
    Yes,
    No,
}

#[cfg(test)]
mod tests;
