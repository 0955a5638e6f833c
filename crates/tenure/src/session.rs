//! Sessions: any number of keys under one shared lease, kept there whatever the store does.
//!
//! The machine in `core::session` decides; these files are what users hold, and the task behind them only moves things between the two.

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

/// One shared lease for many keys. Cheap to clone; all clones are one session.
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
/// // From here on the key is in the store: through broken connections, restarts and lost leases.
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
/// * Nothing is asked of the store before the first key; the last key takes the lease along.
/// * A registered key stays registered until it is unregistered or this process ends. A connection that breaks for less than the TTL
///   shows to nobody. A key deleted behind our back is put back; one that somebody else has put is left to them.
/// * [`SessionState::Lost`] is told before the store can give the lease's keys to anybody else, also after a suspend.
/// * A key that was unregistered is never put again.
/// * A lease that is lent is not ended before it is given back, unless it is lost.
///
/// # Not guaranteed
///
/// * That a lease revoked by hand is foreseen: it is seen within a round trip.
/// * Mutual exclusion: for that there are locks, and for their effects there are tokens.
///
/// # Cancellation
///
/// Dropping the future of `register` leaves the key wanted; `unregister` withdraws it. Dropping the last handle closes the session
/// in the background.
#[derive(Clone)]
pub struct Session {
    handle: Arc<SessionHandle>,
}

/// Ends the session when the last clone is gone.
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

    /// Does not want a key registered any more. False if it was not wanted.
    ///
    /// Returns at once; [`KeyEvent::Unregistered`] tells when it is gone from the store. It is deleted only if it is still ours.
    pub fn unregister(&self, key: impl Into<Bytes>) -> bool {
        let key = key.into();
        let shared = self.shared();
        let mut inner = shared.lock();
        inner.forget_waiter(&key);
        let was_wanted = inner.machine.unregister(&key, shared.clock.now());
        if was_wanted {
            inner.follow.insert(key);
            shared.settled.send_replace(false);
        }
        drop(inner);
        shared.inbox.notify();
        was_wanted
    }

    /// A lease of this session, for keys that the caller puts itself; see [`LeaseHandle`].
    ///
    /// If the session holds a lease, nothing is sent.
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

    /// Waits until the store holds what is wanted and nothing else of ours, or until the session is closed.
    pub async fn synced(&self) {
        // It fails only when the session is gone, and then nothing is left to wait for.
        let _ = self.shared().settled.subscribe().wait_for(|settled| *settled).await;
    }

    /// The wanted keys.
    pub fn keys(&self) -> Vec<Bytes> {
        self.shared().lock().machine.keys().cloned().collect()
    }

    /// The oldest lease that is held now.
    pub fn lease_id(&self) -> Option<LeaseId> {
        self.shared().lock().machine.leases().next()
    }

    /// All leases that are held now: one for each thousand keys and each TTL.
    pub fn leases(&self) -> Vec<LeaseId> {
        self.shared().lock().machine.leases().collect()
    }

    /// Whether a lease is this session's and may be relied upon at this moment.
    pub(crate) fn is_held(&self, lease: LeaseId) -> bool {
        self.shared().is_held(lease)
    }

    /// Grows when a lease replaces one that was lost, and when the session starts again after its last key.
    pub fn incarnation(&self) -> u64 {
        self.shared().lock().machine.incarnation()
    }

    /// How long every lease is certainly valid.
    pub fn remaining(&self) -> Duration {
        self.shared().lock().machine.remaining(self.shared().clock.now())
    }

    /// For how long the store has been failing us; none if it is not.
    pub fn failing_for(&self) -> Option<Duration> {
        let now = self.shared().clock.now();
        self.shared().lock().machine.failing_since().map(|since| now.since(since))
    }

    /// What the store said when it last failed the session, or a lock or an election on it, if that was since then. None if it did not fail, or
    /// only was silent.
    pub fn failure_since(&self, since: Moment) -> Option<StoreError> {
        let inner = self.shared().lock();
        inner.last_error.as_ref().filter(|(at, _)| *at >= since).map(|(_, error)| error.clone())
    }

    /// Keeps what went wrong with something that hangs on a lease of the session's.
    pub(crate) fn note_failure(&self, error: &StoreError) {
        let now = self.shared().clock.now();
        self.shared().lock().last_error = Some((now, error.clone()));
    }

    /// How the session does, all at one moment.
    pub fn health(&self) -> Health {
        self.shared().health()
    }

    /// How the session stands, now and whenever that changes.
    pub fn state(&self) -> watch::Receiver<SessionState> {
        self.shared().state.subscribe()
    }

    /// What happens to keys from now on. A listener that falls 1,024 events behind is told how many it missed.
    pub fn events(&self) -> broadcast::Receiver<KeyEvent> {
        self.shared().events.subscribe()
    }

    /// Unregisters everything, waits for loans to be given back, ends the leases and the task.
    ///
    /// Loans end first, so that whoever has one can stop; a lease whose loan is not given back is not revoked. Bounded: what is not
    /// done in 5 s is left to end by itself, and the error says what that is.
    ///
    /// # Cancellation
    ///
    /// The session goes on closing in the background.
    pub async fn close(&self) -> Result<(), CloseError> {
        let shared = self.shared();
        shared.begin_close();
        let mut ended = shared.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(report) => report.clone().unwrap_or(Ok(())),
            // The sender is in `shared`, which we hold.
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
