//! Tokens grow from holder to holder, in real time, whatever an operator did (GUARANTEES, rule 3).

use std::collections::BTreeMap;

use super::Violation;
use super::holds::Hold;

/// Finds holders that began later with a token that is not larger.
pub fn check(holds: &[Hold]) -> Vec<Violation> {
    let mut lines: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in holds {
        lines.entry(&hold.line).or_default().push(hold);
    }
    let mut violations = Vec::new();
    for holds in lines.values_mut() {
        // A hold is granted before its first check is complete, and not before it was requested.
        holds.sort_by_key(|hold| hold.from);
        let mut largest: Option<&Hold> = None;
        let mut earlier = holds.iter().peekable();
        let mut by_asking: Vec<&&Hold> = holds.iter().collect();
        by_asking.sort_by_key(|hold| hold.asked);
        for hold in by_asking {
            while let Some(before) = earlier.next_if(|before| before.from < hold.asked) {
                if largest.is_none_or(|largest| before.token > largest.token) {
                    largest = Some(before);
                }
            }
            if let Some(before) = largest.filter(|before| before.token >= hold.token) {
                violations.push(Violation {
                    promise: "tokens grow",
                    what: format!(
                        "{} was held with token {} in {}, and asked for later with token {} in {}",
                        hold.line, before.token, before.file, hold.token, hold.file
                    ),
                });
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::holds::of;
    use super::super::made::{evidence, held};
    use super::*;

    #[test]
    fn later_smaller_token_is_found() {
        let grows = evidence(vec![held(5, 10, 20, 30, 90), held(6, 21, 39, 50, 99)]);
        assert_eq!(check(&of(&grows)), []);
        let shrinks = evidence(vec![held(6, 10, 20, 30, 90), held(5, 21, 39, 50, 99)]);
        assert_eq!(check(&of(&shrinks)).len(), 1);
        let together = evidence(vec![held(6, 10, 20, 30, 90), held(5, 19, 39, 50, 99)]);
        assert_eq!(check(&of(&together)), [], "overlapping requests may be granted in either order");
    }
}
