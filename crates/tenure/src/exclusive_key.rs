//! One key that one process owns: a member's key or the key of a service instance.
//!
//! `core::exclusive_key` decides. The handle changes the machine under a mutex; the keeper moves reads, replies and time into it.

mod keeper;

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tenure_core::exclusive_key::{
    ExclusiveKey as Machine, ExclusiveKeyEvent, ExclusiveKeyOutput, RegisterReply, SessionView, TakeTimeouts,
};
use tenure_core::revision::{RequestId, Token};
use thiserror::Error;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::session::{RegisterError, Registration, Session, SessionState};
use crate::store::{LeaseId, Store};
use keeper::KeyKeeper;

pub(crate) use tenure_core::exclusive_key::{ExclusiveKeyError, IdentifiedRecord};
pub use tenure_core::exclusive_key::{RegistrationStatus, ReplacedBy, UpdateError};

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

/// A key that was taken. Dropping it withdraws the key.
pub(crate) struct ExclusiveKey<R: IdentifiedRecord + Send + 'static> {
    shared: Arc<Shared<R>>,
    /// Updates are made one after another: each waits for its own reply.
    updating: tokio::sync::Mutex<()>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl<R: IdentifiedRecord + Send + 'static> ExclusiveKey<R> {
    /// Takes the key with this record.
    ///
    /// # Cancellation
    ///
    /// The key is withdrawn.
    pub(crate) async fn take(
        options: ExclusiveKeyOptions,
        record: R,
    ) -> Result<ExclusiveKey<R>, ExclusiveKeyError> {
        let shared = Arc::new(Shared::new(options, record));
        let mut keeper = KeyKeeper::new(shared.clone());
        keeper.take().await?;
        let keeper = Mutex::new(Some(tokio::spawn(keeper.keep())));
        Ok(ExclusiveKey { shared, updating: tokio::sync::Mutex::new(()), keeper })
    }

    /// Changes the record and stores it under the same token. A refused change is undone.
    ///
    /// # Cancellation
    ///
    /// The change will be stored.
    pub(crate) async fn update(
        &self,
        change: impl FnOnce(&mut R),
        within: Duration,
    ) -> Result<(), UpdateError> {
        let _turn = self.updating.lock().await;
        let updated = {
            let mut inner = self.shared.lock();
            let epoch = inner.machine.update(change, within, self.shared.session.clock().now())?;
            let (reply, updated) = oneshot::channel();
            inner.update = Some((epoch, reply));
            self.shared.perform(&mut inner);
            updated
        };
        self.shared.changed.notify_one();
        // The keeper replies, also when it ends.
        updated.await.unwrap_or(Err(UpdateError::Left))
    }

    /// The record that is stored, or will be.
    pub(crate) fn record(&self) -> R {
        self.shared.lock().machine.record().clone()
    }

    /// The status now. A lease that has lapsed counts as lost before the keeper has noticed.
    pub(crate) fn status(&self) -> RegistrationStatus {
        let inner = self.shared.lock();
        let view = self.shared.session_view(inner.machine.lease());
        inner.machine.status(view)
    }

    pub(crate) fn token(&self) -> Option<Token> {
        match self.status() {
            RegistrationStatus::Member(token) => Some(token),
            RegistrationStatus::Lost | RegistrationStatus::Displaced(_) | RegistrationStatus::Left => None,
        }
    }

    /// The newest token that this handle has or had.
    pub(crate) fn newest_token(&self) -> Token {
        self.shared.lock().machine.newest_token().expect("a key that was taken has a token")
    }

    pub(crate) fn changes(&self) -> watch::Receiver<RegistrationStatus> {
        self.shared.status.subscribe()
    }

    /// Waits until it is not certainly held under this token any more. Only a loss that is over, under the same token, before it was
    /// observed can be missed, and then no other process can have had the key.
    pub(crate) async fn lost(&self, token: Token) {
        // It fails only when the keeper is gone, and then the key is not kept.
        let _ = self.changes().wait_for(|status| *status != RegistrationStatus::Member(token)).await;
    }

    /// Withdraws the key, and waits until the store was read without it.
    ///
    /// # Cancellation
    ///
    /// The session deletes the key in the background.
    pub(crate) async fn leave(&self, within: Duration) -> Result<(), LeaveError> {
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
                Err(LeaveError { within, ends_within: self.shared.session.remaining() })
            }
        }
    }
}

