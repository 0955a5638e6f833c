//! Sends a command to a node: a queue, in the order in which the commands were sent.
//!
//! A command is for the incarnation of the node that its sender saw; it expires with that, or a week after it was sent.

use bytes::Bytes;
use thiserror::Error;

use super::command::signed;
use super::{LOST_MAX, Origin};
use crate::command::NodeCommand;
use crate::error::StoreError;
use crate::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use crate::id::{CommandId, NodeId};
use crate::kv::Get;
use crate::layout::{Key, Layout};
use crate::record::{CommandRecord, Record};
use crate::revision::Revision;
use crate::txn::{Condition, Op, OpReply, Txn, TxnReply};

/// How many commands may wait for one node. One that does not handle them should not drown in them when it comes back.
const NODE_COMMANDS_LEN_MAX: u32 = 128;

/// Why a command was not sent to a node.
#[derive(Debug, Error)]
pub enum SendNodeCommandError {
    /// There is no such node.
    #[error("there is no such node")]
    NotFound,
    /// So many commands wait for the node that it seems not to handle them.
    #[error("{0} commands already wait for the node")]
    Full(usize),
    /// The reply was lost, and what was found does not decide it: read before you send it again.
    #[error("it is not known whether the command was sent")]
    Unknown(#[source] StoreError),
    /// The store did not take it: nothing was sent.
    #[error("the command was not sent")]
    Store(#[source] StoreError),
}

/// Sends one command.
#[derive(Clone, Debug)]
pub struct SendNodeCommand {
    node: Bytes,
    waiting: Get,
    command: Bytes,
    result: Bytes,
    record: CommandRecord,
    /// The incarnation that it is sent to; none before it was read.
    incarnation: Option<Revision>,
    lost: Option<StoreError>,
    lost_count: usize,
}

impl SendNodeCommand {
    /// Sends this command to a node, under this id.
    pub fn new(
        layout: &Layout,
        node: &NodeId,
        command: NodeCommand,
        (id, origin): (CommandId, &Origin),
    ) -> SendNodeCommand {
        let waiting = layout.node_commands(node);
        SendNodeCommand {
            node: layout.encode(&Key::Node(node.clone())),
            waiting: Get::new(waiting).keys_only().limit(NODE_COMMANDS_LEN_MAX),
            command: layout.encode(&Key::NodeCommand(node.clone(), id.clone())),
            result: layout.encode(&Key::CommandResult(id.clone())),
            record: signed(command.into_command(), &id, origin),
            incarnation: None,
            lost: None,
            lost_count: 0,
        }
    }

    fn handle_read(&mut self, reply: &TxnReply) -> ExchangeStep<Result<(), SendNodeCommandError>> {
        let [OpReply::Get(found), OpReply::Get(waiting)] = &reply.results[..] else {
            return self.fail(StoreError::Corrupt("a read has no reply".into()));
        };
        let waiting = waiting.pairs.len();
        match found.pairs.first() {
            None => ExchangeStep::Done(Err(SendNodeCommandError::NotFound)),
            Some(_) if waiting >= NODE_COMMANDS_LEN_MAX as usize => {
                ExchangeStep::Done(Err(SendNodeCommandError::Full(waiting)))
            }
            Some(pair) => {
                self.incarnation = Some(pair.created);
                self.record.incarnation = Some(pair.created.0.unsigned_abs());
                ExchangeStep::Send
            }
        }
    }

    fn fail(&mut self, error: StoreError) -> ExchangeStep<Result<(), SendNodeCommandError>> {
        ExchangeStep::Done(Err(match self.lost.take() {
            Some(lost) => SendNodeCommandError::Unknown(lost),
            None => SendNodeCommandError::Store(error),
        }))
    }

    fn handle_put(
        &mut self,
        reply: Result<TxnReply, StoreError>,
    ) -> ExchangeStep<Result<(), SendNodeCommandError>> {
        let is_found = |result: &OpReply| matches!(result, OpReply::Get(page) if !page.pairs.is_empty());
        match reply {
            // It is there, or was handled: an earlier request was applied, and its reply lost.
            Ok(reply) if reply.succeeded || reply.results.iter().any(is_found) => ExchangeStep::Done(Ok(())),
            Ok(_) => ExchangeStep::Done(Err(match self.lost.take() {
                Some(lost) => SendNodeCommandError::Unknown(lost),
                None => SendNodeCommandError::NotFound,
            })),
            Err(error) if error.is_ambiguous() && self.lost_count < LOST_MAX => {
                self.lost_count += 1;
                self.lost = Some(error.clone());
                ExchangeStep::Retry(error)
            }
            Err(error) if error.is_ambiguous() => {
                ExchangeStep::Done(Err(SendNodeCommandError::Unknown(error)))
            }
            Err(error) => self.fail(error),
        }
    }
}

impl Exchange for SendNodeCommand {
    type Output = Result<(), SendNodeCommandError>;

    fn request(&self) -> StoreRequest {
        StoreRequest::Txn(match self.incarnation {
            None => Txn::new()
                .then(Op::Get(Get::key(self.node.clone()).keys_only()))
                .then(Op::Get(self.waiting.clone())),
            // The same request can be sent again: once the command is there, or has been handled, it is not put a second time.
            Some(incarnation) => Txn::new()
                .when(Condition::created_at(self.node.clone(), incarnation))
                .when(Condition::absent(self.command.clone()))
                .when(Condition::absent(self.result.clone()))
                .then(Op::put(self.command.clone(), self.record.encode()))
                .otherwise(Op::get(self.command.clone()))
                .otherwise(Op::get(self.result.clone())),
        })
    }

    fn handle(&mut self, reply: Result<StoreReply, StoreError>) -> ExchangeStep<Self::Output> {
        match (self.incarnation, reply.and_then(StoreReply::into_txn)) {
            (None, Ok(reply)) => self.handle_read(&reply),
            (None, Err(error)) => self.fail(error),
            (Some(_), reply) => self.handle_put(reply),
        }
    }
}

/// Deletes the mark of a frozen node that is not alive. It succeeds if there was one.
pub fn unfreeze_absent(layout: &Layout, node: &NodeId) -> Txn {
    let frozen = layout.encode(&Key::Frozen(node.clone()));
    Txn::new()
        .when(Condition::absent(layout.encode(&Key::Node(node.clone()))))
        .when(Condition::exists(frozen.clone()))
        .then(Op::delete(frozen))
}
