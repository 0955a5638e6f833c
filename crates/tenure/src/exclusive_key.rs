//! One key that one process owns: a member's key or the key of a service instance.
//!
//! `core::exclusive_key` decides. The handle changes the machine under a mutex; the keeper moves reads, replies and time into it.

mod keeper;

use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tenure_core::exclusive_key::{
    ExclusiveKey as Machine, ExclusiveKeyEvent, ExclusiveKeyOutput, RegisterReply, SessionView, TakeTimeouts,
    UpdateError,
};
use tenure_core::revision::{RequestId, Token};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::session::{RegisterError, RegisteredKey, Session, SessionState};
use crate::store::{LeaseId, Store};
use keeper::KeyKeeper;

pub(crate) use tenure_core::exclusive_key::{ExclusiveKeyError, IdentifiedRecord};
pub use tenure_core::exclusive_key::{RegistrationStatus, ReplacedBy};

/// One key at a time is created in a process: between the check whether the session keeps it registered and the registration, no other
/// task may register it. Held for a moment, never across an await.
static CREATING: Mutex<()> = Mutex::new(());

/// What an exclusive key is taken with.
pub(crate) struct ExclusiveKeyOptions {
    pub(crate) store: Store,
    pub(crate) session: Session,
    pub(crate) key: Bytes,
    pub(crate) patience: TakeTimeouts,
}

/// How long an update or an end may take: as long as the close of a session.
const UPDATE_WITHIN: Duration = Duration::from_secs(5);

/// A registered record of this process: a member's, or that of a service instance. Dropping it unregisters the key in the background.
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let membership = tenure.join("web-1").address("10.0.0.7:80").await?;
/// let token = membership.token();
/// membership.update(|record| record.labels.extend([("zone".to_owned(), "eu".to_owned())])).await?;
/// assert_eq!(membership.token(), token);
/// membership.unregister().await?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * It stays registered through broken connections, restarts of the store and lost leases, until it is unregistered or another process has
///   the key.
/// * An update keeps the token.
///
/// # Not guaranteed
///
/// That it is registered at this moment: [`Registration::token`] is some only while that is certain.
///
/// # Cancellation
///
/// Dropping the future of an update does not cancel the update. Dropping the future of [`Registration::unregister`] unregisters in the
/// background.
#[must_use = "a registration that is dropped is unregistered"]
pub struct Registration<R: IdentifiedRecord + Send + 'static> {
    shared: Arc<KeyShared<R>>,
    /// Updates are made one after another: each waits for its own reply.
    updating: tokio::sync::Mutex<()>,
    keeper: Mutex<Option<JoinHandle<()>>>,
    is_detached: bool,
}

impl<R: IdentifiedRecord + Send + 'static> Registration<R> {
    /// Takes the key with this record.
    ///
    /// # Cancellation
    ///
    /// The key is withdrawn.
    pub(crate) async fn take(
        options: ExclusiveKeyOptions,
        record: R,
    ) -> Result<Registration<R>, ExclusiveKeyError> {
        let shared = Arc::new(KeyShared::new(options, record));
        let mut keeper = KeyKeeper::new(shared.clone());
        keeper.take().await?;
        let keeper = Mutex::new(Some(tokio::spawn(keeper.keep())));
        Ok(Registration { shared, updating: tokio::sync::Mutex::new(()), keeper, is_detached: false })
    }

    /// The token, while this is certainly registered. It grows with every process that registers the key, and whenever the key was deleted
    /// in between.
    pub fn token(&self) -> Option<Token> {
        match self.current_status() {
            RegistrationStatus::Member(token) => Some(token),
            RegistrationStatus::Lost | RegistrationStatus::Displaced(_) | RegistrationStatus::Left => None,
        }
    }

    /// The status, now and after each change.
    pub fn status(&self) -> watch::Receiver<RegistrationStatus> {
        self.shared.status.subscribe()
    }

    /// The record that is stored, or will be.
    pub fn record(&self) -> R {
        self.shared.lock().machine.record().clone()
    }

    /// Waits until this is not certainly registered under this token any more. It may be registered again, under a larger token; or under
    /// the same one, if no other process could have had the key meanwhile.
    pub async fn lost(&self, token: Token) {
        // It fails only when the keeper has ended, and then the key is not kept.
        let _ = self.status().wait_for(|status| *status != RegistrationStatus::Member(token)).await;
    }

    /// Changes the record, and waits until it is stored. What identifies the process stays.
    ///
    /// # Errors
    ///
    /// [`RegisterError`]. A change that the store refuses is undone; after [`RegisterError::Timeout`] it will still be stored.
    ///
    /// # Cancellation
    ///
    /// The change will be stored.
    pub async fn update(&self, change: impl FnOnce(&mut R)) -> Result<(), RegisterError> {
        let _turn = self.updating.lock().await;
        let updated = {
            let mut inner = self.shared.lock();
            let epoch = inner.machine.update(change, UPDATE_WITHIN, self.shared.session.clock().now());
            let epoch = epoch.map_err(update_error)?;
            let (reply, updated) = oneshot::channel();
            inner.update = Some((epoch, reply));
            self.shared.perform(&mut inner);
            updated
        };
        self.shared.changed.notify_one();
        // The keeper replies, also when it ends.
        updated.await.unwrap_or(Err(UpdateError::Left)).map_err(update_error)
    }

    /// Unregisters the key, and waits until the store was read without it; at most 5 s.
    ///
    /// Stop what relies on the registration before: from here on another process may register the key.
    ///
    /// # Errors
    ///
    /// [`RegisterError::NotConfirmed`] if the store did not confirm it: then the key expires with its lease.
    ///
    /// # Cancellation
    ///
    /// The key is deleted in the background.
    pub async fn unregister(self) -> Result<(), RegisterError> {
        self.end(UPDATE_WITHIN).await
    }

    /// Keeps the key registered until the session is closed.
    pub fn detach(mut self) {
        self.is_detached = true;
    }

    /// The status now. A lease that has lapsed counts as lost before the keeper has noticed.
    pub(crate) fn current_status(&self) -> RegistrationStatus {
        let inner = self.shared.lock();
        let view = self.shared.session_view(inner.machine.lease());
        inner.machine.status(view)
    }

    async fn end(&self, within: Duration) -> Result<(), RegisterError> {
        {
            let mut inner = self.shared.lock();
            let now = self.shared.session.clock().now();
            inner.machine.leave(now + within, now);
            self.shared.perform(&mut inner);
        }
        self.shared.changed.notify_one();
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            // It ends with the machine, and reports through it.
            let _ = keeper.await;
        }
        if !self.shared.lock().machine.is_over() {
            // The keeper had ended before the leave began.
            KeyKeeper::new(self.shared.clone()).keep().await;
        }
        match self.shared.lock().left {
            Some(LeaveEnd::Confirmed) => Ok(()),
            Some(LeaveEnd::Unconfirmed) | None => {
                Err(RegisterError::NotConfirmed { ttl: self.shared.session.remaining() })
            }
        }
    }
}

