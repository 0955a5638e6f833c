//! The workloads, each on any store.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use tenure::clock::{BootClock, Clock};
use tenure::store::{
    Change, Condition, Op, PreviousValues, Renewal, Revision, Selection, Store, StoreError, Txn, TxnReply,
    WatchItem, WatchStart,
};

use super::sample::{Sample, WorkAmount, in_flight, one_at_a_time};
use crate::failure::BenchFailure;
use crate::internal::VALUE;

/// Keys that puts go round in: many enough that no key is hot, few enough that the store stays small.
const KEYS: usize = 1_000;

/// A store, and the prefix below which it may be written.
#[derive(Clone, Copy)]
pub(super) struct Bench<'a> {
    pub(super) store: &'a Store,
    /// Ends in `/`.
    pub(super) prefix: &'a str,
}

impl Bench<'_> {
    fn key(&self, kind: &str, n: usize) -> String {
        format!("{}{kind}/{n}", self.prefix)
    }

    /// Puts one at a time.
    pub(super) async fn put(self, effort: WorkAmount) -> Result<Sample, BenchFailure> {
        one_at_a_time(effort, |n| self.put_one(n)).await
    }

    /// Puts with `width` of them in flight.
    pub(super) async fn put_in_flight(
        self,
        effort: WorkAmount,
        width: usize,
    ) -> Result<Sample, BenchFailure> {
        in_flight(effort, width, |n| self.put_one(n)).await
    }

    async fn put_one(self, n: usize) -> Result<(), BenchFailure> {
        self.store.put(self.key("put", n % KEYS), &VALUE[..]).await?;
        Ok(())
    }

    /// Linearizable reads of one key, one at a time.
    pub(super) async fn get(self, effort: WorkAmount) -> Result<Sample, BenchFailure> {
        self.put_one(0).await?;
        one_at_a_time(effort, |_| async move {
            let found = self.store.get_key(self.key("put", 0)).await?;
            found.map(drop).ok_or_else(|| wrong("a key that was put is not there"))
        })
        .await
    }

    /// Compare and set of one key, one at a time.
    pub(super) async fn cas(self, effort: WorkAmount) -> Result<Sample, BenchFailure> {
        let key = self.key("cas", 0);
        let last = std::cell::Cell::new(self.store.put(key.clone(), &VALUE[..]).await?);
        one_at_a_time(effort, |_| {
            let (key, last) = (&key, &last);
            async move {
                let when = Condition::modified_at(key.clone(), last.get());
                let txn = Txn::new().when(when).then(Op::put(key.clone(), &VALUE[..]));
                let reply = self.store.txn(txn).await?;
                last.set(reply.revision);
                if reply.succeeded { Ok(()) } else { Err(wrong("a compare and set without rivals failed")) }
            }
        })
        .await
    }

    /// Many puts in transactions as long as the store takes, several in flight: how a session
    /// registers its keys.
    pub(super) async fn bulk(self, count: usize) -> Result<Sample, BenchFailure> {
        let puts = (0..count).map(|n| Op::put(self.key("bulk", n), &VALUE[..]));
        let begin = Instant::now();
        let outcomes = self.store.apply_all(puts).await?;
        let total = begin.elapsed();
        outcomes.into_iter().collect::<Result<Vec<_>, StoreError>>()?;
        Ok(Sample::new(vec![total], total, count))
    }

    /// Claims, each *if the owner is absent, put it*, in batches.
    pub(super) async fn claims_in_batches(
        self,
        effort: WorkAmount,
        len: usize,
    ) -> Result<Sample, BenchFailure> {
        let round = stamp();
        let begin = Instant::now();
        let mut took = Vec::new();
        let mut count = 0;
        while count < effort.n && begin.elapsed() < effort.span_max {
            let claims = (count..count + len).map(|n| self.claim(&round, n)).collect();
            let before = Instant::now();
            for reply in self.store.batch(claims).await {
                won(&reply?)?;
            }
            took.push(before.elapsed());
            count += len;
        }
        Ok(Sample::new(took, begin.elapsed(), count))
    }

    /// The same claims, one transaction each.
    pub(super) async fn claims_one_by_one(self, effort: WorkAmount) -> Result<Sample, BenchFailure> {
        let round = stamp();
        one_at_a_time(effort, |n| {
            let claim = self.claim(&round, n);
            async move { won(&self.store.txn(claim).await?) }
        })
        .await
    }

    fn claim(&self, round: &str, n: usize) -> Txn {
        let key = self.key("owner", n) + round;
        Txn::new().when(Condition::absent(key.clone())).then(Op::put(key, "node"))
    }

    /// From before a put until its event is here, in one process.
    pub(super) async fn watch(self, effort: WorkAmount) -> Result<Sample, BenchFailure> {
        let key = self.key("watched", 0);
        let mut events =
            self.store.watch(Selection::key(key.clone()), WatchStart::Now, PreviousValues::Omitted).await?;
        let begin = Instant::now();
        let mut took = Vec::new();
        while took.len() < effort.n && begin.elapsed() < effort.span_max {
            let before = Instant::now();
            let event = async {
                loop {
                    match events.next().await {
                        Some(Ok(WatchItem::Batch { revision, .. })) => {
                            return Ok((revision, before.elapsed()));
                        }
                        Some(Ok(WatchItem::Progress(_))) => {}
                        Some(Err(end)) => return Err(BenchFailure::from(end)),
                        None => return Err(wrong("the watch ended")),
                    }
                }
            };
            let (put, event) = tokio::join!(self.store.put(key.clone(), &VALUE[..]), event);
            let (revision, elapsed) = event?;
            same(put?, revision)?;
            took.push(elapsed);
        }
        let count = took.len();
        Ok(Sample::new(took, begin.elapsed(), count))
    }

    /// Lease grants, one at a time; the leases are ended again, which is not timed.
    pub(super) async fn grant(self, effort: WorkAmount) -> Result<Sample, BenchFailure> {
        let granted = std::cell::RefCell::new(Vec::new());
        let sample = one_at_a_time(effort, |_| async {
            let grant = self.store.grant(LEASE, None).await?;
            granted.borrow_mut().push(grant.id);
            Ok(())
        })
        .await?;
        let revoked = stream::iter(granted.into_inner()).map(|id| self.store.revoke(id)).buffer_unordered(64);
        revoked.try_collect::<Vec<_>>().await?;
        Ok(sample)
    }

    /// Renewals of one lease, one at a time.
    pub(super) async fn renew(self, effort: WorkAmount) -> Result<Sample, BenchFailure> {
        let lease = self.store.grant(LEASE, None).await?.id;
        let sample = one_at_a_time(effort, |_| async {
            match self.store.renew(lease).await? {
                Renewal::Renewed { .. } => Ok(()),
                Renewal::Gone => Err(wrong("a lease that was renewed all the time is gone")),
            }
        })
        .await?;
        self.store.revoke(lease).await?;
        Ok(sample)
    }

    /// How late leases end, counted from the moment before which they must not; an early end fails the benchmark.
    pub(super) async fn expiry(self, count: usize) -> Result<Sample, BenchFailure> {
        let folder = format!("{}leased/", self.prefix);
        let mut events = self
            .store
            .watch(Selection::prefix(folder.clone()), WatchStart::Now, PreviousValues::Omitted)
            .await?;
        let begin = Instant::now();
        let mut due = BTreeMap::new();
        let mut ttl = Duration::ZERO;
        for n in 0..count {
            let key = format!("{folder}{n}");
            let grant = self.store.grant(self.store.info().limits.ttl_min, None).await?;
            self.store.put_leased(key.clone(), "x", grant.id).await?;
            due.insert(key.into_bytes(), grant.asked_at + grant.ttl);
            ttl = ttl.max(grant.ttl);
        }
        let mut late = Vec::new();
        let until = tokio::time::Instant::now() + ttl + EXPIRY_PATIENCE;
        while !due.is_empty() {
            let item = tokio::time::timeout_at(until, events.next()).await;
            let item =
                item.map_err(|_| wrong("leases did not end"))?.ok_or_else(|| wrong("the watch ended"))??;
            let now = BootClock.now();
            let WatchItem::Batch { changes, .. } = item else { continue };
            for change in changes {
                let Change::Delete { key, .. } = change else { continue };
                let Some(moment) = due.remove(&key[..]) else { continue };
                if now < moment {
                    return Err(wrong(format!("a lease ended {:?} early", moment.since(now))));
                }
                late.push(now.since(moment));
            }
        }
        Ok(Sample::new(late, begin.elapsed(), count))
    }
}

/// A lease that outlives every benchmark.
const LEASE: Duration = Duration::from_secs(60);

/// etcd may take three seconds for many leases, and a full TTL more after an election.
const EXPIRY_PATIENCE: Duration = Duration::from_secs(20);

/// Different in every call, so that no round finds the claims of another.
fn stamp() -> String {
    format!("-{:x}", BootClock.now().since_origin().as_nanos())
}

fn won(reply: &TxnReply) -> Result<(), BenchFailure> {
    if reply.succeeded { Ok(()) } else { Err(wrong("a claim without rivals was lost")) }
}

fn same(put: Revision, seen: Revision) -> Result<(), BenchFailure> {
    if put == seen { Ok(()) } else { Err(wrong(format!("revision {put} was put, {seen} was seen"))) }
}

pub(super) fn wrong(what: impl Into<String>) -> BenchFailure {
    BenchFailure::new(what)
}
