//! Commands: to a task as a mailbox in which the last one counts, to a node as a queue. Both are acknowledged.
//!
//! A command to a task lies under a lease of a week of its own. Whoever puts one in the place of another that nobody has handled
//! writes in the same step that it was replaced, so the first sender is told. A command to a node stays until the node has handled it.
//!
//! The lease ends with its command. Senders are killed, and so are those who handle commands: each of them ends it, as does whoever replaces or deletes one.

use bytes::Bytes;
use tenure_core::command::NodeCommand;
use tenure_core::layout::{Key, TASK_COMMAND_TTL};
use tenure_core::name::{CommandId, NodeId, TaskId};
use tenure_core::record::{CommandOutcome, CommandRecord, Record, ResultRecord, WallTime};
use tenure_core::task::{Message, StateKind};
use thiserror::Error;
use tokio::time::Instant;

use super::answer::{Replaced, Sent, found_any, holds};
use super::lease::{ResultLease, own_lease};
use super::task::{Found, Keys, Reading, modified};
use super::{Client, LOST_MAX, TRIES_MAX, fought_over};
use crate::audit::{AuditAction, AuditEntry};
use crate::clock::wall_time;
use crate::store::{Condition, Get, LeaseId, Op, OpReply, StoreError, Txn};

/// How many commands may wait for one node. One that does not handle them should not drown in them when it comes back.
const NODE_COMMANDS_LEN_MAX: u32 = 128;

