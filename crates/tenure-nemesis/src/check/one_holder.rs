//! Nobody relies on a hold while somebody else does (GUARANTEES, rule 1).
//!
//! Left out are holds that somebody ended by hand: no holder can foresee that.

use std::collections::BTreeMap;

use super::Violation;
use super::holds::Hold;

/// Finds holds of one line that overlap. Each is named once, with the one that reached furthest before it began.
pub fn check(holds: &[Hold]) -> Vec<Violation> {
    let mut lines: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in holds.iter().filter(|hold| !hold.by_hand) {
        lines.entry(&hold.line).or_default().push(hold);
    }
    let mut violations = Vec::new();
    for holds in lines.values_mut() {
        holds.sort_by_key(|hold| hold.from);
        let mut furthest: Option<&Hold> = None;
        for hold in holds.iter() {
            if let Some(before) = furthest.filter(|before| before.until > hold.from) {
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
            if furthest.is_none_or(|before| hold.until > before.until) {
                furthest = Some(hold);
            }
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
    fn two_at_once_are_found_and_one_after_the_other_is_not() {
        let first = given_up(held(5, 10, 20, 30, 90), 40);
        assert_eq!(check(&of(&evidence(vec![first.clone(), held(6, 15, 41, 50, 99)]))), []);
        let beside = evidence(vec![first.clone(), held(6, 15, 39, 50, 99)]);
        assert_eq!(check(&of(&beside)).len(), 1);
        // A long hold that began early overlaps others that do not overlap each other.
        let long = held(5, 10, 20, 30, 90);
        let others = [given_up(held(6, 15, 41, 50, 60), 60), held(7, 15, 70, 80, 99)];
        assert_eq!(check(&of(&evidence([vec![long], others.to_vec()].concat()))).len(), 2);
    }

    #[test]
    fn what_was_ended_by_hand_is_left_out() {
        let mut beside = evidence(vec![held(5, 10, 20, 30, 90), held(6, 15, 39, 50, 99)]);
        beside.tokens_by_hand.insert(5);
        assert_eq!(check(&of(&beside)), []);
    }
}
