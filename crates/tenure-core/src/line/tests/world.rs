//! Processes that stand in one line, a store, and what is between them.

mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::change::{Change, Previous, Start, WatchItem};
use crate::keyspace::{Keyspace, WatchId};
use crate::kv::{Get, Selection};
use crate::layout::{Key, Layout, Place};
use crate::lease::LeaseId;
use crate::limits::Limits;
use crate::line::{Action, Entered, Left, Line, Looked, Mode, Notice, Ticket};
use crate::name::{LockName, Namespace};
use crate::revision::{Epoch, Revision, Token};
use crate::time::Moment;
use crate::txn::{Condition, LeaseChoice, Op, Txn};

const TTL: Duration = Duration::from_secs(3_600);

/// By when a request that was taken for lost is applied at the latest. A paused member of etcd knows no bound.
const LATE_MAX: Duration = Duration::from_secs(600);

/// Few, so that lines are longer than what is shown of them.
const SHOWN_MAX: usize = 3;

/// What a place says that holds.
const HOLDS: &str = "holds";

/// How many places each process can have.
const NONCES: u64 = 1_000;

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Works,
    /// It never arrives, and that is known.
    NotDone,
    /// It is carried out; the answer is lost.
    LosesAnswer,
    /// The answer is lost, and it is carried out much later.
    Late,
}

enum Answer {
    Entered(Ticket, Epoch, Entered),
    Looked(Ticket, Epoch, Looked),
    Left(Ticket, Epoch, Left),
}

/// What a process watches.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Watching {
    own: BTreeMap<Place, Option<Token>>,
    before: Option<Place>,
    crowd: bool,
}

impl Watching {
    fn of(line: &Line) -> Watching {
        Watching { own: line.own_places().collect(), before: line.place_before(), crowd: line.is_crowded() }
    }
}

/// What a process believes of a ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Belief {
    Hopes,
    Holds(Token),
    Over,
    Lost,
}

pub(super) struct World {
    now: Moment,
    store: Keyspace,
    watch: WatchId,
    layout: Layout,
    name: LockName,
    pub(super) lines: Vec<Line>,
    leases: Vec<LeaseId>,
    lease_counter: i64,
    pub(super) fate: Fate,
    pub(super) requests: Vec<&'static str>,
    modes: BTreeMap<Place, Mode>,
    beliefs: BTreeMap<(usize, Ticket), Belief>,
    watched: Vec<Watching>,
    /// Requests not yet at the store, answers and events not yet at their process: what happens next is anybody's guess.
    asked: Vec<(usize, Action)>,
    answers: Vec<(usize, Answer)>,
    /// Requests that were taken for lost, with the time by which the store carries them out.
    late: Vec<(Moment, Txn)>,
    /// What each process has still to be shown.
    events: Vec<VecDeque<Event>>,
}

/// What a watch shows.
#[derive(Clone, Copy, Debug)]
enum Event {
    Gone(Place, Revision),
    /// A place that stands since then said that it holds.
    Holds(Place, Token, Revision),
}

impl World {
    pub(super) fn new(processes: usize) -> World {
        let mut store = Keyspace::new(Limits::EMBEDDED);
        let watch = store.watch(Selection::everything(), Start::Now, Moment::ORIGIN).unwrap();
        let mut world = World {
            now: Moment::ORIGIN,
            store,
            watch,
            layout: Layout::new(&Namespace::parse("t").unwrap()),
            name: LockName::parse("n").unwrap(),
            lines: Vec::new(),
            leases: Vec::new(),
            lease_counter: 0,
            fate: Fate::Works,
            requests: Vec::new(),
            modes: BTreeMap::new(),
            beliefs: BTreeMap::new(),
            watched: vec![Watching::default(); processes],
            asked: Vec::new(),
            answers: Vec::new(),
            late: Vec::new(),
            events: vec![VecDeque::new(); processes],
        };
        for process in 0..processes {
            world.lines.push(Line::new(NONCES * process as u64));
            let lease = world.grant();
            world.leases.push(lease);
        }
        world
    }

