//! The fold on short histories: which changes are one event, which process is named, and what a
//! seed is for.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::*;
use crate::change::Change;
use crate::id::Namespace;
use crate::kv::KeyValue;
use crate::layout::Layout;

/// The keys of a namespace and their history.
#[derive(Default)]
struct EventHistory {
    keys: BTreeMap<Bytes, KeyValue>,
    revision: i64,
}

fn put(key: &str, value: &str) -> (String, Option<String>) {
    (format!("/t/{key}"), Some(value.to_owned()))
}

fn delete(key: &str) -> (String, Option<String>) {
    (format!("/t/{key}"), None)
}

impl EventHistory {
    /// The changes of one transaction.
    fn txn(&mut self, ops: impl IntoIterator<Item = (String, Option<String>)>) -> Vec<Change> {
        self.revision += 1;
        let revision = Revision(self.revision);
        let mut changes = Vec::new();
        for (key, value) in ops {
            let key = Bytes::from(key);
            let previous = self.keys.remove(&key);
            changes.push(match value {
                Some(value) => {
                    let (created, version) =
                        previous.as_ref().map_or((revision, 1), |pair| (pair.created, pair.version + 1));
                    let value = value.into();
                    let pair = KeyValue {
                        key: key.clone(),
                        value,
                        created,
                        modified: revision,
                        version,
                        lease: None,
                    };
                    self.keys.insert(key, pair.clone());
                    Change::Put { pair, previous }
                }
                None => Change::Delete { key, revision, previous },
            });
        }
        changes
    }

    /// The keys of locks and elections as they are now.
    fn queues(&self) -> Vec<KeyValue> {
        let is_queue =
            |key: &&KeyValue| key.key.starts_with(b"/t/locks/") || key.key.starts_with(b"/t/elections/");
        self.keys.values().filter(is_queue).cloned().collect()
    }
}

fn fold() -> EventFold {
    EventFold::new(Layout::new(&Namespace::parse("t").unwrap()))
}

/// A place in a queue; those of greater numbers are later in key order.
fn queue_key(queue: &str, n: u64) -> String {
    format!("{queue}/{n:x}-{n:016x}")
}

