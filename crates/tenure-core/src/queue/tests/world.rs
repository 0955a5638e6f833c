//! Processes with waiters in one queue, a store, and the network between them.

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

/// The latest time at which a request with a lost reply is applied. A paused member of etcd has no
/// such bound.
const LATE_MAX: Duration = Duration::from_secs(600);

/// The value of a key that is marked as holder.
const HOLDS: &str = "holds";

/// The number of keys that each process can have.
const NONCES: u64 = 1_000;

/// The fault of the current requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueFault {
    Works,
    /// It is not applied, and the error shows it.
    NotDone,
    /// It is applied, and its reply is lost.
    LosesReply,
    /// Its reply is lost, and it is applied much later.
    Late,
}

/// A request that has not reached the store.
enum UnsentRequest {
    QueueOutput(QueueOutput),
    Read(SecondRead),
}

/// The keys that a process watches.
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

/// The state of a waiter, as its process knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LocalState {
    Waits,
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
    /// The request builder of each process.
    builders: Vec<QueueRequests>,
    leases: Vec<LeaseId>,
    lease_counter: i64,
    pub(super) fault: QueueFault,
    pub(super) requests: Vec<&'static str>,
    modes: BTreeMap<QueueKey, LockMode>,
    states: BTreeMap<(usize, WaiterId), LocalState>,
    watched: Vec<Watching>,
    /// Requests that have not reached the store, replies and events that have not reached their
    /// process. They arrive in any order.
    unsent: Vec<(usize, UnsentRequest)>,
    replies: Vec<(usize, QueueReply)>,
    /// Requests with a lost reply, with the time by which the store applies them.
    late: Vec<(Moment, Txn)>,
    /// Watch events that have not reached their process.
    events: Vec<VecDeque<WatchEvent>>,
}