    fn grant(&mut self) -> LeaseId {
        self.lease_counter += 1;
        let id = LeaseId::new(self.lease_counter).unwrap();
        self.store.grant(id, TTL, self.now).unwrap();
        id
    }

    pub(super) fn stand(&mut self, process: usize, mode: Mode) -> Ticket {
        let ticket = self.lines[process].stand(self.leases[process], mode);
        self.beliefs.insert((process, ticket), Belief::Hopes);
        self.collect(process);
        ticket
    }

    /// Whoever leaves stops believing first.
    pub(super) fn leave(&mut self, process: usize, ticket: Ticket) {
        self.beliefs.insert((process, ticket), Belief::Over);
        self.lines[process].leave(ticket, self.now);
        self.collect(process);
    }

    pub(super) fn holds(&self, process: usize, ticket: Ticket) -> bool {
        matches!(self.beliefs.get(&(process, ticket)), Some(Belief::Holds(_)))
    }

    pub(super) fn is_lost(&self, process: usize, ticket: Ticket) -> bool {
        self.beliefs.get(&(process, ticket)) == Some(&Belief::Lost)
    }

    /// A stranger revokes a process's lease; the process gets another for what it does next.
    pub(super) fn revoke(&mut self, process: usize) {
        self.store.revoke(self.leases[process], self.now).unwrap();
        self.leases[process] = self.grant();
    }

    pub(super) fn delete_place_of(&mut self, process: usize, ticket: Ticket) {
        let (place, _) = self.lines[process].place(ticket).unwrap();
        let txn = Txn::new().then(Op::delete(self.key(place)));
        self.store.apply(&txn, self.now).unwrap();
    }

    /// Whoever of a process holds says so in its place.
    pub(super) fn say_holding(&mut self, process: usize) {
        let of = (process, Ticket(0))..=(process, Ticket(u64::MAX));
        let holders = self.beliefs.range(of).filter(|(_, belief)| matches!(belief, Belief::Holds(_)));
        let places: Vec<_> = holders.filter_map(|(who, _)| self.lines[process].place(who.1)).collect();
        for (place, token) in places {
            let (key, token) = (self.key(place), token.unwrap());
            let put = Op::Put { key: key.clone(), value: HOLDS.into(), lease: LeaseChoice::Keep };
            let txn = Txn::new().when(Condition::created_at(key, token.0)).then(put);
            self.store.apply(&txn, self.now).unwrap();
        }
    }

    pub(super) fn places(&mut self) -> usize {
        self.line_now().len()
    }

    /// Everything that can happen happens, in order.
    pub(super) fn settle(&mut self) {
        for _ in 0..100_000 {
            self.see();
            if let Some((process, action)) = (!self.asked.is_empty()).then(|| self.asked.remove(0)) {
                self.perform(process, action);
            } else if !self.answers.is_empty() {
                let (process, answer) = self.answers.remove(0);
                self.deliver(process, answer);
            } else if let Some(process) = (0..self.lines.len()).find(|&n| !self.events[n].is_empty()) {
                self.show(process);
            } else {
                return;
            }
        }
        panic!("the line never comes to rest");
    }