fn holder(node: &str) -> String {
    format!(r#"{{"node":"{node}"}}"#)
}

fn candidate(name: &str, fields: &str) -> String {
    format!(r#"{{"candidate":"{name}","queued":1000{fields}}}"#)
}

fn elections(events: &[Event]) -> Vec<&ElectionEvent> {
    let election = |event: &'_ Event| matches!(event.kind, EventKind::Election { .. });
    let events = events.iter().filter(|event| election(event));
    events
        .filter_map(|event| match &event.kind {
            EventKind::Election { event, .. } => Some(event),
            _ => None,
        })
        .collect()
}

#[test]
fn task_end_is_one_event() {
    let (mut history, mut fold) = (EventHistory::default(), fold());
    fold.handle(&history.txn([put("tasks/x", "{}")]));
    fold.handle(&history.txn([put("tasks/x/owner", r#"{"node":"w"}"#)]));
    let end = [
        put("state/x", r#"{"state":"completed","updated_at":7000}"#),
        delete("tasks/x"),
        delete("tasks/x/owner"),
    ];
    let events = fold.handle(&history.txn(end));
    let id = TaskId::parse("x").unwrap();
    let node = Some(NodeId::parse("w").unwrap());
    let event = TaskEvent::Ended { state: TaskState::Completed, node, reason: None };
    let kind = EventKind::Task { id, event };
    let expected = Event { at: Some(Timestamp(7_000)), ..Event::new(Revision(3), kind) };
    assert_eq!(events, [expected]);
}

#[test]
fn broken_lock_names_its_author() {
    let audit = |token: i64| {
        let record = r#"{"action":"break_lock","target":"l","reason":"stuck","at":9000,"token":"#;
        put("audit/01890000-0000-7000-8000-000000000001", &format!("{record}{token}}}"))
    };
    for (token, is_broken) in [(1, true), (99, false)] {
        let (mut history, mut fold) = (EventHistory::default(), fold());
        fold.handle(&history.txn([put(&queue_key("locks/l", 1), &holder("a"))]));
        let events = fold.handle(&history.txn([delete(&queue_key("locks/l", 1)), audit(token)]));
        let [Event { kind: EventKind::Lock { event, .. }, audit, at, .. }] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(matches!(event, LockEvent::Broken(_)), is_broken, "{event:?}");
        assert_eq!(audit.as_ref().map(|audit| audit.reason.as_str()), is_broken.then_some("stuck"));
        assert_eq!(*at, is_broken.then_some(Timestamp(9_000)));
    }
}

/// The first key may belong to a dead process, so only its own mark shows that it leads.
#[test]
fn waiting_candidate_leads_when_key_is_marked() {
    let (mut history, mut fold) = (EventHistory::default(), fold());
    let (a, b) = (queue_key("elections/e", 2), queue_key("elections/e", 1));
    let first = fold.handle(&history.txn([put(&a, &candidate("a", ""))]));
    assert!(matches!(elections(&first)[..], [ElectionEvent::LeaderElected { previous: None, .. }]));
    assert_eq!(fold.handle(&history.txn([put(&b, &candidate("b", ""))])), []);
    let next = fold.handle(&history.txn([delete(&a)]));
    let lapsed = Some(TermOutcome::Lapsed);
    assert!(
        matches!(elections(&next)[..], [ElectionEvent::CandidateNext { previous, .. }] if *previous == lapsed),
        "{next:?}"
    );
    let marked = fold.handle(&history.txn([put(&b, &candidate("b", r#","leads":true,"acquired":5000"#))]));
    let [ElectionEvent::LeaderElected { leader, previous: Some(previous) }] = elections(&marked)[..] else {
        panic!("{marked:?}")
    };
    assert_eq!((leader.holder.as_str(), leader.token), ("b", Token(Revision(2))));
    assert_eq!((previous.token, previous.outcome), (Token(Revision(1)), TermOutcome::Lapsed));
    // A record that is written again begins no term.
    assert_eq!(fold.handle(&history.txn([put(&b, &candidate("b", r#","leads":true,"value":"x""#))])), []);
}

/// A reader that begins later is shown the same: the fold depends on the history and the seed alone.
#[test]
fn seeded_fold_equals_complete_fold() {
    let mut history = EventHistory::default();
    let ops = |n: u64| match n % 6 {
        // The keys sort against the order of their creation.
        0 | 1 => vec![put(&queue_key("locks/l", 50 - n), &holder(&n.to_string()))],
        2 => vec![delete(&queue_key("locks/l", 50 - (n - 2)))],
        3 => vec![put(&queue_key("elections/e", 50 - n), &candidate(&n.to_string(), ""))],
        4 => vec![put(&queue_key("elections/e", 50 - n), &candidate(&n.to_string(), ""))],
        _ => vec![put("tasks/x", "{}"), delete(&queue_key("locks/l", 50 - (n - 4)))],
    };
    let mut whole = fold();
    let (mut seeds, mut batches, mut events) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..30 {
        seeds.push(history.queues());
        let changes = history.txn(ops(n));
        events.push(whole.handle(&changes));
        batches.push(changes);
    }
    assert!(events.iter().flatten().count() > 20, "{events:?}");
    for (cut, seed) in seeds.into_iter().enumerate() {
        let mut later = fold();
        later.seed(seed);
        for (changes, expected) in batches.iter().zip(&events).skip(cut) {
            assert_eq!(later.handle(changes), *expected, "from {cut}");
        }
    }
}

#[test]
fn unreadable_values_are_events_and_never_quoted() {
    let (mut history, mut fold) = (EventHistory::default(), fold());
    let mut events = Vec::new();
    for key in ["tasks/x", "tasks/x/owner", "commands/x", "tasks/x/else", "frozen/w", "audit/x", "state/x"] {
        events.extend(fold.handle(&history.txn([put(key, "s3cret")])));
    }
    events.extend(fold.handle(&history.txn([put(&queue_key("locks/l", 1), "s3cret")])));
    let task = |event| EventKind::Task { id: TaskId::parse("x").unwrap(), event };
    let kinds: Vec<&EventKind> = events.iter().map(|event| &event.kind).collect();
    assert!(matches!(kinds[0], EventKind::Task { event: TaskEvent::Unreadable { .. }, .. }), "{events:?}");
    assert_eq!(*kinds[1], task(TaskEvent::Claimed { node: None, token: Token(Revision(2)) }));
    assert!(matches!(kinds[3], EventKind::UnknownKey { among: KeyFamily::Tasks, .. }));
    assert_eq!(kinds.len(), 6);
    assert!(!format!("{events:?}").contains("s3cret"));
}
