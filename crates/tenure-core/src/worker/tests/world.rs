//! Workers, a store, and the faults between them. Deterministic: the same seed gives the same run.
//!
//! It drives the machines as a driver must: each action is carried out by the functions of `request`, each answer comes back as an event.

mod lease;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::process::{HandlerScript, WorkerProcess};
use super::rng::TestRng;
use super::wire::{WireFault, WireRequest};
use crate::change::{PreviousValues, WatchItem, WatchStart};
use crate::id::{CommandId, Namespace, NodeId, TaskId};
use crate::keyspace::{Keyspace, WatchId};
use crate::kv::{Get, KeyValue, Selection};
use crate::layout::{Key, Layout};
use crate::limits::Limits;
use crate::record::{MemberRecord, Record, ResultRecord, Timestamp};
use crate::revision::Token;
use crate::snapshot::FeedItem;
use crate::task::StateRecord;
use crate::time::Moment;
use crate::txn::{Condition, Op, Txn, TxnReply};
use crate::worker::request::NodeWrite;
use crate::worker::{FeedId, HandlerEnd, InputTime, WorkerConfig, WorkerInput, WorkerOutput};

pub(super) const TTL: Duration = Duration::from_secs(10);
const MARGIN: Duration = Duration::from_millis(500);
const RENEW_EVERY: Duration = Duration::from_secs(3);
/// The wall-clock time at the origin of the clock.
const WALL: u64 = 1_700_000_000_000;
pub(super) const FEEDS: [FeedId; 4] = [FeedId::Tasks, FeedId::Nodes, FeedId::Frozen, FeedId::Commands];

/// What happens next.
pub(super) enum WorldItem {
    Arrive(usize, WireRequest),
    Late(Vec<Txn>),
    Tell(usize, WorkerInput),
    Poll(usize, FeedId),
    Renew(usize),
    Join(usize),
    Ends(usize, TaskId, Token, HandlerEnd),
}

pub(super) struct WorkerWorld {
    pub(super) now: Moment,
    pub(super) store: Keyspace,
    pub(super) layout: Layout,
    pub(super) processes: Vec<WorkerProcess>,
    pub(super) rng: TestRng,
    /// Whether requests and watch events take a random time, or a millisecond.
    pub(super) is_stormy: bool,
    /// The fates that requests have, as one in this many.
    pub(super) faults_one_in: u64,
    pub(super) fate: WireFault,
    /// Whether answers stay on their way until [`WorkerWorld::release_replies`].
    pub(super) holds_replies: bool,
    /// How long watch events take, if not as long as everything else.
    pub(super) events_take: Option<Duration>,
    /// How long the store takes for each operation of one node after the other, if it is a slow one.
    pub(super) operations_take: Option<Duration>,
    /// The process that it does not apply to.
    pub(super) swift: Option<usize>,
    /// Until when it is busy.
    busy_until: Moment,
    pub(super) withheld: Vec<(usize, u64, WorkerInput)>,
    queue: BTreeMap<(Moment, u64), (u64, WorldItem)>,
    counter: u64,
    watches: BTreeMap<WatchId, (usize, FeedId)>,
    leases: i64,
    pub(super) handling: HandlerScript,
    /// When a claim was last ended by another process.
    pub(super) interfered: BTreeMap<TaskId, Moment>,
    pub(super) commands: BTreeMap<CommandId, (TaskId, crate::revision::Revision)>,
    pub(super) submitted: BTreeSet<TaskId>,
    pub(super) deleted: BTreeSet<TaskId>,
    pub(super) done: BTreeSet<TaskId>,
    pub(super) killed: BTreeSet<TaskId>,
    /// A sum over everything that happened: by it two runs of one seed are compared.
    pub(super) trace: u64,
}

impl WorkerWorld {
    pub(super) fn new(nodes: usize, seed: u64) -> WorkerWorld {
        let store = Keyspace::new(Limits::EMBEDDED);
        let mut world = WorkerWorld {
            now: Moment::ORIGIN,
            store,
            layout: Layout::new(&Namespace::parse("t").unwrap()),
            processes: Vec::new(),
            rng: TestRng(seed),
            is_stormy: false,
            faults_one_in: 0,
            fate: WireFault::Works,
            holds_replies: false,
            events_take: None,
            operations_take: None,
            swift: None,
            busy_until: Moment::ORIGIN,
            withheld: Vec::new(),
            queue: BTreeMap::new(),
            counter: 0,
            watches: BTreeMap::new(),
            leases: 1,
            handling: HandlerScript::Obedient,
            interfered: BTreeMap::new(),
            commands: BTreeMap::new(),
            submitted: BTreeSet::new(),
            deleted: BTreeSet::new(),
            done: BTreeSet::new(),
            killed: BTreeSet::new(),
            trace: 0,
        };
        for n in 0..nodes {
            world.add_node(n);
        }
        world
    }

