//! Two candidates that share a value by mistake, one storage model, and a network with delays and
//! losses.
//!
//! Requests are applied late, replies arrive later, some report requests that were never applied,
//! and some are lost. The storage gives each insert and swap its whole TTL from when it was
//! *applied*.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The outcome of one request.
#[derive(Clone, Copy, Debug)]
struct Delivery {
    applied_after_ms: u64,
    replied_after_ms: u64,
    kind: DeliveryKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DeliveryKind {
    Replied,
    AppliedReplyLost,
    NeverArrived,
    Refused,
    Hangs,
}

fn delivery() -> impl Strategy<Value = Delivery> {
    let kind = prop_oneof![
        6 => Just(DeliveryKind::Replied),
        1 => Just(DeliveryKind::AppliedReplyLost),
        1 => Just(DeliveryKind::NeverArrived),
        1 => Just(DeliveryKind::Refused),
        1 => Just(DeliveryKind::Hangs),
    ];
    (0..1_500_u64, 0..1_500_u64, kind).prop_map(|(applied_after_ms, replied_after_ms, kind)| Delivery {
        applied_after_ms,
        replied_after_ms,
        kind,
    })
}

#[derive(Clone, Copy)]
enum TtlEvent {
    Arrives { candidate: usize, nonce: u64, request: StorageRequest, sent_at: u64, delivery: Delivery },
    Replies { candidate: usize, nonce: u64, request: StorageRequest, sent_at: u64, reply: StorageReply },
    Releases { candidate: usize },
}

struct TtlCandidate {
    election: TtlElection,
    nonce: u64,
}

struct TtlWorld {
    now: u64,
    events: BTreeMap<(u64, u64), TtlEvent>,
    next_event: u64,
    /// The nonce that is stored, and until when.
    stored: Option<(u64, u64)>,
    candidates: Vec<TtlCandidate>,
    deliveries: std::vec::IntoIter<Delivery>,
    terms_led: usize,
}

const TTL_MS: u64 = 4_000;

impl TtlWorld {
    fn new(deliveries: Vec<Delivery>) -> TtlWorld {
        let candidates = (0..2).map(|nonce| TtlCandidate {
            election: TtlElection::new(config(FencingSupport::None), at(0)),
            nonce,
        });
        TtlWorld {
            now: 0,
            events: BTreeMap::new(),
            next_event: 0,
            stored: None,
            candidates: candidates.collect(),
            deliveries: deliveries.into_iter(),
            terms_led: 0,
        }
    }

    fn after(&mut self, ms: u64, event: TtlEvent) {
        self.next_event += 1;
        self.events.insert((self.now + ms, self.next_event), event);
    }

    /// Sends the requests of both candidates, and asserts what must always hold.
    fn send_requests(&mut self) {
        for index in 0..self.candidates.len() {
            while let Some(request) = self.candidates[index].election.poll_request(at(self.now)) {
                let Some(delivery) = self.deliveries.next() else { return };
                let event = TtlEvent::Arrives {
                    candidate: index,
                    nonce: self.candidates[index].nonce,
                    request,
                    sent_at: self.now,
                    delivery,
                };
                self.after(delivery.applied_after_ms, event);
            }
            let candidate = &mut self.candidates[index];
            if candidate.election.next_wake().is_none() {
                candidate.nonce += 2;
                candidate.election = TtlElection::new(config(FencingSupport::None), at(self.now + 1));
            }
        }
        let valid: Vec<u64> = self
            .candidates
            .iter()
            .filter(|candidate| candidate.election.is_valid(at(self.now)))
            .map(|candidate| candidate.nonce)
            .collect();
        self.terms_led += valid.len();
        assert!(valid.len() < 2, "two leaders at {} ms", self.now);
        for nonce in valid {
            let stored = self.stored.filter(|(_, until)| self.now + 500 < *until).map(|(nonce, _)| nonce);
            assert_eq!(stored, Some(nonce), "leader and stored value at {} ms", self.now);
        }
    }

