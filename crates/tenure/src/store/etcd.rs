//! The etcd engine: the contract on real etcd.
//!
//! The client does the hard part: members that die, responses that are lost, streams that break. This file maps the contract
//! to etcd's requests. The differences between the two are in `etcd/translate.rs`, the errors in
//! `etcd/error.rs`, and how independent transactions share a request in `etcd/batch.rs`.

mod batch;
mod error;
mod translate;
mod watch;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::time::Moment;
use tenure_etcd::Client;
use tokio_util::sync::CancellationToken;

use crate::store::{
    Durability, Engine, Get, Grant, LeaseId, LeaseView, Limits, OpReply, Page, PreviousValues, Reach,
    Renewal, Revision, Selection, StoreError, StoreInfo, Transport, Txn, TxnReply, WatchStart, WatchStream,
};

pub use tenure_etcd::{Config, Secret, Tls, User};

/// The error of a client that was not opened as a store, such as a diagnostic tool's.
pub fn connect_error(error: tenure_etcd::Error) -> StoreError {
    error::from_connecting(error)
}

/// A renewal waits this long for one member at most. Longer than a busy server needs; shorter would leave members that
/// are only slow.
const RENEW_TIMEOUT_MAX: Duration = Duration::from_secs(1);

/// And at least this long, however short the leases are: a round trip under load takes a fraction of it.
const RENEW_TIMEOUT_MIN: Duration = Duration::from_millis(250);

/// TTLs are whole seconds; the server raises what is below one and a half election timeouts.
const TTL_STEP: Duration = Duration::from_secs(1);

/// What the server grants at most.
const TTL_MAX: Duration = Duration::from_secs(9_000_000_000);

/// A store on an etcd cluster.
///
/// # Guarantees
///
/// Those of [`Engine`], and those of [`Client`]: one member of three may fail, which delays requests for a moment.
///
/// # Not guaranteed
///
/// A TTL below the server's floor is raised by the server; what counts is the TTL in the [`Grant`].
#[derive(Debug)]
pub struct EtcdEngine {
    client: Client,
    info: StoreInfo,
    /// The shortest TTL granted or renewed through this engine, in milliseconds: a renewal must succeed, or be retried
    /// on another member, well before the shortest lease ends.
    ttl_shortest_ms: AtomicU64,
    /// Ends watches that no server has.
    closing: CancellationToken,
}

impl EtcdEngine {
    /// Connects to a cluster and signs in.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if no member can be reached, [`StoreError::Denied`] for a wrong password, [`StoreError::Tls`] for
    /// certificates and for a server of which only one side speaks TLS.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn connect(config: Config) -> Result<EtcdEngine, StoreError> {
        let limits = Limits {
            txn_ops_max: config.txn_ops_max,
            request_bytes_max: config.request_bytes_max,
            ttl_min: TTL_STEP,
            ttl_max: TTL_MAX,
        };
        let client = Client::connect(config).await.map_err(error::from_connecting)?;
        let cluster = client.cluster_id().unwrap_or_default();
        let info = StoreInfo {
            kind: "etcd",
            id: translate::store_id(cluster),
            limits,
            ttl_step: TTL_STEP,
            durable: Durability::PowerLoss,
            reach: Reach::Network,
        };
        Ok(EtcdEngine {
            client,
            info,
            ttl_shortest_ms: AtomicU64::new(u64::MAX),
            closing: CancellationToken::new(),
        })
    }

    /// The configuration for a list of members, with the defaults of the client and the machine's own authorities for TLS.
    pub(crate) fn config(endpoints: &[String], security: Transport) -> Config {
        let config = Config::new(endpoints.iter().cloned());
        match security {
            Transport::Plain => config,
            Transport::Tls => config.with_tls(Tls::new()),
        }
    }

    /// The client, for requests outside the contract: members, status, alarms.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A quarter of the shortest TTL: an attempt at each of three members fits into the TTL.
    fn renew_timeout(&self) -> Duration {
        let shortest = Duration::from_millis(self.ttl_shortest_ms.load(Ordering::Relaxed));
        (shortest / 4).clamp(RENEW_TIMEOUT_MIN, RENEW_TIMEOUT_MAX)
    }

    fn remember_ttl(&self, ttl: Duration) {
        let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.ttl_shortest_ms.fetch_min(ms, Ordering::Relaxed);
    }
}

