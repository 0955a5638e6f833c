//! Two electors who share a value by mistake, one model storage, and a network that delays and loses what it likes.
//!
//! Requests are applied late, answered later, answered although they were never applied, and applied without an answer. The
//! storage gives each insert and swap its whole TTL from when it was *applied*.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// What becomes of one request.
#[derive(Clone, Copy, Debug)]
struct Fate {
    applied_after_ms: u64,
    answered_after_ms: u64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Answered,
    AppliedAnswerLost,
    NeverArrived,
    Refused,
    Hangs,
}

fn fate() -> impl Strategy<Value = Fate> {
    let kind = prop_oneof![
        6 => Just(Kind::Answered),
        1 => Just(Kind::AppliedAnswerLost),
        1 => Just(Kind::NeverArrived),
        1 => Just(Kind::Refused),
        1 => Just(Kind::Hangs),
    ];
    (0..1_500_u64, 0..1_500_u64, kind).prop_map(|(applied_after_ms, answered_after_ms, kind)| Fate {
        applied_after_ms,
        answered_after_ms,
        kind,
    })
}

#[derive(Clone, Copy)]
enum Event {
    Arrives { elector: usize, nonce: u64, ask: Ask, asked_at: u64, fate: Fate },
    Answers { elector: usize, nonce: u64, ask: Ask, asked_at: u64, answer: Answer },
    Leaves { elector: usize },
}

struct Elector {
    leadership: Leadership,
    nonce: u64,
}

struct World {
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    /// The nonce that is stored, and until when.
    stored: Option<(u64, u64)>,
    electors: Vec<Elector>,
    fates: std::vec::IntoIter<Fate>,
    terms_led: usize,
}

const TTL_MS: u64 = 4_000;

impl World {
    fn new(fates: Vec<Fate>) -> World {
        let electors = (0..2)
            .map(|nonce| Elector { leadership: Leadership::new(plan(FencingSupport::None), at(0)), nonce });
        World {
            now: 0,
            events: BTreeMap::new(),
            next_event: 0,
            stored: None,
            electors: electors.collect(),
            fates: fates.into_iter(),
            terms_led: 0,
        }
    }

    fn after(&mut self, ms: u64, event: Event) {
        self.next_event += 1;
        self.events.insert((self.now + ms, self.next_event), event);
    }

    /// Lets both electors ask, and says what must never be.
    fn settle(&mut self) {
        for index in 0..self.electors.len() {
            while let Some(ask) = self.electors[index].leadership.poll_ask(at(self.now)) {
                let Some(fate) = self.fates.next() else { return };
                let event = Event::Arrives {
                    elector: index,
                    nonce: self.electors[index].nonce,
                    ask,
                    asked_at: self.now,
                    fate,
                };
                self.after(fate.applied_after_ms, event);
            }
            let elector = &mut self.electors[index];
            if elector.leadership.next_wake().is_none() {
                elector.nonce += 2;
                elector.leadership = Leadership::new(plan(FencingSupport::None), at(self.now + 1));
            }
        }
        let valid: Vec<u64> = self
            .electors
            .iter()
            .filter(|elector| elector.leadership.is_valid(at(self.now)))
            .map(|elector| elector.nonce)
            .collect();
        self.terms_led += valid.len();
        assert!(valid.len() < 2, "two leaders at {} ms", self.now);
        for nonce in valid {
            let stored = self.stored.filter(|(_, until)| self.now + 500 < *until).map(|(nonce, _)| nonce);
            assert_eq!(stored, Some(nonce), "who leads and what is stored at {} ms", self.now);
        }
    }

    /// Lets the next thing happen: an event, or the time at which an elector wants to be woken.
    fn step(&mut self) {
        let wakes = self.electors.iter().filter_map(|elector| elector.leadership.next_wake());
        let wake = wakes.map(|wake| u64::try_from(wake.since_origin().as_millis()).unwrap()).min();
        let event = self.events.first_key_value().map(|((ms, _), _)| *ms);
        match (wake, event) {
            (Some(wake), event) if event.is_none_or(|event| wake < event) => self.now = wake.max(self.now),
            _ => {
                let Some(((ms, _), event)) = self.events.pop_first() else { return };
                self.now = ms;
                self.happen(event);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Leaves { elector } => {
                let leadership = &mut self.electors[elector].leadership;
                leadership.leave(at(self.now));
                leadership.handle_stopped(at(self.now));
            }
            Event::Arrives { elector, nonce, ask, asked_at, fate } => {
                let answer = match fate.kind {
                    Kind::Answered => self.apply(nonce, ask),
                    Kind::AppliedAnswerLost => {
                        self.apply(nonce, ask);
                        Unknown
                    }
                    Kind::NeverArrived => Unknown,
                    Kind::Refused => NotApplied,
                    Kind::Hangs => {
                        self.apply(nonce, ask);
                        return;
                    }
                };
                let event = Event::Answers { elector, nonce, ask, asked_at, answer };
                self.after(fate.answered_after_ms, event);
            }
            Event::Answers { elector, nonce, ask, asked_at, answer } => {
                let elector = &mut self.electors[elector];
                if elector.nonce == nonce {
                    elector.leadership.handle_answer(ask, at(asked_at), answer, 0.5, at(self.now));
                }
            }
        }
    }

    fn apply(&mut self, nonce: u64, ask: Ask) -> Answer {
        let stored = self.stored.filter(|(_, until)| self.now < *until).map(|(nonce, _)| nonce);
        let applies = match ask {
            Insert => stored.is_none(),
            Swap | Delete | AskToken => stored == Some(nonce),
        };
        match ask {
            Insert | Swap if applies => self.stored = Some((nonce, self.now + TTL_MS)),
            Delete if applies => self.stored = None,
            Insert | Swap | Delete | AskToken => {}
        }
        if applies { Yes } else { No }
    }
}

/// Runs until the fates are used up; says how often somebody was seen leading.
fn run(fates: Vec<Fate>, leaves: Vec<(usize, u64)>) -> usize {
    let mut world = World::new(fates);
    for (elector, ms) in leaves {
        world.after(ms, Event::Leaves { elector });
    }
    world.settle();
    while world.fates.len() > 0 {
        world.step();
        world.settle();
    }
    world.terms_led
}

proptest! {
    #[test]
    fn there_are_never_two_leaders_and_a_leader_is_always_stored(
        fates in prop::collection::vec(fate(), 1..120),
        leaves in prop::collection::vec((0..2_usize, 0..60_000_u64), 0..6),
    ) {
        run(fates, leaves);
    }
}

/// The property above would also hold for machines that never lead.
#[test]
fn with_a_good_network_somebody_leads_nearly_always() {
    let good = Fate { applied_after_ms: 5, answered_after_ms: 5, kind: Kind::Answered };
    assert!(run(vec![good; 100], Vec::new()) > 90);
}

#[test]
fn what_was_left_and_confirmed_is_not_stored() {
    let good = Fate { applied_after_ms: 5, answered_after_ms: 5, kind: Kind::Answered };
    let mut world = World::new(vec![good; 10]);
    world.electors.truncate(1);
    world.after(500, Event::Leaves { elector: 0 });
    world.settle();
    while world.now < 4_000 {
        world.step();
        let standing = world.electors[0].leadership.standing(at(world.now));
        if standing == left(Left::Nothing) {
            assert_eq!(world.stored, None);
            return;
        }
        world.settle();
    }
    panic!("it never left");
}
