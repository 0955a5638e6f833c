//! The history of a lock is linearizable: there is one order of grants and ends, each inside of its call, in which nobody is granted what
//! somebody has.
//!
//! Tokens say which order it must be, so there is nothing to search: each grant takes the earliest moment that its call and the end before
//! allow, and that is refused exactly if no order exists. An end may lie anywhere after the last moment at which its holder relied on it.

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
            // What somebody ended by hand may have ended at once; that it was granted beside an earlier one is not excused by that.
            free_from = free_from.max(if hold.by_hand { hold.asked } else { hold.until });
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::holds::of;
    use super::super::made::{evidence, given_up, held};
    use super::*;

    #[test]
    fn a_grant_inside_of_another_hold_is_found() {
        let first = given_up(held(5, 10, 20, 30, 90), 40);
        assert_eq!(check(&of(&evidence(vec![first.clone(), held(6, 15, 41, 50, 99)]))), []);
        let mut beside = evidence(vec![first.clone(), held(6, 15, 39, 50, 99)]);
        assert_eq!(check(&of(&beside)).len(), 1);
        // Ended by hand, the second was still granted too early, and the first would have been over in time.
        beside.tokens_by_hand.insert(6);
        assert_eq!(check(&of(&beside)).len(), 1);
        beside.tokens_by_hand = [5].into();
        assert_eq!(check(&of(&beside)), []);
        // In real time one after the other, but in the wrong order of tokens.
        assert_eq!(check(&of(&evidence(vec![first, held(4, 45, 50, 60, 99)]))).len(), 1);
    }
}