impl<R: IdentifiedRecord + Send + 'static> Drop for Registration<R> {
    fn drop(&mut self) {
        if self.is_detached {
            // The keeper has a handle of the session: it ends when the session is closed.
            return;
        }
        self.shared.release();
        self.shared.changed.notify_one();
    }
}

/// What the handle and the keeper share.
struct KeyShared<R> {
    store: Store,
    session: Session,
    key: Bytes,
    inner: Mutex<KeyInner<R>>,
    status: watch::Sender<RegistrationStatus>,
    /// Notified when the handle has changed the machine.
    changed: Notify,
}

struct KeyInner<R> {
    machine: Machine<R>,
    /// A registration that has yet to be awaited by the keeper.
    registering: Option<(RequestId, Registering)>,
    /// A read that has yet to be sent by the keeper.
    is_read_requested: bool,
    update: Option<(RequestId, oneshot::Sender<Result<(), UpdateError>>)>,
    taken: Option<Result<Token, ExclusiveKeyError>>,
    left: Option<LeaveEnd>,
}

/// A registration in flight.
type Registering = Pin<Box<dyn Future<Output = Result<RegisteredKey, RegisterError>> + Send>>;

/// The result of a leave.
#[derive(Clone, Copy)]
enum LeaveEnd {
    /// The store was read without the key.
    Confirmed,
    /// It was not, in time.
    Unconfirmed,
}

/// Whether a registration is the first of its owner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RegisterStep {
    Create,
    Replace,
}

