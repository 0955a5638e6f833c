//! Processes that stand in one queue, a store, and what is between them.

mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::change::{Change, PreviousValues, WatchItem, WatchStart};
use crate::id::{LockName, Namespace};
use crate::keyspace::{Keyspace, WatchId};
use crate::kv::{Get, Selection};
use crate::layout::{Key, Layout, QueueKey};
use crate::lease::LeaseId;
use crate::limits::Limits;
use crate::queue::{
    LockMode, QueueEvent, QueueKind, QueueOutput, QueueReply, QueueRequests, SecondRead, WaitQueue, WaiterId,
};
use crate::revision::{Revision, Token};
use crate::time::Moment;
use crate::txn::{Condition, LeaseChoice, Op, Txn};

const TTL: Duration = Duration::from_secs(3_600);

/// By when a request that was taken for lost is applied at the latest. A paused member of etcd knows no bound.
const LATE_MAX: Duration = Duration::from_secs(600);

/// What a key says that holds.
const HOLDS: &str = "holds";

/// How many keys each process can have.
const NONCES: u64 = 1_000;

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestFault {
    Works,
    /// It never arrives, and that is known.
    NotDone,
    /// It is carried out; the answer is lost.
    LosesAnswer,
    /// The answer is lost, and it is carried out much later.
    Late,
}

/// A request that is not yet at the store.
enum UnsentRequest {
    QueueOutput(QueueOutput),
    Read(SecondRead),
}

/// What a process watches.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Watching {
    own: BTreeMap<QueueKey, Option<Token>>,
    predecessor: Option<QueueKey>,
    shareable: bool,
}

impl Watching {
    fn of(queue: &WaitQueue) -> Watching {
        Watching {
            own: queue.own_keys().collect(),
            predecessor: queue.watched_predecessor(),
            shareable: queue.needs_snapshot(),
        }
    }
}

/// What a process believes of a waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LocalState {
    Hopes,
    Holds(Token),
    Over,
    Lost,
}

pub(super) struct QueueWorld {
    now: Moment,
    store: Keyspace,
    watch: WatchId,
    layout: Layout,
    name: LockName,
    pub(super) queues: Vec<WaitQueue>,
    /// What builds the requests of each process and reads their replies.
    builders: Vec<QueueRequests>,
    leases: Vec<LeaseId>,
    lease_counter: i64,
    pub(super) fate: RequestFault,
    pub(super) requests: Vec<&'static str>,
    modes: BTreeMap<QueueKey, LockMode>,
    beliefs: BTreeMap<(usize, WaiterId), LocalState>,
    watched: Vec<Watching>,
    /// Requests not yet at the store, answers and events not yet at their process: what happens next is anybody's guess.
    asked: Vec<(usize, UnsentRequest)>,
    answers: Vec<(usize, QueueReply)>,
    /// Requests that were taken for lost, with the time by which the store carries them out.
    late: Vec<(Moment, Txn)>,
    /// What each process has still to be shown.
    events: Vec<VecDeque<WatchEvent>>,
}

/// What a watch shows.
#[derive(Clone, Copy, Debug)]
enum WatchEvent {
    Gone(QueueKey, Revision),
    /// A key that stands since then said that it holds.
    Holds(QueueKey, Token, Revision),
}

