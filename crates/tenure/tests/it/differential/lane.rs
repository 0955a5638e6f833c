//! One store in a comparison: runs a script and records its replies.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tenure::clock::VirtualClock;
use tenure::store::{
    Change, Condition, Field, Get, LeaseChoice, LeaseId, Op, PreviousValues, Revision, Selection, Store,
    StoreError, Txn, WatchItem, WatchStart, WatchStream,
};
use tokio::time::{Instant, timeout};

use super::normalize::Normalizer;
use super::script::{Act, At, Deal, Life, Look, NAMES, Read, SLOTS, Script, Select, Step, Under};

/// Long enough that a busy machine does a hundred operations in two fifths of it, and no longer: it is waited for.
const SHORT: Duration = Duration::from_secs(5);

/// Longer than any script.
const LONG: Duration = Duration::from_secs(600);

/// How long an event, or the end of a lease after its time, may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The machine was so busy that leases may have ended before the script waited for it.
pub(super) const TOO_SLOW: &str = "the script took too long for its leases";

/// What a store returned: replies, events and the final keys, as normalized text.
pub(super) struct Transcript {
    pub(super) lines: Vec<String>,
    /// How many leases ended by themselves and took keys with them.
    pub(super) ended: usize,
}

/// One store, and the position of the script on it.
pub(super) struct Lane<'a> {
    store: Store,
    clock: Option<VirtualClock>,
    script: &'a Script,
    normalizer: Normalizer,
    last: Revision,
    /// History that all stores share begins after this revision: the start, the last compaction, or the last ends of leases.
    since: Revision,
    /// When the first short lease was granted.
    short_since: Option<Instant>,
    short: BTreeSet<u8>,
    lines: Vec<String>,
    events: Vec<String>,
    ended: usize,
    /// No step looks back beyond this revision: the start, or the last ends of leases, which came in any order.
    floor: Revision,
}

