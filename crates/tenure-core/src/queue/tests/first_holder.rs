//! The identity in the oldest key, as a refused caller reads it.

use bytes::Bytes;

use super::*;
use crate::id::Namespace;
use crate::kv::{Get, KeyValue, Page, SortOrder};
use crate::layout::Layout;
use crate::record::{CandidateRecord, HolderRecord, Identity, Record};

const QUEUE: Bytes = Bytes::from_static(b"/t/locks/a/");

fn requests(kind: QueueKind) -> QueueRequests {
    QueueRequests::new(&Layout::new(&Namespace::parse("t").unwrap()), kind, 0)
}

fn key(nonce: u64) -> QueueKey {
    QueueKey { lease: lease(1), nonce }
}

fn page(key: Bytes, value: Bytes) -> Page {
    let revision = Revision(7);
    let pair = KeyValue { key, value, created: revision, modified: revision, version: 1, lease: None };
    Page { pairs: vec![pair], revision, more: true }
}

fn identity() -> Identity {
    let text = str::to_owned;
    Identity { node: text("web-2"), host: text("h"), pid: 4121, user: text("u"), program: text("deploy") }
}

#[test]
fn one_key_is_read_with_its_value() {
    let get = requests(QueueKind::Lock).first_holder(&QUEUE);
    assert_eq!(get, Get::prefix(QUEUE).order(SortOrder::Created).limit(1));
}

#[test]
fn holder_is_named_by_its_record() {
    let held = page(key(5).key_in(&QUEUE), HolderRecord::from(identity()).encode());
    let locks = requests(QueueKind::Lock);
    assert_eq!(locks.first_holder_in(&QUEUE, Some(key(9)), &held), Some(identity()));
    assert_eq!(locks.first_holder_in(&QUEUE, None, &held), Some(identity()));
    assert_eq!(locks.first_holder_in(&QUEUE, Some(key(5)), &held), None, "the own key");
}

#[test]
fn leader_identity_is_read_without_program() {
    let Identity { host, pid, user, .. } = identity();
    let record =
        CandidateRecord { candidate: "web-2".to_owned(), host, pid, user, ..CandidateRecord::default() };
    let led = page(key(5).key_in(&QUEUE), record.encode());
    let leader = requests(QueueKind::Election).first_holder_in(&QUEUE, None, &led);
    assert_eq!(leader, Some(Identity { program: String::new(), ..identity() }));
}

#[test]
fn unreadable_empty_and_foreign_keys_name_no_holder() {
    let record = HolderRecord::from(identity()).encode();
    let foreign = page(Bytes::from_static(b"/t/locks/a/foreign"), record);
    let unreadable = page(key(5).key_in(&QUEUE), Bytes::from_static(b"\xff"));
    let empty = page(key(5).key_in(&QUEUE), Bytes::new());
    let gone = Page { pairs: Vec::new(), revision: Revision(7), more: false };
    for kind in [QueueKind::Lock, QueueKind::Election] {
        for page in [&foreign, &unreadable, &empty, &gone] {
            assert_eq!(requests(kind).first_holder_in(&QUEUE, None, page), None, "{page:?}");
        }
    }
}
