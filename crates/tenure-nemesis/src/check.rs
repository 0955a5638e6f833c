//! What must be true of the histories of all processes. One rule a file, each with a history that
//! it refuses.

pub mod command_replies;
pub mod counters;
pub mod fencing;
pub mod holds;
pub mod linear_lock;
pub mod linear_register;
pub mod one_holder;
pub mod settled;
pub mod tokens_grow;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::history::{HistoryEvent, HistoryLine, OperationKind, OperationOutcome, Stamp};
use crate::ledger::LedgerEntry;
use crate::options::LockUnderTest;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub promise: &'static str,
    /// How, and in which history.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.what)
    }
}

/// One incarnation of one client.
#[derive(Clone, Debug)]
pub struct ClientLife {
    /// The name of its history.
    pub file: String,
    /// The name of the process; its next incarnation has the same name.
    pub client: String,
    /// What it recorded.
    pub lines: Vec<HistoryLine>,
    /// When it was killed, or a little before.
    pub killed_at: Option<Stamp>,
}

/// Everything that was recorded.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// By all clients.
    pub lives: Vec<ClientLife>,
    /// By the ledger.
    pub ledger: Vec<LedgerEntry>,
    /// Leases that an operator revoked.
    pub leases_by_hand: BTreeSet<i64>,
    /// Leases that etcd ended before their time was over, seen at etcd itself: see `rig/stale_leader.rs`.
    pub leases_ended_early: BTreeSet<i64>,
    /// Tokens of queue keys that an operator deleted.
    pub tokens_by_hand: BTreeSet<i64>,
}

/// How many operations of each kind ended how. What was never answered ended unknown.
pub type OutcomeCounts = BTreeMap<(OperationKind, OperationOutcome), u64>;

/// Counts operations.
pub fn count_outcomes(evidence: &Evidence) -> OutcomeCounts {
    let mut count_outcomes = OutcomeCounts::new();
    for life in &evidence.lives {
        let mut open = BTreeMap::new();
        for line in &life.lines {
            match &line.event {
                HistoryEvent::Asked { op, work, .. } => {
                    open.insert(*op, *work);
                }
                HistoryEvent::Answered { op, outcome, .. } => {
                    if let Some(work) = open.remove(op) {
                        *count_outcomes.entry((work, *outcome)).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        for work in open.into_values() {
            *count_outcomes.entry((work, OperationOutcome::Unknown)).or_default() += 1;
        }
    }
    count_outcomes
}

/// All promises that can be seen in the histories alone.
pub fn all(evidence: &Evidence, against: LockUnderTest) -> Vec<Violation> {
    let holds = holds::of(evidence);
    let mut violations = one_holder::check(&holds);
    if against.has_tokens() {
        violations.extend(tokens_grow::check(&holds));
        violations.extend(linear_lock::check(&holds));
    }
    violations.extend(fencing::check(evidence));
    violations.extend(counters::check(evidence));
    violations.extend(linear_register::check(evidence));
    violations.extend(command_replies::check(evidence));
    violations
}

/// What a history that was killed may look like in tests.
#[cfg(test)]
mod made {
    use super::*;
    use crate::history::HoldEnd;

    /// A hold: the file, the token, when it was requested, granted and last checked, and until when
    /// it was reported to be valid.
    pub(super) fn held(token: i64, asked: Stamp, told: Stamp, last: Stamp, until: Stamp) -> Vec<HistoryLine> {
        let (line, op) = ("lock:a".to_owned(), u64::try_from(token).unwrap());
        let believed =
            |at| HistoryEvent::Believed { line: line.clone(), token, lease: Some(token), by: at, until };
        vec![
            HistoryLine {
                at: asked,
                event: HistoryEvent::Asked { op, work: OperationKind::Lock, line: line.clone(), value: None },
            },
            HistoryLine {
                at: told,
                event: HistoryEvent::Answered {
                    op,
                    outcome: OperationOutcome::Ok,
                    token: Some(token),
                    value: None,
                },
            },
            HistoryLine { at: told, event: believed(told) },
            HistoryLine { at: last, event: believed(last) },
        ]
    }

    /// Released at this moment.
    pub(super) fn released(mut lines: Vec<HistoryLine>, at: Stamp) -> Vec<HistoryLine> {
        let Some(HistoryEvent::Believed { line, token, .. }) = lines.last().map(|line| line.event.clone())
        else {
            return lines;
        };
        lines.push(HistoryLine { at, event: HistoryEvent::Ended { line, token, how: HoldEnd::GivenUp } });
        lines
    }

    pub(super) fn evidence(lives: Vec<Vec<HistoryLine>>) -> Evidence {
        let lives = lives.into_iter().enumerate();
        let lives = lives.map(|(number, lines)| ClientLife {
            file: format!("c{number}.1"),
            client: format!("c{number}"),
            lines,
            killed_at: None,
        });
        Evidence { lives: lives.collect(), ..Evidence::default() }
    }
}
