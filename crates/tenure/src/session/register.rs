//! Registering a key: what is asked, what is answered, and what is refused before anything is sent.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::id::InvalidName;
use tenure_core::keepalive::TtlTooShort;
use tenure_core::session::{PutMode, largest_put};
use thiserror::Error;
use tokio::sync::oneshot;

use super::shared::Shared;
use crate::store::{InvalidRequest, LeaseId, Revision, StoreError};

/// How long `register` waits for the store unless told otherwise: long enough for an election of etcd, short enough for a start-up script.
const REGISTER_WITHIN: Duration = Duration::from_secs(10);

/// A key that is in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registration {
    /// The key.
    pub key: Bytes,
    /// The lease it hangs on.
    pub lease: LeaseId,
    /// When it was put.
    pub revision: Revision,
    /// The TTL that the store granted, which is not less than the one asked for.
    pub ttl: Duration,
}

/// Why a key is not registered.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// No key of a namespace has such a name. Nothing was sent, and nothing has changed.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// No store would take this key or value. Nothing was sent, and nothing has changed.
    #[error("the key cannot be registered: {0}")]
    Invalid(InvalidRequest),
    /// Somebody else has the key, and it was not to be overwritten. It is not wanted any more.
    #[error("somebody else has registered this key")]
    Taken,
    /// The store did not answer in time. The key is still wanted and will be registered when the store is back; `unregister`
    /// withdraws it.
    #[error(
        "the store did not take the key within {within:?}; it is still wanted and will be registered when the store answers"
    )]
    NotYet {
        /// How long was waited.
        within: Duration,
    },
    /// The store will never take it. It is not wanted any more.
    #[error("the store refuses the key")]
    Refused(#[source] StoreError),
    /// The TTL cannot be held. Nothing was sent, and nothing has changed.
    #[error(transparent)]
    Ttl(#[from] TtlTooShort),
    /// Another `register` of the same key came later.
    #[error("the key was registered again with another value, or unregistered, before this was done")]
    Superseded,
    /// The session was closed.
    #[error("the session is closed")]
    Closed,
}

/// A registration that is about to be asked for.
#[must_use = "nothing is registered before this is awaited"]
pub struct Register {
    shared: Arc<Shared>,
    key: Bytes,
    value: Bytes,
    ttl: Option<Duration>,
    mode: PutMode,
    within: Duration,
}

impl Register {
    pub(super) fn new(shared: Arc<Shared>, key: Bytes, value: Bytes) -> Register {
        Register { shared, key, value, ttl: None, mode: PutMode::Overwrite, within: REGISTER_WITHIN }
    }

    /// With a TTL of its own.
    pub fn ttl(mut self, ttl: Duration) -> Register {
        self.ttl = Some(ttl);
        self
    }

    /// Only if nobody else has the key.
    pub fn create_only(mut self) -> Register {
        self.mode = PutMode::Create;
        self
    }

    /// Waits this long for the store.
    pub fn within(mut self, within: Duration) -> Register {
        self.within = within;
        self
    }

    async fn ask(self) -> Result<Registration, RegisterError> {
        self.check()?;
        let (tell, told) = oneshot::channel();
        let has_output = {
            let mut inner = self.shared.lock();
            if inner.is_closing || inner.fatal.is_some() {
                return Err(RegisterError::Closed);
            }
            let now = self.shared.clock.now();
            let before = inner.machine.registration(&self.key);
            let registration =
                inner.machine.register(self.key.clone(), self.value, self.ttl, self.mode, now)?;
            // Whoever waits for the key's last wish waits in vain: this one takes its place.
            before.map(|before| inner.waiters.remove(&before));
            inner.waiters.insert(registration, tell);
            inner.follow.insert(self.key);
            // Ten thousand registrations at once need not wake anybody ten thousand times.
            self.shared.settled.send_if_modified(|settled| std::mem::replace(settled, false));
            inner.machine.has_output()
        };
        // A key whose lease or turn is waited for anyway needs nobody to be woken; thousands of them would keep the task from its requests.
        if has_output {
            self.shared.inbox.notify();
        }
        match tokio::time::timeout(self.within, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(RegisterError::Superseded),
            Err(_) => Err(RegisterError::NotYet { within: self.within }),
        }
    }

    /// What the store would refuse for certain is refused before the session hears of it.
    fn check(&self) -> Result<(), RegisterError> {
        let limits = &self.shared.store.info().limits;
        let ttl = self.ttl.unwrap_or(self.shared.ttl);
        let checked = limits
            .grant_ttl(ttl)
            .map(drop)
            .and_then(|()| largest_put(&self.key, &self.value).check(limits).map(drop));
        checked.map_err(|error| match error {
            StoreError::Invalid(invalid) => RegisterError::Invalid(invalid),
            other => RegisterError::Refused(other),
        })
    }
}

impl IntoFuture for Register {
    type Output = Result<Registration, RegisterError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value may be secret.
        write!(f, "Register({:?}, {} bytes, {:?})", self.key, self.value.len(), self.mode)
    }
}