impl<'a> Lane<'a> {
    pub(super) fn new(store: Store, clock: Option<VirtualClock>, script: &'a Script) -> Lane<'a> {
        let mut bytes = [0; 6];
        getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
        let random = bytes.iter().fold(0_i64, |id, byte| id << 8 | i64::from(*byte));
        let normalizer = Normalizer {
            base: Revision::ZERO,
            prefix: format!("/d/{random:012x}/"),
            first_lease: random << 8,
        };
        Lane {
            store,
            clock,
            script,
            normalizer,
            last: Revision::ZERO,
            since: Revision::ZERO,
            short_since: None,
            short: BTreeSet::new(),
            lines: Vec::new(),
            events: Vec::new(),
            ended: 0,
            floor: Revision::ZERO,
        }
    }

    pub(super) async fn run(mut self) -> Result<Transcript, String> {
        self.normalizer.base = self.now().await;
        self.since = self.normalizer.base;
        self.floor = self.normalizer.base;
        let mut watch = self.watch(self.normalizer.base).await;
        for step in &self.script.steps {
            let reply = match step {
                Step::Compact(at) => {
                    self.drain(&mut watch).await;
                    self.compact(*at).await
                }
                Step::Expire(renewed) => self.expire(&mut watch, renewed).await?,
                step => self.step(step).await,
            };
            self.last = self.now().await;
            self.lines.push(format!("{step:?} → {reply}"));
        }
        self.drain(&mut watch).await;
        self.finish().await;
        Ok(Transcript { lines: [self.lines, self.events].concat(), ended: self.ended })
    }

    /// The keys at the end, and what a new watch returns from every revision that is still readable.
    async fn finish(&mut self) {
        let there = self.store.list(self.all()).await.expect("a listing");
        self.lines.push(format!("in the end {}", self.normalizer.page(&there)));
        let mut replay = self.watch(self.since).await;
        let end = self.mark().await;
        while let Some((revision, changes)) = self.batch(&mut replay, end).await {
            self.events.push(format!(
                "replay {}: {}",
                self.normalizer.revision(revision),
                self.normalizer.changes(&changes)
            ));
        }
        for slot in 0..SLOTS {
            // Most are gone, as the script wanted.
            let _ = self.store.revoke(self.lease(slot)).await;
        }
        self.store.delete(self.all()).await.expect("a store takes deletes");
    }

    async fn step(&mut self, step: &Step) -> String {
        let normalizer = self.normalizer.clone();
        let answer = match step {
            Step::Do(deal) => self.store.txn(self.txn(deal)).await.map(|reply| normalizer.reply(&reply)),
            Step::Get(read) => self.store.get(self.get(read)).await.map(|page| normalizer.page(&page)),
            Step::Grant(slot, life) => self.grant(*slot, *life).await,
            Step::Renew(slot) => {
                self.store.renew(self.lease(*slot)).await.map(|renewal| Normalizer::renewal(&renewal))
            }
            Step::Revoke(slot) => {
                let revoked = self.store.revoke(self.lease(*slot)).await;
                if revoked.is_ok() {
                    self.short.remove(slot);
                }
                revoked.map(|revision| normalizer.revision(revision))
            }
            Step::View(slot) => {
                self.store.lease(self.lease(*slot)).await.map(|view| normalizer.view(view.as_ref()))
            }
            Step::Compact(_) | Step::Expire(_) => unreachable!("these need the watch"),
        };
        answer.unwrap_or_else(|error| Normalizer::error(&error))
    }

    async fn grant(&mut self, slot: u8, life: Life) -> Result<String, StoreError> {
        let ttl = match life {
            Life::Long => LONG,
            Life::Short => SHORT,
        };
        let asked = Instant::now();
        let grant = self.store.grant(ttl, Some(self.lease(slot))).await?;
        if life == Life::Short {
            self.short_since.get_or_insert(asked);
            self.short.insert(slot);
        }
        Ok(self.normalizer.grant(&grant))
    }

    async fn compact(&mut self, at: At) -> String {
        // Not at the start itself, where an earlier script may have compacted the store.
        let at = self.revision(at).max(self.normalizer.base.next());
        match self.store.compact(at).await {
            Ok(()) => {
                self.since = self.since.max(at);
                "done".into()
            }
            Err(error) => Normalizer::error(&error),
        }
    }

    /// Lets short leases end. Each is a revision of its own, but their order is not defined: they are compared sorted.
    async fn expire(&mut self, watch: &mut WatchStream, renewed: &[u8]) -> Result<String, String> {
        self.drain(watch).await;
        let Some(since) = self.short_since.take() else { return Ok("nothing to wait for".into()) };
        self.pass(since, SHORT / 2)?;
        if self.clock.is_none() {
            tokio::time::sleep_until(since + SHORT / 2).await;
        }
        let mut reply = Vec::new();
        for slot in 0..SLOTS {
            let view = self.store.lease(self.lease(slot)).await.map_err(|error| error.to_string())?;
            reply.push(self.normalizer.view(view.as_ref()));
        }
        for slot in renewed {
            let renewal = self.store.renew(self.lease(*slot)).await.map_err(|error| error.to_string())?;
            reply.push(Normalizer::renewal(&renewal));
            self.short.remove(slot);
        }
        if let Some(clock) = &self.clock {
            clock.advance(SHORT / 2 + SHORT / 10);
        }
        let ending: Vec<LeaseId> = self.short.iter().map(|slot| self.lease(*slot)).collect();
        let late = Instant::now() + SHORT + PATIENCE;
        while self
            .store
            .leases()
            .await
            .map_err(|error| error.to_string())?
            .iter()
            .any(|id| ending.contains(id))
        {
            assert!(Instant::now() < late, "leases did not end: {ending:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.short.clear();
        let mut ended = self.drain_as(watch).await;
        ended.sort();
        self.ended += ended.len();
        self.floor = self.now().await;
        self.since = self.floor;
        self.events.extend(ended);
        for slot in renewed.iter().collect::<BTreeSet<_>>() {
            let revoked = self.store.revoke(self.lease(*slot)).await;
            reply.push(revoked.map_or_else(|error| Normalizer::error(&error), |_| "revoked".into()));
        }
        Ok(reply.join(", "))
    }

    /// Returns whether the script was fast enough for its leases; in virtual time it always is.
    fn pass(&self, since: Instant, half: Duration) -> Result<(), String> {
        match &self.clock {
            Some(clock) => clock.advance(half),
            None if since.elapsed() > SHORT.mul_f64(0.4) => return Err(TOO_SLOW.into()),
            None => {}
        }
        Ok(())
    }

    async fn now(&self) -> Revision {
        self.store.get(Get::key(self.key("~"))).await.expect("a store answers").revision
    }

    async fn watch(&self, after: Revision) -> WatchStream {
        self.store
            .watch(self.all(), WatchStart::After(after), PreviousValues::Included)
            .await
            .expect("a store is watched")
    }

    /// Writes a mark, so that a watch can be read up to here.
    async fn mark(&mut self) -> Revision {
        self.store.put(self.key("~"), "mark").await.expect("a store takes puts")
    }

    /// Reads the watch up to now, and records its items.
    async fn drain(&mut self, watch: &mut WatchStream) {
        let end = self.mark().await;
        self.last = end;
        while let Some((revision, changes)) = self.batch(watch, end).await {
            self.events.push(format!(
                "{}: {}",
                self.normalizer.revision(revision),
                self.normalizer.changes(&changes)
            ));
        }
    }

    /// The same, without revisions.
    async fn drain_as(&mut self, watch: &mut WatchStream) -> Vec<String> {
        let end = self.mark().await;
        let mut reply = Vec::new();
        while let Some((_, changes)) = self.batch(watch, end).await {
            reply.push(self.normalizer.changes(&changes));
        }
        reply
    }

    /// The next batch before the mark.
    async fn batch(&self, watch: &mut WatchStream, end: Revision) -> Option<(Revision, Vec<Change>)> {
        loop {
            let item = timeout(PATIENCE, watch.next()).await.expect("an event comes in time");
            match item.expect("a watch does not end silently").expect("a watch does not end") {
                WatchItem::Batch { revision, changes } => {
                    assert!(revision <= end, "{revision:?} after the mark {end:?}");
                    return (revision < end).then_some((revision, changes));
                }
                WatchItem::Progress(_) => {}
            }
        }
    }

    fn key(&self, name: &str) -> Bytes {
        format!("{}{name}", self.normalizer.prefix).into()
    }

    fn named(&self, key: u8) -> Bytes {
        self.key(NAMES[usize::from(key)])
    }

    fn all(&self) -> Selection {
        Selection::prefix(self.normalizer.prefix.clone())
    }

    fn lease(&self, slot: u8) -> LeaseId {
        LeaseId::new(self.normalizer.first_lease + i64::from(slot))
            .expect("ids are made of random bytes and a slot")
    }

    fn revision(&self, at: At) -> Revision {
        let revision = match at {
            At::Start(steps) => Revision(self.normalizer.base.0 + i64::from(steps)),
            At::Back(steps) => Revision(self.last.0 - i64::from(steps)),
        };
        revision.max(self.floor)
    }

    fn select(&self, select: Select) -> Selection {
        match select {
            Select::Key(key) => Selection::Key(self.named(key)),
            Select::Prefix => Selection::Prefix(self.key("d/")),
            Select::All => Selection::Range(self.key("a"), self.key("~")),
            Select::Range(from, to) => Selection::Range(self.named(from), self.named(to)),
        }
    }

    fn get(&self, read: &Read) -> Get {
        Get {
            select: self.select(read.select),
            at: read.at.map(|at| self.revision(at)),
            limit: read.limit.map(u32::from),
            order: read.order,
            created_max: read.created_max.map(|at| self.revision(at)),
            values: read.values,
        }
    }

    fn txn(&self, deal: &Deal) -> Txn {
        let condition = |(key, is, look): &(u8, _, Look)| {
            let field = match *look {
                Look::Version(version) => Field::Version(version.into()),
                Look::Created(at) => Field::Created(self.revision(at)),
                Look::Modified(at) => Field::Modified(self.revision(at)),
                Look::Lease(slot) => Field::Lease(slot.map(|slot| self.lease(slot))),
                Look::Value(value) => Field::Value(value.to_string().into()),
            };
            Condition { key: self.named(*key), is: *is, field }
        };
        let op = |act: &Act| match act {
            Act::Put(key, value, under) => {
                let lease = match under {
                    Under::Nothing => LeaseChoice::Detach,
                    Under::Keep => LeaseChoice::Keep,
                    Under::Lease(slot) => LeaseChoice::Attach(self.lease(*slot)),
                };
                Op::Put { key: self.named(*key), value: value.to_string().into(), lease }
            }
            Act::Delete(select) => Op::Delete(self.select(*select)),
            Act::Get(read) => Op::Get(self.get(read)),
        };
        Txn {
            when: deal.when.iter().map(condition).collect(),
            then: deal.then.iter().map(op).collect(),
            otherwise: deal.otherwise.iter().map(op).collect(),
        }
    }
}
