//! Sessions: any number of keys under shared leases, kept registered through outages.
//!
//! The machine in `core::session` decides. The handles change it under a mutex; the driver's task sends its requests and feeds it the replies.

mod driver;
mod events;
mod lease;
mod metrics;
mod options;
mod own_key_watch;
mod register;
mod requests;
mod shared;
mod state;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::id::InvalidName;
use tenure_core::time::Moment;
use tokio::sync::{broadcast, watch};

use crate::clock::Clock;
use crate::error::CloseError;
use crate::store::{LeaseId, Store, StoreError};
use shared::SessionShared;

pub use lease::{InvalidTtl, LeaseError, LeaseHandle, LeaseRequest};
pub use metrics::describe_metrics;
pub use options::{InvalidOptions, SessionOptions};
pub use register::{KeyOwner, Register, RegisterError, RegisteredKey};
pub use state::{Health, KeyEvent, SessionState};

pub use crate::exclusive_key::{Registration, RegistrationStatus, ReplacedBy};

/// Shared leases for many keys. Cheap to clone; all clones are one session.
///
/// ```
/// use tenure::session::Session;
/// use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::memory();
/// let session = Session::open(store.clone())?;
///
/// // From here on the key stays registered: through broken connections, restarts and lost leases.
/// let registration = session.register_raw("/shop/registry/api-1", "10.0.0.7:80").await?;
/// assert_eq!(store.lease(registration.lease).await?.map(|lease| lease.keys.len()), Some(1));
///
/// session.close().await?;
/// assert_eq!(store.leases().await?.len(), 0);
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * Nothing is sent before the first key; the lease is revoked with the last key.
/// * A registered key stays registered until it is unregistered or this process ends. No other process notices a connection that is broken
///   for less than the TTL. A key that an operator deletes is put again; a key that another process has put is not overwritten.
/// * [`SessionState::Lost`] is reported before the store can give the keys to another process, also after a suspend.
/// * A key that was unregistered is never put again.
/// * A lease with a [`LeaseHandle`] is not revoked before the handle is dropped.
///
/// # Not guaranteed
///
/// * That the session foresees that an operator revokes its lease: it notices within a round trip.
/// * Mutual exclusion: use locks for that, and tokens for their effects.
///
/// # Cancellation
///
/// Dropping the future of a registration does not unregister the key; [`Session::unregister`] does. Dropping the last handle closes the
/// session in the background.
#[derive(Clone)]
pub struct Session {
    handle: Arc<SessionHandle>,
}

/// Closes the session when the last clone is dropped.
struct SessionHandle {
    shared: Arc<SessionShared>,
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

impl Session {
    /// A session with a TTL of 15 s. Must be called inside a tokio runtime, on which its task runs.
    pub fn open(store: Store) -> Result<Session, InvalidOptions> {
        Session::options().open(store)
    }

    /// A session with options.
    pub fn options() -> SessionOptions {
        SessionOptions::default()
    }

    /// Registers an absolute key, outside of every namespace, until [`Session::unregister`] or the end of the session.
    pub fn register_raw(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Register {
        self.register(Ok(key.into()), value.into())
    }

    pub(crate) fn register(&self, key: Result<Bytes, InvalidName>, value: Bytes) -> Register {
        Register::new(self.shared().clone(), key, value)
    }

    /// Unregisters a key. False if it was not registered.
    ///
    /// Returns immediately; [`KeyEvent::Unregistered`] reports that it is deleted. A key that another process has put since is not deleted.
    pub fn unregister(&self, key: impl Into<Bytes>) -> bool {
        let key = key.into();
        let shared = self.shared();
        let mut inner = shared.lock();
        inner.forget_waiter(&key);
        let was_wanted = inner.machine.unregister(&key, shared.clock.now());
        if was_wanted {
            inner.unwatched.insert(key);
            shared.is_synced.send_replace(false);
        }
        drop(inner);
        shared.inbox.notify();
        was_wanted
    }

    /// A lease of this session, for keys that the caller puts itself; see [`LeaseHandle`].
    ///
    /// If the session has a lease, nothing is sent.
    pub fn lease(&self) -> LeaseRequest {
        LeaseRequest::new(self.shared().clone())
    }

    /// The store that the session is opened on.
    pub fn store(&self) -> &Store {
        &self.shared().store
    }

    /// The TTL of requests that do not choose another.
    pub fn ttl(&self) -> Duration {
        self.shared().ttl
    }

    /// The clock that validity is counted on.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared().clock
    }

