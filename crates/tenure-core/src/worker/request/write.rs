//! One write of a worker, from the output that requests it to the input that reports its result.

use super::{
    acknowledge, read_command_acked, read_released, read_retained, read_state_written, release_claim,
    retention, save,
};
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
    /// [`WorkerOutput::WriteState`](crate::worker::WorkerOutput::WriteState).
    WriteState(Box<StateWrite>),
    /// [`WorkerOutput::ReleaseClaim`](crate::worker::WorkerOutput::ReleaseClaim).
    ReleaseClaim(TaskId, Token, ClaimId),
    /// [`WorkerOutput::AckCommand`](crate::worker::WorkerOutput::AckCommand).
    AckCommand(Box<CommandAck>),
    /// [`WorkerOutput::Retain`](crate::worker::WorkerOutput::Retain).
    Retain(Box<RetentionRequest>),
}

impl NodeWrite {
    /// The transaction of this node.
    pub fn txn(&self, layout: &Layout, node: &NodeId) -> Txn {
        match self {
            NodeWrite::WriteState(requested) => save(layout, requested),
            NodeWrite::ReleaseClaim(task, token, claim) => release_claim(layout, task, *token, claim),
            NodeWrite::AckCommand(requested) => acknowledge(layout, node, requested),
            NodeWrite::Retain(requested) => retention(layout, requested),
        }
    }

    /// The input of the machine that reports its reply.
    pub fn read(self, layout: &Layout, reply: Result<TxnReply, StoreError>) -> WorkerInput {
        match self {
            NodeWrite::WriteState(save) => WorkerInput::StateWritten {
                reply: read_state_written(&save, reply),
                task: save.task,
                epoch: save.epoch,
            },
            NodeWrite::ReleaseClaim(task, token, _) => {
                WorkerInput::ClaimReleased { task, token, reply: read_released(&reply) }
            }
            NodeWrite::AckCommand(ack) => {
                WorkerInput::CommandAcked { epoch: ack.epoch, reply: read_command_acked(&reply) }
            }
            NodeWrite::Retain(ask) => {
                WorkerInput::Retained { reply: read_retained(layout, &ask, reply), ask }
            }
        }
    }
}
