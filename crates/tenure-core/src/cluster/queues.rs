//! Locks and elections as their queue keys show them.

use std::collections::BTreeMap;

use crate::id::{ElectionName, LockName};
use crate::kv::KeyValue;
use crate::layout::{Key, Layout, QueueKey};
use crate::queue::HolderCount;
use crate::record::{CandidateRecord, HolderRecord, Record};
use crate::revision::{Revision, Token};

/// A lock, as it was at one revision.
#[derive(Clone, PartialEq, Debug)]
pub struct LockSnapshot {
    /// Its name.
    pub name: LockName,
    /// Its holders, the oldest first.
    pub holders: Vec<Holder>,
    /// Its waiters, the next first.
    pub waiters: Vec<Holder>,
    /// The revision.
    pub revision: Revision,
}

/// A holder of a lock, or a waiter.
#[derive(Clone, PartialEq, Debug)]
pub struct Holder {
    /// Its place in the queue.
    pub place: QueueKey,
    /// Its token.
    pub token: Token,
    /// Its stored record: the process, the reason, when it entered the queue and when it acquired. All empty if that cannot be read.
    ///
    /// `acquired` is none in the first 100 ms of a hold, and while a waiter waits.
    pub record: HolderRecord,
}

/// An election, as it was at one revision.
#[derive(Clone, PartialEq, Debug)]
pub struct ElectionSnapshot {
    /// Its name.
    pub name: ElectionName,
    /// Its leader.
    pub leader: Option<Leader>,
    /// The candidates that wait, the next first.
    pub candidates: Vec<Candidate>,
    /// The revision.
    pub revision: Revision,
}

/// The leader of an election.
#[derive(Clone, PartialEq, Debug)]
pub struct Leader {
    /// Its place in the queue.
    pub place: QueueKey,
    /// Its token.
    pub token: Token,
    /// Its stored record; all empty if that cannot be read.
    pub record: CandidateRecord,
}

/// A candidate that waits to lead.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// Its place in the queue.
    pub place: QueueKey,
    /// Its token, if it leads one day without losing its place.
    pub token: Token,
    /// Its stored record; all empty if that cannot be read.
    pub record: CandidateRecord,
}

impl Candidate {
    /// The candidate that a key at this place is.
    pub fn of(place: QueueKey, pair: &KeyValue) -> Candidate {
        let record = CandidateRecord::decode(&pair.value).unwrap_or_default();
        Candidate { place, token: Token(pair.created), record }
    }
}

impl From<Candidate> for Leader {
    fn from(Candidate { place, token, record }: Candidate) -> Leader {
        Leader { place, token, record }
    }
}

impl Leader {
    /// The leader that a key at this place is, if it is the first.
    pub fn of(place: QueueKey, pair: &KeyValue) -> Leader {
        Candidate::of(place, pair).into()
    }
}

/// The locks that have one of these keys.
pub fn locks_in(
    layout: &Layout,
    pairs: impl IntoIterator<Item = KeyValue>,
    revision: Revision,
) -> BTreeMap<LockName, LockSnapshot> {
    let mut queues: BTreeMap<LockName, BTreeMap<Token, Holder>> = BTreeMap::new();
    for pair in pairs {
        // A key that the layout does not have is in no queue.
        let Some(Key::Waiter(name, place)) = layout.parse(&pair.key) else { continue };
        let token = Token(pair.created);
        let record = HolderRecord::decode(&pair.value).unwrap_or_default();
        queues.entry(name).or_default().insert(token, Holder { place, token, record });
    }
    let view = |(name, queue): (LockName, BTreeMap<Token, Holder>)| {
        let mut roll_call = HolderCount::default();
        let (holders, waiters) = queue.into_values().partition(|holder| roll_call.holds(holder.record.mode));
        (name.clone(), LockSnapshot { name, holders, waiters, revision })
    };
    queues.into_iter().map(view).collect()
}

/// The elections that have one of these keys.
pub fn elections_in(
    layout: &Layout,
    pairs: impl IntoIterator<Item = KeyValue>,
    revision: Revision,
) -> BTreeMap<ElectionName, ElectionSnapshot> {
    let mut queues: BTreeMap<ElectionName, BTreeMap<Token, Candidate>> = BTreeMap::new();
    for pair in pairs {
        // A key that the layout does not have is in no queue.
        let Some(Key::Candidate(name, place)) = layout.parse(&pair.key) else { continue };
        let candidate = Candidate::of(place, &pair);
        queues.entry(name).or_default().insert(candidate.token, candidate);
    }
    let view = |(name, queue): (ElectionName, BTreeMap<Token, Candidate>)| {
        let mut queue = queue.into_values();
        let leader = queue.next().map(Leader::from);
        (name.clone(), ElectionSnapshot { name, leader, candidates: queue.collect(), revision })
    };
    queues.into_iter().map(view).collect()
}
