//! A participant's handle on the store: the memory engine at the end of a wire that can be cut.
//!
//! **Invariant**: what is told about a write is true. `Ambiguous` is the only error of a write that may have arrived.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::time::Moment;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::participant::{Lost, Participant, Way};
use super::watch::Watch;
use crate::store::memory::MemoryEngine;
use crate::store::{
    Cause, Engine, Get, Grant, LeaseId, LeaseView, Page, PreviousValues, Renewal, Revision, Selection,
    StoreError, StoreInfo, Txn, TxnReply, WatchStart, WatchStream,
};

/// How long a request waits for its answer: as long as the etcd engine's do.
const PATIENCE: Duration = Duration::from_secs(5);

/// For how long a request that was given up may still arrive: an etcd server gives one up after 7 s.
const LATE_MAX: Duration = Duration::from_secs(7);

/// How often the etcd engine asks a member for a renewal before it gives up, and how long it waits for each: a quarter of the shortest
/// TTL within these bounds.
const RENEW_TRIES: u32 = 3;
const RENEW_TRY_MIN: Duration = Duration::from_millis(250);
const RENEW_TRY_MAX: Duration = Duration::from_secs(1);

/// Numbers leases in the order in which they are granted, so that two runs of one test have the same.
#[derive(Debug, Default)]
pub(super) struct LeaseNumbers {
    last: AtomicI64,
}

impl LeaseNumbers {
    fn next(&self) -> Option<LeaseId> {
        LeaseId::new(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

pub(super) struct Wire {
    participant: Arc<Participant>,
    memory: MemoryEngine,
    numbers: Arc<LeaseNumbers>,
    ttl_shortest_ms: AtomicU64,
    closing: CancellationToken,
}

/// What an unanswered request may have done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nothing that anybody could see, or that would matter if it were done twice.
    Read,
    Write,
}

impl Wire {
    pub(super) fn new(
        participant: Arc<Participant>,
        memory: MemoryEngine,
        numbers: Arc<LeaseNumbers>,
    ) -> Wire {
        let closing = CancellationToken::new();
        Wire { participant, memory, numbers, ttl_shortest_ms: AtomicU64::new(u64::MAX), closing }
    }

    /// Sends a write, which may arrive after it was given up.
    async fn write<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        if !self.participant.arrives_late() {
            return self.ask(Kind::Write, PATIENCE, work).await;
        }
        // A closed port is noticed before anything has gone anywhere.
        self.participant.passes(Way::There).map_err(|lost| StoreError::Unavailable(cause(lost)))?;
        let (answer, answered) = oneshot::channel();
        let participant = self.participant.clone();
        tokio::spawn(async move {
            if participant.arrive_late(LATE_MAX).await {
                // Whoever asked may have given up.
                let _ = answer.send(work.await);
            }
        });
        let arrived = async { answered.await.unwrap_or(Err(StoreError::Ambiguous(cause(Lost::Patience)))) };
        self.ask_arrived(Kind::Write, self.participant.now() + PATIENCE, arrived).await
    }

    /// Sends a request, lets the store do it, and brings the answer back.
    async fn ask<T>(
        &self,
        kind: Kind,
        patience: Duration,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let until = self.participant.now() + patience;
        tokio::select! {
            biased;
            () = self.closing.cancelled() => return Err(StoreError::Closed),
            crossed = self.participant.cross(Way::There, until) => match (crossed, kind) {
                (Ok(()), _) => {}
                // Nobody but the world knows that a request which was given up on its way never arrived.
                (Err(lost @ Lost::Patience), Kind::Write) => return Err(StoreError::Ambiguous(cause(lost))),
                (Err(lost), _) => return Err(StoreError::Unavailable(cause(lost))),
            }
        }
        self.ask_arrived(kind, until, work).await
    }

    /// The second half of the way: the store does it, and the answer comes back.
    async fn ask_arrived<T>(
        &self,
        kind: Kind,
        until: Moment,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let coming = async {
            let answer = work.await;
            self.participant.cross(Way::Back, until).await.map(|()| answer)
        };
        let arrived = tokio::select! {
            biased;
            () = self.closing.cancelled() => return match kind {
                Kind::Read => Err(StoreError::Closed),
                Kind::Write => Err(StoreError::Ambiguous(Cause::new("the handle was closed before the answer came"))),
            },
            arrived = coming => arrived,
            () = self.participant.sleep_until(until) => Err(Lost::Patience),
        };
        match (arrived, kind) {
            (Ok(answer), _) => answer,
            (Err(lost), Kind::Read) => Err(StoreError::Unavailable(cause(lost))),
            (Err(lost), Kind::Write) => Err(StoreError::Ambiguous(cause(lost))),
        }
    }

    fn renew_patience(&self) -> Duration {
        let shortest = Duration::from_millis(self.ttl_shortest_ms.load(Ordering::Relaxed));
        (shortest / 4).clamp(RENEW_TRY_MIN, RENEW_TRY_MAX) * RENEW_TRIES
    }

    fn remember_ttl(&self, ttl: Duration) {
        let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.ttl_shortest_ms.fetch_min(ms, Ordering::Relaxed);
    }
}

/// Grants a lease under the id that was asked for, or else under the next number that nobody has.
async fn grant_numbered(
    memory: &MemoryEngine,
    numbers: &LeaseNumbers,
    ttl: Duration,
    id: Option<LeaseId>,
) -> Result<Grant, StoreError> {
    loop {
        match memory.grant(ttl, id.or_else(|| numbers.next())).await {
            Err(StoreError::LeaseExists) if id.is_none() => {}
            answer => return answer,
        }
    }
}

fn cause(lost: Lost) -> Cause {
    Cause::new(match lost {
        Lost::Patience => "no answer came in time",
        Lost::Refused => "the connection was refused",
    })
}

fn kind_of(txn: &Txn) -> Kind {
    if txn.may_write() { Kind::Write } else { Kind::Read }
}

impl Engine for Wire {
    fn info(&self) -> &StoreInfo {
        self.memory.info()
    }

