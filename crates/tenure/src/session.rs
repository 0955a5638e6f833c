//! Sessions: any number of keys under one shared lease, kept there whatever the store does.
//!
//! The machine in `core::session` decides; this file is what users hold, and the task behind it only moves things between the two.

mod drive;
mod own_keys;
mod perform;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::backoff::{BadRetry, Retry};
use tenure_core::hold::{End, TtlTooShort};
use tenure_core::session::{Mode, Plan, Session as Machine, Wish};
use tenure_core::time::Moment;
use thiserror::Error;
use tokio::sync::{Notify, broadcast, oneshot, watch};

use crate::clock::{BootClock, Clock};
use crate::store::{LeaseId, Store, StoreError};

pub use words::{KeyEvent, LeftBehind, RegisterError, Registration, SessionState};

/// How long `register` waits for the store unless told otherwise: long enough for an election of etcd, short enough for a start-up script.
const REGISTER_WITHIN: Duration = Duration::from_secs(10);

/// How long `close` tries to tidy up; what it cannot reach then ends by itself.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// How many key events a listener may be behind before it misses some.
const EVENTS_LEN: usize = 1_024;

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
/// let registration = session.register("/shop/registry/api-1", "10.0.0.7:80").await?;
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
    handle: Arc<Handle>,
}

/// Ends the session when the last clone is gone.
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

/// What the handles and the task have in common.
struct Shared {
    store: Store,
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
    /// Rung when the machine was told something.
    bell: Notify,
    state: watch::Sender<SessionState>,
    events: broadcast::Sender<KeyEvent>,
    /// Whether the store holds what is wanted, and nothing else of ours.
    settled: watch::Sender<bool>,
    ended: watch::Sender<bool>,
}

struct Inner {
    machine: Machine,
    /// Who waits for a wish to come true.
    waiters: BTreeMap<Wish, oneshot::Sender<Result<Registration, RegisterError>>>,
    /// Keys whose watching has to begin or to end.
    follow: Vec<Follow>,
    is_closing: bool,
    /// Why nothing works any more.
    fatal: Option<StoreError>,
    failing_since: Option<Moment>,
    last_loss: Option<End>,
}

/// What the task must do about the watching of a key.
enum Follow {
    Begin(Bytes),
    End(Bytes),
}

/// How a session is opened.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    plan: Plan,
    clock: Arc<dyn Clock>,
}

impl SessionOptions {
    /// The TTL of keys that do not ask for another; 15 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> SessionOptions {
        self.plan.ttl = ttl;
        self
    }

    /// How long to wait before asking for a new lease again; 1, 2, 4, 8 s with full jitter.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> SessionOptions {
        self.plan.retry = retry;
        self
    }

    /// How many keys share a lease; 1,000.
    #[must_use]
    pub fn keys_per_lease(mut self, keys: usize) -> SessionOptions {
        self.plan.keys_per_lease = keys.max(1);
        self
    }

    /// Where the time comes from; the machine's boot clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> SessionOptions {
        self.clock = Arc::new(clock);
        self
    }

    /// Opens the session. Asks nothing of the store yet.
    pub fn open(self, store: Store) -> Result<Session, BadOptions> {
        self.plan.retry.check()?;
        let machine = Machine::new(self.plan)?;
        let inner = Inner {
            machine,
            waiters: BTreeMap::new(),
            follow: Vec::new(),
            is_closing: false,
            fatal: None,
            failing_since: None,
            last_loss: None,
        };
        let shared = Arc::new(Shared {
            store,
            clock: self.clock,
            inner: Mutex::new(inner),
            bell: Notify::new(),
            state: watch::Sender::new(SessionState::Idle),
            events: broadcast::Sender::new(EVENTS_LEN),
            settled: watch::Sender::new(true),
            ended: watch::Sender::new(false),
        });
        tokio::spawn(drive::drive(shared.clone()));
        Ok(Session { handle: Arc::new(Handle { shared }) })
    }
}

