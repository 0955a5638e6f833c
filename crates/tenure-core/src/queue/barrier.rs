//! A barrier on a queue: rounds of parties that pass together.
//!
//! Intuition: the first keys that have not passed are a round, one key for each party. A party that
//! sees its round complete writes the round's last token into its own key, and only then continues.
//! A slow party sees that mark, even after other parties of its round have left.
//!
//! **Invariant**: a party that is not in a round does not pass with it. A round is named by its
//! last token, and contains all parties up to that token.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::revision::Token;

/// The keys of a barrier, each with the round in which it has passed, if it has.
#[derive(Clone, Debug, Default)]
pub struct BarrierRound {
    /// The keys.
    pub queue_keys: BTreeMap<Token, Option<Token>>,
}

impl BarrierRound {
    /// Returns the round in which a key passes; none while it must wait.
    pub fn of(&self, own: Token, parties: NonZeroU32) -> Option<Token> {
        // Another party of this round has seen it complete.
        let covers = |round: &&Token| own <= **round;
        if let Some(round) = self.queue_keys.values().flatten().filter(covers).min() {
            return Some(*round);
        }
        let earlier = self.queue_keys.values().flatten().max().copied();
        let mut waiting = self.queue_keys.keys().filter(|token| Some(**token) > earlier);
        let last = waiting.nth(parties.get() as usize - 1).copied();
        last.filter(|last| own <= *last)
    }

    /// Whether all parties of a round have passed or ended, so that no party needs the mark any
    /// more.
    pub fn is_over(&self, round: Token) -> bool {
        self.queue_keys.range(..=round).all(|(_, passed)| passed.is_some())
    }

    /// The number of parties that have entered and not passed.
    pub fn waiting(&self) -> usize {
        self.queue_keys.values().filter(|passed| passed.is_none()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::Revision;

    fn token(n: i64) -> Token {
        Token(Revision(n))
    }

    fn round(queue_keys: &[(i64, Option<i64>)]) -> BarrierRound {
        BarrierRound {
            queue_keys: queue_keys.iter().map(|(own, passed)| (token(*own), passed.map(token))).collect(),
        }
    }

    const THREE: NonZeroU32 = NonZeroU32::new(3).unwrap();

    #[test]
    fn incomplete_round_does_not_pass() {
        let two = round(&[(1, None), (2, None)]);
        assert_eq!(two.of(token(1), THREE), None);
        let three = round(&[(1, None), (2, None), (5, None), (6, None)]);
        assert_eq!(three.of(token(1), THREE), Some(token(5)));
        assert_eq!(three.of(token(5), THREE), Some(token(5)));
        assert_eq!(three.of(token(6), THREE), None, "the fourth waits for the next round");
    }

    #[test]
    fn slow_party_passes_by_the_mark() {
        let later = round(&[(1, Some(5)), (5, None)]);
        assert_eq!(later.of(token(5), THREE), Some(token(5)));
        assert!(!later.is_over(token(5)), "the mark must stay until it was seen");
        assert!(round(&[(1, Some(5)), (5, Some(5)), (7, None)]).is_over(token(5)));
    }

    #[test]
    fn passed_parties_are_excluded_from_next_round() {
        let next = round(&[(1, Some(5)), (5, Some(5)), (7, None), (8, None)]);
        assert_eq!(next.of(token(7), THREE), None);
        let next = round(&[(5, None), (1, Some(5)), (7, None), (8, None), (9, None)]);
        assert_eq!(next.of(token(7), THREE), Some(token(9)), "a slow one of the last round does not count");
        assert_eq!(next.of(token(5), THREE), Some(token(5)));
    }
}
