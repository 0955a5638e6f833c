//! Processes that compete for one exclusive key, each with a real session, on a store with lost and late requests.

mod requests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::change::{Change, PreviousValues, WatchItem, WatchStart};
use crate::exclusive_key::{
    ExclusiveKey, ExclusiveKeyEvent, ExclusiveKeyOutput, RegisterReply, SessionView, TakeTimeouts,
};
use crate::exclusive_key::{RegistrationStatus, UpdateError};
use crate::keyspace::{Keyspace, WatchId};
use crate::kv::{Get, KeyValue, Selection};
use crate::limits::Limits;
use crate::record::MemberRecord;
use crate::revision::{RequestId, Token};
use crate::rng;
use crate::session::{PutMode, RegistrationId, Session, SessionConfig, SessionEvent, SessionStatus};
use crate::snapshot::{FeedItem, SnapshotDiff};
use crate::time::Moment;
use crate::txn::{Op, Txn};

use requests::{UndeliveredReply, UnsentStep};

pub(super) const KEY: &str = "/shop/nodes/a";

/// The fault of the current requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StoreFault {
    Works,
    /// It never arrives, and that is known.
    NotDone,
    /// It is applied, and its reply is lost.
    LosesReply,
    /// Its reply is lost, and it is applied later.
    Late,
}

/// Whether other clients interfere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Strangers {
    None,
    /// They revoke leases, and delete and overwrite the key.
    Interfere,
}

/// One process: its session, and the key that it takes.
pub(super) struct OwnerProcess {
    pub(super) session: Session,
    pub(super) key: Option<ExclusiveKey<MemberRecord>>,
    pub(super) notices: Vec<ExclusiveKeyEvent>,
    nonce: String,
    /// Nothing reaches the store, and no watch shows anything.
    is_cut_off: bool,
    /// What the session reads of its own key.
    watch: WatchId,
    feed: Option<(SnapshotDiff, WatchId)>,
    items: VecDeque<FeedItem>,
    requests: Vec<UnsentStep>,
    replies: Vec<UndeliveredReply>,
    registrations: BTreeMap<RegistrationId, RequestId>,
    registered: Vec<(RequestId, RegisterReply)>,
}

pub(super) struct ExclusiveKeyWorld {
    pub(super) now: Moment,
    pub(super) store: Keyspace,
    pub(super) processes: Vec<OwnerProcess>,
    pub(super) fate: StoreFault,
    counter: i64,
    rng: u64,
    /// Requests that were taken for lost.
    late: Vec<Txn>,
    /// The owner of each token.
    owners: BTreeMap<Token, String>,
}

impl ExclusiveKeyWorld {
    pub(super) fn new(processes: usize, seed: u64) -> ExclusiveKeyWorld {
        let mut store = Keyspace::new(Limits::EMBEDDED);
        let processes = (0..processes).map(|_| OwnerProcess::new(&mut store)).collect();
        ExclusiveKeyWorld {
            now: Moment::ORIGIN,
            store,
            processes,
            fate: StoreFault::Works,
            counter: 0,
            rng: seed,
            late: Vec::new(),
            owners: BTreeMap::new(),
        }
    }

    pub(super) fn pick(&mut self, below: usize) -> usize {
        usize::try_from(rng::next(&mut self.rng) % below as u64).unwrap()
    }

    /// Begins to take the key, with a nonce of its own.
    pub(super) fn take(&mut self, n: usize, owner: Duration) {
        self.counter += 1;
        let nonce = format!("nonce-{}", self.counter);
        let patience = TakeTimeouts { store: Duration::from_secs(20), owner };
        let process = &mut self.processes[n];
        process.nonce.clone_from(&nonce);
        process.notices.clear();
        // What the former owner waited for ended with it.
        process.registrations.clear();
        process.registered.clear();
        process.items.clear();
        process.requests.retain(|request| !matches!(request, UnsentStep::Read));
        process.replies.retain(|reply| !matches!(reply, UndeliveredReply::Read(_)));
        process.key = Some(ExclusiveKey::new(record(&nonce), patience, self.now));
        self.collect(n);
    }

    pub(super) fn leave(&mut self, n: usize) {
        let until = self.now + Duration::from_secs(5);
        if let Some(key) = &mut self.processes[n].key {
            key.leave(until, self.now);
        }
        self.collect(n);
    }

    /// The owner drops its handle.
    pub(super) fn release(&mut self, n: usize) {
        if let Some(key) = &mut self.processes[n].key {
            key.release();
        }
        self.collect(n);
    }

