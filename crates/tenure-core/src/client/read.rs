//! Reads what became of a task or of a command.

use bytes::Bytes;

use super::command::holds;
use super::keys::{TaskFound, TaskKeys};
use crate::error::StoreError;
use crate::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use crate::id::CommandId;
use crate::layout::{Key, Layout};
use crate::record::{Record, ResultRecord};
use crate::txn::{Op, OpReply, Txn};

/// How long a read goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadEffort {
    /// It is sent once.
    Once,
    /// Until the store replies, or never will: the caller has a deadline.
    UntilReply,
}

impl ReadEffort {
    fn step<T>(self, error: StoreError) -> ExchangeStep<Result<T, StoreError>> {
        let is_retried = self == ReadEffort::UntilReply && (error.is_retryable() || error.is_ambiguous());
        if is_retried { ExchangeStep::Retry(error) } else { ExchangeStep::Done(Err(error)) }
    }
}

/// Reads everything about a task but its props and attempts, at one revision.
#[derive(Clone, Debug)]
pub struct ReadTask {
    /// The keys of the task.
    pub keys: TaskKeys,
    /// How long it goes on.
    pub effort: ReadEffort,
}

impl Exchange for ReadTask {
    type Output = Result<TaskFound, StoreError>;

    fn request(&self) -> StoreRequest {
        StoreRequest::Txn(self.keys.read())
    }

    fn handle(&mut self, reply: Result<StoreReply, StoreError>) -> ExchangeStep<Self::Output> {
        match reply.and_then(StoreReply::into_txn).and_then(|reply| TaskFound::in_reply(&reply)) {
            Ok(found) => ExchangeStep::Done(Ok(found)),
            Err(error) => self.effort.step(error),
        }
    }
}

/// What became of a command.
#[derive(Clone, PartialEq, Debug)]
pub enum CommandReadback {
    /// Nothing yet: it waits.
    Waiting,
    /// It has this result.
    Result(ResultRecord),
    /// It is gone without a result.
    Gone,
}

/// Reads what became of a command, until the store replies.
#[derive(Clone, Debug)]
pub struct ReadCommandReply {
    id: CommandId,
    command: Bytes,
    result: Bytes,
}

impl ReadCommandReply {
    /// Reads what became of the command that was put under this key.
    pub fn new(layout: &Layout, id: CommandId, command: Bytes) -> ReadCommandReply {
        let result = layout.encode(&Key::CommandResult(id.clone()));
        ReadCommandReply { id, command, result }
    }

    /// The id of the command.
    pub fn id(&self) -> &CommandId {
        &self.id
    }

    /// The keys with changes after which it should be read again.
    pub fn watched(&self) -> [&Bytes; 2] {
        [&self.result, &self.command]
    }
}

impl Exchange for ReadCommandReply {
    type Output = Result<CommandReadback, StoreError>;

    fn request(&self) -> StoreRequest {
        StoreRequest::Txn(Txn::from(Op::get(self.result.clone())).then(Op::get(self.command.clone())))
    }

    fn handle(&mut self, reply: Result<StoreReply, StoreError>) -> ExchangeStep<Self::Output> {
        let reply = match reply.and_then(StoreReply::into_txn) {
            Ok(reply) => reply,
            Err(error) => return ReadEffort::UntilReply.step(error),
        };
        let [OpReply::Get(result), OpReply::Get(command)] = &reply.results[..] else {
            return ExchangeStep::Done(Err(StoreError::Corrupt("a read has no reply".into())));
        };
        ExchangeStep::Done(match result.pairs.first() {
            Some(pair) => match ResultRecord::decode(&pair.value) {
                Ok(record) => Ok(CommandReadback::Result(record)),
                Err(bad) => Err(StoreError::Corrupt(format!("a result is {}", bad.reason()))),
            },
            // The command goes in the transaction that puts its result; without a result it was deleted.
            None if holds(command.pairs.first(), &self.id) => Ok(CommandReadback::Waiting),
            None => Ok(CommandReadback::Gone),
        })
    }
}
