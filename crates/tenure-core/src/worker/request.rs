//! The transactions of a worker, and the meaning of their replies.
//!
//! Only here: the driver and the tests send the same bytes and interpret the replies in the same
//! way.
//!
//! Every transaction is conditional on this worker's right. A claim requires that there is no owner
//! key; every later write requires the create revision of the claim's owner key. A transaction that
//! fails reads in the same step why it failed. So a lost reply is resolved by sending the same
//! transaction again: it finds its own nonce, or the bytes that it wanted to write, if it was
//! applied before.

mod claims;
mod retention;
mod write;

use bytes::Bytes;

use super::input::{ClaimReply, CommandAckReply, ReleaseReply, StateWriteReply, WonClaim};
use super::output::{
    AfterWrite, AttemptWrite, ClaimRequest, CommandAck, CommandCheck, FreezeMark, StateWrite,
};
use crate::error::StoreError;
use crate::id::{ClaimId, NodeId, TaskId};
use crate::kv::{KeyValue, Selection};
use crate::layout::{Key, Layout};
use crate::lease::LeaseId;
use crate::revision::{Revision, Token};
use crate::sabotage::{SabotageRule, is_broken};
use crate::txn::{Condition, Op, OpReply, Txn, TxnReply};

pub use claims::{ClaimBatch, ClaimModeHistory, ClaimReadMode};
pub(super) use retention::behind;
pub use retention::{read_retained, retention};
pub use write::NodeWrite;

/// The claim of a task under a lease. Props are written once, so their absence is known and they
/// need not be read.
fn claim(layout: &Layout, ask: &ClaimRequest, lease: LeaseId, reading: ClaimReadMode) -> Txn {
    let owner = layout.encode(&Key::TaskOwner(ask.task.clone()));
    let mut parts = Vec::new();
    if ask.has_props {
        parts.push(layout.encode(&Key::TaskProps(ask.task.clone())));
    }
    if reading == ClaimReadMode::Each {
        parts.push(layout.encode(&Key::TaskState(ask.task.clone())));
        parts.push(layout.encode(&Key::TaskCommand(ask.task.clone())));
    }
    let mut txn = Txn::new()
        .when(Condition::absent(owner.clone()))
        .when(Condition::created_at(layout.encode(&Key::Task(ask.task.clone())), ask.created))
        .then(Op::put_leased(owner.clone(), ask.owner.clone(), lease));
    for part in &parts {
        txn = txn.then(Op::get(part.clone()));
    }
    // Last, because `found` expects the reads directly after the put of the owner. Without a lease:
    // the attempt record must outlive a worker that is killed.
    if let Some(claim) = claim_id(&ask.nonce) {
        let key = layout.encode(&Key::TaskAttempt(ask.task.clone(), claim));
        txn = txn.then(Op::put(key, ask.attempt.clone()));
    }
    txn = txn.otherwise(Op::get(owner));
    // Only a repeated claim can find its own owner key, and only then are the other keys of
    // interest. Without these reads a request of a hundred claims is shorter by a third.
    if ask.is_again {
        for part in parts {
            txn = txn.otherwise(Op::get(part));
        }
    }
    txn
}

/// The result of a claim that has read everything itself.
fn read_claim(ask: &ClaimRequest, lease: LeaseId, reply: Result<TxnReply, StoreError>) -> ClaimReply {
    let reply = match reply {
        Ok(reply) => reply,
        Err(StoreError::LeaseNotFound) => return ClaimReply::LeaseLost,
        Err(error) if error.is_ambiguous() => return ClaimReply::Ambiguous,
        Err(_) => return ClaimReply::NotDone,
    };
    let [owner, parts @ ..] = found(&reply.results);
    let token = match owner {
        _ if reply.succeeded => Token(reply.revision),
        // The first request of this claim was applied, and its reply was lost.
        Some(owner) if owner.value == ask.owner && ask.is_again => Token(owner.created),
        // A proxy on the way has sent the request twice. The repeated claim reads everything.
        Some(owner) if owner.value == ask.owner => return ClaimReply::Ambiguous,
        Some(_) => return ClaimReply::Taken,
        None => return ClaimReply::TaskGone,
    };
    let [props, state, command] = match parts {
        parts if ask.has_props => parts,
        [state, command, _] => [None, state, command],
    };
    let (revision, props) = (reply.revision, props.map(|pair| pair.value));
    ClaimReply::Won(Box::new(WonClaim { token, lease, revision, props, state, command }))
}

