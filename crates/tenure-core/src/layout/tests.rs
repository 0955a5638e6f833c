//! Every key parses as it was encoded, and no name reaches another's keys.

use proptest::prelude::*;

use super::*;

fn layout() -> Layout {
    Layout::new(&Namespace::parse("shop/eu").unwrap())
}

fn task(text: &str) -> TaskId {
    TaskId::parse(text).unwrap()
}

const COMMAND: &str = "0190a000-0000-7000-8000-0123456789ab";

#[test]
fn keys_match_the_documentation() {
    let place = QueueKey { lease: LeaseId::new(0x7587_8f3b).unwrap(), nonce: 0xabc };
    let command = CommandId::parse(COMMAND).unwrap();
    let node = NodeId::parse("web-1").unwrap();
    for (key, text) in [
        (Key::Node(node.clone()), "/shop/eu/nodes/web-1".to_owned()),
        (Key::NodeCommand(node.clone(), command.clone()), format!("/shop/eu/nodes/web-1/commands/{COMMAND}")),
        (
            Key::NodeCommand(node.clone(), CommandId::parse("stop/1").unwrap()),
            "/shop/eu/nodes/web-1/commands/stop%2F1".to_owned(),
        ),
        (Key::Task(task("a/b")), "/shop/eu/tasks/a%2Fb".to_owned()),
        (Key::TaskProps(task("100%")), "/shop/eu/tasks/100%25/props".to_owned()),
        (Key::TaskOwner(task("t1")), "/shop/eu/tasks/t1/owner".to_owned()),
        (Key::TaskState(task("t1")), "/shop/eu/state/t1".to_owned()),
        (Key::TaskCommand(task("t1")), "/shop/eu/commands/t1".to_owned()),
        (Key::CommandResult(command), format!("/shop/eu/results/{COMMAND}")),
        (Key::Frozen(node), "/shop/eu/frozen/web-1".to_owned()),
        (
            Key::Candidate(ElectionName::parse("boss").unwrap(), place),
            "/shop/eu/elections/boss/75878f3b-0000000000000abc".to_owned(),
        ),
        (
            Key::Waiter(LockName::parse("deploy").unwrap(), place),
            "/shop/eu/locks/deploy/75878f3b-0000000000000abc".to_owned(),
        ),
        (Key::Ttl(ElectionName::parse("a/b").unwrap()), "/shop/eu/ttl/a%2Fb".to_owned()),
        (Key::Run(LockName::parse("back/up").unwrap()), "/shop/eu/once/back%2Fup".to_owned()),
        (Key::Registration(RegistryKey::parse("api/1").unwrap()), "/shop/eu/registry/api/1".to_owned()),
    ] {
        assert_eq!(layout().encode(&key), text);
        assert_eq!(layout().parse(text.as_bytes()), Some(key), "{text}");
    }
}

/// So that they can be read alone from a long queue.
#[test]
fn preferred_keys_sort_after_ordinary_ones() {
    let lease = LeaseId::new(i64::MAX).unwrap();
    let boss = || ElectionName::parse("boss").unwrap();
    let key = |place| layout().encode(&Key::Candidate(boss(), place));
    let preferred = key(QueueKey::ranked(LeaseId::new(1).unwrap(), 0xabc, PriorityClass::Preferred));
    assert_eq!(preferred, "/shop/eu/elections/boss/p1-8000000000000abc");
    assert!(key(QueueKey::ranked(lease, u64::MAX, PriorityClass::Ordinary)) < preferred);
    for rank in [PriorityClass::Ordinary, PriorityClass::Preferred] {
        let place = QueueKey::ranked(lease, u64::MAX, rank);
        assert_eq!(place.rank(), rank);
        assert_eq!(layout().parse(&key(place)), Some(Key::Candidate(boss(), place)));
    }
    for foreign in ["p1-0000000000000abc", "1-8000000000000abc", "pp1-8000000000000abc"] {
        assert_eq!(QueueKey::parse(foreign), None, "{foreign}");
    }
}

#[test]
fn a_foreign_key_is_nobodys() {
    for text in [
        "/shop/eu/tasks/",
        "/shop/eu/tasks/a/b",
        "/shop/eu/tasks/a%2fb",
        "/shop/eu/tasks/a%",
        "/shop/eu/tasks/a%20b",
        "/shop/eu/nodes/a/commands/",
        "/shop/eu/nodes/a/commands/x/y",
        "/shop/eu/nodes/a/commands/a\nb",
        "/shop/eu/locks/deploy/foreign",
        "/shop/eu/locks/deploy/0-0000000000000abc",
        "/shop/eu/locks/deploy/75878F3B-0000000000000abc",
        "/shop/eu/locks/deploy/75878f3b-abc",
        "/shop/europe/tasks/a",
        "/shop/eu/what/else",
        "/shop/eu",
        "",
    ] {
        assert_eq!(layout().parse(text.as_bytes()), None, "{text}");
    }
    assert_eq!(layout().parse(&[b'/', 0xff]), None);
}

#[test]
fn one_task_s_parts_are_not_another_s() {
    let parts = layout().task_parts(&task("t1"));
    assert!(parts.contains(&layout().encode(&Key::TaskOwner(task("t1")))));
    assert!(!parts.contains(&layout().encode(&Key::TaskOwner(task("t10")))));
    assert!(!parts.contains(&layout().encode(&Key::TaskOwner(task("t1/x")))));
    assert!(parts.check().is_ok());
}

proptest! {
    #[test]
    fn namespaces_have_distinct_directories(a in "[./%2Eab]{1,6}", b in "[./%2Eab]{1,6}") {
        let (Ok(first), Ok(second)) = (Namespace::parse(&a), Namespace::parse(&b)) else { return Ok(()) };
        let folder = folder_name(&first);
        prop_assert!(!folder.contains('/') && folder != "." && folder != "..", "{}", folder);
        prop_assert_eq!(first == second, folder == folder_name(&second));
    }

    #[test]
    fn names_round_trip_and_stay_separate(a in "[^\\p{Cc}\\p{Cf}]{1,40}", b in "[^\\p{Cc}\\p{Cf}]{1,40}") {
        let (Ok(first), Ok(second)) = (TaskId::parse(&a), TaskId::parse(&b)) else { return Ok(()) };
        let key = Key::TaskOwner(first.clone());
        prop_assert_eq!(layout().parse(&layout().encode(&key)), Some(key.clone()));
        if first != second {
            prop_assert!(!layout().task_parts(&second).contains(&layout().encode(&key)));
        }
    }

    #[test]
    fn parsed_key_encodes_to_same_bytes(
        bytes in prop::collection::vec(prop::sample::select(b"/%25F2fat1-shopeunodstalkc\0\xff".to_vec()), 0..40),
        kind in prop::sample::select(vec!["", "nodes/", "tasks/", "locks/", "registry/", "elections/a/", "state/", "ttl/"]),
    ) {
        let mut key = format!("/shop/eu/{kind}").into_bytes();
        key.extend(bytes);
        if let Some(parsed) = layout().parse(&key) {
            prop_assert_eq!(layout().encode(&parsed), key);
        }
    }
}

#[test]
fn queue_key_encoding_matches_display() {
    let leases = [1, 0xf, 0x10, 0x33b7_9b6c_c113_a37e, i64::MAX].map(|id| LeaseId::new(id).unwrap());
    for lease in leases {
        for nonce in [0, 1, 0xabc, (1 << 63) - 1, 1 << 63, u64::MAX] {
            let place = QueueKey { lease, nonce };
            assert_eq!(place.key_in(b"/shop/locks/a/"), format!("/shop/locks/a/{place}"));
        }
    }
}