/// Why a command was not sent to a task.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// There is no such task.
    #[error("there is no such task")]
    NotFound,
    /// The task has ended, and takes no commands any more.
    #[error("the task has ended, it is {0}")]
    Ended(StateKind),
    /// A time to sleep until that has passed.
    #[error("it would sleep until {0}, which has passed")]
    Past(WallTime),
    /// The answer was lost, and what was found does not tell: look before you send it again.
    #[error("it is not known whether the command was sent")]
    Unknown(#[source] StoreError),
    /// The store did not take it: nothing was sent.
    #[error("the command was not sent")]
    Store(#[source] StoreError),
}

/// Why a command was not sent to a node.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeCommandError {
    /// There is no such node.
    #[error("there is no such node")]
    NotFound,
    /// So many commands wait for the node that it seems not to handle them.
    #[error("{0} commands already wait for the node")]
    Full(usize),
    /// The answer was lost, and what was found does not tell: look before you send it again.
    #[error("it is not known whether the command was sent")]
    Unknown(#[source] StoreError),
    /// The store did not take it: nothing was sent.
    #[error("the command was not sent")]
    Store(#[source] StoreError),
}

impl Client {
    /// Tells a task something, through its owner. One that waits to be handled is replaced.
    ///
    /// The task need not have an owner now: whoever claims it handles the command, for a week.
    ///
    /// # Cancellation
    ///
    /// The command may have been sent or not. What is left of it ends with the next command, or with [`Client::settle`].
    ///
    /// # Errors
    ///
    /// See [`CommandError`].
    pub async fn command(&self, task: &TaskId, message: Message) -> Result<Sent, CommandError> {
        if let Message::Sleep { until } = message
            && until <= wall_time()
        {
            return Err(CommandError::Past(until));
        }
        let keys = Keys::of(&self.layout, task);
        let found = keys.read(&self.store).await.map_err(CommandError::Store)?;
        check_alive(&found)?;
        self.leftovers.end_all(&self.store).await;
        let sent_at = Instant::now();
        let grant = self.leftovers.grant(&self.store, TASK_COMMAND_TTL);
        let mut granted = grant.await.map_err(CommandError::Store)?;
        granted.will_hold(keys.command.clone());
        let lease = granted.id();
        let id = self.next_command_id();
        let audit = match &message {
            Message::Kill { reason } => Some(self.audit(AuditAction::KillTask, task, reason.as_deref())),
            _ => None,
        };
        let record = CommandRecord {
            id: Some(id.clone()),
            sent_at: wall_time(),
            by: self.name.to_string(),
            own_lease: Some(lease.to_string()),
            ..message.into_command()
        };
        let put = Put { command: Op::put_leased(keys.command.clone(), record.encode(), lease), audit };
        let mut results = ResultLease::default();
        let put = self.put_command(&keys, found, &id, put, &mut results).await;
        let sent = match put {
            Ok(replaced) => {
                granted.keep();
                Ok(Sent {
                    store: self.store.clone(),
                    result: self.layout.encode(&Key::CommandResult(id.clone())),
                    id,
                    replaced,
                    command: keys.command,
                    lease: Some(lease),
                    leftovers: self.leftovers.clone(),
                    sent_at,
                })
            }
            Err(error) => {
                granted.end(&self.store).await;
                Err(error)
            }
        };
        results.settle(&self.store).await;
        sent
    }

    /// Tells a node something. Commands to one node are handled in the order in which they were sent.
    ///
    /// # Errors
    ///
    /// See [`NodeCommandError`].
    pub async fn command_node(&self, node: &NodeId, command: NodeCommand) -> Result<Sent, NodeCommandError> {
        let id = self.next_command_id();
        let sent_at = Instant::now();
        let key = self.layout.encode(&Key::NodeCommand(node.clone(), id.clone()));
        let result = self.layout.encode(&Key::CommandResult(id.clone()));
        let alive = self.layout.encode(&Key::Node(node.clone()));
        let waiting = Get::new(self.layout.node_commands(node)).keys_only().limit(NODE_COMMANDS_LEN_MAX);
        let read = Txn::new().then(Op::Get(Get::key(alive.clone()).keys_only())).then(Op::Get(waiting));
        let reply = self.store.txn(read).await.map_err(NodeCommandError::Store)?;
        let [OpReply::Get(found), OpReply::Get(waiting)] = &reply.results[..] else {
            return Err(NodeCommandError::Store(StoreError::Corrupt(
                "a read was not answered as one".to_owned(),
            )));
        };
        let Some(incarnation) = found.pairs.first().map(|pair| pair.created) else {
            return Err(NodeCommandError::NotFound);
        };
        let waiting = waiting.pairs.len();
        if waiting >= NODE_COMMANDS_LEN_MAX as usize {
            return Err(NodeCommandError::Full(waiting));
        }
        let record = CommandRecord {
            id: Some(id.clone()),
            sent_at: wall_time(),
            by: self.name.to_string(),
            incarnation: Some(incarnation.0.unsigned_abs()),
            ..command.into_command()
        };
        // The same request can be asked again: once it is there, or has been handled, it is not put a second time.
        let txn = Txn::new()
            .when(Condition::created_at(alive.clone(), incarnation))
            .when(Condition::absent(key.clone()))
            .when(Condition::absent(result.clone()))
            .then(Op::put(key.clone(), record.encode()))
            .otherwise(Op::get(key.clone()))
            .otherwise(Op::get(result.clone()));
        let mut lost = None;
        for _ in 0..=LOST_MAX {
            let store = self.store.clone();
            let (id, command, result) = (id.clone(), key.clone(), result.clone());
            let leftovers = self.leftovers.clone();
            let sent = Sent { store, id, replaced: None, command, result, lease: None, leftovers, sent_at };
            match self.store.txn(txn.clone()).await {
                Ok(reply) if reply.succeeded || found_any(&reply) => return Ok(sent),
                Ok(_) => return Err(lost.map_or(NodeCommandError::NotFound, NodeCommandError::Unknown)),
                Err(error) if error.is_ambiguous() => lost = Some(error),
                Err(error) => {
                    return Err(lost.map_or(NodeCommandError::Store(error), NodeCommandError::Unknown));
                }
            }
        }
        Err(lost.map_or_else(|| NodeCommandError::Store(fought_over()), NodeCommandError::Unknown))
    }

    /// Lets a node that is not alive take tasks when it comes back. Returns whether it was frozen.
    ///
    /// A live node is unfrozen with [`NodeCommand::Unfreeze`], which it acknowledges.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store did not do it, or its reply was lost; it may be called again.
    pub async fn unfreeze_absent(&self, node: &NodeId) -> Result<bool, StoreError> {
        let frozen = self.layout.encode(&Key::Frozen(node.clone()));
        let txn = Txn::new()
            .when(Condition::absent(self.layout.encode(&Key::Node(node.clone()))))
            .when(Condition::exists(frozen.clone()))
            .then(Op::delete(frozen));
        Ok(self.store.txn(txn).await?.succeeded)
    }

    /// Puts a command to a task in the place of the one that is there; says which that was.
    async fn put_command(
        &self,
        keys: &Keys,
        mut found: Found,
        id: &CommandId,
        put: Put,
        results: &mut ResultLease,
    ) -> Result<Option<Replaced>, CommandError> {
        // The last request without an answer, what it would have replaced, and the lease of that.
        let mut lost: Option<(StoreError, Option<Replaced>, Option<LeaseId>)> = None;
        let unknown = |lost: Option<(StoreError, _, _)>, error| match lost {
            Some((lost, _, _)) => CommandError::Unknown(lost),
            None => error,
        };
        for turn in 1..=TRIES_MAX {
            let replaced = found.command.as_ref().map(Replaced::read);
            let created = found.task.as_ref().map(|pair| pair.created).unwrap_or_default();
            let mut txn = Txn::new()
                .when(Condition::created_at(keys.task.clone(), created))
                .when(Condition::modified_at(keys.command.clone(), modified(found.command.as_ref())))
                .then(put.command.clone());
            let outcome = (CommandOutcome::Replaced, "another command was sent before it was handled");
            let told = self.tell_sender(
                replaced.as_ref().and_then(|replaced| replaced.id.clone()),
                outcome,
                results,
            );
            let told = told.await.map_err(|error| unknown(lost.take(), CommandError::Store(error)))?;
            if let Some(told) = &told {
                txn = txn.then(told.put.clone());
            }
            if let Some(audit) = &put.audit {
                txn = audit.add_to(txn);
            }
            let reply = self.store.txn(keys.reading(txn, Reading::Otherwise)).await;
            if let Some(told) = &told {
                results.note(&told.key, &reply);
            }
            match reply {
                Ok(reply) if reply.succeeded => {
                    self.leftovers.end(&self.store, own_lease(found.command.as_ref())).await;
                    return Ok(replaced);
                }
                Ok(reply) => {
                    found = Found::in_reply(&reply)
                        .map_err(|error| unknown(lost.take(), CommandError::Store(error)))?;
                }
                Err(error) if error.is_ambiguous() && turn <= LOST_MAX => {
                    let read = keys.read(&self.store).await;
                    lost = Some((error, replaced, own_lease(found.command.as_ref())));
                    found = read.map_err(|error| unknown(lost.take(), CommandError::Store(error)))?;
                }
                Err(error) if error.is_ambiguous() => return Err(CommandError::Unknown(error)),
                Err(error) => return Err(unknown(lost, CommandError::Store(error))),
            }
            if let Some((_, replaced, over)) = &lost {
                // The lost request may have been done: then the command is there, or its result is.
                let result = self.layout.encode(&Key::CommandResult(id.clone()));
                let is_there = holds(found.command.as_ref(), id)
                    || self.store.get_key(result).await.map_err(CommandError::Unknown)?.is_some();
                if is_there {
                    self.leftovers.end(&self.store, *over).await;
                    return Ok(replaced.clone());
                }
            }
            if let Err(refused) = check_alive(&found) {
                return Err(unknown(lost, refused));
            }
        }
        Err(unknown(lost, CommandError::Store(fought_over())))
    }

    /// What must be put for the sender of a command that goes unhandled.
    pub(super) async fn tell_sender(
        &self,
        id: Option<CommandId>,
        (outcome, why): (CommandOutcome, &str),
        results: &mut ResultLease,
    ) -> Result<Option<Told>, StoreError> {
        let Some(id) = id else { return Ok(None) };
        let key = self.layout.encode(&Key::CommandResult(id));
        let lease = results.for_result(&self.store, &self.leftovers, &key).await?;
        let result = ResultRecord::new(self.name.clone(), outcome, wall_time()).why(why).encode();
        Ok(Some(Told { put: Op::put_leased(key.clone(), result, lease), key }))
    }
}

/// A command to a task, and the audit record of one that is destructive.
struct Put {
    command: Op,
    audit: Option<AuditEntry>,
}

/// What the sender of a command is told that goes unhandled.
pub(super) struct Told {
    pub(super) key: Bytes,
    pub(super) put: Op,
}

fn check_alive(found: &Found) -> Result<(), CommandError> {
    match (&found.task, found.ended()) {
        (_, Some(state)) => Err(CommandError::Ended(state)),
        (None, None) => Err(CommandError::NotFound),
        (Some(_), None) => Ok(()),
    }
}
