//! What a node writes about its tasks and answers to its commands: in order, many in one request.

use std::collections::VecDeque;

use tenure_core::id::NodeId;
use tenure_core::layout::Layout;
use tenure_core::worker::WorkerInput;
use tenure_core::worker::request::NodeWrite;

use crate::store::{Store, StoreError};

/// How many writes travel together. Each has up to nine operations; the engine splits what does not fit in one request.
const TOGETHER_MAX: usize = 64;

/// Writes that wait for their turn.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<NodeWrite>,
}

impl Outbox {
    pub(super) fn push(&mut self, write: NodeWrite) {
        self.waiting.push_back(write);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What goes out together now.
    pub(super) fn next_request(&mut self) -> Vec<NodeWrite> {
        let len = self.waiting.len().min(TOGETHER_MAX);
        self.waiting.drain(..len).collect()
    }
}

/// Sends writes in one go, and reads what came of each.
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
