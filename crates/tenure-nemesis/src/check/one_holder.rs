//! No process relies on a hold while another process does (GUARANTEES, rule 1).
//!
//! A holder that continues to rely on a hold that an operator ended is excluded, because it cannot
//! foresee that. A process that is granted a hold beside an earlier one is not excluded: it had
//! read its own key when no older one was there.

use std::collections::BTreeMap;

use super::Violation;
use super::holds::Hold;

/// Finds holds of one line that overlap. Each is named once, with the one that reached furthest of those before it, by their tokens.
pub fn check(holds: &[Hold]) -> Vec<Violation> {
    let mut lines: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in holds {
        lines.entry(&hold.line).or_default().push(hold);
    }
    let mut violations = Vec::new();
    for holds in lines.values_mut() {
        holds.sort_by_key(|hold| hold.from);
        for (at, hold) in holds.iter().enumerate() {
            let beside =
                holds[..at].iter().filter(|other| other.until > hold.from && !is_excused(other, hold));
            if let Some(before) = beside.max_by_key(|other| other.until) {
                let overlap = (before.until.min(hold.until)).saturating_sub(hold.from);
                violations.push(Violation {
                    promise: "one holder",
                    what: format!(
                        "{} was held with token {} in {} and with token {} in {}, for {} ms at once from {} on",
                        hold.line,
                        before.token,
                        before.file,
                        hold.token,
                        hold.file,
                        overlap / 1_000_000,
                        hold.from
                    ),
                });
            }
        }
    }
    violations
}

/// Whether an operator ended the earlier one by token, so that the later grant was correct.
fn is_excused(one: &Hold, other: &Hold) -> bool {
    let earlier = if one.token <= other.token { one } else { other };
    earlier.by_hand
}

#[cfg(test)]
mod tests {
    use super::super::holds::of;
    use super::super::made::{evidence, held, released};
    use super::*;

    #[test]
    fn only_overlapping_holders_are_found() {
        let first = released(held(5, 10, 20, 30, 90), 40);
        assert_eq!(check(&of(&evidence(vec![first.clone(), held(6, 15, 41, 50, 99)]))), []);
        let beside = evidence(vec![first.clone(), held(6, 15, 39, 50, 99)]);
        assert_eq!(check(&of(&beside)).len(), 1);
        // A long hold that began early overlaps others that do not overlap each other.
        let long = held(5, 10, 20, 30, 90);
        let others = [released(held(6, 15, 41, 50, 60), 60), held(7, 15, 70, 80, 99)];
        assert_eq!(check(&of(&evidence([vec![long], others.to_vec()].concat()))).len(), 2);
    }

    #[test]
    fn manual_removal_excuses_only_its_holder() {
        let mut beside = evidence(vec![held(5, 10, 20, 30, 90), held(6, 15, 39, 50, 99)]);
        beside.tokens_by_hand.insert(5);
        assert_eq!(check(&of(&beside)), []);
        // Its key was deleted while it waited, and it was granted the hold all the same.
        beside.tokens_by_hand = [6].into();
        assert_eq!(check(&of(&beside)).len(), 1);
    }
}
