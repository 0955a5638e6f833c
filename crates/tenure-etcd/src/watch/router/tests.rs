//! The machine against a scripted server, and against a small model of a server that is cut off at
//! every message.

mod model;
mod proofs;

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;

use super::super::{WatchError, WatchEvent, WatchFrom, WatchItem, WatchSpec};
use super::{QueueFull, Router, RouterAction, VersionQuirks, WatchName, WatchSink};
use crate::message::header::ResponseHeader;
use crate::message::kv::KeyValue;
use crate::message::watch::{WatchRequest, WatchRequestKind, WatchResponse, WireEvent};

/// What a consumer saw.
#[derive(Debug, Clone, PartialEq)]
enum Saw {
    Opened(i64),
    /// A revision and how many events it had.
    Batch(i64, usize),
    Progress(i64),
    End(WatchError),
}

/// A consumer with room for a number of items.
#[derive(Debug, Clone)]
struct Consumer {
    saw: Rc<RefCell<Vec<Saw>>>,
    room: Rc<RefCell<usize>>,
}

impl Consumer {
    fn new() -> Self {
        Self { saw: Rc::default(), room: Rc::new(RefCell::new(usize::MAX)) }
    }

    fn saw(&self) -> Vec<Saw> {
        self.saw.borrow().clone()
    }
}

impl WatchSink for Consumer {
    fn opened(&mut self, point: i64) {
        self.saw.borrow_mut().push(Saw::Opened(point));
    }

    fn offer(&mut self, item: WatchItem) -> Result<(), QueueFull> {
        let mut room = self.room.borrow_mut();
        *room = room.checked_sub(1).ok_or(QueueFull)?;
        self.saw.borrow_mut().push(match item {
            WatchItem::Batch { revision, events } => {
                assert!(events.iter().all(|event| event.revision() == revision));
                Saw::Batch(revision, events.len())
            }
            WatchItem::Progress(revision) => Saw::Progress(revision),
        });
        Ok(())
    }

    fn end(&mut self, end: WatchError) {
        self.saw.borrow_mut().push(Saw::End(end));
    }
}

const TRUST: VersionQuirks = VersionQuirks { progress: true, history: true };
const A: WatchName = WatchName(1);
const B: WatchName = WatchName(2);

fn spec(start: WatchFrom) -> WatchSpec {
    WatchSpec { key: Bytes::from_static(b"k/"), range_end: Bytes::from_static(b"k0"), start, prev: false }
}

fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { cluster_id: 1, member_id: 1, revision, raft_term: 1 })
}

fn created(watch_id: i64, revision: i64) -> WatchResponse {
    WatchResponse { header: header(revision), watch_id, created: true, ..WatchResponse::default() }
}

fn refused(reason: &str) -> WatchResponse {
    WatchResponse {
        header: header(1),
        watch_id: -1,
        created: true,
        canceled: true,
        cancel_reason: reason.to_owned(),
        ..WatchResponse::default()
    }
}

fn put(revision: i64) -> WireEvent {
    let kv = KeyValue { key: Bytes::from_static(b"k/x"), mod_revision: revision, ..KeyValue::default() };
    WireEvent { kind: 0, kv: Some(kv), prev_kv: None }
}

fn events(watch_id: i64, revisions: &[i64]) -> WatchResponse {
    let events = revisions.iter().map(|revision| put(*revision)).collect();
    WatchResponse { header: header(*revisions.last().unwrap()), watch_id, events, ..WatchResponse::default() }
}

fn progress(watch_id: i64, revision: i64) -> WatchResponse {
    WatchResponse { header: header(revision), watch_id, ..WatchResponse::default() }
}

/// A router with one watcher, and its requests and items in short form.
struct Bench {
    router: Router<Consumer>,
    consumer: Consumer,
}

impl Bench {
    fn new(start: WatchFrom) -> Self {
        let mut router = Router::new();
        let consumer = Consumer::new();
        router.connected();
        router.trust(TRUST);
        router.subscribe(A, spec(start), consumer.clone());
        Self { router, consumer }
    }

    fn reconnect(&mut self) {
        self.router.connected();
        self.router.trust(TRUST);
    }

    /// Everything the router wants to send, as `create id @start`, `cancel id`, `progress`.
    fn sent(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.router.poll_request()).map(|request| name(&request)).collect()
    }

    fn actions(&mut self) -> Vec<RouterAction> {
        std::iter::from_fn(|| self.router.poll_action()).collect()
    }
}

