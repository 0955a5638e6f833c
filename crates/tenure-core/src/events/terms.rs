//! How terms ended and how long no process led, as far as the history shows.
//!
//! A resignation puts a record with its time in the transaction that deletes the candidate key. A key that went without one went with
//! its lease: the leader was killed, stopped or cut off. The history has no time of that delete. It happened between the last time that
//! any record before it contains and the begin of the next term, and the leader stopped up to a TTL earlier.

use std::collections::BTreeMap;
use std::time::Duration;

use super::queues::FirstKey;
use super::{Leaderless, PastTerm, TermOutcome};
use crate::change::Change;
use crate::id::ElectionName;
use crate::kv::KeyValue;
use crate::layout::{Key, Layout};
use crate::record::{
    AuditRecord, CandidateRecord, CommandRecord, HolderRecord, Record, ResignationRecord, ResultRecord,
    TaskRecord, Timestamp,
};
use crate::revision::Token;
use crate::task::StateRecord;

/// The part of the TTL for which a lease lives on after its holder was killed, at least: a holder renews it every third of the TTL.
const LEFT_MIN: (u32, u32) = (2, 3);

/// How a term ended, with what the history contains about when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TermEnding {
    /// The leader resigned, at this time.
    Resigned { at: Timestamp },
    /// The leader transferred its term to a candidate.
    Transferred,
    /// An operator revoked the lease, at this time.
    Revoked { at: Timestamp },
    /// The lease ended.
    Lapsed {
        /// The TTL of the lease, if its record contains it.
        ttl: Option<Duration>,
        /// The newest time in the history before the key was deleted.
        not_before: Option<Timestamp>,
    },
}

/// A term that ended, until the next one begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EndedTerm {
    token: Token,
    ending: TermEnding,
}

impl EndedTerm {
    pub(super) fn outcome(self) -> TermOutcome {
        match self.ending {
            TermEnding::Resigned { .. } => TermOutcome::Resigned,
            TermEnding::Transferred => TermOutcome::Transferred,
            TermEnding::Revoked { .. } => TermOutcome::Revoked,
            TermEnding::Lapsed { .. } => TermOutcome::Lapsed,
        }
    }

    /// This term, seen from the begin of the next one.
    pub(super) fn before(self, next: Option<Timestamp>) -> PastTerm {
        PastTerm { token: self.token, outcome: self.outcome(), leaderless: self.leaderless_until(next) }
    }

    fn leaderless_until(self, next: Option<Timestamp>) -> Leaderless {
        let since = |at: Timestamp| next.map(|next| Duration::from_millis(next.0.saturating_sub(at.0)));
        match self.ending {
            // By the clocks of two hosts: what they differ by is in it.
            TermEnding::Resigned { at } | TermEnding::Revoked { at } => {
                Leaderless { min: since(at).unwrap_or_default(), max: since(at) }
            }
            TermEnding::Transferred => Leaderless { min: Duration::ZERO, max: Some(Duration::ZERO) },
            TermEnding::Lapsed { ttl, not_before } => {
                let (numerator, denominator) = LEFT_MIN;
                let min = ttl.unwrap_or_default() * numerator / denominator;
                let max = ttl.zip(not_before.and_then(since)).map(|(ttl, since)| ttl + since);
                // A clock that runs behind makes no upper bound below the lower one.
                Leaderless { min, max: max.map(|max| max.max(min)) }
            }
        }
    }
}

/// The ends of terms, by election.
#[derive(Clone, Debug, Default)]
pub(super) struct TermHistory {
    ended: BTreeMap<ElectionName, EndedTerm>,
    /// The newest time of any record so far.
    newest: Option<Timestamp>,
}

impl TermHistory {
    /// A record of the history contains this time.
    pub(super) fn handle_time(&mut self, at: Timestamp) {
        self.newest = self.newest.max(Some(at));
    }