/// The id of a claim, from its nonce.
pub(super) fn claim_id(nonce: &str) -> Option<ClaimId> {
    ClaimId::parse(nonce).ok()
}

/// Releases a claim. Its attempt record is deleted in any case: this process lives, so the task has
/// not killed it.
pub fn release_claim(layout: &Layout, task: &TaskId, token: Token, claim: &ClaimId) -> Txn {
    let owner = layout.encode(&Key::TaskOwner(task.clone()));
    let attempt = layout.encode(&Key::TaskAttempt(task.clone(), claim.clone()));
    if is_broken(SabotageRule::GuardedRelease) {
        return Txn::new().then(Op::delete(owner)).then(Op::delete(attempt));
    }
    Txn::new()
        .when(Condition::created_at(owner.clone(), token.0))
        .then(Op::delete(owner))
        .then(Op::delete(attempt.clone()))
        .otherwise(Op::delete(attempt))
}

/// The result of releasing a claim.
pub fn read_released(reply: &Result<TxnReply, StoreError>) -> ReleaseReply {
    match reply {
        Ok(_) => ReleaseReply::Done,
        Err(_) => ReleaseReply::NotDone,
    }
}

/// A state write.
pub fn save(layout: &Layout, save: &StateWrite) -> Txn {
    let task = &save.task;
    let own = layout.encode(&Key::Task(task.clone()));
    let owner = layout.encode(&Key::TaskOwner(task.clone()));
    let state = layout.encode(&Key::TaskState(task.clone()));
    let command = layout.encode(&Key::TaskCommand(task.clone()));
    let mut txn = Txn::new();
    let is_unguarded = is_broken(SabotageRule::GuardedState)
        || (is_broken(SabotageRule::GuardedRelease) && matches!(save.after, AfterWrite::Release));
    // The owner key proves the claim, and the revision of the state proves that the worker has seen
    // the latest one. Without the second, two writes of one worker could overtake each other.
    if !is_unguarded {
        txn = txn
            .when(Condition::created_at(owner.clone(), save.token.0))
            .when(Condition::modified_at(state.clone(), save.state_seen));
    }
    if let Some(value) = &save.state {
        txn = txn.then(Op::put(state.clone(), value.clone()));
    }
    match &save.command {
        CommandCheck::Any => {}
        CommandCheck::Absent => txn = txn.when(Condition::absent(command.clone())),
        CommandCheck::Acknowledge { modified, id, result } => {
            txn = txn
                .when(Condition::modified_at(command.clone(), *modified))
                .then(Op::delete(command.clone()));
            if let Some(id) = id
                && !is_broken(SabotageRule::CommandsAreAnswered)
            {
                let key = layout.encode(&Key::CommandResult(id.clone()));
                txn = txn.then(Op::put(key, result.clone()));
            }
        }
    }
    match save.after {
        AfterWrite::Keep => {}
        AfterWrite::Release => txn = txn.then(Op::delete(owner.clone())),
        AfterWrite::End if is_broken(SabotageRule::SlashAtTheEnd) => {
            let end = Bytes::from([own.as_ref(), b"\xff"].concat());
            txn = txn.then(Op::Delete(Selection::Range(own.clone(), end)));
        }
        AfterWrite::End => {
            txn = txn
                .when(Condition::created_at(own.clone(), save.created))
                .then(Op::delete(own.clone()))
                .then(Op::Delete(layout.task_parts(task)));
        }
    }
    if let Some(entry) = &save.entry {
        let key = layout.encode(&Key::EndedTask(entry.at, task.clone()));
        txn = txn.then(Op::put(key, entry.props.clone().unwrap_or_default()));
    }
    match &save.attempts {
        // The end of a task deletes all its keys.
        AttemptWrite::Keep => {}
        AttemptWrite::Clear => txn = txn.then(Op::Delete(layout.task_attempts(task))),
        AttemptWrite::Close { claim } => {
            let key = layout.encode(&Key::TaskAttempt(task.clone(), claim.clone()));
            txn = txn.then(Op::delete(key));
        }
        AttemptWrite::Open { claim, attempt } => {
            let key = layout.encode(&Key::TaskAttempt(task.clone(), claim.clone()));
            txn = txn.then(Op::put(key, attempt.clone()));
        }
    }
    txn.otherwise(Op::get(owner))
        .otherwise(Op::get(state))
        .otherwise(Op::get(command))
        .otherwise(Op::get(own))
}