impl<R: IdentifiedRecord> KeyShared<R> {
    fn new(options: ExclusiveKeyOptions, record: R) -> KeyShared<R> {
        let ExclusiveKeyOptions { store, session, key, patience } = options;
        let inner = KeyInner {
            machine: Machine::new(record, patience, session.clock().now()),
            registering: None,
            is_read_requested: false,
            update: None,
            taken: None,
            left: None,
        };
        KeyShared {
            store,
            session,
            key,
            inner: Mutex::new(inner),
            status: watch::Sender::new(RegistrationStatus::Lost),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, KeyInner<R>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self) {
        let mut inner = self.lock();
        inner.machine.release();
        self.perform(&mut inner);
    }

    /// What the session reports, about this lease among others.
    fn session_view(&self, lease: Option<LeaseId>) -> SessionView {
        let state = self.session.state();
        let (is_live, is_closed) = match &*state.borrow() {
            SessionState::Live { .. } | SessionState::Suspect { .. } => (true, false),
            SessionState::Idle | SessionState::Lost { .. } => (false, false),
            SessionState::Closed { .. } => (false, true),
        };
        let held = lease.filter(|lease| is_live && self.session.is_held(*lease));
        SessionView { is_closed, held, has_key: false }
    }

    /// Passes on the machine's notices and begins its actions. Withdrawing is done when this returns: a process may take the key anew at
    /// once.
    fn perform(&self, inner: &mut KeyInner<R>) {
        loop {
            while let Some(notice) = inner.machine.poll_event() {
                self.notify(inner, notice);
            }
            match inner.machine.poll_output() {
                Some(ExclusiveKeyOutput::Create { epoch, value }) => {
                    self.register(inner, epoch, value, RegisterStep::Create);
                }
                Some(ExclusiveKeyOutput::Replace { epoch, value }) => {
                    self.register(inner, epoch, value, RegisterStep::Replace);
                }
                Some(ExclusiveKeyOutput::Withdraw) => {
                    self.session.unregister(self.key.clone());
                }
                Some(ExclusiveKeyOutput::Read) => inner.is_read_requested = true,
                None => return,
            }
        }
    }

    fn register(&self, inner: &mut KeyInner<R>, epoch: RequestId, value: Bytes, attempt: RegisterStep) {
        // The machine knows the bounds. Create-only: a value of this session is replaced, that of another client is not.
        let register = self.session.register_raw(self.key.clone(), value).if_absent().timeout(Duration::MAX);
        let mut registering = register.into_future();
        let reply = {
            let _turn = CREATING.lock().unwrap_or_else(PoisonError::into_inner);
            if attempt == RegisterStep::Create && self.session.keys().contains(&self.key) {
                Some(RegisterReply::AlreadyRegistered)
            } else {
                // The first poll registers the key; the reply comes later.
                (&mut registering).now_or_never().map(reply_of)
            }
        };
        match reply {
            Some(reply) => {
                inner.machine.handle_registered(epoch, reply, self.session.clock().now());
            }
            None => inner.registering = Some((epoch, registering)),
        }
    }

    fn notify(&self, inner: &mut KeyInner<R>, notice: ExclusiveKeyEvent) {
        match notice {
            ExclusiveKeyEvent::Taken(token) => inner.taken = Some(Ok(token)),
            ExclusiveKeyEvent::NotTaken(error) => inner.taken = Some(Err(error)),
            ExclusiveKeyEvent::Updated(epoch, result) => {
                if let Some((_, reply)) = inner.update.take_if(|(update, _)| *update == epoch) {
                    // A caller that waits no longer has dropped the other end.
                    let _ = reply.send(result);
                }
            }
            ExclusiveKeyEvent::Status(status) => {
                let key = &self.key;
                match &status {
                    RegistrationStatus::Member(token) => info!(?key, %token, "registration held"),
                    RegistrationStatus::Lost => warn!(?key, "registration lost, registering again"),
                    RegistrationStatus::Displaced(other) => {
                        warn!(?key, token = %other.token(), "registration lost to another process");
                    }
                    RegistrationStatus::Left => info!(?key, "registration ended"),
                }
                self.status.send_replace(status);
            }
            ExclusiveKeyEvent::Left => inner.left = Some(LeaveEnd::Confirmed),
            ExclusiveKeyEvent::LeaveUnconfirmed => inner.left = Some(LeaveEnd::Unconfirmed),
        }
    }
}

/// The session's reply as the machine reads it.
fn reply_of(reply: Result<RegisteredKey, RegisterError>) -> RegisterReply {
    match reply {
        Ok(registration) => RegisterReply::Stored(registration.revision),
        Err(RegisterError::Held { .. }) => RegisterReply::Taken,
        Err(RegisterError::Superseded) => RegisterReply::Superseded,
        Err(RegisterError::Invalid(invalid)) => RegisterReply::Invalid(invalid),
        Err(RegisterError::Store(error)) => RegisterReply::Refused(error),
        Err(RegisterError::Closed) => RegisterReply::Closed,
        Err(error @ RegisterError::Timeout { .. }) => unreachable!("no bound was set: {error}"),
        Err(error @ RegisterError::InvalidTtl(_)) => unreachable!("the TTL is the session's own: {error}"),
        Err(error @ RegisterError::InvalidName(_)) => unreachable!("the key was encoded before: {error}"),
        Err(error @ RegisterError::AlreadyRegistered | error @ RegisterError::NotConfirmed { .. }) => {
            unreachable!("the session does not return it: {error}")
        }
    }
}

fn update_error(error: UpdateError) -> RegisterError {
    match error {
        UpdateError::Displaced => RegisterError::Held { by: None },
        UpdateError::Left => RegisterError::Closed,
        UpdateError::NotYet { within } => RegisterError::Timeout { after: within },
        UpdateError::Refused(error) => RegisterError::Store(error),
    }
}

impl<R: IdentifiedRecord + Send + 'static> fmt::Debug for Registration<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The record may be secret.
        write!(f, "Registration({:?}, {:?})", self.shared.key, self.current_status())
    }
}