impl Engine for EtcdEngine {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn get(&self, get: Get) -> Result<Page, StoreError> {
        get.check()?;
        let reply = self.client.range(translate::range(&get)).await.map_err(error::from)?;
        Ok(translate::page(reply, get.values, Revision::ZERO))
    }

    async fn txn(&self, mut txn: Txn) -> Result<TxnReply, StoreError> {
        txn.check(&self.info.limits)?;
        // etcd applies a bare put or delete with less work than a transaction.
        let alone = match translate::lone(&mut txn) {
            Some(translate::Lone::Put(put)) => {
                let revision = self.client.put(put).await.map_err(error::from)?;
                Some((revision, OpReply::Put))
            }
            Some(translate::Lone::Delete(delete)) => {
                let reply = self.client.delete(delete).await.map_err(error::from)?;
                Some((reply.revision, translate::deleted(reply.deleted)?))
            }
            None => None,
        };
        if let Some((revision, result)) = alone {
            return Ok(TxnReply { succeeded: true, revision: Revision(revision), results: vec![result] });
        }
        let reply = self.client.txn(translate::txn(&txn)).await.map_err(error::from)?;
        let revision = Revision(reply.revision);
        translate::txn_reply(reply, &txn, revision)
    }

    async fn batch(&self, txns: Vec<Txn>) -> Vec<Result<TxnReply, StoreError>> {
        batch::run(self, txns).await
    }

    async fn watch(
        &self,
        select: Selection,
        start: WatchStart,
        previous: PreviousValues,
    ) -> Result<WatchStream, StoreError> {
        select.check()?;
        watch::open(self, &select, start, previous).await
    }

    async fn grant(&self, ttl: Duration, id: Option<LeaseId>) -> Result<Grant, StoreError> {
        self.info.limits.grant_ttl(ttl)?;
        // The client chooses the id: after a lost response it knows which lease to look for.
        let id = match id {
            Some(id) => id,
            None => random_id()?,
        };
        let grant = self.client.lease_grant(id.get(), ttl).await.map_err(error::from)?;
        self.remember_ttl(grant.ttl);
        Ok(Grant { id, ttl: grant.ttl, asked_at: Moment::after_origin(grant.asked_at) })
    }

    async fn renew(&self, id: LeaseId) -> Result<Renewal, StoreError> {
        let renewal =
            self.client.keep_alive_once(id.get(), self.renew_timeout()).await.map_err(error::from)?;
        match renewal {
            tenure_etcd::Renewal::Gone => Ok(Renewal::Gone),
            tenure_etcd::Renewal::Renewed { ttl_s, sent_at } => {
                let ttl = u64::try_from(ttl_s)
                    .map(Duration::from_secs)
                    .map_err(|_| StoreError::Corrupt(format!("a lease was renewed for {ttl_s} s")))?;
                self.remember_ttl(ttl);
                Ok(Renewal::Renewed { ttl, asked_at: Moment::after_origin(sent_at) })
            }
        }
    }

    async fn revoke(&self, id: LeaseId) -> Result<Revision, StoreError> {
        self.client.lease_revoke(id.get()).await.map(Revision).map_err(error::from)
    }

    async fn lease(&self, id: LeaseId) -> Result<Option<LeaseView>, StoreError> {
        let view = self.client.lease_time_to_live(id.get()).await.map_err(error::from)?;
        Ok(view.map(|mut view| {
            // etcd returns them in map order; the contract sorts them.
            view.keys.sort();
            LeaseView { granted: view.granted, remaining: view.remaining, keys: view.keys }
        }))
    }

    async fn leases(&self) -> Result<Vec<LeaseId>, StoreError> {
        // The list is one member's, which may lag; a linearizable read through the same member makes it catch up.
        match self.client.range(translate::nothing()).await {
            // A user with a grant on one prefix may not read this key.
            Err(tenure_etcd::Error::Denied(_)) => self.client.catch_up().await.map_err(error::from)?,
            read => drop(read.map_err(error::from)?),
        }
        let ids = self.client.leases().await.map_err(error::from)?;
        let mut ids: Vec<LeaseId> = ids.into_iter().filter_map(LeaseId::new).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.client.compact(revision.0).await.map_err(error::from)
    }

    async fn reachable(&self) {
        self.client.reachable_again().await;
    }

    async fn close(&self) {
        // Ends the watches that no server has; the client ends the others.
        self.closing.cancel();
        self.client.close().await;
    }
}

fn random_id() -> Result<LeaseId, StoreError> {
    crate::rng::try_bytes().map(LeaseId::from_random)
}