fn name(request: &WatchRequest) -> String {
    match request.request.as_ref().expect("every request has a kind") {
        WatchRequestKind::Create(create) => format!("create {} @{}", create.watch_id, create.start_revision),
        WatchRequestKind::Cancel(cancel) => format!("cancel {}", cancel.watch_id),
        WatchRequestKind::Progress(_) => "progress".to_owned(),
    }
}

fn read(name: WatchName) -> RouterAction {
    RouterAction::Read { name, key: Bytes::from_static(b"k/") }
}

fn probe(name: WatchName, epoch: u64, after: i64) -> RouterAction {
    RouterAction::Probe { name, epoch, after, key: Bytes::from_static(b"k/") }
}

#[test]
fn watch_from_now_starts_after_read_revision() {
    for read_first in [true, false] {
        let mut bench = Bench::new(WatchFrom::Now);
        assert_eq!(bench.sent(), ["create 1 @0"]);
        assert_eq!(bench.actions(), [read(A)]);
        if read_first {
            bench.router.read(A, 12);
            assert_eq!(bench.consumer.saw(), [], "the server does not have it yet");
        }
        // A member that lags: it sends what the read has already covered.
        bench.router.handle(created(1, 10));
        bench.router.handle(events(1, &[11, 12, 13]));
        if !read_first {
            assert_eq!(bench.consumer.saw(), []);
            bench.router.read(A, 12);
        }
        assert_eq!(bench.consumer.saw(), [Saw::Opened(12), Saw::Batch(13, 1)]);
        assert_eq!(bench.actions(), []);
    }
}

#[test]
fn recent_watch_starts_at_member_revision() {
    let mut bench = Bench::new(WatchFrom::Recent);
    assert_eq!(bench.sent(), ["create 1 @0"]);
    bench.router.lost();
    bench.reconnect();
    assert_eq!(bench.sent(), ["create 2 @0"], "its revision was never reported");
    bench.router.handle(created(2, 10));
    bench.router.handle(events(2, &[11]));
    assert_eq!(bench.consumer.saw(), [Saw::Opened(10), Saw::Batch(11, 1)]);
    bench.router.lost();
    bench.reconnect();
    assert_eq!(bench.sent(), ["create 3 @12"], "from then on it has a point like all others");
    assert_eq!(bench.actions(), []);
}

#[test]
fn read_older_than_watch_is_repeated() {
    let mut bench = Bench::new(WatchFrom::Now);
    bench.sent();
    bench.actions();
    bench.router.read(A, 10);
    bench.router.handle(created(1, 12));
    assert_eq!(bench.actions(), [read(A)]);
    bench.router.read(A, 12);
    assert_eq!(bench.consumer.saw(), [Saw::Opened(12)]);
}

#[test]
fn created_revision_is_no_resume_point() {
    let mut bench = Bench::new(WatchFrom::After(5));
    assert_eq!(bench.sent(), ["create 1 @6"]);
    bench.router.handle(created(1, 90));
    bench.router.lost();
    bench.reconnect();
    assert_eq!(bench.sent(), ["create 2 @6"]);
}

#[test]
fn unread_watch_restarts_from_now() {
    let mut bench = Bench::new(WatchFrom::Now);
    bench.sent();
    bench.router.handle(created(1, 10));
    bench.router.lost();
    bench.reconnect();
    assert_eq!(bench.sent(), ["create 2 @0"]);
    bench.router.lost();
    bench.router.read(A, 11);
    bench.reconnect();
    assert_eq!(bench.sent(), ["create 3 @12"]);
    bench.router.handle(created(3, 11));
    assert_eq!(bench.consumer.saw(), [Saw::Opened(11)]);
}

#[test]
fn compaction_comes_from_its_own_field() {
    let mut bench = Bench::new(WatchFrom::After(5));
    bench.sent();
    bench.router.handle(created(1, 20));
    bench.router.handle(WatchResponse {
        header: header(0),
        watch_id: 1,
        canceled: true,
        compact_revision: 9,
        ..WatchResponse::default()
    });
    assert_eq!(bench.consumer.saw(), [Saw::Opened(5), Saw::End(WatchError::Compacted { at: 9 })]);
    assert!(bench.router.is_empty());
    assert_eq!(bench.sent(), [] as [&str; 0], "the server has cancelled it already");
}