    pub(super) fn add_node(&mut self, n: usize) {
        let node = NodeId::parse(&format!("n{n}")).unwrap();
        let seed = self.rng.random();
        self.processes.push(WorkerProcess::new(WorkerConfig::new(node, seed), self.layout.clone()));
        self.boot(n);
    }

    /// A process begins: it follows its feeds and joins.
    pub(super) fn boot(&mut self, n: usize) {
        for feed in FEEDS {
            self.follow(n, feed);
        }
        self.soon(WorldItem::Join(n), n);
    }

    /// The process is gone at once, with everything that ran in it; and another begins in its place.
    pub(super) fn crash(&mut self, n: usize) {
        let seed = self.rng.random();
        let config = WorkerConfig { seed, ..self.processes[n].config.clone() };
        let life = self.processes[n].life + 1;
        for feed in FEEDS {
            self.unfollow(n, feed);
        }
        self.processes[n] = WorkerProcess { life, ..WorkerProcess::new(config, self.layout.clone()) };
        self.boot(n);
    }

    /// Lists a prefix anew and watches it from there.
    fn follow(&mut self, n: usize, feed: FeedId) {
        let select = self.selection(feed);
        let page = self.store.get(&Get::new(select.clone()), self.now).unwrap();
        let watch = self.store.watch(select, WatchStart::After(page.revision), self.now).unwrap();
        self.watches.insert(watch, (n, feed));
        let process = &mut self.processes[n];
        process.watches.insert(feed, watch);
        let mut items = Vec::new();
        let picture = process.pictures.entry(feed).or_default();
        picture.handle_break(&mut items);
        picture.handle_page(page.revision, page.pairs, &mut items);
        picture.handle_listed(&mut items);
        self.show(n, feed, items);
    }

    fn unfollow(&mut self, n: usize, feed: FeedId) {
        if let Some(watch) = self.processes[n].watches.remove(&feed) {
            self.watches.remove(&watch);
            self.store.unwatch(watch);
        }
    }

    pub(super) fn break_feed(&mut self, n: usize, feed: FeedId) {
        self.unfollow(n, feed);
        self.follow(n, feed);
    }

    fn selection(&self, feed: FeedId) -> Selection {
        match feed {
            FeedId::Tasks => self.layout.tasks(),
            FeedId::Nodes => self.layout.nodes(),
            FeedId::Frozen => self.layout.frozen(),
            FeedId::Commands => self.layout.task_commands(),
        }
    }

    fn show(&mut self, n: usize, feed: FeedId, items: Vec<FeedItem>) {
        for item in items {
            self.deliver(n, WorkerInput::FeedItem(feed, item));
        }
    }

    pub(super) fn wall(&self) -> Timestamp {
        Timestamp(WALL + u64::try_from(self.now.since_origin().as_millis()).unwrap())
    }

    pub(super) fn clock(&mut self, n: usize) -> InputTime {
        let skew = self.processes[n].wall_skew;
        let wall = Timestamp(self.wall().0.saturating_add_signed(skew));
        let jitter = if self.is_stormy { self.rng.below(1_000) as f64 / 1_000.0 } else { 0.5 };
        InputTime { at: self.now, wall, jitter }
    }

    /// Passes an input to a machine, and carries out its outputs.
    pub(super) fn deliver(&mut self, n: usize, event: WorkerInput) {
        let now = self.clock(n);
        self.processes[n].machine.handle(event, now);
        while let Some(action) = self.processes[n].machine.poll_output() {
            self.trace = self.trace.wrapping_mul(31).wrapping_add(self.counter);
            self.act(n, action);
        }
        self.processes[n].wake = self.processes[n].machine.next_wake(now);
        while let Some(notice) = self.processes[n].machine.poll_event() {
            self.processes[n].events.push(notice);
        }
        self.announce_reads();
    }