    /// The process ends without a word to the store.
    pub(super) fn stop(&mut self, n: usize) {
        self.processes[n] = OwnerProcess::new(&mut self.store);
    }

    pub(super) fn update(&mut self, n: usize) -> Result<RequestId, UpdateError> {
        self.counter += 1;
        let (label, within) = (self.counter.to_string(), Duration::from_secs(5));
        let change = |record: &mut MemberRecord| {
            record.version = label;
            "forged".clone_into(&mut record.nonce);
        };
        let updated = self.processes[n].key.as_mut().unwrap().update(change, within, self.now);
        self.collect(n);
        updated
    }

    pub(super) fn status(&self, n: usize) -> RegistrationStatus {
        let process = &self.processes[n];
        let key = process.key.as_ref().unwrap();
        key.status(process.view(self.now))
    }

    pub(super) fn token(&self, n: usize) -> Option<Token> {
        let process = &self.processes[n];
        match process.key.as_ref()?.status(process.view(self.now)) {
            RegistrationStatus::Member(token) => Some(token),
            RegistrationStatus::Lost | RegistrationStatus::Displaced(_) | RegistrationStatus::Left => None,
        }
    }

    pub(super) fn stored(&mut self) -> Option<KeyValue> {
        self.store.get(&Get::key(KEY), self.now).unwrap().pairs.pop()
    }

    /// A stranger changes the key.
    pub(super) fn apply(&mut self, op: Op) {
        self.store.apply(&Txn::new().then(op), self.now).unwrap();
    }

    pub(super) fn revoke(&mut self, n: usize) {
        let leases: Vec<_> = self.processes[n].session.leases().collect();
        for lease in leases {
            // It may have expired.
            let _ = self.store.revoke(lease, self.now);
        }
    }

    /// Everything in flight arrives, in order.
    pub(super) fn settle(&mut self) {
        for _ in 0..10_000 {
            let moved =
                (0..self.processes.len()).any(|n| self.send(n, 0) || self.deliver(n, 0) || self.show(n));
            if !moved {
                return;
            }
        }
        panic!("the world never settles");
    }