#[test]
fn progress_moves_every_resume_point() {
    let mut bench = Bench::new(WatchFrom::After(0));
    let other = Consumer::new();
    bench.router.subscribe(B, spec(WatchFrom::After(0)), other.clone());
    bench.sent();
    bench.router.handle(created(1, 3));
    bench.router.handle(progress(-1, 30));
    bench.router.handle(created(2, 3));
    bench.router.handle(progress(1, 40));
    bench.router.handle(progress(-1, 40));
    assert_eq!(bench.consumer.saw(), [Saw::Opened(0), Saw::Progress(30), Saw::Progress(40)]);
    assert_eq!(other.saw(), [Saw::Opened(0), Saw::Progress(40)], "what it was not there for does not count");
    bench.router.lost();
    bench.reconnect();
    assert_eq!(bench.sent(), ["create 3 @41", "create 4 @41"]);
}

#[test]
fn early_progress_of_old_servers_is_ignored() {
    let mut bench = Bench::new(WatchFrom::After(0));
    bench.router.lost();
    bench.router.connected();
    bench.sent();
    bench.router.handle(created(1, 3));
    bench.router.handle(progress(-1, 30));
    bench.router.handle(progress(1, 30));
    assert_eq!(bench.consumer.saw(), [Saw::Opened(0)]);
}

#[test]
fn progress_below_future_start_is_ignored() {
    let mut bench = Bench::new(WatchFrom::After(50));
    bench.sent();
    bench.router.handle(created(1, 3));
    bench.router.handle(progress(-1, 30));
    assert_eq!(bench.consumer.saw(), [Saw::Opened(50)]);
    assert_eq!(bench.actions(), []);
}

#[test]
fn progress_waits_for_fragmented_revision() {
    let mut bench = Bench::new(WatchFrom::After(0));
    bench.sent();
    bench.router.handle(created(1, 3));
    bench.router.handle(WatchResponse { fragment: true, ..events(1, &[2, 3]) });
    bench.router.handle(progress(-1, 3));
    bench.router.handle(events(1, &[3]));
    assert_eq!(bench.consumer.saw(), [Saw::Opened(0), Saw::Batch(2, 1), Saw::Batch(3, 2)]);
}

#[test]
fn repeated_events_are_dropped() {
    let mut bench = Bench::new(WatchFrom::After(0));
    bench.sent();
    bench.router.handle(created(1, 3));
    bench.router.handle(events(1, &[2, 3]));
    bench.router.handle(events(1, &[3, 4]));
    bench.router.handle(events(1, &[2]));
    assert_eq!(bench.consumer.saw(), [Saw::Opened(0), Saw::Batch(2, 1), Saw::Batch(3, 1), Saw::Batch(4, 1)]);
}

#[test]
fn dropped_watcher_is_cancelled_after_creation() {
    // Before it was sent, before it was answered, and after.
    let mut bench = Bench::new(WatchFrom::After(0));
    bench.router.unsubscribe(A);
    assert_eq!(bench.sent(), [] as [&str; 0]);

    let mut bench = Bench::new(WatchFrom::After(0));
    bench.sent();
    bench.router.unsubscribe(A);
    bench.router.handle(created(1, 3));
    assert_eq!(bench.sent(), ["cancel 1"]);
    bench.router.handle(events(1, &[2]));
    assert_eq!(bench.consumer.saw(), []);

    let mut bench = Bench::new(WatchFrom::After(0));
    bench.sent();
    bench.router.handle(created(1, 3));
    bench.router.unsubscribe(A);
    assert_eq!(bench.sent(), ["cancel 1"]);
    bench.router.handle(events(1, &[2]));
    assert_eq!(bench.consumer.saw(), [Saw::Opened(0)]);
}