    fn act(&mut self, n: usize, action: WorkerOutput) {
        let token_of =
            |process: &WorkerProcess, task: &TaskId| process.handlers.get(task).map(|run| run.token);
        match action {
            WorkerOutput::Claim { epoch, claims } => {
                let process = &mut self.processes[n];
                let lease = process.lease.expect("a node that has not joined claims nothing");
                let claims = claims.into_iter().map(|ask| {
                    let lease = *process.leases_of.entry(ask.nonce.clone()).or_insert(lease);
                    (ask, lease)
                });
                let claims: Vec<_> = claims.collect();
                process.requests.push(claims.len());
                let count = u32::try_from(claims.len()).unwrap();
                let ask = WireRequest::Claim { epoch, claims };
                match self.operations_take {
                    Some(span) if self.swift != Some(n) => {
                        self.busy_until = self.busy_until.max(self.now) + span * count;
                        self.later(WorldItem::Arrive(n, ask), n, self.busy_until.since(self.now));
                    }
                    Some(_) | None => self.soon(WorldItem::Arrive(n, ask), n),
                }
            }
            WorkerOutput::EndClaim { nonce } => {
                let lease_of = self.processes[n].leases_of.remove(&nonce);
                assert!(lease_of.is_some(), "{nonce} is ended twice");
            }
            WorkerOutput::ReleaseClaim { task, token, claim } => {
                self.soon(
                    WorldItem::Arrive(n, WireRequest::Write(NodeWrite::ReleaseClaim(task, token, claim))),
                    n,
                );
            }
            WorkerOutput::Start(start) => self.start(n, *start),
            WorkerOutput::Stop { task, token, .. } => {
                assert_eq!(token_of(&self.processes[n], &task), Some(token), "stops what runs");
                self.stop_handler(n, &task);
            }
            WorkerOutput::Abort { task, token } => {
                assert_eq!(token_of(&self.processes[n], &task), Some(token), "aborts what runs");
                self.abort_handler(n, &task);
            }
            WorkerOutput::RequestCheckpoint { task, .. } => self.processes[n].nudged.push(task),
            WorkerOutput::CheckpointReply { task, checkpoint_requests, result, .. } => {
                self.processes[n]
                    .kept
                    .extend(checkpoint_requests.into_iter().map(|ask| (task.clone(), ask, result.clone())));
            }
            WorkerOutput::WriteState(save) => {
                self.soon(WorldItem::Arrive(n, WireRequest::Write(NodeWrite::WriteState(save))), n);
            }
            WorkerOutput::AckCommand(reply_to) => {
                self.soon(WorldItem::Arrive(n, WireRequest::Write(NodeWrite::AckCommand(reply_to))), n);
            }
            WorkerOutput::Retain(ask) => {
                self.processes[n].retained.push(ask.step.clone());
                self.soon(WorldItem::Arrive(n, WireRequest::Write(NodeWrite::Retain(ask))), n);
            }
            WorkerOutput::Announce(state) => {
                self.processes[n].announced = state;
                self.put_node(n);
            }
            WorkerOutput::Publish(load) => {
                self.processes[n].load = load;
                self.put_node(n);
            }
            WorkerOutput::Leave => self.soon(WorldItem::Arrive(n, WireRequest::Leave), n),
            WorkerOutput::Finish { running } => self.processes[n].finished = Some(running),
        }
    }

    /// Puts a node's own key again, if it is in the store.
    fn put_node(&mut self, n: usize) {
        let process = &self.processes[n];
        let (Some(lease), Some(token)) = (process.lease, process.incarnation) else { return };
        let key = self.layout.encode(&Key::Node(process.config.node.clone()));
        let txn = Txn::new().when(Condition::created_at(key.clone(), token.0)).then(Op::put_leased(
            key,
            process.node_record(),
            lease,
        ));
        let _ = self.store.apply(&txn, self.now);
    }

    /// Something will happen soon.
    pub(super) fn soon(&mut self, item: WorldItem, n: usize) {
        let delay = match self.is_stormy {
            false => 1,
            true if self.rng.one_in(20) => self.rng.below(3_000),
            true => self.rng.below(60),
        };
        self.later(item, n, Duration::from_millis(delay));
    }

    pub(super) fn later(&mut self, item: WorldItem, n: usize, delay: Duration) {
        self.counter += 1;
        let life = self.processes.get(n).map_or(0, |process| process.life);
        self.queue.insert((self.now + delay, self.counter), (life, item));
    }

    /// Every feed that watches the changed key will read it.
    pub(super) fn announce_reads(&mut self) {
        while let Some(watch) = self.store.poll_woken() {
            if let Some(&(n, feed)) = self.watches.get(&watch)
                && self.processes[n].polls.insert(feed)
            {
                match self.events_take {
                    Some(span) => self.later(WorldItem::Poll(n, feed), n, span),
                    None => self.soon(WorldItem::Poll(n, feed), n),
                }
            }
        }
    }