/// The result of a state write.
pub fn read_state_written(save: &StateWrite, reply: Result<TxnReply, StoreError>) -> StateWriteReply {
    let reply = match reply {
        Ok(reply) if reply.succeeded => return StateWriteReply::Applied { revision: reply.revision },
        Ok(reply) => reply,
        // It exceeds a limit of the store, so a repetition would be refused as well.
        Err(error @ StoreError::Invalid(_)) => return StateWriteReply::Refused(error.to_string()),
        Err(error) if error.is_ambiguous() => return StateWriteReply::Ambiguous,
        Err(_) => return StateWriteReply::NotDone,
    };
    let [owner, state, command, own] = found(&reply.results);
    // First the claim: without it nothing else about the task concerns this worker.
    if owner.is_none_or(|owner| owner.created != save.token.0) {
        return StateWriteReply::NotOwner { state: state.map(|pair| pair.value) };
    }
    let is_gone = own.is_none_or(|own| own.created != save.created);
    let modified = |pair: &Option<KeyValue>| pair.as_ref().map_or(Revision::ZERO, |pair| pair.modified);
    let is_as_known = modified(&state) == save.state_seen
        && match &save.command {
            CommandCheck::Any => true,
            CommandCheck::Absent => command.is_none(),
            CommandCheck::Acknowledge { modified: known, .. } => modified(&command) == *known,
        };
    // A lost reply to a write that kept the claim looks like a change. The missing task is the
    // reason only if state and command are as expected.
    if is_gone && is_as_known {
        return StateWriteReply::TaskGone;
    }
    StateWriteReply::Changed { state, command, revision: reply.revision }
}

/// The acknowledgement of a command to this worker, or a step on the way to it.
pub fn acknowledge(layout: &Layout, node: &NodeId, ack: &CommandAck) -> Txn {
    let command = layout.encode(&Key::NodeCommand(node.clone(), ack.command.clone()));
    let frozen = layout.encode(&Key::Frozen(node.clone()));
    let mut txn = Txn::new().when(Condition::modified_at(command.clone(), ack.modified));
    match &ack.mark {
        FreezeMark::Keep => {}
        FreezeMark::Freeze { record } => txn = txn.then(Op::put(frozen, record.clone())),
        FreezeMark::Unfreeze => txn = txn.then(Op::delete(frozen)),
    }
    if let Some(result) = &ack.result {
        let key = layout.encode(&Key::CommandResult(ack.command.clone()));
        txn = txn.then(Op::put(key, result.clone())).then(Op::delete(command));
    }
    txn
}

/// The result of an acknowledgement. An ambiguous one may be sent again, because it is conditional
/// on the command.
pub fn read_command_acked(reply: &Result<TxnReply, StoreError>) -> CommandAckReply {
    match reply {
        Ok(reply) if reply.succeeded => CommandAckReply::Applied,
        Ok(_) => CommandAckReply::Changed,
        Err(_) => CommandAckReply::NotDone,
    }
}

/// The results of the first operation and of the three reads after it. For a claim that succeeded,
/// the first operation is a put and has no result.
fn found(results: &[OpReply]) -> [Option<KeyValue>; 4] {
    let mut found = [const { None }; 4];
    for (slot, result) in found.iter_mut().zip(results) {
        if let OpReply::Get(page) = result {
            *slot = page.pairs.first().cloned();
        }
    }
    found
}
