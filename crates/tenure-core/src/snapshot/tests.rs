//! The machine as a table of inputs and items.

use proptest::prelude::*;

use super::*;

/// An input of the machine, in short.
enum DiffStep {
    Break,
    Page(i64, &'static [(&'static str, i64)]),
    Listed,
    Put(i64, &'static str),
    Delete(i64, &'static str),
    Progress(i64),
}

use DiffStep::{Break, Delete, Listed, Page, Progress, Put};

fn pair(key: &str, modified: i64) -> KeyValue {
    KeyValue {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::new(),
        created: Revision(modified),
        modified: Revision(modified),
        version: 1,
        lease: None,
    }
}

fn show(items: &[FeedItem]) -> String {
    let show_one = |item: &FeedItem| match item {
        FeedItem::SnapshotBegin => "begin".to_owned(),
        FeedItem::Put(pair) => format!("{}@{}", String::from_utf8_lossy(&pair.key), pair.modified),
        FeedItem::Delete { key, revision } => format!("-{}@{revision}", String::from_utf8_lossy(key)),
        FeedItem::Synced(revision) => format!("whole@{revision}"),
    };
    items.iter().map(show_one).collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn check(events: &[DiffStep], expected: &str) {
    let mut diff = SnapshotDiff::new();
    let mut items = Vec::new();
    for event in events {
        match event {
            Break => diff.handle_break(&mut items),
            Page(at, pairs) => {
                let pairs = pairs.iter().map(|&(key, modified)| pair(key, modified)).collect();
                diff.handle_page(Revision(*at), pairs, &mut items);
            }
            Listed => diff.handle_listed(&mut items),
            Put(at, key) => {
                let put = Change::Put { pair: pair(key, *at), previous: None };
                diff.handle_batch(Revision(*at), vec![put], &mut items);
            }
            Delete(at, key) => {
                let key = Bytes::from_static(key.as_bytes());
                let delete = Change::Delete { key, revision: Revision(*at), previous: None };
                diff.handle_batch(Revision(*at), vec![delete], &mut items);
            }
            Progress(at) => diff.handle_progress(Revision(*at), &mut items),
        }
    }
    assert_eq!(show(&items), expected);
}

#[test]
fn empty_listing_is_synced() {
    check(&[Break, Page(5, &[]), Listed], "begin whole@5");
}

#[test]
fn listing_is_followed_by_changes() {
    check(
        &[Break, Page(5, &[("a", 2), ("b", 3)]), Listed, Put(6, "c"), Delete(7, "a"), Progress(9)],
        "begin a@2 b@3 whole@5 c@6 whole@6 -a@7 whole@7 whole@9",
    );
}

#[test]
fn new_listing_returns_only_differences() {
    check(
        &[
            Break,
            Page(5, &[("a", 1), ("b", 2), ("c", 3), ("d", 4)]),
            Listed,
            Break,
            Page(9, &[("a", 1), ("c", 7), ("e", 8)]),
            Listed,
        ],
        "begin a@1 b@2 c@3 d@4 whole@5 begin -b@9 c@7 -d@9 e@8 whole@9",
    );
}

#[test]
fn key_missing_between_pages_is_deleted() {
    check(
        &[
            Break,
            Page(5, &[("a", 1), ("b", 1), ("c", 1), ("z", 1)]),
            Listed,
            Break,
            Page(8, &[("a", 1)]),
            Page(8, &[("c", 1)]),
            Listed,
        ],
        "begin a@1 b@1 c@1 z@1 whole@5 begin -b@8 -z@8 whole@8",
    );
}

#[test]
fn broken_listing_continues_with_the_next() {
    check(
        &[
            Break,
            Page(5, &[("a", 1), ("b", 1)]),
            Listed,
            Break,
            Page(8, &[("b", 7)]),
            Break,
            Break,
            Page(9, &[("a", 9), ("b", 7)]),
            Listed,
        ],
        "begin a@1 b@1 whole@5 begin -a@8 b@7 a@9 whole@9",
    );
}

#[test]
fn repeated_revisions_are_ignored() {
    check(
        &[Break, Page(5, &[("a", 5)]), Listed, Put(5, "a"), Progress(4), Delete(6, "x"), Progress(6)],
        "begin a@5 whole@5 whole@6",
    );
}

proptest! {
    /// A follower with any knowledge has exactly the listing after it.
    #[test]
    fn follower_equals_listing_after_any_break(
        listings in prop::collection::vec((prop::collection::btree_map(0..30u8, 1..5i64, 0..20), 1..7usize), 1..6),
    ) {
        let mut diff = SnapshotDiff::new();
        let mut follower: BTreeMap<Bytes, Revision> = BTreeMap::new();
        for (round, (listing, page_len)) in (10..).zip(listings) {
            let pairs: Vec<_> = listing.iter().map(|(key, modified)| pair(&format!("{key:02}"), *modified)).collect();
            let mut items = Vec::new();
            diff.handle_break(&mut items);
            diff.handle_page(Revision(round), Vec::new(), &mut items);
            for page in pairs.chunks(page_len) {
                diff.handle_page(Revision(round), page.to_vec(), &mut items);
            }
            diff.handle_listed(&mut items);
            for item in items {
                match item {
                    FeedItem::Put(pair) => {
                        let before = follower.insert(pair.key, pair.modified);
                        prop_assert_ne!(before, Some(pair.modified), "a known put was returned again");
                    }
                    FeedItem::Delete { key, .. } => prop_assert!(follower.remove(&key).is_some(), "an unknown key was deleted"),
                    FeedItem::SnapshotBegin | FeedItem::Synced(_) => {}
                }
            }
            let expected: BTreeMap<_, _> = pairs.into_iter().map(|pair| (pair.key, pair.modified)).collect();
            prop_assert_eq!(&follower, &expected);
            prop_assert_eq!(diff.len(), expected.len());
        }
    }
}
