//! Registering keys: the request, its result, and what is refused before anything is sent.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::id::InvalidName;
use tenure_core::keepalive::TtlTooShort;
use tenure_core::record::Timestamp;
use tenure_core::revision::Token;
use tenure_core::session::{PutMode, largest_put};
use thiserror::Error;
use tokio::sync::oneshot;

use super::shared::SessionShared;
use crate::error::{ErrorClass, classified};
use crate::store::{InvalidRequest, LeaseId, Revision, StoreError};
use crate::tenure::request;

/// How long `register` waits for the store by default: long enough for an election of etcd, short enough for a start-up script.
const REGISTER_WITHIN: Duration = Duration::from_secs(10);

/// A key that is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegisteredKey {
    /// The key.
    pub key: Bytes,
    /// Its lease.
    pub lease: LeaseId,
    /// The revision of its last put.
    pub revision: Revision,
    /// The TTL that the store granted, which is not less than the requested one.
    pub ttl: Duration,
}

/// Another process that has registered a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyOwner {
    /// The kind and name of what it has registered, such as `node web-1`.
    pub subject: String,
    /// Its token.
    pub token: Token,
    /// Its address, if its record has one.
    pub address: Option<String>,
    /// When it registered, by its own clock; none if its record cannot be read.
    pub started: Option<Timestamp>,
    /// Its lease.
    pub lease: Option<LeaseId>,
}

impl fmt::Display for KeyOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address.as_deref().unwrap_or("an unknown address");
        write!(f, "{} is registered by the process with token {} at {address}", self.subject, self.token)?;
        match self.started {
            Some(started) => write!(f, " since {started}"),
            None => Ok(()),
        }
    }
}

/// Why a key is not registered, or its record not changed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// No key of a namespace has such a name. Nothing was sent, and nothing has changed.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// No store accepts this key or value. Nothing was sent, and nothing has changed.
    #[error("the key cannot be registered: {0}")]
    Invalid(InvalidRequest),
    /// No lease can have the requested TTL. Nothing was sent, and nothing has changed.
    #[error(transparent)]
    InvalidTtl(#[from] TtlTooShort),
    /// Another process has registered the key. This session does not keep it registered.
    #[error("{}", held(by.as_deref()))]
    Held {
        /// The other process, if it is known.
        by: Option<Box<KeyOwner>>,
    },
    /// This session has registered the key already, or is about to.
    #[error("this session has registered the key already")]
    AlreadyRegistered,
    /// The store did not confirm it in time. A request of [`Session::register_raw`](super::Session::register_raw) or an update stays in
    /// effect, and is stored when the store replies; everything else is withdrawn.
    #[error("the store did not confirm the registration within {after:?}")]
    Timeout {
        /// How long the caller waited.
        after: Duration,
    },
    /// Another request for the same key came later.
    #[error("a later request for the same key replaced this one")]
    Superseded,
    /// The store did not confirm that the key is deleted. It is deleted in the background, or expires with its lease.
    #[error("the store did not confirm that the key is deleted; it expires within {ttl:?}")]
    NotConfirmed {
        /// When the lease has expired at the latest.
        ttl: Duration,
    },
    /// The store refuses the key for good. This session does not keep it registered.
    #[error("the store refuses the key")]
    Store(#[source] StoreError),
    /// The session is closed.
    #[error("the session is closed")]
    Closed,
}

impl RegisterError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            RegisterError::InvalidName(_)
            | RegisterError::Invalid(_)
            | RegisterError::InvalidTtl(_)
            | RegisterError::AlreadyRegistered
            | RegisterError::Superseded => ErrorClass::Invalid,
            RegisterError::Held { .. } => ErrorClass::Conflict,
            RegisterError::Timeout { .. } => ErrorClass::Timeout,
            RegisterError::NotConfirmed { .. } => ErrorClass::Ambiguous,
            RegisterError::Store(error) => error.into(),
            RegisterError::Closed => ErrorClass::Closed,
        }
    }
}

classified!(RegisterError);

