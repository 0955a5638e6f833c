//! No holder that the ledger refused is still valid, unless an operator ended its hold: a refusal
//! means that a later holder was there already.

use super::{Evidence, Violation, holds};
use crate::history::HistoryEvent;

/// Finds holders that were refused and still considered their hold valid.
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    let holds = holds::of(evidence);
    let by_hand = |line: &str, token: i64| {
        holds.iter().any(|hold| hold.line == line && hold.token == token && hold.by_hand)
    };
    let mut violations = Vec::new();
    for life in &evidence.lives {
        for line in &life.lines {
            if let HistoryEvent::Refused { line: name, token, believed: true } = &line.event
                && !by_hand(name, *token)
            {
                violations.push(Violation {
                    promise: "refused holders know why",
                    what: format!("{name} with token {token} in {} at {}", life.file, line.at),
                });
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::made::{evidence, held};
    use super::*;
    use crate::history::HistoryLine;

    #[test]
    fn refused_valid_holder_is_found() {
        let mut lines = held(5, 10, 20, 30, 90);
        let refused = |believed| HistoryEvent::Refused { line: "lock:a".to_owned(), token: 5, believed };
        lines.push(HistoryLine { at: 40, event: refused(false) });
        assert_eq!(check(&evidence(vec![lines.clone()])), []);
        lines.push(HistoryLine { at: 40, event: refused(true) });
        let mut told = evidence(vec![lines]);
        assert_eq!(check(&told).len(), 1);
        told.tokens_by_hand.insert(5);
        assert_eq!(check(&told), []);
    }
}
