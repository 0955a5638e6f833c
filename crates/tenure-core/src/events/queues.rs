//! The first key of each queue. Which key holds or leads is computed and not stored, so it is
//! computed again after every change.

use std::collections::BTreeMap;
use std::time::Duration;

use super::QueueHead;
use crate::change::Change;
use crate::id::{ElectionName, LockName};
use crate::kv::KeyValue;
use crate::layout::{Key, Layout, QueueKey};
use crate::lease::LeaseId;
use crate::queue::{HolderCount, LockMode};
use crate::record::{CandidateRecord, HolderRecord, Record, Timestamp};
use crate::revision::Token;

/// The name of a queue.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum QueueName {
    Lock(LockName),
    Election(ElectionName),
}

/// One key of a queue.
#[derive(Clone, PartialEq, Debug)]
struct QueuedKey {
    name: String,
    mode: LockMode,
    place: QueueKey,
    /// For a candidate: whether it waited behind another one and has not marked its key as the leader's. It may be dead.
    is_unconfirmed: bool,
    queued: Timestamp,
    acquired: Option<Timestamp>,
    ttl: Option<Duration>,
}

/// The first of a queue: a holder or a leader.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct FirstKey {
    name: String,
    pub(super) is_unconfirmed: bool,
    /// The lease of its key.
    pub(super) lease: LeaseId,
    /// When its hold or term began, if its record contains that.
    acquired: Option<Timestamp>,
    queued: Timestamp,
    /// The TTL of its lease, if its record contains that.
    pub(super) ttl: Option<Duration>,
}

impl FirstKey {
    /// When its hold or term began. One that did not wait began when it was put.
    pub(super) fn began(&self) -> Option<Timestamp> {
        self.acquired.or_else(|| Some(self.queued).filter(|queued| !self.is_unconfirmed && queued.0 > 0))
    }

    pub(super) fn holding(&self, token: Token) -> QueueHead {
        QueueHead { holder: self.name.clone(), token }
    }
}

/// All queues.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueHistory(BTreeMap<QueueName, BTreeMap<Token, QueuedKey>>);

impl QueueHistory {
    /// A queue key was put. One that is written again keeps its position.
    pub(super) fn handle_put(&mut self, layout: &Layout, pair: &KeyValue) {
        let Some((name, place)) = queue_of(layout, &pair.key) else { return };
        let token = Token(pair.created);
        let is_lock = matches!(name, QueueName::Lock(_));
        let queue = self.0.entry(name).or_default();
        let queued = if is_lock {
            let record = HolderRecord::decode(&pair.value).unwrap_or_default();
            QueuedKey {
                name: record.node,
                mode: record.mode,
                place,
                is_unconfirmed: false,
                queued: record.queued,
                acquired: record.acquired,
                ttl: None,
            }
        } else {
            let record = CandidateRecord::decode(&pair.value).unwrap_or_default();
            let is_behind = queue.keys().next().is_some_and(|first| *first < token);
            let has_waited = is_behind || queue.get(&token).is_some_and(|before| before.is_unconfirmed);
            QueuedKey {
                name: record.candidate,
                mode: LockMode::Exclusive,
                place,
                is_unconfirmed: has_waited && !record.leads,
                queued: record.queued,
                acquired: record.acquired,
                ttl: record.ttl_ms.map(Duration::from_millis),
            }
        };
        queue.insert(token, queued);
    }

    /// A key was deleted.
    pub(super) fn handle_delete(&mut self, layout: &Layout, change: &Change) {
        let Some((name, place)) = queue_of(layout, change.key()) else { return };
        let Some(queue) = self.0.get_mut(&name) else { return };
        let token = match change {
            Change::Delete { previous: Some(previous), .. } => Some(Token(previous.created)),
            // Without the key as it was, the queue knows it by its place.
            Change::Delete { .. } | Change::Put { .. } => {
                queue.iter().find(|(_, one)| one.place == place).map(|(token, _)| *token)
            }
        };
        if let Some(token) = token {
            queue.remove(&token);
        }
        if queue.is_empty() {
            self.0.remove(&name);
        }
    }

    /// The keys of a queue that hold or lead.
    pub(super) fn first(&self, name: &QueueName) -> BTreeMap<Token, FirstKey> {
        let mut roll_call = HolderCount::default();
        let queue = self.0.get(name).into_iter().flatten();
        let holding = queue.filter(|(_, one)| roll_call.holds(one.mode));
        let first = |one: &QueuedKey| FirstKey {
            name: one.name.clone(),
            is_unconfirmed: one.is_unconfirmed,
            lease: one.place.lease,
            acquired: one.acquired,
            queued: one.queued,
            ttl: one.ttl,
        };
        holding.map(|(token, one)| (*token, first(one))).collect()
    }
}

/// The queue that a key belongs to, and its place there.
pub(super) fn queue_of(layout: &Layout, key: &[u8]) -> Option<(QueueName, QueueKey)> {
    match layout.parse(key)? {
        Key::Waiter(name, place) => Some((QueueName::Lock(name), place)),
        Key::Candidate(name, place) => Some((QueueName::Election(name), place)),
        _ => None,
    }
}
