//! The store as one process reaches it: the memory engine behind a link with faults.
//!
//! **Invariant**: `Ambiguous` is the only error of a write that may have been applied.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::time::Moment;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::link::{Direction, MessageLoss, ProcessLink};
use super::watch::FaultyWatch;
use crate::store::memory::MemoryEngine;
use crate::store::{
    Cause, Engine, Get, Grant, LeaseId, LeaseView, Page, PreviousValues, Renewal, Revision, Selection,
    StoreError, StoreInfo, Txn, TxnReply, WatchStart, WatchStream,
};

/// How long a request waits for its response: as long as with the etcd engine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a request that has timed out may still reach the store: an etcd server drops one after 7 s.
const LATE_MAX: Duration = Duration::from_secs(7);

/// How often the etcd engine tries a renewal, and how long it waits for each attempt: a quarter of the shortest TTL, within these bounds.
const RENEW_TRIES: u32 = 3;
const RENEW_TRY_MIN: Duration = Duration::from_millis(250);
const RENEW_TRY_MAX: Duration = Duration::from_secs(1);

/// Numbers leases in the order of their grants, so that two runs of one test have the same lease ids.
#[derive(Debug, Default)]
pub(super) struct LeaseNumbers {
    last: AtomicI64,
}

impl LeaseNumbers {
    fn next(&self) -> Option<LeaseId> {
        LeaseId::new(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

pub(super) struct FaultyEngine {
    link: Arc<ProcessLink>,
    memory: MemoryEngine,
    numbers: Arc<LeaseNumbers>,
    ttl_shortest_ms: AtomicU64,
    closing: CancellationToken,
}

/// What a request without a response may have done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    /// Nothing that another process can see, or that matters if it is done twice.
    Read,
    Write,
}

impl FaultyEngine {
    pub(super) fn new(
        link: Arc<ProcessLink>,
        memory: MemoryEngine,
        numbers: Arc<LeaseNumbers>,
    ) -> FaultyEngine {
        let closing = CancellationToken::new();
        FaultyEngine { link, memory, numbers, ttl_shortest_ms: AtomicU64::new(u64::MAX), closing }
    }

    /// Sends a write, which may reach the store after it has timed out.
    async fn write<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        if !self.link.delays_writes() {
            return self.request(RequestKind::Write, REQUEST_TIMEOUT, work).await;
        }
        // A refused connection is an error before the request is sent.
        self.link.passes(Direction::Request).map_err(|loss| StoreError::Unavailable(cause(loss)))?;
        let (reply, received) = oneshot::channel();
        let link = self.link.clone();
        tokio::spawn(async move {
            if link.deliver_late(LATE_MAX).await {
                // The caller may have timed out.
                let _ = reply.send(work.await);
            }
        });
        let arrived =
            async { received.await.unwrap_or(Err(StoreError::Ambiguous(cause(MessageLoss::TimedOut)))) };
        self.apply(RequestKind::Write, self.link.now() + REQUEST_TIMEOUT, arrived).await
    }

    /// Sends a request, applies it in the store, and delivers the response.
    async fn request<T>(
        &self,
        kind: RequestKind,
        timeout: Duration,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let until = self.link.now() + timeout;
        tokio::select! {
            biased;
            () = self.closing.cancelled() => return Err(StoreError::Closed),
            crossed = self.link.cross(Direction::Request, until) => match (crossed, kind) {
                (Ok(()), _) => {}
                // The process cannot know that this request never reached the store.
                (Err(loss @ MessageLoss::TimedOut), RequestKind::Write) => return Err(StoreError::Ambiguous(cause(loss))),
                (Err(loss), _) => return Err(StoreError::Unavailable(cause(loss))),
            }
        }
        self.apply(kind, until, work).await
    }

    /// Applies a request that has reached the store, and delivers the response.
    async fn apply<T>(
        &self,
        kind: RequestKind,
        until: Moment,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let response = async {
            let result = work.await;
            self.link.cross(Direction::Response, until).await.map(|()| result)
        };
        let delivered = tokio::select! {
            biased;
            () = self.closing.cancelled() => return match kind {
                RequestKind::Read => Err(StoreError::Closed),
                RequestKind::Write => Err(StoreError::Ambiguous(Cause::new("the handle was closed before the response arrived"))),
            },
            delivered = response => delivered,
            () = self.link.sleep_until(until) => Err(MessageLoss::TimedOut),
        };
        match (delivered, kind) {
            (Ok(result), _) => result,
            (Err(loss), RequestKind::Read) => Err(StoreError::Unavailable(cause(loss))),
            (Err(loss), RequestKind::Write) => Err(StoreError::Ambiguous(cause(loss))),
        }
    }

    fn renew_timeout(&self) -> Duration {
        let shortest = Duration::from_millis(self.ttl_shortest_ms.load(Ordering::Relaxed));
        (shortest / 4).clamp(RENEW_TRY_MIN, RENEW_TRY_MAX) * RENEW_TRIES
    }

    fn remember_ttl(&self, ttl: Duration) {
        let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.ttl_shortest_ms.fetch_min(ms, Ordering::Relaxed);
    }
}

/// Grants a lease under the requested id, or otherwise under the next free number.
async fn grant_numbered(
    memory: &MemoryEngine,
    numbers: &LeaseNumbers,
    ttl: Duration,
    id: Option<LeaseId>,
) -> Result<Grant, StoreError> {
    loop {
        match memory.grant(ttl, id.or_else(|| numbers.next())).await {
            Err(StoreError::LeaseExists) if id.is_none() => {}
            result => return result,
        }
    }
}

fn cause(loss: MessageLoss) -> Cause {
    Cause::new(match loss {
        MessageLoss::TimedOut => "no response within the timeout",
        MessageLoss::Refused => "the connection was refused",
    })
}

fn kind_of(txn: &Txn) -> RequestKind {
    if txn.may_write() { RequestKind::Write } else { RequestKind::Read }
}

impl Engine for FaultyEngine {
    fn info(&self) -> &StoreInfo {
        self.memory.info()
    }