    /// Waits until the store holds exactly the registered keys of this session, or until the session is closed.
    pub async fn synced(&self) {
        // It fails only when the session has ended, and then no request is in flight.
        let _ = self.shared().is_synced.subscribe().wait_for(|is_synced| *is_synced).await;
    }

    /// The keys that are registered, or will be.
    pub fn keys(&self) -> Vec<Bytes> {
        self.shared().lock().machine.keys().cloned().collect()
    }

    /// The oldest lease that the session has now.
    pub fn lease_id(&self) -> Option<LeaseId> {
        self.shared().lock().machine.leases().next()
    }

    /// All leases that the session has now: one for each thousand keys and each TTL.
    pub fn leases(&self) -> Vec<LeaseId> {
        self.shared().lock().machine.leases().collect()
    }

    /// Whether a lease belongs to this session and is valid at this moment.
    pub(crate) fn is_held(&self, lease: LeaseId) -> bool {
        self.shared().is_held(lease)
    }

    /// Grows when a lease replaces one that was lost, and when the session starts again after its last key.
    pub fn incarnation(&self) -> u64 {
        self.shared().lock().machine.incarnation()
    }

    /// How long each lease is certainly valid.
    pub fn remaining(&self) -> Duration {
        self.shared().lock().machine.remaining(self.shared().clock.now())
    }

    /// How long the requests of the session have been failing; none if they succeed.
    pub fn failing_for(&self) -> Option<Duration> {
        let now = self.shared().clock.now();
        self.shared().lock().machine.failing_since().map(|since| now.since(since))
    }

    /// The last error of a request of this session, or of a lock or an election on it, if it was since then. None if no request failed, or the
    /// store only did not reply.
    pub fn failure_since(&self, since: Moment) -> Option<StoreError> {
        let inner = self.shared().lock();
        inner.last_error.as_ref().filter(|(at, _)| *at >= since).map(|(_, error)| error.clone())
    }

    /// Records the error of a request for a key under a lease of this session.
    pub(crate) fn note_failure(&self, error: &StoreError) {
        let now = self.shared().clock.now();
        self.shared().lock().last_error = Some((now, error.clone()));
    }

    /// The health of the session, all at one moment. Sends nothing.
    pub fn health(&self) -> Health {
        self.shared().health()
    }

    /// The state of the session, now and after each change.
    pub fn state(&self) -> watch::Receiver<SessionState> {
        self.shared().state.subscribe()
    }

    /// The events of the keys from now on. A receiver that is 1,024 events behind receives the number of the missed ones.
    pub fn events(&self) -> broadcast::Receiver<KeyEvent> {
        self.shared().events.subscribe()
    }

    /// Unregisters all keys, waits until lease handles are dropped, revokes the leases and ends the task.
    ///
    /// Holds and lease handles become invalid first, so that their owners can stop. A lease with a live handle is not revoked. After 5 s the
    /// remaining leases are left to expire, and the error names them.
    ///
    /// # Errors
    ///
    /// [`CloseError`] names what was not ended.
    ///
    /// # Cancellation
    ///
    /// The session closes in the background.
    pub async fn close(&self) -> Result<(), CloseError> {
        let shared = self.shared();
        shared.begin_close();
        let mut ended = shared.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(report) => report.clone().unwrap_or(Ok(())),
            // The sender is in `shared`, which this handle keeps alive.
            Err(_) => Ok(()),
        }
    }

    fn shared(&self) -> &Arc<SessionShared> {
        &self.handle.shared
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:?}, {:?})", self.shared().store, *self.shared().state.borrow())
    }
}
