//! One write of a node, from the action that requests it to the event that reports it.

use super::{answer, give_back, read_answered, read_given_back, read_retained, read_saved, retention, save};
use crate::error::StoreError;
use crate::id::{ClaimId, NodeId, TaskId};
use crate::layout::Layout;
use crate::revision::Token;
use crate::txn::{Txn, TxnReply};
use crate::worker::input::Event;
use crate::worker::output::{Answer, RetentionAsk, Save};

/// One write.
#[derive(Clone, Debug)]
pub enum NodeWrite {
    /// [`Action::Save`](crate::worker::Action::Save).
    Save(Box<Save>),
    /// [`Action::GiveBack`](crate::worker::Action::GiveBack).
    GiveBack(TaskId, Token, ClaimId),
    /// [`Action::Answer`](crate::worker::Action::Answer).
    Answer(Box<Answer>),
    /// [`Action::Retain`](crate::worker::Action::Retain).
    Retain(Box<RetentionAsk>),
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
    pub fn read(self, layout: &Layout, reply: Result<TxnReply, StoreError>) -> Event {
        match self {
            NodeWrite::Save(save) => {
                Event::Saved { answer: read_saved(&save, reply), task: save.task, epoch: save.epoch }
            }
            NodeWrite::GiveBack(task, token, _) => {
                Event::GivenBack { task, token, answer: read_given_back(&reply) }
            }
            NodeWrite::Answer(answer) => {
                Event::Answered { epoch: answer.epoch, answer: read_answered(&reply) }
            }
            NodeWrite::Retain(ask) => Event::Retained { reply: read_retained(layout, &ask, reply), ask },
        }
    }
}
