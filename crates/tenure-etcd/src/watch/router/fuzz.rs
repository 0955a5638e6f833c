//! Fuzz target: whatever a server sends, in whatever order, a consumer sees whole revisions that
//! only grow, and nothing after the end.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use prost::Message;

use super::super::{WatchError, WatchFrom, WatchItem, WatchSpec};
use super::{QueueFull, Router, RouterAction, VersionQuirks, WatchName, WatchSink};
use crate::message::header::ResponseHeader;
use crate::message::kv::KeyValue;
use crate::message::watch::{WatchResponse, WireEvent};

/// How many steps of a script are run: more only repeat themselves.
const STEPS_MAX: usize = 400;

/// A consumer that checks every item.
#[derive(Debug, Default)]
struct FuzzDeliveries {
    opened: Option<i64>,
    /// Everything up to here was delivered.
    up_to: i64,
    batches: usize,
    end: Option<WatchError>,
    room: usize,
}

#[derive(Debug, Clone, Default)]
struct FuzzConsumer(Rc<RefCell<FuzzDeliveries>>);

impl WatchSink for FuzzConsumer {
    fn opened(&mut self, point: i64) {
        let mut seen = self.0.borrow_mut();
        assert!(seen.end.is_none() && seen.opened.is_none(), "opened once, and not after its end");
        seen.opened = Some(point);
        seen.up_to = point;
    }

    fn offer(&mut self, item: WatchItem) -> Result<(), QueueFull> {
        let mut seen = self.0.borrow_mut();
        assert!(seen.end.is_none(), "nothing comes after the last word");
        assert!(seen.opened.is_some(), "no item comes before the start revision");
        let Some(room) = seen.room.checked_sub(1) else { return Err(QueueFull) };
        seen.room = room;
        match item {
            WatchItem::Batch { revision, events } => {
                assert!(revision > seen.up_to, "{revision} comes after {}", seen.up_to);
                assert!(!events.is_empty(), "a revision without changes is none");
                assert!(events.iter().all(|event| event.revision() == revision), "one revision at a time");
                seen.up_to = revision;
                seen.batches += 1;
            }
            WatchItem::Progress(revision) => {
                assert!(revision >= seen.up_to, "progress goes back from {} to {revision}", seen.up_to);
                seen.up_to = revision;
            }
        }
        Ok(())
    }

    fn end(&mut self, end: WatchError) {
        let mut seen = self.0.borrow_mut();
        assert!(seen.end.is_none(), "there is one last word");
        seen.end = Some(end);
    }
}

/// Lines as `created 1 8`, `refused 1 8 REASON`, `canceled 1 8 REASON`, `compacted 1 8`, `events 1 6 7 -8` (deletes are negative),
/// `fragment 1 6`, `progress 1 9`, `read 1 9`, `gone 1 9`, `full 1`, `drained 1`, `leave 1`, `lost`, `life`. What is none of them is taken for a
/// message as it travels.
fn watch(bytes: &[u8]) -> String {
    let mut router = Router::new();
    let consumers: Vec<FuzzConsumer> = (0..3).map(|_| FuzzConsumer::default()).collect();
    for (number, consumer) in (1..).zip(&consumers) {
        consumer.0.borrow_mut().room = 8;
        let start = [WatchFrom::After(5), WatchFrom::Now, WatchFrom::Recent][consumers.len().min(number) - 1];
        let (key, range_end) = (Bytes::from_static(b"k/"), Bytes::from_static(b"k0"));
        let name = WatchName(number.try_into().unwrap_or(0));
        router.subscribe(name, WatchSpec { key, range_end, start, prev: false }, consumer.clone());
    }
    connect(&mut router);
    let mut failures = 0;
    for line in bytes.split(|byte| *byte == b'\n').take(STEPS_MAX) {
        step(&mut router, &consumers, line);
        failures += settle(&mut router);
    }
    let told = consumers.iter().map(|consumer| {
        let seen = consumer.0.borrow();
        let end = match &seen.end {
            None => "open",
            Some(WatchError::Compacted { .. }) => "compacted",
            Some(_) => "lost",
        };
        format!("{}{}{end}", u8::from(seen.opened.is_some()), seen.batches.min(3))
    });
    format!("{} {}", told.collect::<Vec<_>>().join(" "), failures.min(3))
}

fn step(router: &mut Router<FuzzConsumer>, consumers: &[FuzzConsumer], line: &[u8]) {
    let text = String::from_utf8_lossy(line);
    let words: Vec<&str> = text.split(' ').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<i64>().ok()).unwrap_or(0);
    let name = WatchName(number(1).unsigned_abs());
    let consumer = usize::try_from(number(1).saturating_sub(1)).ok().and_then(|index| consumers.get(index));
    let response = |revision: i64| WatchResponse {
        header: Some(ResponseHeader { cluster_id: 1, member_id: 1, revision, raft_term: 1 }),
        watch_id: number(1),
        cancel_reason: words.get(3..).unwrap_or_default().join(" "),
        ..WatchResponse::default()
    };
    match words[0] {
        "created" => router.handle(WatchResponse { created: true, ..response(number(2)) }),
        "refused" => router.handle(WatchResponse { created: true, canceled: true, ..response(number(2)) }),
        "canceled" => router.handle(WatchResponse { canceled: true, ..response(number(2)) }),
        "compacted" => {
            router.handle(WatchResponse { canceled: true, compact_revision: number(2), ..response(0) });
        }
        "events" | "fragment" => {
            let revisions = words.iter().skip(2).filter_map(|word| word.parse::<i64>().ok());
            let events = revisions.map(event).collect();
            router.handle(WatchResponse { events, fragment: words[0] == "fragment", ..response(number(2)) });
        }
        "progress" => router.handle(response(number(2))),
        "read" => router.read(name, number(2)),
        "gone" => (0..4).for_each(|epoch| router.disproven(name, epoch, number(2))),
        "full" => consumer.into_iter().for_each(|consumer| consumer.0.borrow_mut().room = 0),
        "drained" => {
            consumer.into_iter().for_each(|consumer| consumer.0.borrow_mut().room = 8);
            router.drained(name);
        }
        "leave" => router.unsubscribe(name),
        "lost" => connect(router),
        "life" => router.request_sign_of_life(),
        _ => {
            if let Ok(response) = WatchResponse::decode(line) {
                router.handle(response);
            }
        }
    }
}

fn event(revision: i64) -> WireEvent {
    let kv = KeyValue {
        key: Bytes::from_static(b"k/a"),
        mod_revision: revision.saturating_abs(),
        ..KeyValue::default()
    };
    WireEvent { kind: i32::from(revision < 0), kv: Some(kv), prev_kv: None }
}

/// Another stream, as after a break.
fn connect(router: &mut Router<FuzzConsumer>) {
    router.lost();
    router.connected();
    router.trust(VersionQuirks { progress: true, history: true });
}

/// Does what the driver would do: sends pending requests, and abandons a stream that cannot be
/// trusted. Counts those.
fn settle(router: &mut Router<FuzzConsumer>) -> usize {
    let mut failures = 0;
    loop {
        while router.poll_request().is_some() {}
        match router.poll_action() {
            Some(RouterAction::Fail(_)) => {
                failures += 1;
                connect(router);
            }
            Some(RouterAction::Probe { name, epoch, .. }) => router.proven(name, epoch),
            // Answered by the script, or never.
            Some(RouterAction::Read { .. } | RouterAction::Verify { .. }) => {}
            None => return failures,
        }
    }
}

#[test]
fn watches_soak() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "watch", watch);
}
