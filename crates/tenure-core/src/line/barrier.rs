//! A barrier on a line: who passes together.
//!
//! Intuition: the first so many places that have not passed are a round. Whoever sees its round complete writes the round's last token into its own
//! place, and only then goes on. That mark is what a slow party sees, who looks after others of its round have died or gone on.
//!
//! **Invariant**: who is not in a round does not pass with it: a round is named by its last token, and takes everybody up to there.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::revision::Token;

/// The places of a barrier, each with the round it has passed in, if it has.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// The places.
    pub places: BTreeMap<Token, Option<Token>>,
}

impl Round {
    /// The round in which a place passes; none as long as it must wait.
    pub fn of(&self, own: Token, parties: NonZeroU32) -> Option<Token> {
        // Somebody of our round has seen it complete.
        let covers = |round: &&Token| own <= **round;
        if let Some(round) = self.places.values().flatten().filter(covers).min() {
            return Some(*round);
        }
        let earlier = self.places.values().flatten().max().copied();
        let mut waiting = self.places.keys().filter(|token| Some(**token) > earlier);
        let last = waiting.nth(parties.get() as usize - 1).copied();
        last.filter(|last| own <= *last)
    }

    /// Whether everybody of a round has passed or is gone, so that nobody needs to see our mark any more.
    pub fn is_over(&self, round: Token) -> bool {
        self.places.range(..=round).all(|(_, passed)| passed.is_some())
    }

    /// How many have come and not passed.
    pub fn waiting(&self) -> usize {
        self.places.values().filter(|passed| passed.is_none()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::Revision;

    fn token(n: i64) -> Token {
        Token(Revision(n))
    }

    fn round(places: &[(i64, Option<i64>)]) -> Round {
        Round { places: places.iter().map(|(own, passed)| (token(*own), passed.map(token))).collect() }
    }

    const THREE: NonZeroU32 = NonZeroU32::new(3).unwrap();

    #[test]
    fn nobody_passes_before_all_have_come() {
        let two = round(&[(1, None), (2, None)]);
        assert_eq!(two.of(token(1), THREE), None);
        let three = round(&[(1, None), (2, None), (5, None), (6, None)]);
        assert_eq!(three.of(token(1), THREE), Some(token(5)));
        assert_eq!(three.of(token(5), THREE), Some(token(5)));
        assert_eq!(three.of(token(6), THREE), None, "the fourth waits for the next round");
    }

    #[test]
    fn a_slow_party_passes_by_the_mark_of_one_that_has() {
        let later = round(&[(1, Some(5)), (5, None)]);
        assert_eq!(later.of(token(5), THREE), Some(token(5)));
        assert!(!later.is_over(token(5)), "the mark must stay until it was seen");
        assert!(round(&[(1, Some(5)), (5, Some(5)), (7, None)]).is_over(token(5)));
    }

    #[test]
    fn those_who_have_passed_do_not_count_for_the_next_round() {
        let next = round(&[(1, Some(5)), (5, Some(5)), (7, None), (8, None)]);
        assert_eq!(next.of(token(7), THREE), None);
        let next = round(&[(5, None), (1, Some(5)), (7, None), (8, None), (9, None)]);
        assert_eq!(next.of(token(7), THREE), Some(token(9)), "a slow one of the last round does not count");
        assert_eq!(next.of(token(5), THREE), Some(token(5)));
    }
}