    pub(super) fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        self.settle();
        while let Some(wake) = self.processes.iter().filter_map(OwnerProcess::next_wake).min()
            && wake <= end
        {
            self.move_to(wake);
            self.settle();
        }
        self.move_to(end);
        self.settle();
    }

    /// One event at random.
    pub(super) fn happen(&mut self, strangers: Strangers) {
        let (n, pick) = (self.pick(self.processes.len()), self.pick(1 << 16));
        self.fate = match self.pick(10) {
            _ if self.processes[n].is_cut_off => StoreFault::NotDone,
            0 => StoreFault::NotDone,
            1 => StoreFault::LosesReply,
            2 => StoreFault::Late,
            _ => StoreFault::Works,
        };
        match self.pick(24) {
            0 | 1 if self.processes[n].key.as_ref().is_none_or(ExclusiveKey::is_over) => {
                self.take(n, Duration::from_secs(if pick.is_multiple_of(2) { 0 } else { 60 }));
            }
            2 if self.token(n).is_some() || pick.is_multiple_of(4) => self.leave(n),
            3 if pick.is_multiple_of(4) => self.release(n),
            4 if self.token(n).is_some() => {
                // What it leads to is read from the key.
                let _ = self.update(n);
            }
            5 if strangers == Strangers::Interfere => match pick % 8 {
                0 => self.revoke(n),
                1 => self.apply(Op::delete(KEY)),
                2 => self.apply(Op::put(KEY, "10.0.0.9:80")),
                _ => {}
            },
            6 | 7 => self.move_to(self.now + Duration::from_millis(pick as u64 % 6_000)),
            8 => self.arrive(pick),
            9 if pick.is_multiple_of(2) => self.break_feed(n),
            9 => self.processes[n].is_cut_off = pick % 4 == 1,
            10..=14 => drop(self.send(n, pick)),
            15..=19 => drop(self.deliver(n, pick)),
            _ => drop(self.show(n)),
        }
        self.check();
    }

    /// No token belongs to two owners.
    fn check(&mut self) {
        for n in 0..self.processes.len() {
            let Some(token) = self.token(n) else { continue };
            let nonce = self.processes[n].nonce.clone();
            let owner = self.owners.entry(token).or_insert_with(|| nonce.clone());
            assert_eq!(*owner, nonce, "{token} has two owners");
        }
    }

    /// How many processes believe that they own the key.
    pub(super) fn owners_now(&self) -> usize {
        (0..self.processes.len()).filter(|&n| self.token(n).is_some()).count()
    }

    /// Faults end, every owner leaves: no key is left.
    pub(super) fn come_to_an_end(&mut self) {
        self.fate = StoreFault::Works;
        self.processes.iter_mut().for_each(|process| process.is_cut_off = false);
        self.pass(Duration::from_secs(30));
        self.check();
        for n in 0..self.processes.len() {
            self.leave(n);
        }
        self.pass(Duration::from_secs(30));
        while !self.late.is_empty() {
            self.arrive(0);
        }
        self.pass(Duration::from_secs(30));
        assert!(
            self.processes.iter().all(|process| process.session.is_settled()),
            "a session is not settled"
        );
        assert!(self.processes.iter().filter_map(|process| process.key.as_ref()).all(ExclusiveKey::is_over));
        let left = self.stored().filter(|pair| pair.lease.is_some());
        assert_eq!(left, None, "a leave leaves a key");
    }

    fn arrive(&mut self, pick: usize) {
        if !self.late.is_empty() {
            let txn = self.late.remove(pick % self.late.len());
            // Its lease may be gone.
            let _ = self.store.apply(&txn, self.now);
        }
    }

    fn move_to(&mut self, now: Moment) {
        self.now = self.now.max(now);
        self.store.expire(self.now);
        for n in 0..self.processes.len() {
            self.processes[n].session.handle_time(self.now);
            self.collect(n);
            if let Some(key) = &mut self.processes[n].key {
                key.handle_time(self.now);
            }
            self.collect(n);
        }
    }

    /// The feed's watch breaks off; it lists again.
    fn break_feed(&mut self, n: usize) {
        let process = &mut self.processes[n];
        if !process.is_cut_off
            && let Some((mut picture, watch)) = process.feed.take()
        {
            self.store.unwatch(watch);
            picture.handle_break(&mut process.items);
            list(&mut self.store, process, picture, self.now);
        }
    }

    /// Shows one change to the session, or one item to the key.
    pub(super) fn show(&mut self, n: usize) -> bool {
        let process = &mut self.processes[n];
        if process.is_cut_off {
            return false;
        }
        let was_shown =
            process.show_session(&mut self.store, self.now) || process.show_key(&mut self.store, self.now);
        self.collect(n);
        was_shown
    }

    pub(super) fn deliver(&mut self, n: usize, pick: usize) -> bool {
        let process = &mut self.processes[n];
        let is_there = !process.registered.is_empty() || !process.replies.is_empty();
        if !process.registered.is_empty() && (pick.is_multiple_of(2) || process.replies.is_empty()) {
            let (epoch, reply) = process.registered.remove(pick % process.registered.len());
            if let Some(key) = &mut process.key {
                key.handle_registered(epoch, reply, self.now);
            }
        } else if !process.replies.is_empty() {
            let reply = process.replies.remove(pick % process.replies.len());
            process.handle(reply, self.now);
        }
        self.collect(n);
        is_there
    }

    /// Takes what session and key request and notify.
    pub(super) fn collect(&mut self, n: usize) {
        loop {
            let process = &mut self.processes[n];
            process.handle_session_notices();
            let actions = std::iter::from_fn(|| process.session.poll_output());
            process.requests.extend(actions.map(UnsentStep::Session));
            let view = process.view(self.now);
            let Some(key) = &mut process.key else { return };
            key.handle_session(view, self.now);
            process.notices.extend(std::iter::from_fn(|| key.poll_event()));
            match (key.poll_output(), key.is_followed()) {
                (Some(action), _) => process.perform(action, self.now),
                (None, true) if process.feed.is_none() => {
                    let mut picture = SnapshotDiff::new();
                    picture.handle_break(&mut process.items);
                    list(&mut self.store, process, picture, self.now);
                }
                (None, true) => return,
                (None, false) => {
                    process.items.clear();
                    if let Some((_, watch)) = process.feed.take() {
                        self.store.unwatch(watch);
                    }
                    return;
                }
            }
        }
    }
}

/// Lists the key and watches it from there.
fn list(store: &mut Keyspace, process: &mut OwnerProcess, mut picture: SnapshotDiff, now: Moment) {
    let page = store.get(&Get::key(KEY), now).unwrap();
    let watch = store.watch(Selection::Key(KEY.into()), WatchStart::After(page.revision), now).unwrap();
    picture.handle_page(page.revision, page.pairs, &mut process.items);
    picture.handle_listed(&mut process.items);
    process.feed = Some((picture, watch));
}