impl QueueWorld {
    pub(super) fn new(processes: usize) -> QueueWorld {
        let mut store = Keyspace::new(Limits::EMBEDDED);
        let watch = store.watch(Selection::everything(), WatchStart::Now, Moment::ORIGIN).unwrap();
        let mut world = QueueWorld {
            now: Moment::ORIGIN,
            store,
            watch,
            layout: Layout::new(&Namespace::parse("t").unwrap()),
            name: LockName::parse("n").unwrap(),
            queues: Vec::new(),
            builders: Vec::new(),
            leases: Vec::new(),
            lease_counter: 0,
            fate: RequestFault::Works,
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
            let nonce_first = NONCES * process as u64;
            world.queues.push(WaitQueue::new(nonce_first));
            world.builders.push(QueueRequests::new(&world.layout, QueueKind::Lock, nonce_first));
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

    pub(super) fn enter(&mut self, process: usize, mode: LockMode) -> WaiterId {
        let id = self.queues[process].enter(self.leases[process], mode);
        self.beliefs.insert((process, id), LocalState::Hopes);
        self.collect(process);
        id
    }

    /// Whoever leaves stops believing first.
    pub(super) fn leave(&mut self, process: usize, id: WaiterId) {
        self.beliefs.insert((process, id), LocalState::Over);
        self.queues[process].leave(id, self.now);
        self.collect(process);
    }

    pub(super) fn holds(&self, process: usize, id: WaiterId) -> bool {
        matches!(self.beliefs.get(&(process, id)), Some(LocalState::Holds(_)))
    }

    pub(super) fn is_lost(&self, process: usize, id: WaiterId) -> bool {
        self.beliefs.get(&(process, id)) == Some(&LocalState::Lost)
    }

    /// A stranger revokes a process's lease; the process gets another for what it does next.
    pub(super) fn revoke(&mut self, process: usize) {
        self.store.revoke(self.leases[process], self.now).unwrap();
        self.leases[process] = self.grant();
    }

    pub(super) fn delete_place_of(&mut self, process: usize, id: WaiterId) {
        let (queue_key, _) = self.queues[process].queue_key(id).unwrap();
        let txn = Txn::new().then(Op::delete(self.key(queue_key)));
        self.store.apply(&txn, self.now).unwrap();
    }

    /// A holder of a process records that in its key.
    pub(super) fn say_holding(&mut self, process: usize) {
        let of = (process, WaiterId(0))..=(process, WaiterId(u64::MAX));
        let holders = self.beliefs.range(of).filter(|(_, belief)| matches!(belief, LocalState::Holds(_)));
        let queue_keys: Vec<_> =
            holders.filter_map(|(who, _)| self.queues[process].queue_key(who.1)).collect();
        for (queue_key, token) in queue_keys {
            let (key, token) = (self.key(queue_key), token.unwrap());
            let put = Op::Put { key: key.clone(), value: HOLDS.into(), lease: LeaseChoice::Keep };
            let txn = Txn::new().when(Condition::created_at(key, token.0)).then(put);
            self.store.apply(&txn, self.now).unwrap();
        }
    }

    pub(super) fn queue_keys(&mut self) -> usize {
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
            } else if let Some(process) = (0..self.queues.len()).find(|&n| !self.events[n].is_empty()) {
                self.show(process);
            } else {
                return;
            }
        }
        panic!("the queue never comes to rest");
    }

