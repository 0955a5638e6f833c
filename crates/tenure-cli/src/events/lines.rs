//! Who is first in which line, for locks and elections: whoever holds is computed, not written, so it is computed again after every change.

use std::collections::BTreeMap;

use tenure::core::layout::{Key, Layout, Place};
use tenure::core::line::{Mode, RollCall};
use tenure::core::record::{CandidateRecord, HolderRecord, Record, WallTime};
use tenure::core::revision::Token;
use tenure::store::{Change, KeyValue, LeaseId};

/// Which line.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum LineOf {
    Lock(String),
    Election(String),
}

/// One in a line.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Standing {
    pub(super) who: String,
    mode: Mode,
    place: Place,
    /// For a candidate: whether it waited behind another one and has not marked its key as the leader's. It may be dead.
    is_unconfirmed: bool,
    acquired: Option<WallTime>,
}

/// The first of a queue: a holder or a leader.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct First {
    pub(super) who: String,
    pub(super) is_unconfirmed: bool,
    /// The lease of its key.
    pub(super) lease: LeaseId,
    /// When its hold or term began, if its record contains that.
    pub(super) acquired: Option<WallTime>,
}

/// All lines.
#[derive(Default)]
pub(super) struct Lines(BTreeMap<LineOf, BTreeMap<Token, Standing>>);

impl Lines {
    /// Somebody stands in a line. A place that is written again is still the same.
    pub(super) fn stand(&mut self, layout: &Layout, pair: &KeyValue) -> Option<LineOf> {
        let (line, place) = place(layout, &pair.key)?;
        let token = Token(pair.created);
        let queue = self.0.entry(line.clone()).or_default();
        let (who, mode, is_unconfirmed, acquired) = match line {
            LineOf::Lock(_) => {
                let record = HolderRecord::decode(&pair.value).unwrap_or_default();
                (record.node, record.mode, false, record.acquired)
            }
            LineOf::Election(_) => {
                let record = CandidateRecord::decode(&pair.value).unwrap_or_default();
                let is_behind = queue.keys().next().is_some_and(|first| *first < token);
                let has_waited = is_behind || queue.get(&token).is_some_and(|before| before.is_unconfirmed);
                (record.candidate, Mode::Exclusive, has_waited && !record.leads, record.acquired)
            }
        };
        queue.insert(token, Standing { who, mode, place, is_unconfirmed, acquired });
        Some(line)
    }

    /// Somebody has left a line.
    pub(super) fn leave(&mut self, layout: &Layout, change: &Change) -> Option<LineOf> {
        let (line, place) = place(layout, change.key())?;
        let standing = self.0.get_mut(&line)?;
        let token = match change {
            Change::Delete { previous: Some(previous), .. } => Some(Token(previous.created)),
            Change::Delete { .. } | Change::Put { .. } => {
                standing.iter().find(|(_, one)| one.place == place).map(|(token, _)| *token)
            }
        };
        standing.remove(&token?);
        if standing.is_empty() {
            self.0.remove(&line);
        }
        Some(line)
    }

    /// Who holds or leads.
    pub(super) fn first(&self, line: &LineOf) -> BTreeMap<Token, First> {
        let mut roll_call = RollCall::default();
        let standing = self.0.get(line).into_iter().flatten();
        let holding = standing.filter(|(_, one)| roll_call.holds(one.mode));
        let first = |one: &Standing| First {
            who: one.who.clone(),
            is_unconfirmed: one.is_unconfirmed,
            lease: one.place.lease,
            acquired: one.acquired,
        };
        holding.map(|(token, one)| (*token, first(one))).collect()
    }
}

/// Which line a key is in, and where.
pub(super) fn place(layout: &Layout, key: &[u8]) -> Option<(LineOf, Place)> {
    match layout.parse(key)? {
        Key::Waiter(name, place) => Some((LineOf::Lock(name.to_string()), place)),
        Key::Candidate(name, place) => Some((LineOf::Election(name.to_string()), place)),
        _ => None,
    }
}
