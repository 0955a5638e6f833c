//! The writes of a worker about its tasks, and its replies to commands: in order, many in one request.

use std::collections::VecDeque;

use tenure_core::id::NodeId;
use tenure_core::layout::Layout;
use tenure_core::worker::WorkerInput;
use tenure_core::worker::request::NodeWrite;

use crate::store::{Store, StoreError};

/// How many writes share a request. Each has up to nine operations; the engine splits what does not fit in one request.
const TOGETHER_MAX: usize = 64;

/// Writes that are not sent yet.
#[derive(Default)]
pub(super) struct StateWriteQueue {
    waiting: VecDeque<NodeWrite>,
}

impl StateWriteQueue {
    pub(super) fn push(&mut self, write: NodeWrite) {
        self.waiting.push_back(write);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The writes of the next request.
    pub(super) fn next_request(&mut self) -> Vec<NodeWrite> {
        let len = self.waiting.len().min(TOGETHER_MAX);
        self.waiting.drain(..len).collect()
    }
}

/// Sends writes in one request, and reads the reply to each.
pub(super) async fn send(
    store: Store,
    layout: Layout,
    node: NodeId,
    writes: Vec<NodeWrite>,
) -> Vec<WorkerInput> {
    let txns = writes.iter().map(|write| write.txn(&layout, &node)).collect();
    let replies = store.batch(txns).await.into_iter().chain(std::iter::repeat(Err(StoreError::Closed)));
    writes.into_iter().zip(replies).map(|(write, reply)| write.read(&layout, reply)).collect()
}
