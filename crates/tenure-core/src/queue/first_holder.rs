//! The holder of a queue, for a caller that does not hold: the oldest key holds in every mode, so
//! one key with its value is read.
//!
//! No enter reads this: a predecessor is read without its value. A search for the oldest key costs
//! the store time in proportion to the length of the queue. Only a caller that was refused, or is
//! about to be, pays for it.

use bytes::Bytes;

use super::reply::queue_key_of;
use super::request::{QueueKind, QueueRequests};
use crate::kv::{Get, Page, SortOrder};
use crate::layout::QueueKey;
use crate::record::{CandidateRecord, HolderRecord, Identity, Record};

impl QueueRequests {
    /// Reads the oldest key of a queue, with its value.
    pub fn first_holder(&self, queue: &Bytes) -> Get {
        Get::prefix(queue.clone()).order(SortOrder::Created).limit(1)
    }

    /// The identity stored by the holder of the oldest key; none if that key is the own one or
    /// foreign, or cannot be read.
    pub fn first_holder_in(&self, queue: &Bytes, own: Option<QueueKey>, page: &Page) -> Option<Identity> {
        let first = page.pairs.first()?;
        let holder = queue_key_of(queue, &first.key)?;
        if own == Some(holder) {
            return None;
        }
        let identity = match self.kind() {
            QueueKind::Lock => HolderRecord::decode(&first.value).ok()?.identity(),
            QueueKind::Election => CandidateRecord::decode(&first.value).ok()?.identity(),
        };
        (identity != Identity::default()).then_some(identity)
    }
}