    async fn get(&self, get: Get) -> Result<Page, StoreError> {
        self.request(RequestKind::Read, REQUEST_TIMEOUT, self.memory.get(get)).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnReply, StoreError> {
        let memory = self.memory.clone();
        match kind_of(&txn) {
            RequestKind::Read => self.request(RequestKind::Read, REQUEST_TIMEOUT, memory.txn(txn)).await,
            RequestKind::Write => self.write(async move { memory.txn(txn).await }).await,
        }
    }

    async fn batch(&self, txns: Vec<Txn>) -> Vec<Result<TxnReply, StoreError>> {
        let kinds: Vec<RequestKind> = txns.iter().map(kind_of).collect();
        let kind = if kinds.contains(&RequestKind::Write) { RequestKind::Write } else { RequestKind::Read };
        let memory = self.memory.clone();
        // They are one request.
        let work = async move { Ok(memory.batch(txns).await) };
        let replies = match kind {
            RequestKind::Read => self.request(kind, REQUEST_TIMEOUT, work).await,
            RequestKind::Write => self.write(work).await,
        };
        replies.unwrap_or_else(|error| kinds.iter().map(|_| Err(error.clone())).collect())
    }

    async fn watch(
        &self,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        let inner = self
            .request(RequestKind::Read, REQUEST_TIMEOUT, self.memory.watch(select, start, previous))
            .await?;
        Ok(FaultyWatch::stream(self.link.clone(), inner, self.closing.clone()))
    }

    async fn grant(&self, ttl: Duration, id: Option<LeaseId>) -> Result<Grant, StoreError> {
        // On the clock of the process, not on the store's.
        let asked_at = self.link.now();
        let (memory, numbers) = (self.memory.clone(), self.numbers.clone());
        let grant = self.write(async move { grant_numbered(&memory, &numbers, ttl, id).await }).await?;
        self.remember_ttl(grant.ttl);
        Ok(Grant { asked_at, ..grant })
    }

    async fn renew(&self, id: LeaseId) -> Result<Renewal, StoreError> {
        let asked_at = self.link.now();
        match self.request(RequestKind::Read, self.renew_timeout(), self.memory.renew(id)).await? {
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
        self.request(RequestKind::Read, REQUEST_TIMEOUT, self.memory.lease(id)).await
    }

    async fn leases(&self) -> Result<Vec<LeaseId>, StoreError> {
        self.request(RequestKind::Read, REQUEST_TIMEOUT, self.memory.leases()).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.request(RequestKind::Write, REQUEST_TIMEOUT, self.memory.compact(revision)).await
    }

    async fn reachable(&self) {
        self.link.reachable().await;
    }

    async fn close(&self) {
        self.closing.cancel();
    }
}