    pub(super) fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        self.settle();
        while let Some(wake) = self.lines.iter().filter_map(Line::next_wake).min().filter(|&wake| wake <= end)
        {
            self.move_to(wake);
            for process in 0..self.lines.len() {
                self.lines[process].handle_time(self.now);
                self.collect(process);
            }
            self.settle();
        }
        self.move_to(end);
    }

    fn move_to(&mut self, moment: Moment) {
        if self.late.iter().any(|(latest, _)| *latest <= moment) {
            self.arrive();
        }
        self.now = self.now.max(moment);
    }

    /// Requests that were taken for lost are carried out.
    pub(super) fn arrive(&mut self) {
        for (_, txn) in std::mem::take(&mut self.late) {
            // Their lease may be gone by now.
            let _ = self.store.apply(&txn, self.now);
        }
        self.see();
    }

    /// One thing happens, as the dice fell.
    pub(super) fn happen(&mut self, throw: u16) {
        let process = usize::from(throw >> 8) % self.lines.len();
        let pick = usize::from(throw >> 4);
        self.fate = match (throw >> 12) % 8 {
            0 => Fate::NotDone,
            1 => Fate::LosesAnswer,
            2 => Fate::Late,
            _ => Fate::Works,
        };
        self.see();
        match throw % 16 {
            0 | 1 => drop(self.stand(process, Mode::Exclusive)),
            2 | 3 => {
                let mine: Vec<Ticket> = self.live(process);
                if !mine.is_empty() {
                    self.leave(process, mine[pick % mine.len()]);
                }
            }
            4 if pick.is_multiple_of(4) => self.revoke(process),
            4 => self.say_holding(process),
            5 if pick.is_multiple_of(4) => {
                let line: Vec<Place> = self.line_now().into_values().collect();
                if !line.is_empty() {
                    let txn = Txn::new().then(Op::delete(self.key(line[pick % line.len()])));
                    self.store.apply(&txn, self.now).unwrap();
                }
            }
            6 => self.arrive(),
            7 => {
                self.move_to(self.now + Duration::from_millis(u64::from(throw >> 4)));
                self.lines[process].handle_time(self.now);
                self.collect(process);
            }
            8..=11 if !self.asked.is_empty() => {
                let (process, action) = self.asked.remove(pick % self.asked.len());
                self.perform(process, action);
            }
            12..=14 if !self.answers.is_empty() => {
                let (process, answer) = self.answers.remove(pick % self.answers.len());
                self.deliver(process, answer);
            }
            _ => self.show(process),
        }
    }

    /// Whoever believes to hold, and has its place, is the first of the line.
    pub(super) fn check_holders(&mut self) {
        let line = self.line_now();
        let first = line.keys().next().copied();
        for (who, belief) in &self.beliefs {
            if let Belief::Holds(token) = belief
                && line.contains_key(token)
            {
                assert_eq!(Some(*token), first, "{who:?} holds behind somebody");
            }
        }
    }

    /// Faults end, holders leave one after the other: everybody is served or told, and nothing is left.
    pub(super) fn come_to_an_end(&mut self) {
        self.fate = Fate::Works;
        for _ in 0..1_000 {
            self.pass(Duration::from_secs(15));
            self.check_holders();
            let holders: Vec<(usize, Ticket)> = self
                .beliefs
                .iter()
                .filter(|(_, belief)| matches!(belief, Belief::Holds(_)))
                .map(|(who, _)| *who)
                .collect();
            if holders.is_empty() {
                break;
            }
            assert_eq!(holders.len(), 1, "one holds, or nobody");
            for (process, ticket) in holders {
                self.leave(process, ticket);
            }
        }
        self.pass(Duration::from_secs(30));
        // The last to arrive do so when no process looks any more.
        self.arrive();
        self.settle();
        assert!(self.beliefs.values().all(|belief| *belief != Belief::Hopes), "somebody waits for ever");
        assert_eq!(self.line_now().len(), 0, "places are left");
        assert!(self.lines.iter().all(Line::is_empty), "tickets are left");
    }

    fn live(&self, process: usize) -> Vec<Ticket> {
        let of = (process, Ticket(0))..=(process, Ticket(u64::MAX));
        let live = self.beliefs.range(of).filter(|(_, b)| matches!(b, Belief::Hopes | Belief::Holds(_)));
        live.map(|(who, _)| who.1).collect()
    }

    fn key(&self, place: Place) -> Bytes {
        self.layout.encode(&Key::Waiter(self.name.clone(), place))
    }

    fn place(&self, key: &[u8]) -> Option<Place> {
        match self.layout.parse(key) {
            Some(Key::Waiter(_, place)) => Some(place),
            _ => None,
        }
    }

    fn line(&self) -> Selection {
        Selection::prefix("/t/locks/n/")
    }

    fn line_now(&mut self) -> BTreeMap<Token, Place> {
        let page = self.store.get(&Get::new(self.line()), self.now).unwrap();
        page.pairs.iter().filter_map(|pair| Some((Token(pair.created), self.place(&pair.key)?))).collect()
    }

    /// Takes what a line asks and tells, and begins the watches it wants.
    fn collect(&mut self, process: usize) {
        loop {
            while let Some(notice) = self.lines[process].poll_notice() {
                let (ticket, belief) = match notice {
                    Notice::Held { ticket, token } => (ticket, Belief::Holds(token)),
                    Notice::Lost { ticket, .. }
                    | Notice::Refused { ticket, .. }
                    | Notice::PermitsDiffer { ticket, .. } => (ticket, Belief::Lost),
                    Notice::Left { ticket, .. } => (ticket, Belief::Over),
                    Notice::Waits { .. } => continue,
                };
                let before = self.beliefs.insert((process, ticket), belief);
                assert!(before == Some(Belief::Hopes) || !matches!(belief, Belief::Holds(_)), "{before:?}");
            }
            let actions = std::iter::from_fn(|| self.lines[process].poll_action());
            self.asked.extend(actions.map(|action| (process, action)));
            let wanted = Watching::of(&self.lines[process]);
            if wanted == self.watched[process] {
                return;
            }
            let before = std::mem::replace(&mut self.watched[process], wanted.clone());
            let line: BTreeSet<Place> = self.line_now().into_values().collect();
            // Own places are watched from their tokens on: what happened since is shown.
            for (&place, token) in &wanted.own {
                if !before.own.contains_key(&place) {
                    match token {
                        Some(_) if !line.contains(&place) => {
                            let now = self.store.revision();
                            self.events[process].push_back(Event::Gone(place, now));
                        }
                        Some(_) | None => {}
                    }
                }
            }
            if let Some(place) = wanted.before.filter(|_| wanted.before != before.before) {
                self.lines[process].handle_watched(place, self.now);
            }
            if wanted.crowd && !before.crowd {
                self.picture(process);
            }
        }
    }

    /// What the store did is on its way to those who watch it.
    fn see(&mut self) {
        while let Some(item) = self.store.poll_watch(self.watch, Previous::Omitted) {
            let WatchItem::Batch { changes, .. } = item.unwrap() else { continue };
            for change in changes {
                for process in 0..self.lines.len() {
                    let watched = &self.watched[process];
                    match &change {
                        Change::Delete { key, revision, .. } => {
                            let Some(place) = self.place(key) else { continue };
                            if watched.own.contains_key(&place) || watched.before == Some(place) {
                                self.events[process].push_back(Event::Gone(place, *revision));
                            }
                        }
                        Change::Put { pair, .. } => {
                            let Some(place) = self.place(&pair.key) else { continue };
                            if watched.before == Some(place) && pair.value == HOLDS {
                                let event = Event::Holds(place, Token(pair.created), pair.modified);
                                self.events[process].push_back(event);
                            }
                        }
                    }
                    if self.watched[process].crowd {
                        self.picture(process);
                        self.collect(process);
                    }
                }
            }
        }
    }

    fn picture(&mut self, process: usize) {
        let modes = self.modes.clone();
        let picture = self.line_now().into_iter().map(|(token, place)| (token, modes[&place])).collect();
        self.lines[process].handle_picture(picture, self.now);
    }

    fn show(&mut self, process: usize) {
        match self.events[process].pop_front() {
            Some(Event::Gone(place, revision)) => {
                self.lines[process].handle_gone(place, revision, self.now);
            }
            Some(Event::Holds(place, token, revision)) => {
                self.lines[process].handle_holder(place, token, revision);
            }
            None => {}
        }
        self.collect(process);
    }

    fn deliver(&mut self, process: usize, answer: Answer) {
        let line = &mut self.lines[process];
        match answer {
            Answer::Entered(ticket, epoch, answer) => {
                line.handle_entered(ticket, epoch, answer, 0.5, self.now);
            }
            Answer::Looked(ticket, epoch, answer) => {
                line.handle_looked(ticket, epoch, answer, 0.5, self.now);
            }
            Answer::Left(ticket, epoch, answer) => line.handle_left(ticket, epoch, answer, 0.5, self.now),
        }
        self.collect(process);
    }
}
