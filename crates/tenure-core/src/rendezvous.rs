//! Rendezvous hashing: every process computes the same owner of a key, without asking any other.
//!
//! Each candidate gets a score for the key, and the highest score is chosen. When a candidate
//! leaves, only its keys move. When one joins, it takes an equal share from each of the others.
//! Nothing is stored, and no order of arrival matters.
//!
//! **Invariant**: the choice depends on the key and the set of candidates, not on their order.

use std::cmp::Ordering;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The score of a candidate for a key; the highest is chosen.
///
/// It is a contract between processes and versions: all of them must compute the same.
pub fn score(key: &[u8], candidate: &[u8]) -> u64 {
    Scores::of_key(key).of(candidate)
}

/// A key with its hash, for the scores of many candidates.
#[derive(Clone, Copy, Debug)]
pub struct Scores(u64);

impl Scores {
    /// Prepares the scores for a key.
    pub fn of_key(key: &[u8]) -> Scores {
        Scores(xxh3_64(key))
    }

    /// Returns the same as [`score`] for a candidate.
    pub fn of(self, candidate: &[u8]) -> u64 {
        xxh3_64_with_seed(candidate, self.0)
    }
}

/// The candidate chosen for a key; none if there is none.
pub fn pick<C: AsRef<[u8]>>(key: &[u8], candidates: impl IntoIterator<Item = C>) -> Option<C> {
    let seed = xxh3_64(key);
    let scored =
        candidates.into_iter().map(|candidate| (xxh3_64_with_seed(candidate.as_ref(), seed), candidate));
    scored.max_by(|a, b| order(a, b)).map(|(_, candidate)| candidate)
}

/// All candidates, the chosen one first, then the one that would be chosen without it, and so on.
pub fn rank<C: AsRef<[u8]>>(key: &[u8], candidates: impl IntoIterator<Item = C>) -> Vec<C> {
    let seed = xxh3_64(key);
    let mut scored: Vec<(u64, C)> = candidates
        .into_iter()
        .map(|candidate| (xxh3_64_with_seed(candidate.as_ref(), seed), candidate))
        .collect();
    scored.sort_unstable_by(|a, b| order(b, a));
    scored.into_iter().map(|(_, candidate)| candidate).collect()
}

/// The number of candidates with a higher score than one candidate: 0 if it is chosen.
pub fn rank_of<C: AsRef<[u8]>>(key: &[u8], one: &[u8], others: impl IntoIterator<Item = C>) -> usize {
    let seed = xxh3_64(key);
    let own = (xxh3_64_with_seed(one, seed), one);
    let is_before = |other: &C| {
        order(&(xxh3_64_with_seed(other.as_ref(), seed), other.as_ref()), &own) == Ordering::Greater
    };
    others.into_iter().filter(is_before).count()
}

/// By score, and by name for equal scores, so that all processes agree even then.
fn order<A: AsRef<[u8]>, B: AsRef<[u8]>>(a: &(u64, A), b: &(u64, B)) -> Ordering {
    a.0.cmp(&b.0).then_with(|| a.1.as_ref().cmp(b.1.as_ref()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nodes(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("node-{n}")).collect()
    }

    fn keys() -> impl Iterator<Item = String> {
        (0..10_000).map(|n| format!("task-{n}"))
    }

    #[test]
    fn scores_never_change() {
        // A change here moves every key of every user: if this fails, the change is wrong.
        assert_eq!(xxh3_64(b""), 0x2d06_8005_38d3_94c2, "the published value of XXH3");
        assert_eq!(score(b"", b""), 4_696_993_233_866_070_003);
        assert_eq!(pick(b"task-1", nodes(5)).unwrap(), rank(b"task-1", nodes(5))[0]);
    }

    #[test]
    fn no_candidate_means_no_choice() {
        assert_eq!(pick(b"a", [""; 0]), None);
        assert_eq!(rank_of(b"a", b"me", [""; 0]), 0);
    }

    #[test]
    fn keys_are_distributed_evenly() {
        let nodes = nodes(20);
        let mut counts = vec![0_u32; nodes.len()];
        for key in keys() {
            let meant = pick(key.as_bytes(), &nodes).unwrap();
            counts[nodes.iter().position(|node| node == meant).unwrap()] += 1;
        }
        // 500 each. The standard deviation of a fair choice is 22, so five times that is a faulty
        // hash.
        assert!(counts.iter().all(|count| (390..=610).contains(count)), "{counts:?}");
    }

    #[test]
    fn leaving_candidate_moves_only_its_keys() {
        let all = nodes(10);
        let left: Vec<String> = all.iter().filter(|node| *node != "node-3").cloned().collect();
        let mut moved = 0;
        for key in keys() {
            let (before, after) = (pick(key.as_bytes(), &all).unwrap(), pick(key.as_bytes(), &left).unwrap());
            if before == "node-3" {
                moved += 1;
                assert_eq!(*after, rank(key.as_bytes(), &all)[1].clone(), "the next in rank takes over");
            } else {
                assert_eq!(before, after);
            }
        }
        assert!((850..=1_150).contains(&moved), "{moved}");
    }

    proptest! {
        #[test]
        fn order_of_candidates_is_irrelevant(
            key in "[a-z]{0,8}",
            candidates in prop::collection::btree_set("[a-z]{0,6}", 1..12),
        ) {
            let candidates: Vec<String> = candidates.into_iter().collect();
            let ranked = rank(key.as_bytes(), &candidates);
            prop_assert_eq!(pick(key.as_bytes(), candidates.iter().rev()), Some(ranked[0]));
            for (at, one) in ranked.iter().enumerate() {
                prop_assert_eq!(rank_of(key.as_bytes(), one.as_bytes(), &candidates), at);
            }
        }
    }
}
