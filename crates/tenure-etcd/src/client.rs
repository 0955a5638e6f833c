//! The client: one handle on one cluster.

use std::sync::Arc;

use tokio::time::Instant;

use crate::config::Config;
use crate::endpoints::{ConnectDeadline, Endpoints};
use crate::error::Error;
use crate::keepalive::KeepAliveClient;
use crate::version::{ServerVersion, known_defects};
use crate::watch::Hub;

/// A handle on one etcd cluster. Clones share everything; the last one to go stops the background work.
///
/// # Guarantees
///
/// * Every call ends within [`Config::deadline`], also when nothing listens or bytes vanish.
/// * A write is `Ok` (applied), [`Error::Ambiguous`] (unknown), or certainly not applied.
/// * While every member is down, at most four connects a second are made, all users of the client together.
/// * Once the cluster was replaced or went back in time, every call returns [`Error::Replaced`].
///
/// # Not guaranteed
///
/// * A write that was `Ambiguous` is not repeated here: only the caller can find out whether it
///   took effect.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<ClientShared>,
}

/// Kept by the clones only, never by tasks, so that its end is the end of the last clone.
#[derive(Debug)]
struct ClientShared {
    endpoints: Arc<Endpoints>,
    watches: Hub,
    keeper: KeepAliveClient,
}

impl Client {
    /// Connects to one member, signs in, and checks the cluster behind it. Must be called inside a
    /// tokio runtime.
    ///
    /// Tries every endpoint once. When none can be reached, the error contains the cause for each
    /// of them, well within the deadline. Whether to try again is the caller's decision.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`], [`Error::Tls`] (certificates, or one side only speaks TLS), [`Error::Denied`] (wrong password),
    /// [`Error::Invalid`] (a configuration that cannot work).
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn connect(config: Config) -> Result<Self, Error> {
        let client = Self::new(config)?;
        let until = Instant::now() + client.endpoints().config.deadline;
        client.endpoints().acquire(until, None, ConnectDeadline::EachOnce).await?;
        Ok(client)
    }

    /// A client that connects with its first call. Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a configuration that cannot work.
    pub fn new(config: Config) -> Result<Self, Error> {
        let endpoints = Endpoints::start(config)?;
        Ok(Self {
            shared: Arc::new(ClientShared { endpoints, watches: Hub::new(), keeper: KeepAliveClient::new() }),
        })
    }

    /// The cluster's id, once a member replied. It stays the same for the life of the client.
    #[must_use]
    pub fn cluster_id(&self) -> Option<u64> {
        self.endpoints().identity.cluster()
    }

    /// The first version with known defects that a member had, and how many it has; see [`known_defects`].
    #[must_use]
    pub fn server_defects(&self) -> Option<(ServerVersion, usize)> {
        let version = *self.endpoints().defective.get()?;
        Some((version, known_defects(version).len()))
    }

    /// Waits until a member that could not be reached replies again.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn reachable_again(&self) {
        if self.endpoints().changed().changed().await.is_err() {
            // The client is closed and never connects again.
            std::future::pending::<()>().await;
        }
    }

    /// Stops all background work and waits for it. Later calls return [`Error::Closed`]; calls in
    /// flight have one second to end.
    ///
    /// # Cancellation
    ///
    /// The background work is stopped in any case; only the waiting ends.
    pub async fn close(&self) {
        self.endpoints().close().await;
    }

    pub(crate) fn endpoints(&self) -> &Arc<Endpoints> {
        &self.shared.endpoints
    }

    pub(crate) fn watches(&self) -> &Hub {
        &self.shared.watches
    }

    pub(crate) fn keeper(&self) -> &KeepAliveClient {
        &self.shared.keeper
    }
}

impl Drop for ClientShared {
    fn drop(&mut self) {
        self.endpoints.stop().cancel();
    }
}