/// Options that cannot work.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum BadOptions {
    /// One lost answer would end the lease.
    #[error(transparent)]
    Ttl(#[from] TtlTooShort),
    /// It would hammer the store.
    #[error(transparent)]
    Retry(#[from] BadRetry),
}

impl Session {
    /// A session with a TTL of 15 s.
    pub fn open(store: Store) -> Result<Session, BadOptions> {
        Session::options().open(store)
    }

    /// A session with options.
    pub fn options() -> SessionOptions {
        SessionOptions { plan: Plan::DEFAULT, clock: Arc::new(BootClock) }
    }

    /// Registers a key, overwriting it. `.ttl()`, `.create_only()` and `.within()` change that before the `.await`.
    pub fn register(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Register {
        Register {
            shared: self.shared().clone(),
            key: key.into(),
            value: value.into(),
            ttl: None,
            mode: Mode::Overwrite,
            within: REGISTER_WITHIN,
        }
    }

    /// Does not want a key registered any more. False if it was not wanted.
    ///
    /// Returns at once; [`KeyEvent::Unregistered`] tells when it is gone from the store. It is deleted only if it is still ours.
    pub fn unregister(&self, key: impl Into<Bytes>) -> bool {
        let key = key.into();
        let shared = self.shared();
        let mut inner = shared.lock();
        inner.forget_wish(&key);
        let was_wanted = inner.machine.unregister(&key, shared.clock.now());
        if was_wanted {
            inner.follow.push(Follow::End(key));
            shared.settled.send_replace(false);
        }
        drop(inner);
        shared.bell.notify_one();
        was_wanted
    }

    /// Waits until the store holds what is wanted and nothing else of ours, or until the session is closed.
    pub async fn settled(&self) {
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

    /// How many leases were granted so far; a change says that one was lost.
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
        self.shared().lock().failing_since.map(|since| now.since(since))
    }

    /// How the session stands, now and whenever that changes.
    pub fn state(&self) -> watch::Receiver<SessionState> {
        self.shared().state.subscribe()
    }

    /// What happens to keys from now on. A listener that falls 1,024 events behind is told how many it missed.
    pub fn events(&self) -> broadcast::Receiver<KeyEvent> {
        self.shared().events.subscribe()
    }

    /// Unregisters everything, ends the leases and the task. Bounded: what cannot be reached in 5 s ends by itself.
    pub async fn close(&self) -> Result<(), LeftBehind> {
        let shared = self.shared();
        let (leases, keys) = {
            let inner = shared.lock();
            (inner.machine.leases().count(), inner.machine.keys().count())
        };
        shared.begin_close();
        let mut ended = shared.ended.subscribe();
        match tokio::time::timeout(CLOSE_WITHIN, ended.wait_for(|ended| *ended)).await {
            Ok(_) => Ok(()),
            Err(_) => {
                let within = shared.lock().machine.remaining(shared.clock.now());
                shared.give_up();
                Err(LeftBehind { leases, keys, within })
            }
        }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:?}, {:?})", self.shared().store, *self.shared().state.borrow())
    }
}

/// A registration that is about to be asked for.
#[must_use = "nothing is registered before this is awaited"]
pub struct Register {
    shared: Arc<Shared>,
    key: Bytes,
    value: Bytes,
    ttl: Option<Duration>,
    mode: Mode,
    within: Duration,
}

impl Register {
    /// With a TTL of its own.
    pub fn ttl(mut self, ttl: Duration) -> Register {
        self.ttl = Some(ttl);
        self
    }

    /// Only if nobody else has the key.
    pub fn create_only(mut self) -> Register {
        self.mode = Mode::Create;
        self
    }

    /// Waits this long for the store.
    pub fn within(mut self, within: Duration) -> Register {
        self.within = within;
        self
    }

    async fn ask(self) -> Result<Registration, RegisterError> {
        let (tell, told) = oneshot::channel();
        {
            let mut inner = self.shared.lock();
            if inner.is_closing || inner.fatal.is_some() {
                return Err(RegisterError::Closed);
            }
            let now = self.shared.clock.now();
            inner.forget_wish(&self.key);
            let wish = inner.machine.register(self.key.clone(), self.value, self.ttl, self.mode, now)?;
            inner.waiters.insert(wish, tell);
            inner.follow.push(Follow::Begin(self.key));
            self.shared.settled.send_replace(false);
        }
        self.shared.bell.notify_one();
        match tokio::time::timeout(self.within, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(RegisterError::Superseded),
            Err(_) => Err(RegisterError::NotYet { within: self.within }),
        }
    }
}

impl IntoFuture for Register {
    type Output = Result<Registration, RegisterError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_close(&self) {
        let mut inner = self.lock();
        inner.close(&RegisterError::Closed, self.clock.now());
        drop(inner);
        self.bell.notify_one();
    }

    /// Ends the task although something is left.
    fn give_up(&self) {
        self.ended.send_replace(true);
        self.bell.notify_one();
    }
}

impl Inner {
    /// Whoever waits for a key's last wish waits in vain: another one takes its place.
    fn forget_wish(&mut self, key: &Bytes) {
        if let Some(wish) = self.machine.wish(key) {
            self.waiters.remove(&wish);
        }
    }

    /// Wants nothing any more; whoever waits is told why.
    fn close(&mut self, why: &RegisterError, now: Moment) {
        if std::mem::replace(&mut self.is_closing, true) {
            return;
        }
        self.machine.close(now);
        for (_, waiter) in std::mem::take(&mut self.waiters) {
            // One who does not wait any more has dropped the other end.
            let _ = waiter.send(Err(why.clone()));
        }
    }
}