    async fn get(&self, get: Get) -> Result<Page, StoreError> {
        self.ask(Kind::Read, PATIENCE, self.memory.get(get)).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnReply, StoreError> {
        let memory = self.memory.clone();
        match kind_of(&txn) {
            Kind::Read => self.ask(Kind::Read, PATIENCE, memory.txn(txn)).await,
            Kind::Write => self.write(async move { memory.txn(txn).await }).await,
        }
    }

    async fn batch(&self, txns: Vec<Txn>) -> Vec<Result<TxnReply, StoreError>> {
        let kinds: Vec<Kind> = txns.iter().map(kind_of).collect();
        let kind = if kinds.contains(&Kind::Write) { Kind::Write } else { Kind::Read };
        let memory = self.memory.clone();
        // They travel together.
        let work = async move { Ok(memory.batch(txns).await) };
        let answers = match kind {
            Kind::Read => self.ask(kind, PATIENCE, work).await,
            Kind::Write => self.write(work).await,
        };
        answers.unwrap_or_else(|error| kinds.iter().map(|_| Err(error.clone())).collect())
    }

    async fn watch(
        &self,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        let inner = self.ask(Kind::Read, PATIENCE, self.memory.watch(select, start, previous)).await?;
        Ok(Watch::stream(self.participant.clone(), inner, self.closing.clone()))
    }

    async fn grant(&self, ttl: Duration, id: Option<LeaseId>) -> Result<Grant, StoreError> {
        // On the participant's clock, not on the store's.
        let asked_at = self.participant.now();
        let (memory, numbers) = (self.memory.clone(), self.numbers.clone());
        let grant = self.write(async move { grant_numbered(&memory, &numbers, ttl, id).await }).await?;
        self.remember_ttl(grant.ttl);
        Ok(Grant { asked_at, ..grant })
    }

    async fn renew(&self, id: LeaseId) -> Result<Renewal, StoreError> {
        let asked_at = self.participant.now();
        match self.ask(Kind::Read, self.renew_patience(), self.memory.renew(id)).await? {
            Renewal::Gone => Ok(Renewal::Gone),
            Renewal::Renewed { ttl, .. } => {
                self.remember_ttl(ttl);
                Ok(Renewal::Renewed { ttl, asked_at })
            }
        }
    }

    async fn revoke(&self, id: LeaseId) -> Result<Revision, StoreError> {
        let memory = self.memory.clone();
        self.write(async move { memory.revoke(id).await }).await
    }

    async fn lease(&self, id: LeaseId) -> Result<Option<LeaseView>, StoreError> {
        self.ask(Kind::Read, PATIENCE, self.memory.lease(id)).await
    }

    async fn leases(&self) -> Result<Vec<LeaseId>, StoreError> {
        self.ask(Kind::Read, PATIENCE, self.memory.leases()).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.ask(Kind::Write, PATIENCE, self.memory.compact(revision)).await
    }

    async fn reachable(&self) {
        self.participant.reachable().await;
    }

    async fn close(&self) {
        self.closing.cancel();
    }
}
