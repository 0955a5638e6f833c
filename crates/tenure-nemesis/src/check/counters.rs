//! No increment is lost: a writer adds one to the value that it read, and a later reader finds
//! every acknowledged increment.

use std::collections::BTreeSet;

use super::{Evidence, Violation};
use crate::history::{HistoryEvent, OperationKind, OperationOutcome};

/// Finds writes that overwrote others, tokens that went back, and answers without a write.
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut broken = |what: String| violations.push(Violation { promise: "no lost increments", what });
    let mut written = BTreeSet::new();
    let mut largest = std::collections::BTreeMap::new();
    for entry in evidence.ledger.iter().filter(|entry| entry.admitted) {
        if let Some(token) = entry.token {
            let seen = largest.entry(&entry.line).or_insert(token);
            if *seen > token {
                broken(format!("{}: token {token} was let in after {seen} at {}", entry.line, entry.at));
            }
            *seen = (*seen).max(token);
        }
        let Some(write) = entry.write else { continue };
        written.insert((entry.line.as_str(), entry.token, write));
        if write != entry.before + 1 {
            broken(format!(
                "{}: {} became {write} at {}, under token {:?}",
                entry.line, entry.before, entry.at, entry.token
            ));
        }
    }
    for life in &evidence.lives {
        let mut open = std::collections::BTreeMap::new();
        for line in &life.lines {
            match &line.event {
                HistoryEvent::Asked { op, work: OperationKind::Count, line, .. } => {
                    open.insert(*op, line);
                }
                HistoryEvent::Answered { op, outcome: OperationOutcome::Ok, token, value: Some(value) } => {
                    let Some(name) = open.remove(op) else { continue };
                    let is_there =
                        value.parse().is_ok_and(|value| written.contains(&(name.as_str(), *token, value)));
                    if !is_there {
                        broken(format!("{name}: {value} was acknowledged in {} and not written", life.file));
                    }
                }
                _ => {}
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::LedgerEntry;

    fn ledger(writes: &[(i64, u64, u64)]) -> Evidence {
        let entries = writes.iter().map(|(token, before, write)| LedgerEntry {
            at: 0,
            line: "lock:a".to_owned(),
            token: Some(*token),
            write: Some(*write),
            before: *before,
            admitted: true,
        });
        Evidence { ledger: entries.collect(), ..Evidence::default() }
    }

    #[test]
    fn overwritten_increment_is_found() {
        assert_eq!(check(&ledger(&[(1, 0, 1), (2, 1, 2)])), []);
        assert_eq!(check(&ledger(&[(1, 0, 1), (2, 1, 1)])).len(), 1);
    }

    #[test]
    fn decreasing_token_is_found() {
        assert_eq!(check(&ledger(&[(2, 0, 1), (1, 1, 2)])).len(), 1);
    }

    #[test]
    fn missing_acknowledged_increment_is_found() {
        use crate::history::HistoryLine;
        let mut told = ledger(&[(1, 0, 1)]);
        let lines = vec![
            HistoryLine {
                at: 1,
                event: HistoryEvent::Asked {
                    op: 0,
                    work: OperationKind::Count,
                    line: "lock:a".to_owned(),
                    value: None,
                },
            },
            HistoryLine {
                at: 2,
                event: HistoryEvent::Answered {
                    op: 0,
                    outcome: OperationOutcome::Ok,
                    token: Some(1),
                    value: Some("1".to_owned()),
                },
            },
        ];
        told.lives = super::super::made::evidence(vec![lines]).lives;
        assert_eq!(check(&told), []);
        told.ledger.clear();
        assert_eq!(check(&told).len(), 1);
    }
}