impl<R: IdentifiedRecord + Send + 'static> Drop for ExclusiveKey<R> {
    fn drop(&mut self) {
        self.shared.release();
        self.shared.changed.notify_one();
    }
}

/// What the handle and the keeper share.
struct Shared<R> {
    store: Store,
    session: Session,
    key: Bytes,
    inner: Mutex<Inner<R>>,
    status: watch::Sender<RegistrationStatus>,
    /// Notified when the handle has changed the machine.
    changed: Notify,
}

struct Inner<R> {
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
type Registering = Pin<Box<dyn Future<Output = Result<Registration, RegisterError>> + Send>>;

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
enum Attempt {
    Create,
    Replace,
}

impl<R: IdentifiedRecord> Shared<R> {
    fn new(options: ExclusiveKeyOptions, record: R) -> Shared<R> {
        let ExclusiveKeyOptions { store, session, key, patience } = options;
        let inner = Inner {
            machine: Machine::new(record, patience, session.clock().now()),
            registering: None,
            is_read_requested: false,
            update: None,
            taken: None,
            left: None,
        };
        Shared {
            store,
            session,
            key,
            inner: Mutex::new(inner),
            status: watch::Sender::new(RegistrationStatus::Lost),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<R>> {
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
    fn perform(&self, inner: &mut Inner<R>) {
        loop {
            while let Some(notice) = inner.machine.poll_event() {
                self.notify(inner, notice);
            }
            match inner.machine.poll_output() {
                Some(ExclusiveKeyOutput::Create { epoch, value }) => {
                    self.register(inner, epoch, value, Attempt::Create);
                }
                Some(ExclusiveKeyOutput::Replace { epoch, value }) => {
                    self.register(inner, epoch, value, Attempt::Replace);
                }
                Some(ExclusiveKeyOutput::Withdraw) => {
                    self.session.unregister(self.key.clone());
                }
                Some(ExclusiveKeyOutput::Read) => inner.is_read_requested = true,
                None => return,
            }
        }
    }

    fn register(&self, inner: &mut Inner<R>, epoch: RequestId, value: Bytes, attempt: Attempt) {
        // The machine knows the bounds. Create-only: a value of this session is replaced, that of another client is not.
        let register = self.session.register(self.key.clone(), value).create_only().within(Duration::MAX);
        let mut registering = register.into_future();
        let reply = {
            let _turn = CREATING.lock().unwrap_or_else(PoisonError::into_inner);
            if attempt == Attempt::Create && self.session.keys().contains(&self.key) {
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

    fn notify(&self, inner: &mut Inner<R>, notice: ExclusiveKeyEvent) {
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
fn reply_of(reply: Result<Registration, RegisterError>) -> RegisterReply {
    match reply {
        Ok(registration) => RegisterReply::Stored(registration.revision),
        Err(RegisterError::Taken) => RegisterReply::Taken,
        Err(RegisterError::Superseded) => RegisterReply::Superseded,
        Err(RegisterError::Invalid(invalid)) => RegisterReply::Invalid(invalid),
        Err(RegisterError::Refused(error)) => RegisterReply::Refused(error),
        Err(RegisterError::Closed) => RegisterReply::Closed,
        Err(error @ RegisterError::NotYet { .. }) => unreachable!("no bound was set: {error}"),
        Err(error @ RegisterError::Ttl(_)) => unreachable!("the TTL is the session's own: {error}"),
        Err(error @ RegisterError::InvalidName(_)) => unreachable!("the key was encoded before: {error}"),
    }
}

/// Leaving was not confirmed: the key is deleted with its lease, if the store is up.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "the store did not confirm it within {within:?}; what is left there ends by itself within {ends_within:?}"
)]
pub struct LeaveError {
    /// The bound.
    pub within: Duration,
    /// When the key is gone at the latest, if the store is up; zero if the lease is over already.
    pub ends_within: Duration,
}
