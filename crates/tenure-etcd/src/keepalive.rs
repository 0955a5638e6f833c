//! Keep-alives: all leases of a client share one stream, and each renewal counts from the moment
//! its request was sent.
//!
//! One task per client owns the stream (`keepalive/driver.rs`); a pure machine pairs replies with
//! sends (`keepalive/pending.rs`). A server that does not reply in time is abandoned, and its
//! unanswered renewals are sent again elsewhere: a renewal may be repeated at will.

mod driver;
mod pending;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::call::{Call, CallKind};
use crate::classify::RequestSize;
use crate::client::Client;
use crate::endpoints::Endpoints;
use crate::error::{Cause, Error};
use crate::message::lease::{LeaseTimeToLiveRequest, LeaseTimeToLiveResponse};
use driver::KeepAliveDriver;

/// Members that one call may try in turn. With a patience of a quarter of the TTL, a later reply
/// would be of no use.
const TRIES: u32 = 3;

/// How a renewal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The lease was renewed.
    Renewed {
        /// Seconds granted, as the server reports them: not what the grant requested.
        ttl_s: i64,
        /// When the answered request was sent, on the clock of [`boot_time`](crate::boot_time). Count from here.
        sent_at: Duration,
    },
    /// There is no such lease: it expired, was revoked, or never was.
    Gone,
}

impl Client {
    /// Renews one lease, on the one stream that all leases of this client share.
    ///
    /// Waits `patience` for one member; one that has not answered by then is left, and the next is tried, three in
    /// all. May be called for thousands of leases at once and for one lease again and again.
    ///
    /// # Guarantees
    ///
    /// [`Renewal::Renewed`] carries a moment that is not later than the sending of the request that was answered, so
    /// `sent_at + ttl` is never beyond the end of the lease at the server.
    ///
    /// # Errors
    ///
    /// Every error leaves it open whether the lease was renewed; a repeated renewal is always
    /// correct.
    ///
    /// # Cancellation
    ///
    /// The renewal may still happen. Replies to other callers are not affected.
    pub async fn keep_alive_once(&self, lease: i64, patience: Duration) -> Result<Renewal, Error> {
        self.keeper().keep_alive_once(self.endpoints(), lease, patience).await
    }
}

/// The keep-alives of one client.
#[derive(Debug)]
pub(crate) struct KeepAliveClient {
    inbox: Arc<KeepAliveInbox>,
    is_started: AtomicBool,
}

impl KeepAliveClient {
    /// No stream and no task yet.
    pub(crate) fn new() -> Self {
        Self { inbox: Arc::default(), is_started: AtomicBool::new(false) }
    }

    /// Renews one lease. Waits `patience` for one member, and for at most three members.
    ///
    /// # Cancellation
    ///
    /// Dropped before it returns, the renewal may still happen. The pairing of other replies is not
    /// affected.
    pub(crate) async fn keep_alive_once(
        &self,
        endpoints: &Arc<Endpoints>,
        lease: i64,
        patience: Duration,
    ) -> Result<Renewal, Error> {
        let tries = self.confirmed(endpoints, lease, patience);
        match timeout(patience.saturating_mul(TRIES), tries).await {
            Ok(renewal) => renewal,
            Err(_) => Err(self.inbox.trouble().unwrap_or_else(|| {
                Error::Unavailable(Cause::new(format!("no member answered a keep-alive within {patience:?}")))
            })),
        }
    }

    /// etcd before 3.5.3 may not know a lease on one member for a moment after it was granted
    /// through another. A lease therefore counts as gone only after two replies; the second request
    /// costs one round trip in the life of a lease.
    async fn confirmed(
        &self,
        endpoints: &Arc<Endpoints>,
        lease: i64,
        patience: Duration,
    ) -> Result<Renewal, Error> {
        let first = self.renew(endpoints, lease, patience).await?;
        if first != Renewal::Gone || !is_alive(endpoints, lease).await? {
            return Ok(first);
        }
        tracing::warn!(lease, "member did not know a live lease");
        self.renew(endpoints, lease, patience).await
    }

    async fn renew(
        &self,
        endpoints: &Arc<Endpoints>,
        lease: i64,
        patience: Duration,
    ) -> Result<Renewal, Error> {
        let stop = endpoints.stop();
        if stop.is_cancelled() {
            return Err(Error::Closed);
        }
        // The task starts with the first renewal: a client that keeps no lease has none.
        if !self.is_started.swap(true, Ordering::Relaxed) {
            endpoints
                .tasks()
                .spawn(KeepAliveDriver::new(Arc::clone(endpoints), Arc::clone(&self.inbox)).run());
        }
        let (reply, result) = oneshot::channel();
        self.inbox.put(KeepAliveRequest { lease, patience, reply });
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(Error::Closed),
            result = result => result.unwrap_or(Err(Error::Closed)),
        }
    }
}

async fn is_alive(endpoints: &Arc<Endpoints>, lease: i64) -> Result<bool, Error> {
    let message = LeaseTimeToLiveRequest { id: lease, keys: false };
    let path = "/etcdserverpb.Lease/LeaseTimeToLive";
    let call = Call { path, kind: CallKind::LocalRead, message, size: RequestSize::default() };
    match endpoints.call::<_, LeaseTimeToLiveResponse>(call).await {
        Ok(result) => Ok(result.ttl > 0),
        Err(Error::LeaseNotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The request of one caller.
#[derive(Debug)]
struct KeepAliveRequest {
    lease: i64,
    patience: Duration,
    reply: oneshot::Sender<Result<Renewal, Error>>,
}

/// From all callers to the one task. Bounded by the callers, because the task empties it whenever
/// `changed` is notified.
#[derive(Debug, Default)]
struct KeepAliveInbox {
    requests: Mutex<Vec<KeepAliveRequest>>,
    changed: Notify,
    /// The task's last failure, for callers that reach their deadline.
    trouble: Mutex<Option<Error>>,
}

impl KeepAliveInbox {
    fn put(&self, request: KeepAliveRequest) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        self.changed.notify_one();
    }

    async fn wait(&self) {
        self.changed.notified().await;
    }

    fn take(&self) -> Vec<KeepAliveRequest> {
        std::mem::take(&mut *self.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_trouble(&self, trouble: Option<Error>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    fn trouble(&self) -> Option<Error> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