    pub(super) fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        self.settle();
        while let Some(wake) =
            self.queues.iter().filter_map(WaitQueue::next_wake).min().filter(|&wake| wake <= end)
        {
            self.move_to(wake);
            for process in 0..self.queues.len() {
                self.queues[process].handle_time(self.now);
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
        let process = usize::from(throw >> 8) % self.queues.len();
        let pick = usize::from(throw >> 4);
        self.fate = match (throw >> 12) % 8 {
            0 => RequestFault::NotDone,
            1 => RequestFault::LosesAnswer,
            2 => RequestFault::Late,
            _ => RequestFault::Works,
        };
        self.see();
        match throw % 16 {
            0 | 1 => drop(self.enter(process, LockMode::Exclusive)),
            2 | 3 => {
                let mine: Vec<WaiterId> = self.live(process);
                if !mine.is_empty() {
                    self.leave(process, mine[pick % mine.len()]);
                }
            }
            4 if pick.is_multiple_of(4) => self.revoke(process),
            4 => self.say_holding(process),
            5 if pick.is_multiple_of(4) => {
                let queue: Vec<QueueKey> = self.line_now().into_values().collect();
                if !queue.is_empty() {
                    let txn = Txn::new().then(Op::delete(self.key(queue[pick % queue.len()])));
                    self.store.apply(&txn, self.now).unwrap();
                }
            }
            5 if pick % 4 == 1 => self.toggle_foreign(),
            6 => self.arrive(),
            7 => {
                self.move_to(self.now + Duration::from_millis(u64::from(throw >> 4)));
                self.queues[process].handle_time(self.now);
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

    /// A waiter that is valid, and whose key exists, is the first of the queue.
    pub(super) fn check_holders(&mut self) {
        let queue = self.line_now();
        let first = queue.keys().next().copied();
        for (who, belief) in &self.beliefs {
            if let LocalState::Holds(token) = belief
                && queue.contains_key(token)
            {
                assert_eq!(Some(*token), first, "{who:?} holds behind somebody");
            }
        }
    }

    /// Faults end, holders leave one after the other: everybody is served or told, and nothing is left.
    pub(super) fn come_to_an_end(&mut self) {
        self.fate = RequestFault::Works;
        for _ in 0..1_000 {
            self.pass(Duration::from_secs(15));
            self.check_holders();
            let holders: Vec<(usize, WaiterId)> = self
                .beliefs
                .iter()
                .filter(|(_, belief)| matches!(belief, LocalState::Holds(_)))
                .map(|(who, _)| *who)
                .collect();
            if holders.is_empty() {
                break;
            }
            assert_eq!(holders.len(), 1, "one holds, or nobody");
            for (process, id) in holders {
                self.leave(process, id);
            }
        }
        self.pass(Duration::from_secs(30));
        // The last to arrive do so when no process looks any more.
        self.arrive();
        self.settle();
        assert!(self.beliefs.values().all(|belief| *belief != LocalState::Hopes), "somebody waits for ever");
        assert_eq!(self.line_now().len(), 0, "queue_keys are left");
        assert!(self.queues.iter().all(WaitQueue::is_empty), "waiters are left");
    }

    fn live(&self, process: usize) -> Vec<WaiterId> {
        let of = (process, WaiterId(0))..=(process, WaiterId(u64::MAX));
        let live =
            self.beliefs.range(of).filter(|(_, b)| matches!(b, LocalState::Hopes | LocalState::Holds(_)));
        live.map(|(who, _)| who.1).collect()
    }

    fn key(&self, queue_key: QueueKey) -> Bytes {
        self.layout.encode(&Key::Waiter(self.name.clone(), queue_key))
    }

    fn queue_key(&self, key: &[u8]) -> Option<QueueKey> {
        match self.layout.parse(key) {
            Some(Key::Waiter(_, queue_key)) => Some(queue_key),
            _ => None,
        }
    }

    /// The prefix of the queue.
    fn queue(&self) -> Bytes {
        self.layout.waiters(&self.name).first().clone()
    }

    fn line_now(&mut self) -> BTreeMap<Token, QueueKey> {
        let page = self.store.get(&Get::prefix(self.queue()), self.now).unwrap();
        page.pairs.iter().filter_map(|pair| Some((Token(pair.created), self.queue_key(&pair.key)?))).collect()
    }

    /// Takes what a queue asks and tells, and begins the watches it wants.
    fn collect(&mut self, process: usize) {
        loop {
            while let Some(notice) = self.queues[process].poll_event() {
                let (id, belief) = match notice {
                    QueueEvent::Held { id, token } => (id, LocalState::Holds(token)),
                    QueueEvent::Lost { id, .. }
                    | QueueEvent::Refused { id, .. }
                    | QueueEvent::PermitsDiffer { id, .. } => (id, LocalState::Lost),
                    QueueEvent::Released { id, .. } => (id, LocalState::Over),
                    QueueEvent::Waits { .. } => continue,
                };
                let predecessor = self.beliefs.insert((process, id), belief);
                assert!(
                    predecessor == Some(LocalState::Hopes) || !matches!(belief, LocalState::Holds(_)),
                    "{predecessor:?}"
                );
            }
            let actions = std::iter::from_fn(|| self.queues[process].poll_output());
            self.asked.extend(actions.map(|action| (process, UnsentRequest::QueueOutput(action))));
            let wanted = Watching::of(&self.queues[process]);
            if wanted == self.watched[process] {
                return;
            }
            let predecessor = std::mem::replace(&mut self.watched[process], wanted.clone());
            let queue: BTreeSet<QueueKey> = self.line_now().into_values().collect();
            // Own keys are watched from their tokens on: what happened since is shown.
            for (&queue_key, token) in &wanted.own {
                if !predecessor.own.contains_key(&queue_key) {
                    match token {
                        Some(_) if !queue.contains(&queue_key) => {
                            let now = self.store.revision();
                            self.events[process].push_back(WatchEvent::Gone(queue_key, now));
                        }
                        Some(_) | None => {}
                    }
                }
            }
            if let Some(queue_key) =
                wanted.predecessor.filter(|_| wanted.predecessor != predecessor.predecessor)
            {
                self.queues[process].handle_watched(queue_key, self.now);
            }
            if wanted.shareable && !predecessor.shareable {
                self.snapshot(process);
            }
        }
    }

    /// What the store did is on its way to those who watch it.
    fn see(&mut self) {
        while let Some(item) = self.store.poll_watch(self.watch, PreviousValues::Omitted) {
            let WatchItem::Batch { changes, .. } = item.unwrap() else { continue };
            for change in changes {
                for process in 0..self.queues.len() {
                    let watched = &self.watched[process];
                    match &change {
                        Change::Delete { key, revision, .. } => {
                            let Some(queue_key) = self.queue_key(key) else { continue };
                            if watched.own.contains_key(&queue_key) || watched.predecessor == Some(queue_key)
                            {
                                self.events[process].push_back(WatchEvent::Gone(queue_key, *revision));
                            }
                        }
                        Change::Put { pair, .. } => {
                            let Some(queue_key) = self.queue_key(&pair.key) else { continue };
                            if watched.predecessor == Some(queue_key) && pair.value == HOLDS {
                                let event = WatchEvent::Holds(queue_key, Token(pair.created), pair.modified);
                                self.events[process].push_back(event);
                            }
                        }
                    }
                    if self.watched[process].shareable {
                        self.snapshot(process);
                        self.collect(process);
                    }
                }
            }
        }
    }

    fn snapshot(&mut self, process: usize) {
        let modes = self.modes.clone();
        let snapshot =
            self.line_now().into_iter().map(|(token, queue_key)| (token, modes[&queue_key])).collect();
        self.queues[process].handle_snapshot(snapshot, self.now);
    }

    fn show(&mut self, process: usize) {
        match self.events[process].pop_front() {
            Some(WatchEvent::Gone(queue_key, revision)) => {
                self.queues[process].handle_gone(queue_key, revision, self.now);
            }
            Some(WatchEvent::Holds(queue_key, token, revision)) => {
                self.queues[process].handle_holder(queue_key, token, revision);
            }
            None => {}
        }
        self.collect(process);
    }

    fn deliver(&mut self, process: usize, reply: QueueReply) {
        let queue = &mut self.queues[process];
        match reply {
            QueueReply::Enter(id, epoch, reply, _) => {
                queue.handle_entered(id, epoch, reply, 0.5, self.now);
            }
            QueueReply::Predecessor(id, epoch, reply, _) => {
                queue.handle_predecessor(id, epoch, reply, 0.5, self.now);
            }
            QueueReply::Leave(id, epoch, reply, _) => {
                queue.handle_left(id, epoch, reply, 0.5, self.now);
            }
        }
        self.collect(process);
    }
}
