//! The history of a lock is linearizable: there is one order of grants and ends, each inside its
//! call, in which no lock is granted while it is held.
//!
//! Tokens determine the order, so no search is needed: each grant takes the earliest moment that
//! its call and the end before allow, and that is refused exactly if no order exists. An end may
//! lie anywhere after the last moment at which its holder relied on it.

use super::Violation;
use super::holds::Hold;

/// Finds locks without such an order.
pub fn check(holds: &[Hold]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for line in holds.chunk_by(|a, b| a.line == b.line) {
        let mut free_from = 0;
        for hold in line {
            let granted = hold.asked.max(free_from);
            if granted > hold.from {
                violations.push(Violation {
                    promise: "linearizable lock",
                    what: format!(
                        "{} could be granted to token {} in {} only from {granted} on, and was relied upon from {} on",
                        hold.line, hold.token, hold.file, hold.from
                    ),
                });
            }
            // A hold that an operator ended may have ended immediately. That does not excuse a
            // grant while an earlier hold existed.
            free_from = free_from.max(if hold.by_hand { hold.asked } else { hold.until });
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::holds::of;
    use super::super::made::{evidence, held, released};
    use super::*;

    #[test]
    fn overlapping_grant_is_found() {
        let first = released(held(5, 10, 20, 30, 90), 40);
        assert_eq!(check(&of(&evidence(vec![first.clone(), held(6, 15, 41, 50, 99)]))), []);
        let mut beside = evidence(vec![first.clone(), held(6, 15, 39, 50, 99)]);
        assert_eq!(check(&of(&beside)).len(), 1);
        // The second was ended by an operator, but granted too early; the first would have ended in
        // time.
        beside.tokens_by_hand.insert(6);
        assert_eq!(check(&of(&beside)).len(), 1);
        beside.tokens_by_hand = [5].into();
        assert_eq!(check(&of(&beside)), []);
        // In real time one after the other, but in the wrong order of tokens.
        assert_eq!(check(&of(&evidence(vec![first, held(4, 45, 50, 60, 99)]))).len(), 1);
    }
}
