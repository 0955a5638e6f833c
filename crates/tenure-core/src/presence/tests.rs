//! The presence set as a table of feed items and events, and against a model of a store.

mod model;

use bytes::Bytes;

use super::*;
use crate::id::{InstanceId, Namespace, NodeId, RegistryKey, ServiceName};
use crate::layout::Layout;
use crate::record::{InstanceValue, MemberRecord, Record};

/// A feed item or reply, in short: keys are node ids, values are addresses.
enum FeedStep {
    Begin,
    /// Key, created, modified, value.
    Put(&'static str, i64, i64, &'static str),
    Gone(&'static str, i64),
    Whole(i64),
    Answer,
    Silence,
}

use FeedStep::{Answer, Begin, Gone, Put, Silence, Whole};

fn layout() -> Layout {
    Layout::new(&Namespace::parse("ns").unwrap())
}

fn pair(key: Bytes, value: impl Into<Bytes>, created: i64, modified: i64) -> KeyValue {
    KeyValue {
        key,
        value: value.into(),
        created: Revision(created),
        modified: Revision(modified),
        version: 1,
        lease: None,
    }
}

fn key(name: &str) -> Bytes {
    format!("/ns/nodes/{name}").into()
}

fn at(address: &str) -> Bytes {
    format!(r#"{{"v":1,"address":"{address}"}}"#).into()
}

fn show(member: &Presence<NodeId, MemberRecord>) -> String {
    format!("{}={}#{}", member.id, member.record.address.as_deref().unwrap_or("-"), member.token)
}

fn show_event(event: &PresenceEvent<NodeId, MemberRecord>) -> String {
    match event {
        PresenceEvent::Snapshot(snapshot) => {
            let members: Vec<String> = snapshot.members().iter().map(|member| show(member)).collect();
            format!("snapshot@{}[{}]", snapshot.revision, members.join(","))
        }
        PresenceEvent::Joined(member) => format!("+{}", show(member)),
        PresenceEvent::Updated { before, now } => format!("{}>{}", show(before), show(now)),
        PresenceEvent::Left { member, revision } => format!("-{}@{revision}", show(member)),
        PresenceEvent::Unreadable(aside) => format!("bad:{}", aside.id),
        PresenceEvent::Cleared { id, .. } => format!("cleared:{id}"),
        PresenceEvent::Stale { heard } => format!("stale:{}", heard.since_origin().as_secs()),
        PresenceEvent::Fresh { revision } => format!("fresh@{revision}"),
    }
}

/// One second passes before each step.
fn run(steps: &[FeedStep]) -> (PresenceSet<NodePresence>, String) {
    let mut set = PresenceSet::new(NodePresence(layout()));
    let mut events = Vec::new();
    for (second, step) in steps.iter().enumerate() {
        let now = Moment::after_origin(Duration::from_secs(second as u64));
        match step {
            Begin => set.handle_item(FeedItem::SnapshotBegin, now, &mut events),
            Put(name, created, modified, "?") => {
                let item = FeedItem::Put(pair(key(name), "not a record", *created, *modified));
                set.handle_item(item, now, &mut events);
            }
            Put(name, created, modified, address) => {
                let item = FeedItem::Put(pair(key(name), at(address), *created, *modified));
                set.handle_item(item, now, &mut events);
            }
            Gone(name, revision) => {
                let item = FeedItem::Delete { key: key(name), revision: Revision(*revision) };
                set.handle_item(item, now, &mut events);
            }
            Whole(revision) => set.handle_item(FeedItem::Synced(Revision(*revision)), now, &mut events),
            Answer => set.handle_reply(now, &mut events),
            Silence => set.handle_no_reply(&mut events),
        }
    }
    let shown_events: Vec<String> = events.iter().map(show_event).collect();
    (set, shown_events.join(" "))
}

#[track_caller]
fn check(events: &[FeedStep], expected: &str) {
    assert_eq!(run(events).1, expected);
}

#[test]
fn empty_listing_is_a_snapshot() {
    check(&[Begin, Whole(5)], "snapshot@5[]");
}

#[test]
fn snapshot_comes_first_then_changes() {
    check(
        &[
            Begin,
            Put("a", 2, 2, "x"),
            Put("b", 3, 4, "y"),
            Whole(5),
            Put("c", 6, 6, "z"),
            Whole(6),
            Put("a", 2, 7, "w"),
            Whole(7),
            Gone("b", 8),
            Whole(8),
        ],
        "snapshot@5[a=x#2,b=y#3] +c=z#6 a=x#2>a=w#2 -b=y#3@8",
    );
}

#[test]
fn nothing_is_reported_during_a_break() {
    let half =
        [Begin, Put("a", 2, 2, "x"), Put("b", 3, 3, "y"), Whole(5), Begin, Gone("a", 9), Put("c", 8, 8, "z")];
    let (mut set, shown_events) = run(&half);
    assert_eq!(shown_events, "snapshot@5[a=x#2,b=y#3] stale:3");
    let shown = set.snapshot().unwrap();
    assert_eq!((shown.revision, shown.len()), (Revision(5), 2), "an incomplete listing is not shown");
    check(
        &[
            Begin,
            Put("a", 2, 2, "x"),
            Put("b", 3, 3, "y"),
            Whole(5),
            Begin,
            Gone("a", 9),
            Put("c", 8, 8, "z"),
            Whole(9),
        ],
        "snapshot@5[a=x#2,b=y#3] stale:3 -a=x#2@9 +c=z#8 fresh@9",
    );
}

#[test]
fn unwatched_restart_is_a_new_incarnation() {
    check(
        &[Begin, Put("a", 2, 2, "x"), Whole(5), Begin, Put("a", 7, 7, "x"), Whole(9)],
        "snapshot@5[a=x#2] stale:2 -a=x#2@7 +a=x#7 fresh@9",
    );
    // The same changes with an open watch: the same events except for the break.
    check(
        &[Begin, Put("a", 2, 2, "x"), Whole(5), Gone("a", 6), Whole(6), Put("a", 7, 7, "x"), Whole(7)],
        "snapshot@5[a=x#2] -a=x#2@6 +a=x#7",
    );
}

#[test]
fn member_seen_only_during_break_is_skipped() {
    check(
        &[Begin, Whole(5), Begin, Put("a", 6, 6, "x"), Begin, Gone("a", 9), Whole(9)],
        "snapshot@5[] stale:1 fresh@9",
    );
}

#[test]
fn unreadable_key_is_reported_and_affects_no_other() {
    check(
        &[
            Begin,
            Put("a", 2, 2, "?"),
            Put("b", 3, 3, "y"),
            Whole(5),
            Put("b", 3, 6, "?"),
            Whole(6),
            Put("a", 2, 7, "x"),
            Whole(7),
            Gone("b", 8),
            Whole(8),
        ],
        "snapshot@5[b=y#3] -b=y#3@6 bad:b cleared:a +a=x#2 cleared:b",
    );
    let (mut set, _) = run(&[Begin, Put("a", 2, 2, "?"), Whole(5)]);
    let shown = set.snapshot().unwrap();
    assert!(shown.is_empty());
    assert_eq!(shown.set_aside()[0].why, "not JSON from line 1 column 2 on");
}

#[test]
fn commands_and_foreign_keys_are_skipped() {
    let command = "a/commands/0190a000-0000-7000-8000-0123456789ab";
    check(
        &[Begin, Put(command, 2, 2, "x"), Put("a/what/else", 3, 3, "x"), Put("%", 4, 4, "x"), Whole(5)],
        "snapshot@5[]",
    );
}

#[test]
fn missing_reply_makes_stale_and_reply_fresh() {
    check(
        &[Begin, Put("a", 2, 2, "x"), Whole(5), Answer, Silence, Silence, Answer, Whole(7)],
        "snapshot@5[a=x#2] stale:3 fresh@5",
    );
    check(&[Begin, Whole(5), Silence, Begin, Answer, Whole(6)], "snapshot@5[] stale:1 fresh@6");
    check(&[Begin, Answer, Silence], "");
}

#[test]
fn age_counts_from_the_last_reply() {
    let (set, _) = run(&[Begin]);
    assert_eq!(set.age(Moment::from_ms(9_000)), None);
    let (set, _) = run(&[Begin, Whole(5), Answer, Silence, Begin]);
    assert_eq!(set.age(Moment::from_ms(9_000)), Some(Duration::from_secs(7)));
    assert!(!set.is_fresh());
}

#[test]
fn snapshot_finds_by_id_and_wraps_around() {
    let (mut set, _) = run(&[Begin, Put("a", 2, 2, "x"), Put("c", 3, 3, "y"), Whole(5), Whole(9)]);
    let shown = set.snapshot().unwrap();
    assert_eq!(shown.revision, Revision(9), "progress moves the snapshot to a later revision");
    let node = |text| NodeId::parse(text).unwrap();
    assert_eq!(shown.get(&node("c")).unwrap().token, Token(Revision(3)));
    assert!(shown.get(&node("b")).is_none());
    let turns = [(None, "a"), (Some("a"), "c"), (Some("b"), "c"), (Some("c"), "a"), (Some("z"), "a")];
    for (last, next) in turns {
        assert_eq!(shown.after(last.map(node).as_ref()).unwrap().id, node(next), "after {last:?}");
    }
}

#[test]
fn service_with_longer_name_is_separate() {
    let name = |text| ServiceName::parse(text).unwrap();
    let instance = |text| InstanceId::parse(text).unwrap();
    for (service, id) in [("a", "1"), ("a", "b/1"), ("a/b", "1"), ("50%", "%2F")] {
        let key = RegistryKey::of_instance(&name(service), &instance(id)).unwrap();
        assert_eq!(key.as_instance(), Some((name(service), instance(id))), "{key}");
    }
    let named = |text| InstancePresence { layout: layout(), name: name(text) };
    assert_eq!(named("a").id(b"/ns/registry/services/a/1"), Some(instance("1")));
    assert_eq!(named("a").id(b"/ns/registry/services/a%2Fb/1"), None);
    assert_eq!(named("a/b").id(b"/ns/registry/services/a%2Fb/1"), Some(instance("1")));
    for foreign in ["services/a", "services/a/b/1", "services//1", "services/a/", "api/1", "services/a%2f/1"]
    {
        let key = format!("/ns/registry/{foreign}");
        assert_eq!(AllInstancePresence(layout()).id(key.as_bytes()), None, "{foreign}");
    }
    assert!(layout().service(&name("a")).check().is_ok());
    assert!(!layout().service(&name("a")).contains(b"/ns/registry/services/ab/1"));
    assert!(RegistryKey::of_instance(&name(&"/".repeat(100)), &instance("1")).is_err());
}

#[test]
fn plain_value_is_an_instance() {
    let read = |text: &str| InstanceValue::read(&Bytes::copy_from_slice(text.as_bytes()));
    assert_eq!(read("10.0.0.1:80").unwrap().address(), Some("10.0.0.1:80"));
    assert_eq!(read(r#"{"v":1,"address":"x","metadata":{"zone":3}}"#).unwrap().address(), Some("x"));
    assert_eq!(read(r#"{"host":"x"}"#).unwrap().address(), Some(r#"{"host":"x"}"#));
    assert_eq!(InstanceValue::read(&Bytes::from_static(b"\xff")).unwrap().address(), None);
    assert!(read(r#"{"v":2,"address":"x"}"#).is_err());
    assert!(read(r#"{"address":5}"#).is_err());
    let zones: BTreeMap<String, u8> = read(r#"{"v":1,"metadata":{"zone":3}}"#).unwrap().metadata().unwrap();
    assert_eq!(zones["zone"], 3);
    assert_eq!(read("x").unwrap().metadata::<Option<u8>>().unwrap(), None);
}

#[test]
fn absent_record_fields_are_not_written() {
    let record = MemberRecord::decode(br#"{"address":"x","state":"ready"}"#).unwrap();
    assert!(!String::from_utf8_lossy(&record.encode()).contains("nonce"), "an absent nonce is not written");
}