#[test]
fn slow_consumer_resumes_after_queued_items() {
    let mut bench = Bench::new(WatchFrom::After(0));
    let other = Consumer::new();
    bench.router.subscribe(B, spec(WatchFrom::After(0)), other.clone());
    bench.sent();
    bench.router.handle(created(1, 3));
    bench.router.handle(created(2, 3));
    *bench.consumer.room.borrow_mut() = 2;
    bench.router.handle(events(1, &[2, 3, 4, 5]));
    bench.router.handle(events(2, &[2, 3, 4, 5]));
    assert_eq!(bench.sent(), ["cancel 1"]);
    bench.router.handle(events(1, &[6]));
    assert_eq!(other.saw().len(), 5, "the other one is not held up");

    *bench.consumer.room.borrow_mut() = 9;
    bench.router.drained(A);
    assert_eq!(bench.sent(), ["create 3 @4"]);
    bench.router.handle(created(3, 6));
    bench.router.handle(events(3, &[4, 5, 6]));
    assert_eq!(bench.actions(), [probe(A, 2, 3)]);
    bench.router.proven(A, 2);
    let wanted: Vec<Saw> =
        std::iter::once(Saw::Opened(0)).chain((2..=6).map(|revision| Saw::Batch(revision, 1))).collect();
    assert_eq!(bench.consumer.saw(), wanted);
}

#[test]
fn new_stream_skips_draining_consumer() {
    let mut bench = Bench::new(WatchFrom::After(0));
    bench.sent();
    bench.router.handle(created(1, 3));
    *bench.consumer.room.borrow_mut() = 1;
    bench.router.handle(events(1, &[2, 3]));
    bench.router.lost();
    assert!(!bench.router.wants_stream());
    bench.reconnect();
    assert_eq!(bench.sent(), [] as [&str; 0]);
    bench.router.drained(A);
    assert_eq!(bench.sent(), ["create 2 @3"]);
}

#[test]
fn refused_creations_pair_in_order() {
    let mut bench = Bench::new(WatchFrom::After(0));
    let other = Consumer::new();
    bench.router.subscribe(B, spec(WatchFrom::After(0)), other.clone());
    bench.router.request_sign_of_life();
    assert_eq!(bench.sent(), ["create 1 @1", "create 2 @1", "progress", "create 3 @0"]);
    bench.router.handle(refused("mvcc: watcher range is empty"));
    bench.router.handle(created(2, 3));
    bench.router.handle(refused("mvcc: watcher range is empty"));
    assert!(matches!(bench.consumer.saw()[..], [Saw::End(WatchError::Lost(_))]));
    assert_eq!(other.saw(), [Saw::Opened(0)]);
    assert_eq!(bench.actions(), [], "the watchdog's request ends no watcher");
}

#[test]
fn permission_refusal_is_verified_by_read() {
    let mut bench = Bench::new(WatchFrom::After(7));
    bench.sent();
    bench.router.handle(refused("etcdserver: permission denied"));
    let (key, range_end) = (Bytes::from_static(b"k/"), Bytes::from_static(b"k0"));
    assert_eq!(bench.actions(), [RouterAction::Verify { name: A, key, range_end }]);
    assert_eq!(bench.consumer.saw(), []);
    // The driver found that only the token had run out, and opened a new stream.
    bench.router.lost();
    bench.reconnect();
    assert_eq!(bench.sent(), ["create 2 @8"]);
}

#[test]
fn server_trouble_abandons_stream() {
    for response in [
        WatchResponse {
            watch_id: 1,
            canceled: true,
            cancel_reason: "etcdserver: no leader".into(),
            ..WatchResponse::default()
        },
        WatchResponse { events: vec![WireEvent::default()], ..events(1, &[9]) },
        events(1, &[9, 8]),
        created(5, 3),
    ] {
        let mut bench = Bench::new(WatchFrom::After(0));
        bench.sent();
        bench.router.handle(created(1, 3));
        bench.router.handle(response);
        assert!(matches!(bench.actions()[..], [RouterAction::Fail(_)]));
    }
}

#[test]
fn fatal_error_ends_every_watcher() {
    let mut bench = Bench::new(WatchFrom::After(0));
    bench.sent();
    bench.router.end_all(&crate::Error::Closed);
    assert_eq!(bench.consumer.saw(), [Saw::End(WatchError::Lost(crate::Error::Closed))]);
    assert!(bench.router.is_empty());
}

/// Kept here so that the event's shape is checked once, against the wire.
#[test]
fn delete_event_has_key_and_revision() {
    let wire = WireEvent { kind: 1, ..put(4) };
    let event = super::parse_event(wire).unwrap();
    assert_eq!(event, WatchEvent::Delete { key: Bytes::from_static(b"k/x"), revision: 4, prev: None });
}
