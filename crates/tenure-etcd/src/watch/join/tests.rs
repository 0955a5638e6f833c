//! Whole revisions, however the server cuts them.

use proptest::prelude::*;

use super::super::{RevisionBatch, WatchEvent};
use super::{Join, More, OutOfOrder};
use bytes::Bytes;

fn event(revision: i64, key: usize) -> WatchEvent {
    WatchEvent::Delete { key: Bytes::from(format!("k{key}")), revision, prev: None }
}

/// One event per number, which is its revision.
fn events(revisions: &[i64]) -> Vec<WatchEvent> {
    revisions.iter().enumerate().map(|(key, revision)| event(*revision, key)).collect()
}

fn shape(batches: &[RevisionBatch]) -> Vec<(i64, usize)> {
    batches.iter().map(|batch| (batch.revision, batch.events.len())).collect()
}

/// Pushes messages, given as revisions and whether more follows, and compares the revisions and their sizes.
fn check(last: i64, messages: &[(&[i64], More)], wanted: &[(i64, usize)]) {
    let mut join = Join::default();
    let mut whole = Vec::new();
    for (revisions, more) in messages {
        join.push(events(revisions), *more, last, &mut whole).unwrap();
    }
    assert_eq!(shape(&whole), wanted);
}

#[test]
fn response_with_many_revisions_is_split() {
    check(0, &[(&[2, 3, 3, 4], More::No)], &[(2, 1), (3, 2), (4, 1)]);
}

#[test]
fn fragmented_revision_is_joined() {
    check(0, &[(&[2, 3], More::Yes), (&[3, 3], More::Yes), (&[3, 5], More::No)], &[(2, 1), (3, 4), (5, 1)]);
}

#[test]
fn delivered_revisions_are_dropped() {
    check(3, &[(&[2, 3, 3, 4], More::No)], &[(4, 1)]);
    check(9, &[(&[2, 3], More::No)], &[]);
}

#[test]
fn complete_revisions_of_fragment_are_delivered() {
    let mut join = Join::default();
    let mut whole = Vec::new();
    join.push(events(&[2, 3, 4]), More::Yes, 0, &mut whole).unwrap();
    assert_eq!(shape(&whole), [(2, 1), (3, 1)]);
    assert!(join.is_open());
}

#[test]
fn decreasing_revision_is_an_error() {
    let mut join = Join::default();
    let mut whole = Vec::new();
    assert_eq!(join.push(events(&[5, 4]), More::No, 0, &mut whole), Err(OutOfOrder));
}

proptest! {
    /// Whatever the sizes of the revisions and wherever the fragments end, the same whole revisions come out.
    #[test]
    fn any_fragmentation_gives_same_revisions(
        sizes in prop::collection::vec(1_usize..6, 1..40),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let all: Vec<WatchEvent> = sizes
            .iter()
            .enumerate()
            .flat_map(|(n, size)| (0..*size).map(move |key| event(i64::try_from(n).unwrap() + 2, key)))
            .collect();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(all.len())).collect();
        ends.push(all.len());
        ends.sort_unstable();

        let mut join = Join::default();
        let mut whole = Vec::new();
        let mut begin = 0;
        for (n, end) in ends.iter().enumerate() {
            let more = if n + 1 < ends.len() { More::Yes } else { More::No };
            join.push(all[begin..*end].to_vec(), more, 0, &mut whole).unwrap();
            begin = *end;
        }
        prop_assert!(!join.is_open());
        prop_assert!(whole.windows(2).all(|pair| pair[0].revision < pair[1].revision));
        prop_assert_eq!(whole.iter().map(|batch| batch.events.len()).collect::<Vec<_>>(), sizes);
        prop_assert_eq!(whole.into_iter().flat_map(|batch| batch.events).collect::<Vec<_>>(), all);
    }
}