/// An event of a watch.
#[derive(Clone, Copy, Debug)]
enum WatchEvent {
    Gone(QueueKey, Revision),
    /// The key with this token was marked as holder.
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
            fault: QueueFault::Works,
            requests: Vec::new(),
            modes: BTreeMap::new(),
            states: BTreeMap::new(),
            watched: vec![Watching::default(); processes],
            unsent: Vec::new(),
            replies: Vec::new(),
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
        self.states.insert((process, id), LocalState::Waits);
        self.collect(process);
        id
    }

    /// The state ends before the request is sent.
    pub(super) fn leave(&mut self, process: usize, id: WaiterId) {
        self.states.insert((process, id), LocalState::Over);
        self.queues[process].leave(id, self.now);
        self.collect(process);
    }

    pub(super) fn holds(&self, process: usize, id: WaiterId) -> bool {
        matches!(self.states.get(&(process, id)), Some(LocalState::Holds(_)))
    }

    pub(super) fn is_lost(&self, process: usize, id: WaiterId) -> bool {
        self.states.get(&(process, id)) == Some(&LocalState::Lost)
    }

    /// Another client revokes the process's lease. Its next waiters use another lease.
    pub(super) fn revoke(&mut self, process: usize) {
        self.store.revoke(self.leases[process], self.now).unwrap();
        self.leases[process] = self.grant();
    }

    pub(super) fn delete_key_of(&mut self, process: usize, id: WaiterId) {
        let (queue_key, _) = self.queues[process].queue_key(id).unwrap();
        let txn = Txn::new().then(Op::delete(self.key(queue_key)));
        self.store.apply(&txn, self.now).unwrap();
    }

    /// The holders of a process mark their keys.
    pub(super) fn mark_holder(&mut self, process: usize) {
        let of = (process, WaiterId(0))..=(process, WaiterId(u64::MAX));
        let holders = self.states.range(of).filter(|(_, state)| matches!(state, LocalState::Holds(_)));
        let queue_keys: Vec<_> =
            holders.filter_map(|(waiter, _)| self.queues[process].queue_key(waiter.1)).collect();
        for (queue_key, token) in queue_keys {
            let (key, token) = (self.key(queue_key), token.unwrap());
            let put = Op::Put { key: key.clone(), value: HOLDS.into(), lease: LeaseChoice::Keep };
            let txn = Txn::new().when(Condition::created_at(key, token.0)).then(put);
            self.store.apply(&txn, self.now).unwrap();
        }
    }

    pub(super) fn queue_keys(&mut self) -> usize {
        self.queue_now().len()
    }

    /// Delivers everything in flight, in order.
    pub(super) fn settle(&mut self) {
        for _ in 0..100_000 {
            self.collect_changes();
            if let Some((process, action)) = (!self.unsent.is_empty()).then(|| self.unsent.remove(0)) {
                self.perform(process, action);
            } else if !self.replies.is_empty() {
                let (process, reply) = self.replies.remove(0);
                self.deliver(process, reply);
            } else if let Some(process) = (0..self.queues.len()).find(|&n| !self.events[n].is_empty()) {
                self.show(process);
            } else {
                return;
            }
        }
        panic!("the queue never settles");
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
            self.apply_late();
        }
        self.now = self.now.max(moment);
    }

    /// Applies the requests with a lost reply.
    pub(super) fn apply_late(&mut self) {
        for (_, txn) in std::mem::take(&mut self.late) {
            // Their lease may have ended.
            let _ = self.store.apply(&txn, self.now);
        }
        self.collect_changes();
    }

    /// Takes one random step.
    pub(super) fn step(&mut self, random: u16) {
        let process = usize::from(random >> 8) % self.queues.len();
        let pick = usize::from(random >> 4);
        self.fault = match (random >> 12) % 8 {
            0 => QueueFault::NotDone,
            1 => QueueFault::LosesReply,
            2 => QueueFault::Late,
            _ => QueueFault::Works,
        };
        self.collect_changes();
        match random % 16 {
            0 | 1 => drop(self.enter(process, LockMode::Exclusive)),
            2 | 3 => {
                let mine: Vec<WaiterId> = self.live(process);
                if !mine.is_empty() {
                    self.leave(process, mine[pick % mine.len()]);
                }
            }
            4 if pick.is_multiple_of(4) => self.revoke(process),
            4 => self.mark_holder(process),
            5 if pick.is_multiple_of(4) => {
                let queue: Vec<QueueKey> = self.queue_now().into_values().collect();
                if !queue.is_empty() {
                    let txn = Txn::new().then(Op::delete(self.key(queue[pick % queue.len()])));
                    self.store.apply(&txn, self.now).unwrap();
                }
            }
            5 if pick % 4 == 1 => self.toggle_foreign(),
            6 => self.apply_late(),
            7 => {
                self.move_to(self.now + Duration::from_millis(u64::from(random >> 4)));
                self.queues[process].handle_time(self.now);
                self.collect(process);
            }
            8..=11 if !self.unsent.is_empty() => {
                let (process, action) = self.unsent.remove(pick % self.unsent.len());
                self.perform(process, action);
            }
            12..=14 if !self.replies.is_empty() => {
                let (process, reply) = self.replies.remove(pick % self.replies.len());
                self.deliver(process, reply);
            }
            _ => self.show(process),
        }
    }

    /// A waiter that holds, and has its key in the store, must be the first of the queue.
    pub(super) fn check_holders(&mut self) {
        let queue = self.queue_now();
        let first = queue.keys().next().copied();
        for (waiter, state) in &self.states {
            if let LocalState::Holds(token) = state
                && queue.contains_key(token)
            {
                assert_eq!(Some(*token), first, "{waiter:?} holds behind an older key");
            }
        }
    }

    /// Ends all faults and lets the holders leave one after the other. Every waiter must hold or be
    /// lost, and no key may remain.
    pub(super) fn run_to_end(&mut self) {
        self.fault = QueueFault::Works;
        for _ in 0..1_000 {
            self.pass(Duration::from_secs(15));
            self.check_holders();
            let holders: Vec<(usize, WaiterId)> = self
                .states
                .iter()
                .filter(|(_, state)| matches!(state, LocalState::Holds(_)))
                .map(|(waiter, _)| *waiter)
                .collect();
            if holders.is_empty() {
                break;
            }
            assert_eq!(holders.len(), 1, "at most one holds");
            for (process, id) in holders {
                self.leave(process, id);
            }
        }
        self.pass(Duration::from_secs(30));
        // The last of these requests arrive when no process reads the queue any more.
        self.apply_late();
        self.settle();
        assert!(self.states.values().all(|state| *state != LocalState::Waits), "a waiter has no outcome");
        assert_eq!(self.queue_now().len(), 0, "queue keys remain");
        assert!(self.queues.iter().all(WaitQueue::is_empty), "waiters remain");
    }

    fn live(&self, process: usize) -> Vec<WaiterId> {
        let of = (process, WaiterId(0))..=(process, WaiterId(u64::MAX));
        let live =
            self.states.range(of).filter(|(_, b)| matches!(b, LocalState::Waits | LocalState::Holds(_)));
        live.map(|(waiter, _)| waiter.1).collect()
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

    fn queue_now(&mut self) -> BTreeMap<Token, QueueKey> {
        let page = self.store.get(&Get::prefix(self.queue()), self.now).unwrap();
        page.pairs.iter().filter_map(|pair| Some((Token(pair.created), self.queue_key(&pair.key)?))).collect()
    }

    /// Takes the outputs and events of a queue, and updates its watches.
    fn collect(&mut self, process: usize) {
        loop {
            while let Some(notice) = self.queues[process].poll_event() {
                let (id, state) = match notice {
                    QueueEvent::Held { id, token } => (id, LocalState::Holds(token)),
                    QueueEvent::Lost { id, .. }
                    | QueueEvent::Refused { id, .. }
                    | QueueEvent::PermitsDiffer { id, .. } => (id, LocalState::Lost),
                    QueueEvent::Released { id, .. } => (id, LocalState::Over),
                    QueueEvent::Waits { .. } => continue,
                };
                let predecessor = self.states.insert((process, id), state);
                assert!(
                    predecessor == Some(LocalState::Waits) || !matches!(state, LocalState::Holds(_)),
                    "{predecessor:?}"
                );
            }
            let actions = std::iter::from_fn(|| self.queues[process].poll_output());
            self.unsent.extend(actions.map(|action| (process, UnsentRequest::QueueOutput(action))));
            let wanted = Watching::of(&self.queues[process]);
            if wanted == self.watched[process] {
                return;
            }
            let predecessor = std::mem::replace(&mut self.watched[process], wanted.clone());
            let queue: BTreeSet<QueueKey> = self.queue_now().into_values().collect();
            // Own keys are watched from their tokens on, so earlier deletes are shown.
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

    /// Queues the store's changes for the processes that watch them.
    fn collect_changes(&mut self) {
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
            self.queue_now().into_iter().map(|(token, queue_key)| (token, modes[&queue_key])).collect();
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
