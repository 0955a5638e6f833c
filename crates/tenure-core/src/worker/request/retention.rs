//! The transactions of retention, and what their replies mean.

use bytes::Bytes;

use crate::error::StoreError;
use crate::kv::{Get, KeyValue, Selection};
use crate::layout::{Key, Layout};
use crate::record::{Record, ResultRecord, Timestamp};
use crate::txn::{Condition, Op, OpReply, Txn, TxnReply};
use crate::worker::input::{EndedPage, ResultsPage, RetentionReply};
use crate::worker::output::{EndedTask, ExpiredKey, RetentionRequest, RetentionStep};

/// One step of retention.
pub fn retention(layout: &Layout, ask: &RetentionRequest) -> Txn {
    match &ask.step {
        RetentionStep::Read { after, limit } => {
            // Values are props, which nothing here needs.
            let page = Get::new(behind(layout.ended(), after.as_ref())).limit(*limit).keys_only();
            Txn::new().then(Op::Get(page))
        }
        RetentionStep::Delete(ended) => {
            let entry = layout.encode(&Key::EndedTask(ended.at, ended.task.clone()));
            let state = layout.encode(&Key::TaskState(ended.task.clone()));
            let task = layout.encode(&Key::Task(ended.task.clone()));
            // Entry and state were put by one transaction, so they share their revision until one of them changes. Without the
            // state, a task that was submitted again would be one that no node claims and no command frees.
            Txn::new()
                .when(Condition::modified_at(entry.clone(), ended.modified))
                .when(Condition::modified_at(state.clone(), ended.modified))
                .when(Condition::absent(task.clone()))
                .then(Op::delete(entry.clone()))
                .then(Op::delete(state.clone()))
                .otherwise(Op::get(entry))
                .otherwise(Op::get(state))
                .otherwise(Op::get(task))
        }
        RetentionStep::DeleteEntry(ended) => {
            let entry = layout.encode(&Key::EndedTask(ended.at, ended.task.clone()));
            Txn::new().when(Condition::modified_at(entry.clone(), ended.modified)).then(Op::delete(entry))
        }
        RetentionStep::ReadResults { among, limit } => {
            Txn::new().then(Op::Get(Get::new(among.clone()).limit(*limit)))
        }
        RetentionStep::DeleteResult(swept) => delete(swept),
        RetentionStep::ExpireCommand { command, result } => match result {
            Some((id, result)) => {
                let key = layout.encode(&Key::CommandResult(id.clone()));
                delete(command).then(Op::put(key, result.clone()))
            }
            None => delete(command),
        },
    }
}

/// Only what was read is deleted: a command that was sent since is another one, and a worker may have handled this one.
fn delete(swept: &ExpiredKey) -> Txn {
    Txn::new()
        .when(Condition::modified_at(swept.key.clone(), swept.modified))
        .then(Op::delete(swept.key.clone()))
}

/// What came of a step.
pub fn read_retained(
    layout: &Layout,
    ask: &RetentionRequest,
    reply: Result<TxnReply, StoreError>,
) -> RetentionReply {
    let Ok(reply) = reply else { return RetentionReply::NotDone };
    match &ask.step {
        RetentionStep::Read { .. } => match reply.results.into_iter().next() {
            Some(OpReply::Get(page)) => {
                let last = page.pairs.last().map(|pair| pair.key.clone());
                let ended = page.pairs.iter().filter_map(|pair| read_entry(layout, pair)).collect();
                RetentionReply::Page(EndedPage { ended, last, more: page.more })
            }
            Some(OpReply::Put | OpReply::Delete { .. }) | None => RetentionReply::NotDone,
        },
        RetentionStep::Delete(_) if reply.succeeded => RetentionReply::Deleted,
        RetentionStep::Delete(ended) => {
            let [entry, state, _, _] = super::found(&reply.results);
            let is_same = |pair: Option<KeyValue>| pair.is_some_and(|pair| pair.modified == ended.modified);
            if is_same(entry) && !is_same(state) { RetentionReply::Stale } else { RetentionReply::Kept }
        }
        RetentionStep::ReadResults { .. } => match reply.results.into_iter().next() {
            Some(OpReply::Get(page)) => {
                let last = page.pairs.last().map(|pair| pair.key.clone());
                let results = page.pairs.iter().filter_map(|pair| read_result(layout, pair)).collect();
                RetentionReply::Results(ResultsPage { results, last, more: page.more })
            }
            Some(OpReply::Put | OpReply::Delete { .. }) | None => RetentionReply::NotDone,
        },
        RetentionStep::DeleteEntry(_)
        | RetentionStep::DeleteResult(_)
        | RetentionStep::ExpireCommand { .. } => {
            if reply.succeeded {
                RetentionReply::Deleted
            } else {
                RetentionReply::Kept
            }
        }
    }
}

fn read_entry(layout: &Layout, pair: &KeyValue) -> Option<EndedTask> {
    match layout.parse(&pair.key)? {
        Key::EndedTask(at, task) => Some(EndedTask { task, at, modified: pair.modified }),
        _ => None,
    }
}

/// A key that the layout does not have, and a record that cannot be read, are another program's.
fn read_result(layout: &Layout, pair: &KeyValue) -> Option<(ExpiredKey, Option<Timestamp>)> {
    let Key::CommandResult(_) = layout.parse(&pair.key)? else { return None };
    let record = ResultRecord::decode(&pair.value).ok()?;
    Some((ExpiredKey { key: pair.key.clone(), modified: pair.modified }, record.expires_at))
}

/// The keys of a selection behind one of them.
pub(in crate::worker) fn behind(prefix: Selection, after: Option<&Bytes>) -> Selection {
    let next = after.and_then(|last| Selection::Key(last.clone()).end());
    match (next, prefix.end()) {
        (Some(next), Some(end)) => Selection::Range(next, end),
        (Some(_) | None, _) => prefix,
    }
}
