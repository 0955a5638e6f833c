//! What a node writes about its tasks and answers to its commands: in order, many in one request.

use std::collections::VecDeque;
use std::num::NonZeroI64;
use std::sync::Arc;

use bytes::Bytes;
use tenure_core::layout::{Key, Layout};
use tenure_core::name::{ClaimId, NodeId, TaskId};
use tenure_core::node::{Answer, CommandCheck, Event, RetentionAsk, Save, request};
use tenure_core::revision::Token;

use super::results::Results;
use crate::store::{LeaseId, Store, StoreError, Txn, TxnReply};

/// How many writes travel together. Each has up to nine operations; the engine splits what does not fit in one request.
const TOGETHER_MAX: usize = 64;

/// Stands where a write without a result names the lease for it, and is never looked at.
const UNUSED: LeaseId = LeaseId(NonZeroI64::MIN);

/// One write.
pub(super) enum Write {
    Save(Box<Save>),
    GiveBack(TaskId, Token, ClaimId),
    Answer(Box<Answer>),
    Retain(Box<RetentionAsk>),
}

impl Write {
    /// The key of the command's result that it stores.
    fn result(&self, layout: &Layout) -> Option<Bytes> {
        let id = match self {
            Write::Save(save) => match &save.command {
                CommandCheck::Acknowledge { id, .. } => id.as_ref(),
                _ => None,
            },
            Write::GiveBack(..) | Write::Retain(_) => None,
            Write::Answer(answer) => answer.result.as_ref().map(|_| &answer.order),
        };
        id.map(|id| layout.encode(&Key::CommandResult(id.clone())))
    }

    fn txn(&self, layout: &Layout, node: &NodeId, results: LeaseId) -> Txn {
        match self {
            Write::Save(save) => request::save(layout, save, results),
            Write::GiveBack(task, token, claim) => request::give_back(layout, task, *token, claim),
            Write::Answer(answer) => request::answer(layout, node, answer, results),
            Write::Retain(ask) => request::retention(layout, ask),
        }
    }

    fn read(self, layout: &Layout, reply: Result<TxnReply, StoreError>) -> Event {
        match self {
            Write::Save(save) => {
                Event::Saved { answer: request::read_saved(&save, reply), task: save.task, epoch: save.epoch }
            }
            Write::GiveBack(task, token, _) => {
                Event::GivenBack { task, token, answer: request::read_given_back(&reply) }
            }
            Write::Answer(answer) => {
                Event::Answered { epoch: answer.epoch, answer: request::read_answered(&reply) }
            }
            Write::Retain(ask) => Event::Retained { reply: request::read_retained(layout, &ask, reply), ask },
        }
    }
}

/// Writes that wait for their turn.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Write>,
}

impl Outbox {
    pub(super) fn push(&mut self, write: Write) {
        self.waiting.push_back(write);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What goes out together now.
    pub(super) fn next_request(&mut self) -> Vec<Write> {
        let len = self.waiting.len().min(TOGETHER_MAX);
        self.waiting.drain(..len).collect()
    }
}

/// Sends writes in one go, and reads what came of each.
pub(super) async fn send(
    store: Store,
    layout: Layout,
    node: NodeId,
    results: Arc<Results>,
    writes: Vec<Write>,
) -> Vec<Event> {
    let stored: Vec<Option<Bytes>> = writes.iter().map(|write| write.result(&layout)).collect();
    let lease = if stored.iter().any(Option::is_some) {
        results.lease_for(&store, stored.iter().flatten()).await
    } else {
        Ok(UNUSED)
    };
    // Without the lease, what stores a result is not sent.
    let is_sent = |result: &Option<Bytes>| lease.is_ok() || result.is_none();
    let sent = writes.iter().zip(&stored).filter(|(_, result)| is_sent(result));
    let txns = sent.map(|(write, _)| write.txn(&layout, &node, *lease.as_ref().unwrap_or(&UNUSED))).collect();
    let mut replies = store.batch(txns).await.into_iter();
    let mut events = Vec::with_capacity(writes.len());
    for (write, result) in writes.into_iter().zip(stored) {
        let reply = match (&lease, result) {
            (Err(error), Some(_)) => Err(error.clone()),
            (lease, result) => {
                let reply = replies.next().unwrap_or(Err(StoreError::Closed));
                if let (Ok(lease), Some(result)) = (lease, result) {
                    results.note(*lease, result, &reply).await;
                }
                reply
            }
        };
        events.push(write.read(&layout, reply));
    }
    events
}
