//! One write of a node, from the action that requests it to the event that reports it.

use super::{answer, give_back, read_answered, read_given_back, read_retained, read_saved, retention, save};
use crate::error::StoreError;
use crate::id::{ClaimId, NodeId, TaskId};
use crate::layout::Layout;
use crate::revision::Token;
use crate::txn::{Txn, TxnReply};
use crate::worker::input::WorkerInput;
use crate::worker::output::{CommandAck, RetentionRequest, StateWrite};

/// One write.
#[derive(Clone, Debug)]
pub enum NodeWrite {
    /// [`WorkerOutput::Save`](crate::worker::WorkerOutput::Save).
    Save(Box<StateWrite>),
    /// [`WorkerOutput::GiveBack`](crate::worker::WorkerOutput::GiveBack).
    GiveBack(TaskId, Token, ClaimId),
    /// [`WorkerOutput::Answer`](crate::worker::WorkerOutput::Answer).
    Answer(Box<CommandAck>),
    /// [`WorkerOutput::Retain`](crate::worker::WorkerOutput::Retain).
    Retain(Box<RetentionRequest>),
}

impl NodeWrite {
    /// The transaction of this node.
    pub fn txn(&self, layout: &Layout, node: &NodeId) -> Txn {
        match self {
            NodeWrite::Save(asked) => save(layout, asked),
            NodeWrite::GiveBack(task, token, claim) => give_back(layout, task, *token, claim),
            NodeWrite::Answer(asked) => answer(layout, node, asked),
            NodeWrite::Retain(asked) => retention(layout, asked),
        }
    }

    /// What its reply means to the machine.
    pub fn read(self, layout: &Layout, reply: Result<TxnReply, StoreError>) -> WorkerInput {
        match self {
            NodeWrite::Save(save) => {
                WorkerInput::Saved { answer: read_saved(&save, reply), task: save.task, epoch: save.epoch }
            }
            NodeWrite::GiveBack(task, token, _) => {
                WorkerInput::GivenBack { task, token, answer: read_given_back(&reply) }
            }
            NodeWrite::Answer(answer) => {
                WorkerInput::Answered { epoch: answer.epoch, answer: read_answered(&reply) }
            }
            NodeWrite::Retain(ask) => {
                WorkerInput::Retained { reply: read_retained(layout, &ask, reply), ask }
            }
        }
    }
}