    /// The candidate key of a leader was deleted, with a resignation or without one.
    pub(super) fn handle_end(
        &mut self,
        election: &ElectionName,
        (token, leader): (Token, &FirstKey),
        resignation: Option<&ResignationRecord>,
        revoked: Option<&AuditRecord>,
    ) -> TermOutcome {
        let ending = match (resignation, revoked) {
            (Some(ResignationRecord { heir: Some(_), .. }), _) => TermEnding::Transferred,
            (Some(ResignationRecord { at, .. }), _) => TermEnding::Resigned { at: *at },
            (None, Some(audit)) => TermEnding::Revoked { at: audit.at },
            (None, None) => {
                TermEnding::Lapsed { ttl: leader.ttl, not_before: self.newest.max(leader.began()) }
            }
        };
        let ended = EndedTerm { token, ending };
        self.ended.insert(election.clone(), ended);
        ended.outcome()
    }

    /// How the last term ended, while no term has followed it.
    pub(super) fn last(&self, election: &ElectionName) -> Option<TermOutcome> {
        self.ended.get(election).copied().map(EndedTerm::outcome)
    }

    /// A term began: returns how the last one ended.
    pub(super) fn handle_begin(&mut self, election: &ElectionName) -> Option<EndedTerm> {
        self.ended.remove(election)
    }
}

/// The time that a changed record contains: the change happened after it.
pub(super) fn time_in(layout: &Layout, change: &Change) -> Option<Timestamp> {
    match change {
        Change::Put { pair, .. } => time_of(layout, pair),
        Change::Delete { .. } => None,
    }
}

/// The newest time in a record, by the clock of the process that put it.
pub(super) fn time_of(layout: &Layout, pair: &KeyValue) -> Option<Timestamp> {
    let value = &pair.value;
    let at = match layout.parse(&pair.key)? {
        Key::Candidate(..) => CandidateRecord::decode(value).map(|one| one.acquired.unwrap_or(one.queued)),
        Key::Waiter(..) => HolderRecord::decode(value).map(|one| one.acquired.unwrap_or(one.queued)),
        Key::Resignation(..) => ResignationRecord::decode(value).map(|one| one.at),
        Key::Task(_) => TaskRecord::decode(value).map(|one| one.submitted_at),
        Key::TaskState(_) => StateRecord::decode(value).map(|one| one.updated_at),
        Key::TaskCommand(_) | Key::NodeCommand(..) => CommandRecord::decode(value).map(|one| one.sent_at),
        Key::CommandResult(_) => ResultRecord::decode(value).map(|one| one.at),
        Key::Audit(_) => AuditRecord::decode(value).map(|one| one.at),
        _ => return None,
    };
    at.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::Revision;

    const NEXT: Option<Timestamp> = Some(Timestamp(20_000));

    fn before(ending: TermEnding, next: Option<Timestamp>) -> PastTerm {
        EndedTerm { token: Token(Revision(7)), ending }.before(next)
    }

    fn ms(min: u64, max: Option<u64>) -> Leaderless {
        Leaderless { min: Duration::from_millis(min), max: max.map(Duration::from_millis) }
    }

    #[test]
    fn resignation_bounds_the_gap_exactly() {
        let resigned = TermEnding::Resigned { at: Timestamp(19_996) };
        assert_eq!(before(resigned, NEXT).leaderless, ms(4, Some(4)));
        assert_eq!(before(resigned, None).leaderless, ms(0, None));
        let transferred = before(TermEnding::Transferred, NEXT);
        assert_eq!((transferred.outcome, transferred.leaderless), (TermOutcome::Transferred, ms(0, Some(0))));
    }

    #[test]
    fn lapsed_term_is_bounded() {
        let lapsed = |ttl: Option<u64>, not_before: Option<u64>| {
            let ttl = ttl.map(Duration::from_secs);
            let ending = TermEnding::Lapsed { ttl, not_before: not_before.map(Timestamp) };
            before(ending, NEXT).leaderless
        };
        assert_eq!(lapsed(Some(3), Some(19_000)), ms(2_000, Some(4_000)));
        assert_eq!(lapsed(Some(3), None), ms(2_000, None));
        assert_eq!(lapsed(None, None), ms(0, None));
        // A clock that runs behind makes no negative bound.
        assert_eq!(lapsed(Some(3), Some(25_000)), ms(2_000, Some(3_000)));
    }
}