    /// Advances to the next event, or to the next wake of a candidate.
    fn step(&mut self) {
        let wakes = self.candidates.iter().filter_map(|candidate| candidate.election.next_wake());
        let wake = wakes.map(|wake| u64::try_from(wake.since_origin().as_millis()).unwrap()).min();
        let event = self.events.first_key_value().map(|((ms, _), _)| *ms);
        match (wake, event) {
            (Some(wake), event) if event.is_none_or(|event| wake < event) => self.now = wake.max(self.now),
            _ => {
                let Some(((ms, _), event)) = self.events.pop_first() else { return };
                self.now = ms;
                self.handle(event);
            }
        }
    }

    fn handle(&mut self, event: TtlEvent) {
        match event {
            TtlEvent::Releases { candidate } => {
                let election = &mut self.candidates[candidate].election;
                election.release(at(self.now));
                election.handle_stopped(at(self.now));
            }
            TtlEvent::Arrives { candidate, nonce, request, sent_at, delivery } => {
                let reply = match delivery.kind {
                    DeliveryKind::Replied => self.apply(nonce, request),
                    DeliveryKind::AppliedReplyLost => {
                        self.apply(nonce, request);
                        Unknown
                    }
                    DeliveryKind::NeverArrived => Unknown,
                    DeliveryKind::Refused => NotApplied,
                    DeliveryKind::Hangs => {
                        self.apply(nonce, request);
                        return;
                    }
                };
                let event = TtlEvent::Replies { candidate, nonce, request, sent_at, reply };
                self.after(delivery.replied_after_ms, event);
            }
            TtlEvent::Replies { candidate, nonce, request, sent_at, reply } => {
                let candidate = &mut self.candidates[candidate];
                if candidate.nonce == nonce {
                    candidate.election.handle_reply(request, at(sent_at), reply, 0.5, at(self.now));
                }
            }
        }
    }

    fn apply(&mut self, nonce: u64, request: StorageRequest) -> StorageReply {
        let stored = self.stored.filter(|(_, until)| self.now < *until).map(|(nonce, _)| nonce);
        let applies = match request {
            Insert => stored.is_none(),
            Swap | Delete | ReadToken => stored == Some(nonce),
        };
        match request {
            Insert | Swap if applies => self.stored = Some((nonce, self.now + TTL_MS)),
            Delete if applies => self.stored = None,
            Insert | Swap | Delete | ReadToken => {}
        }
        if applies { Yes } else { No }
    }
}

/// Runs until the deliveries are used up. Returns how often a candidate was seen leading.
fn run(deliveries: Vec<Delivery>, releases: Vec<(usize, u64)>) -> usize {
    let mut world = TtlWorld::new(deliveries);
    for (candidate, ms) in releases {
        world.after(ms, TtlEvent::Releases { candidate });
    }
    world.send_requests();
    while world.deliveries.len() > 0 {
        world.step();
        world.send_requests();
    }
    world.terms_led
}

proptest! {
    #[test]
    fn at_most_one_leader_and_it_is_stored(
        deliveries in prop::collection::vec(delivery(), 1..120),
        releases in prop::collection::vec((0..2_usize, 0..60_000_u64), 0..6),
    ) {
        run(deliveries, releases);
    }
}

/// The property above would also hold for machines that never lead.
#[test]
fn reliable_network_nearly_always_has_a_leader() {
    let good = Delivery { applied_after_ms: 5, replied_after_ms: 5, kind: DeliveryKind::Replied };
    assert!(run(vec![good; 100], Vec::new()) > 90);
}

#[test]
fn confirmed_release_leaves_nothing_stored() {
    let good = Delivery { applied_after_ms: 5, replied_after_ms: 5, kind: DeliveryKind::Replied };
    let mut world = TtlWorld::new(vec![good; 10]);
    world.candidates.truncate(1);
    world.after(500, TtlEvent::Releases { candidate: 0 });
    world.send_requests();
    while world.now < 4_000 {
        world.step();
        let status = world.candidates[0].election.status(at(world.now));
        if status == left(TtlReleaseOutcome::Nothing) {
            assert_eq!(world.stored, None);
            return;
        }
        world.send_requests();
    }
    panic!("it was never released");
}
