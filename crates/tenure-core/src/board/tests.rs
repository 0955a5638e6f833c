//! Stories of the board, and a model: whatever the feed went through, the board is what the store holds.

use proptest::prelude::*;

use super::*;
use crate::change::{PreviousValues, WatchItem, WatchStart};
use crate::id::Namespace;
use crate::keyspace::Keyspace;
use crate::kv::Get;
use crate::limits::Limits;
use crate::snapshot::SnapshotDiff;
use crate::time::Moment;
use crate::txn::{Op, Txn};

const NOW: Moment = Moment::ORIGIN;

fn task(name: &str) -> TaskId {
    TaskId::parse(name).unwrap()
}

fn layout() -> Layout {
    Layout::new(&Namespace::parse("t").unwrap())
}

fn put(key: &str, value: &str, created: i64, modified: i64) -> FeedItem {
    FeedItem::Put(KeyValue {
        key: format!("/t/tasks/{key}").into(),
        value: value.to_owned().into(),
        created: Revision(created),
        modified: Revision(modified),
        version: 1,
        lease: None,
    })
}

fn delete(key: &str, revision: i64) -> FeedItem {
    FeedItem::Delete { key: format!("/t/tasks/{key}").into(), revision: Revision(revision) }
}

fn whole(revision: i64) -> FeedItem {
    FeedItem::Synced(Revision(revision))
}

fn unowned(name: &str) -> BoardChange {
    BoardChange::Unowned(task(name))
}

fn owned(name: &str, node: &str, token: i64) -> BoardChange {
    let node = Some(NodeId::parse(node).unwrap());
    BoardChange::Owned { task: task(name), node, token: Token(Revision(token)) }
}

fn owner_gone(name: &str, token: i64) -> BoardChange {
    BoardChange::OwnerGone { task: task(name), token: Token(Revision(token)) }
}

fn gone(name: &str, created: i64) -> BoardChange {
    BoardChange::Gone { task: task(name), created: Revision(created) }
}

/// Feeds the items and compares the reported changes with the expected ones.
#[track_caller]
fn check(items: Vec<FeedItem>, expected: &[BoardChange]) -> Board {
    let mut board = Board::new(layout());
    let mut told = Vec::new();
    for item in items {
        board.handle_item(item, &mut told);
    }
    assert_eq!(told, expected);
    board
}

const A: &str = r#"{"node":"a"}"#;

#[test]
fn task_changes_are_reported_in_order() {
    check(
        vec![
            put("x", "{}", 2, 2),
            whole(2),
            put("x/owner", A, 3, 3),
            whole(3),
            delete("x/owner", 4),
            whole(4),
            delete("x", 5),
            whole(5),
        ],
        &[unowned("x"), owned("x", "a", 3), owner_gone("x", 3), unowned("x"), gone("x", 2)],
    );
}

#[test]
fn incomplete_snapshot_reports_nothing() {
    let board = check(vec![FeedItem::SnapshotBegin, put("x", "{}", 2, 2)], &[]);
    assert!(!board.is_fresh() && board.is_empty());
}

#[test]
fn old_snapshot_stays_during_relist() {
    let items =
        vec![put("x", "{}", 2, 2), whole(2), FeedItem::SnapshotBegin, delete("x", 9), put("y", "{}", 5, 5)];
    let board = check(items, &[unowned("x")]);
    assert!(!board.is_fresh(), "and nothing is decided with it");
    assert!(board.get(&task("x")).is_some() && board.get(&task("y")).is_none());
}

#[test]
fn ended_task_is_never_unowned() {
    let items = vec![
        put("x", "{}", 2, 2),
        put("x/owner", A, 3, 3),
        whole(3),
        delete("x", 4),
        delete("x/props", 4),
        delete("x/owner", 4),
        whole(4),
    ];
    let board = check(items, &[owned("x", "a", 3), gone("x", 2), owner_gone("x", 3)]);
    assert_eq!((board.live(), board.loads().len(), board.unowned().tasks), (0, 0, 0));
}

#[test]
fn t1_deleted_leaves_t10_and_t11_alone() {
    let items = vec![
        put("t1", "{}", 2, 2),
        put("t10", "{}", 3, 3),
        put("t11", "{}", 4, 4),
        whole(4),
        delete("t1", 5),
        whole(5),
    ];
    check(items, &[unowned("t1"), unowned("t10"), unowned("t11"), gone("t1", 2)]);
}

#[test]
fn resubmitted_task_is_another_incarnation() {
    let items = vec![put("x", "{}", 2, 2), whole(2), FeedItem::SnapshotBegin, put("x", "{}", 7, 7), whole(9)];
    check(items, &[unowned("x"), gone("x", 2), unowned("x")]);
}

#[test]
fn new_owner_between_snapshots_is_another_claim() {
    let items = vec![
        put("x", "{}", 2, 2),
        put("x/owner", A, 3, 3),
        whole(3),
        FeedItem::SnapshotBegin,
        put("x/owner", A, 8, 8),
        whole(9),
    ];
    check(items, &[owned("x", "a", 3), owner_gone("x", 3), owned("x", "a", 8)]);
}