    /// Everything happens that is due within this span.
    pub(super) fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        self.announce_reads();
        for _ in 0..10_000_000_u64 {
            let next = self.queue.keys().next().map(|(at, _)| *at);
            let wakes = self.processes.iter().enumerate();
            let wake = wakes.filter_map(|(n, process)| Some((process.wake?.max(self.now), n))).min();
            let lapse = self.processes.iter().filter_map(WorkerProcess::lapses_at).min();
            let store = self.store.next_deadline();
            let Some(at) = [next, wake.map(|(at, _)| at), lapse, store].into_iter().flatten().min() else {
                break;
            };
            if at > end {
                break;
            }
            self.now = self.now.max(at);
            self.store.expire(self.now);
            self.announce_reads();
            self.lapse();
            if next.is_some_and(|next| next <= self.now) {
                if let Some((_, (life, item))) = self.queue.pop_first() {
                    self.happen(life, item);
                }
            } else if let Some((_, n)) = wake.filter(|(at, _)| *at <= self.now) {
                self.deliver(n, WorkerInput::Time);
            }
            self.announce_reads();
            self.check();
        }
        self.now = end;
        self.store.expire(self.now);
        self.announce_reads();
        self.lapse();
    }

    pub(super) fn settle(&mut self) {
        self.pass(Duration::from_secs(2));
    }

    fn happen(&mut self, life: u64, item: WorldItem) {
        let is_alive = |world: &WorkerWorld, n: usize| world.processes[n].life == life;
        match item {
            // What a process has sent travels on without it.
            WorldItem::Arrive(n, ask) => self.arrive(n, life, ask),
            WorldItem::Late(txns) => {
                for txn in txns {
                    let _ = self.store.apply(&txn, self.now);
                }
            }
            WorldItem::Tell(n, event) if is_alive(self, n) => self.deliver(n, event),
            WorldItem::Poll(n, feed) if is_alive(self, n) => self.poll(n, feed),
            WorldItem::Renew(n) if is_alive(self, n) => self.renew(n),
            WorldItem::Join(n) if is_alive(self, n) => self.join(n),
            WorldItem::Ends(n, task, token, outcome) if is_alive(self, n) => {
                self.end_handler(n, task, token, outcome);
            }
            WorldItem::Tell(..)
            | WorldItem::Poll(..)
            | WorldItem::Renew(_)
            | WorldItem::Join(_)
            | WorldItem::Ends(..) => {}
        }
    }

    fn poll(&mut self, n: usize, feed: FeedId) {
        self.processes[n].polls.remove(&feed);
        if self.processes[n].is_cut {
            self.processes[n].polls.insert(feed);
            return self.later(WorldItem::Poll(n, feed), n, Duration::from_millis(500));
        }
        let Some(&watch) = self.processes[n].watches.get(&feed) else { return };
        let mut items = Vec::new();
        while let Some(Ok(WatchItem::Batch { revision, changes })) =
            self.store.poll_watch(watch, PreviousValues::Omitted)
        {
            self.processes[n].pictures.entry(feed).or_default().handle_batch(revision, changes, &mut items);
        }
        self.show(n, feed, items);
    }

    pub(super) fn get(&mut self, key: &Key) -> Option<KeyValue> {
        let page = self.store.get(&Get::key(self.layout.encode(key)), self.now).unwrap();
        page.pairs.into_iter().next()
    }

    pub(super) fn apply(&mut self, txn: &Txn) -> TxnReply {
        let reply = self.store.apply(txn, self.now).unwrap();
        self.announce_reads();
        reply
    }

    pub(super) fn state(&mut self, name: &str) -> Option<StateRecord> {
        let pair = self.get(&Key::TaskState(TaskId::parse(name).unwrap()))?;
        Some(StateRecord::decode(&pair.value).unwrap())
    }

    pub(super) fn result(&mut self, id: &CommandId) -> Option<ResultRecord> {
        let pair = self.get(&Key::CommandResult(id.clone()))?;
        Some(ResultRecord::decode(&pair.value).unwrap())
    }
}

pub(super) fn node_record(state: crate::record::MemberState) -> Bytes {
    let mut record = MemberRecord::decode(b"{}").unwrap();
    record.state = state;
    record.encode()
}