fn held(by: Option<&KeyOwner>) -> String {
    by.map_or_else(|| "another process has registered the key".to_owned(), ToString::to_string)
}

/// A key that is about to be registered. Awaiting it returns a [`RegisteredKey`].
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::builder().store("memory:").namespace("shop").connect().await?;
/// let registered = tenure.register("api/web-1", "10.0.0.7:80").if_absent().await?;
/// assert_eq!(&registered.key[..], b"/shop/registry/api/web-1");
/// tenure.session().unregister(registered.key);
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// The key stays registered, through outages and lost leases, until [`Session::unregister`](super::Session::unregister) or the end of the
/// session.
///
/// # Cancellation
///
/// Dropping the future does not unregister the key; [`Session::unregister`](super::Session::unregister) does.
///
/// # Errors
///
/// [`RegisterError`]; a wrong name is reported when it is awaited.
#[must_use = "nothing is registered before this is awaited"]
pub struct Register {
    shared: Arc<SessionShared>,
    key: Result<Bytes, InvalidName>,
    value: Bytes,
    ttl: Option<Duration>,
    mode: PutMode,
    timeout: Duration,
}

request!(Register => Result<RegisteredKey, RegisterError>);

impl Register {
    pub(super) fn new(shared: Arc<SessionShared>, key: Result<Bytes, InvalidName>, value: Bytes) -> Register {
        Register { shared, key, value, ttl: None, mode: PutMode::Overwrite, timeout: REGISTER_WITHIN }
    }

    /// With a lease of this TTL; that of the session otherwise.
    pub fn ttl(mut self, ttl: Duration) -> Register {
        self.ttl = Some(ttl);
        self
    }

    /// Only if no other process has the key; it is overwritten otherwise.
    pub fn if_absent(mut self) -> Register {
        self.mode = PutMode::Create;
        self
    }

    /// Waits at most this long for the store; 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Register {
        self.timeout = timeout;
        self
    }

    async fn send(self) -> Result<RegisteredKey, RegisterError> {
        let Register { shared, key, value, ttl, mode, timeout } = self;
        let key = key?;
        check(&shared, &key, &value, ttl)?;
        let (sender, result) = oneshot::channel();
        let needs_driver = {
            let mut inner = shared.lock();
            if inner.is_closing || inner.fatal.is_some() {
                return Err(RegisterError::Closed);
            }
            let now = shared.clock.now();
            let before = inner.machine.registration(&key);
            let registration = inner.machine.register(key.clone(), value, ttl, mode, now)?;
            // An earlier request for the key is superseded: its caller learns that from the dropped sender.
            before.map(|before| inner.waiters.remove(&before));
            inner.waiters.insert(registration, sender);
            inner.unwatched.insert(key);
            // Only a change notifies: ten thousand registrations at once wake each waiter once.
            shared.is_synced.send_if_modified(|is_synced| std::mem::replace(is_synced, false));
            inner.machine.has_output()
        };
        // A key that waits for a lease or a request in flight anyway needs no wake-up; thousands of them would delay the driver's requests.
        if needs_driver {
            shared.inbox.notify();
        }
        match tokio::time::timeout(timeout, result).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(RegisterError::Superseded),
            Err(_) => Err(RegisterError::Timeout { after: timeout }),
        }
    }
}

/// Refuses what the store would refuse for certain, before the session changes.
fn check(
    shared: &SessionShared,
    key: &Bytes,
    value: &Bytes,
    ttl: Option<Duration>,
) -> Result<(), RegisterError> {
    let limits = &shared.store.info().limits;
    let checked = limits
        .grant_ttl(ttl.unwrap_or(shared.ttl))
        .map(drop)
        .and_then(|()| largest_put(key, value).check(limits).map(drop));
    checked.map_err(|error| match error {
        StoreError::Invalid(invalid) => RegisterError::Invalid(invalid),
        other => RegisterError::Store(other),
    })
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value may be secret.
        write!(f, "Register({:?}, {} bytes, {:?})", self.key, self.value.len(), self.mode)
    }
}