impl OwnerProcess {
    fn new(store: &mut Keyspace) -> OwnerProcess {
        let watch = store.watch(Selection::Key(KEY.into()), WatchStart::Now, Moment::ORIGIN).unwrap();
        OwnerProcess {
            session: Session::new(SessionConfig::DEFAULT).unwrap(),
            key: None,
            notices: Vec::new(),
            nonce: String::new(),
            is_cut_off: false,
            watch,
            feed: None,
            items: VecDeque::new(),
            requests: Vec::new(),
            replies: Vec::new(),
            registrations: BTreeMap::new(),
            registered: Vec::new(),
        }
    }

    fn next_wake(&self) -> Option<Moment> {
        let key = self.key.as_ref().and_then(ExclusiveKey::next_wake);
        self.session.next_wake().into_iter().chain(key).min()
    }

    /// What the driver reports of the session.
    fn view(&self, now: Moment) -> SessionView {
        let is_live = matches!(self.session.status(now), SessionStatus::Live | SessionStatus::Suspect { .. });
        let lease = self.key.as_ref().and_then(ExclusiveKey::lease);
        let is_valid = |lease| self.session.valid_until(lease).is_some_and(|until| now < until);
        let held = lease.filter(|lease| is_live && is_valid(*lease));
        SessionView { is_closed: false, held, has_key: self.session.registration(&KEY.into()).is_some() }
    }

    fn perform(&mut self, action: ExclusiveKeyOutput, now: Moment) {
        match action {
            ExclusiveKeyOutput::Create { epoch, .. } if self.session.registration(&KEY.into()).is_some() => {
                self.registered.push((epoch, RegisterReply::AlreadyRegistered));
            }
            ExclusiveKeyOutput::Create { epoch, value } | ExclusiveKeyOutput::Replace { epoch, value } => {
                self.supersede();
                let registration =
                    self.session.register(KEY.into(), value, None, PutMode::Create, now).unwrap();
                self.registrations.insert(registration, epoch);
            }
            ExclusiveKeyOutput::Withdraw => {
                self.supersede();
                self.session.unregister(&Bytes::from(KEY), now);
            }
            ExclusiveKeyOutput::Read => self.requests.push(UnsentStep::Read),
        }
    }

    fn supersede(&mut self) {
        let superseded = std::mem::take(&mut self.registrations).into_values();
        self.registered.extend(superseded.map(|epoch| (epoch, RegisterReply::Superseded)));
    }

    fn handle_session_notices(&mut self) {
        while let Some(notice) = self.session.poll_event() {
            let (registration, reply) = match notice {
                SessionEvent::Registered { registration, revision, .. } => {
                    (registration, RegisterReply::Stored(revision))
                }
                SessionEvent::Refused { registration, why: None, .. } => (registration, RegisterReply::Taken),
                SessionEvent::Refused { registration, why: Some(error), .. } => {
                    (registration, RegisterReply::Refused(error))
                }
                _ => continue,
            };
            if let Some(epoch) = self.registrations.remove(&registration) {
                self.registered.push((epoch, reply));
            }
        }
    }

    fn show_session(&mut self, store: &mut Keyspace, now: Moment) -> bool {
        let Some(item) = store.poll_watch(self.watch, PreviousValues::Omitted) else { return false };
        if let WatchItem::Batch { changes, .. } = item.unwrap() {
            for change in changes {
                match change {
                    Change::Put { pair, .. } => {
                        self.session.handle_key_put(&pair.key, &pair.value, pair.lease, pair.modified, now);
                    }
                    Change::Delete { key, revision, .. } => {
                        self.session.handle_key_deleted(&key, revision, now);
                    }
                }
            }
        }
        true
    }

    fn show_key(&mut self, store: &mut Keyspace, now: Moment) -> bool {
        if self.items.is_empty()
            && let Some((picture, watch)) = &mut self.feed
            && let Some(item) = store.poll_watch(*watch, PreviousValues::Omitted)
        {
            match item.unwrap() {
                WatchItem::Batch { revision, changes } => {
                    picture.handle_batch(revision, changes, &mut self.items);
                }
                WatchItem::Progress(revision) => picture.handle_progress(revision, &mut self.items),
            }
        }
        match (self.items.pop_front(), &mut self.key) {
            (Some(item), Some(key)) => {
                key.handle_item(item, now);
                true
            }
            (_, _) => false,
        }
    }
}

pub(super) fn record(nonce: &str) -> MemberRecord {
    serde_json::from_value(serde_json::json!({ "nonce": nonce })).unwrap()
}