#[test]
fn ended_task_is_not_claimable() {
    let items = vec![put("x", r#"{"ended":true}"#, 2, 2), whole(2)];
    let mut board = check(items, &[BoardChange::Changed(task("x"))]);
    assert_eq!((board.len(), board.live()), (1, 0));
    let mut told = Vec::new();
    board.handle_item(put("x", "{}", 2, 3), &mut told);
    board.handle_item(whole(3), &mut told);
    assert_eq!(told, [BoardChange::Changed(task("x")), unowned("x")]);
    assert_eq!(board.live(), 1);
}

#[test]
fn unreadable_task_is_set_aside() {
    let items = vec![
        put("bad", "not json", 2, 2),
        put("good", "{}", 3, 3),
        put("odd", "{}", 4, 4),
        put("odd/owner", "?", 5, 5),
        put("x/y/z", "foreign", 6, 6),
        put("good/props", "?", 7, 7),
        whole(7),
    ];
    let odd = BoardChange::Owned { task: task("odd"), node: None, token: Token(Revision(5)) };
    let board = check(items, &[BoardChange::Changed(task("bad")), unowned("good"), odd]);
    let set_aside: Vec<_> = board.set_aside().collect();
    assert_eq!(set_aside, [(&task("bad"), "not JSON from line 1 column 2 on")]);
    assert_eq!(board.unowned().tasks, 1);
    assert!(board.get(&task("good")).is_some_and(Card::is_unowned));
    assert_eq!((board.live(), board.loads().len()), (2, 0));
}

#[test]
fn owner_without_task_is_no_task() {
    let items = vec![put("x/owner", A, 3, 3), whole(3), put("x", "{}", 4, 4), whole(4)];
    let board = check(items, &[owned("x", "a", 3)]);
    assert_eq!(board.load_of(&NodeId::parse("a").unwrap()).tasks, 1);
}

/// What may happen to the store, and to the feed between it and the board.
#[derive(Clone, Debug)]
enum BoardStep {
    Put {
        key: u8,
        value: u8,
    },
    Delete(u8),
    /// The feed reads what there is to read.
    Follow,
    /// The feed breaks and lists anew, with this many changes while it is broken unseen.
    Break,
}

fn steps() -> impl Strategy<Value = Vec<BoardStep>> {
    let step = prop_oneof![
        4 => (0..8_u8, 0..6_u8).prop_map(|(key, value)| BoardStep::Put { key, value }),
        2 => (0..8_u8).prop_map(BoardStep::Delete),
        3 => Just(BoardStep::Follow),
        1 => Just(BoardStep::Break),
    ];
    prop::collection::vec(step, 0..60)
}

fn key_of(number: u8) -> String {
    let name = ["t1", "t10", "a%2Fb", "x"][usize::from(number % 4)];
    if number < 4 { format!("/t/tasks/{name}") } else { format!("/t/tasks/{name}/owner") }
}

const VALUES: [&str; 6] =
    ["{}", r#"{"labels":{"weight":"7"}}"#, r#"{"ended":true}"#, r#"{"node":"a"}"#, r#"{"node":"b"}"#, "?"];

proptest! {
    #[test]
    fn the_board_is_what_the_store_holds(steps in steps()) {
        let mut store = Keyspace::new(Limits::EMBEDDED);
        let everything = layout().tasks();
        let mut watch = store.watch(everything.clone(), WatchStart::Now, NOW).unwrap();
        let (mut picture, mut board, mut told) = (SnapshotDiff::new(), Board::new(layout()), Vec::new());
        let relist = |store: &mut Keyspace, picture: &mut SnapshotDiff, items: &mut Vec<FeedItem>| {
            picture.handle_break(items);
            let page = store.get(&Get::new(everything.clone()), NOW).unwrap();
            picture.handle_page(page.revision, page.pairs, items);
            picture.handle_listed(items);
        };
        let mut items = Vec::new();
        relist(&mut store, &mut picture, &mut items);
        for step in steps.into_iter().chain([BoardStep::Follow]) {
            match step {
                BoardStep::Put { key, value } => {
                    let op = Op::put(key_of(key), VALUES[usize::from(value)]);
                    store.apply(&Txn::from(op), NOW).unwrap();
                }
                BoardStep::Delete(key) => drop(store.apply(&Txn::from(Op::delete(key_of(key))), NOW).unwrap()),
                BoardStep::Follow => {
                    while let Some(Ok(WatchItem::Batch { revision, changes })) = store.poll_watch(watch, PreviousValues::Omitted) {
                        picture.handle_batch(revision, changes, &mut items);
                    }
                }
                BoardStep::Break => {
                    store.unwatch(watch);
                    relist(&mut store, &mut picture, &mut items);
                    watch = store.watch(layout().tasks(), WatchStart::Now, NOW).unwrap();
                }
            }
            for item in items.drain(..) {
                board.handle_item(item, &mut told);
            }
        }
        // The model: computed afresh from what the store holds.
        let page = store.get(&Get::new(layout().tasks()), NOW).unwrap();
        let mut fresh = Board::new(layout());
        let mut ignored = Vec::new();
        for pair in page.pairs {
            fresh.handle_item(FeedItem::Put(pair), &mut ignored);
        }
        fresh.handle_item(FeedItem::Synced(page.revision), &mut ignored);
        prop_assert_eq!(&board.tasks, &fresh.tasks);
        prop_assert_eq!(board.loads(), fresh.loads());
        prop_assert_eq!(board.unowned, fresh.unowned);
        prop_assert_eq!(&board.set_aside, &fresh.set_aside);
        prop_assert_eq!(board.live, fresh.live);
        // The sum of the reported changes matches as well.
        let mut free = BTreeSet::new();
        for change in told {
            match change {
                BoardChange::Unowned(task) => drop(free.insert(task)),
                BoardChange::Gone { task, .. } | BoardChange::Owned { task, .. } => drop(free.remove(&task)),
                BoardChange::Changed(task) => {
                    if fresh.tasks.get(&task).is_some_and(|card| !card.is_live()) {
                        free.remove(&task);
                    }
                }
                BoardChange::OwnerGone { .. } => {}
            }
        }
        let mut unowned = fresh.tasks.iter().filter(|(_, card)| card.is_unowned());
        prop_assert!(unowned.all(|(task, _)| free.contains(task)), "a claimable task was not reported");
    }
}
