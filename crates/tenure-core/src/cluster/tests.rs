//! Keys of each part, and what is left out.

use super::*;
use crate::id::Namespace;

fn layout() -> Layout {
    Layout::new(&Namespace::parse("t").unwrap())
}

fn pair(key: &str, value: &str, created: i64) -> KeyValue {
    KeyValue {
        key: format!("/t/{key}").into(),
        value: value.to_owned().into(),
        created: Revision(created),
        modified: Revision(created),
        version: 1,
        lease: None,
    }
}

fn node(text: &str) -> NodeId {
    NodeId::parse(text).unwrap()
}

fn fold(parts: &[ClusterPart]) -> ClusterFold {
    ClusterFold::new(layout(), Revision(100), parts.iter().copied())
}

#[test]
fn members_frozen_nodes_and_commands_are_separate() {
    let mut fold = fold(&[ClusterPart::Members]);
    fold.handle([
        pair("nodes/a", r#"{"state":"ready"}"#, 1),
        pair("nodes/b", r#"{"state":"ready"}"#, 2),
        pair("nodes/bad", "s3cret", 3),
        pair("nodes/a/commands/1", "{}", 4),
        pair("nodes/gone/commands/1", "{}", 5),
        pair("frozen/b", "not json", 6),
        pair("nodes/a/else", "{}", 7),
    ]);
    let snapshot = fold.finish();
    assert_eq!(snapshot.members.len(), 2);
    assert_eq!(snapshot.members.set_aside().len(), 1);
    assert!(snapshot.takes_tasks(&node("a")) && !snapshot.takes_tasks(&node("b")));
    assert!(!snapshot.takes_tasks(&node("gone")), "no member");
    let pending = BTreeMap::from([(node("a"), 1), (node("gone"), 1)]);
    assert_eq!(snapshot.pending_commands, pending);
    assert_eq!(snapshot.revision, Revision(100));
    assert!(!format!("{:?}", snapshot.members).contains("s3cret"));
}

/// Read with their records or without, the tasks have the same owners.
#[test]
fn owners_do_not_depend_on_task_records() {
    let pairs = [
        pair("tasks/x", "{}", 1),
        pair("tasks/x/owner", r#"{"node":"a"}"#, 2),
        pair("tasks/y", "{}", 3),
        pair("tasks/y/owner", "not json", 4),
        pair("tasks/y/props", "{}", 4),
        pair("tasks/none", "{}", 5),
        // The task was deleted, and the lease of its owner has not ended.
        pair("tasks/gone/owner", r#"{"node":"a"}"#, 6),
    ];
    let mut whole = fold(&[ClusterPart::Tasks]);
    whole.handle(pairs.clone());
    let mut owners = fold(&[ClusterPart::Owners]);
    let keys = owners.handle_task_keys(pairs.clone());
    assert_eq!(keys.len(), 3);
    owners.handle(pairs.into_iter().filter(|pair| keys.contains(&pair.key)));
    let (whole, owners) = (whole.finish(), owners.finish());
    assert_eq!(whole.owners, owners.owners);
    assert_eq!(owners.owned(), BTreeMap::from([(&node("a"), 1)]));
    assert_eq!((whole.tasks.len(), owners.tasks.len()), (3, 0), "owners alone are no tasks");
}

#[test]
fn states_are_read_of_existing_tasks() {
    let mut fold = fold(&[ClusterPart::States]);
    assert!(fold.parts().contains(&ClusterPart::Tasks), "states need the tasks");
    fold.handle([pair("tasks/x", "{}", 1), pair("tasks/y", "{}", 2)]);
    assert_eq!(fold.state_keys(), ["/t/state/x", "/t/state/y"]);
    fold.handle([pair("state/x", r#"{"state":"paused"}"#, 3)]);
    let snapshot = fold.finish();
    let state = |id: &str| snapshot.state_of(&TaskId::parse(id).unwrap()).unwrap().state.kind();
    assert_eq!((state("x").as_str(), state("y").as_str()), ("paused", "runnable"));
}

#[test]
fn oldest_keys_of_queues_hold_and_lead() {
    let mut fold = fold(&[ClusterPart::Locks, ClusterPart::Elections]);
    let place = |n: u64| format!("{n:x}-{n:016x}");
    fold.handle([
        pair(&format!("locks/l/{}", place(1)), r#"{"node":"late"}"#, 9),
        pair(&format!("locks/l/{}", place(2)), r#"{"node":"early"}"#, 8),
        pair("locks/l/else", "{}", 1),
        pair(&format!("elections/e/{}", place(3)), r#"{"candidate":"b"}"#, 5),
        pair(&format!("elections/e/{}", place(4)), r#"{"candidate":"a"}"#, 4),
    ]);
    let snapshot = fold.finish();
    let names = |holders: &[Holder]| -> Vec<String> {
        holders.iter().map(|holder| holder.record.node.clone()).collect()
    };
    let (lock, election) = (&snapshot.locks[0], &snapshot.elections[0]);
    assert_eq!((names(&lock.holders), names(&lock.waiters)), (vec!["early".into()], vec!["late".into()]));
    assert_eq!(election.leader.as_ref().unwrap().record.candidate, "a");
    assert_eq!((election.candidates.len(), election.revision), (1, Revision(100)));
}
