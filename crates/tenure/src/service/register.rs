//! Registering an instance: what it says of itself, how long it tries, and who is in its way.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use tenure_core::exclusive_key::TakeTimeouts;
use tenure_core::id::{InstanceId, InvalidName, RegistryKey, ServiceName};
use tenure_core::layout::{Key, Layout};
use tenure_core::record::{InstanceRecord, InstanceValue};
use tenure_core::revision::Token;
use thiserror::Error;
use tokio::sync::watch;

use super::{LeaveError, Standing, UpdateError};
use crate::clock::wall_time;
use crate::exclusive_key::{ExclusiveKey, ExclusiveKeyError, ExclusiveKeyOptions};
use crate::membership::random_nonce;
use crate::session::Session;
use crate::store::{KeyValue, Store, StoreError};

/// How long registering may take unless told otherwise: long enough for an election of etcd, short enough for a start-up script.
const REGISTER_WITHIN: Duration = Duration::from_secs(10);

/// How long a change or a departure may take: as long as a session's own tidying up.
const UPDATE_WITHIN: Duration = Duration::from_secs(5);

/// An instance that is about to be registered: what it says of itself.
#[derive(Clone, PartialEq, Debug)]
pub struct NewInstance {
    id: InstanceId,
    address: Option<String>,
    metadata: serde_json::Value,
}

impl NewInstance {
    /// An instance that says nothing of itself yet.
    pub fn new(id: InstanceId) -> NewInstance {
        NewInstance { id, address: None, metadata: serde_json::Value::Null }
    }

    /// Where it can be reached.
    #[must_use]
    pub fn address(mut self, address: impl Into<String>) -> NewInstance {
        self.address = Some(address.into());
        self
    }

    /// What the service's users want to know of it.
    ///
    /// # Errors
    ///
    /// If it cannot be written as JSON.
    pub fn metadata(mut self, metadata: &impl Serialize) -> Result<NewInstance, serde_json::Error> {
        self.metadata = serde_json::to_value(metadata)?;
        Ok(self)
    }
}

/// An instance about to be registered.
#[must_use = "nothing is registered before this is awaited"]
pub struct RegisterInstance {
    store: Store,
    layout: Layout,
    session: Session,
    name: ServiceName,
    instance: NewInstance,
    within: Duration,
    wait: Duration,
}

impl RegisterInstance {
    pub(super) fn new(
        store: Store,
        layout: Layout,
        session: Session,
        name: ServiceName,
        instance: NewInstance,
    ) -> RegisterInstance {
        let (within, wait) = (REGISTER_WITHIN, Duration::ZERO);
        RegisterInstance { store, layout, session, name, instance, within, wait }
    }

    /// Waits this long for the store; 10 s.
    pub fn within(mut self, within: Duration) -> RegisterInstance {
        self.within = within;
        self
    }

    /// Waits this long for another instance with the same id to go; not at all unless told.
    pub fn wait_up_to(mut self, wait: Duration) -> RegisterInstance {
        self.wait = wait;
        self
    }

    async fn ask(self) -> Result<InstanceRegistration, InstanceError> {
        let id = self.instance.id;
        let record = InstanceRecord {
            address: self.instance.address,
            metadata: self.instance.metadata,
            started: wall_time(),
            nonce: random_nonce().map_err(InstanceError::Store)?,
            unknown: serde_json::Map::new(),
        };
        let name = self.name;
        let options = ExclusiveKeyOptions {
            store: self.store,
            session: self.session,
            key: self.layout.encode(&Key::Registration(RegistryKey::of_instance(&name, &id)?)),
            patience: TakeTimeouts { store: self.within, owner: self.wait },
        };
        match ExclusiveKey::take(options, record).await {
            Ok(key) => Ok(InstanceRegistration { name, id, key }),
            Err(error) => Err(match error {
                ExclusiveKeyError::Held(pair) => {
                    InstanceError::Alive(Box::new(OtherInstance::new(name, id, &pair)))
                }
                ExclusiveKeyError::AlreadyRegistered => InstanceError::OurOwn(id),
                ExclusiveKeyError::NotYet { within } => InstanceError::NotYet { within },
                ExclusiveKeyError::Store(error) => InstanceError::Store(error),
                ExclusiveKeyError::Closed => InstanceError::Closed,
            }),
        }
    }
}

impl IntoFuture for RegisterInstance {
    type Output = Result<InstanceRegistration, InstanceError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}

/// An instance that is registered. Dropping it withdraws it, in the background.
pub struct InstanceRegistration {
    name: ServiceName,
    id: InstanceId,
    key: ExclusiveKey<InstanceRecord>,
}

impl InstanceRegistration {
    /// Of which service.
    pub fn name(&self) -> &ServiceName {
        &self.name
    }

    /// Which instance.
    pub fn id(&self) -> &InstanceId {
        &self.id
    }

    /// The token, while this is certainly registered.
    pub fn token(&self) -> Option<Token> {
        self.key.token()
    }

    /// How it stands now.
    pub fn standing(&self) -> Standing {
        self.key.status()
    }

    /// How it stands, now and whenever that changes.
    pub fn changes(&self) -> watch::Receiver<Standing> {
        self.key.changes()
    }

    /// Waits until this is not certainly registered under this token any more.
    pub async fn lost(&self, token: Token) {
        self.key.lost(token).await;
    }

    /// What the instance says of itself, as it is wanted in the store.
    pub fn record(&self) -> InstanceRecord {
        self.key.record()
    }

    /// Changes where it can be reached and what its users want to know of it. Its token stays.
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves the change wanted.
    ///
    /// # Errors
    ///
    /// See [`UpdateError`]; one that is refused changes nothing.
    pub async fn update(&self, change: impl FnOnce(&mut InstanceRecord)) -> Result<(), UpdateError> {
        self.key.update(change, UPDATE_WITHIN).await
    }

    /// Withdraws it, and waits until the store was seen without it; at most 5 s.
    ///
    /// # Cancellation
    ///
    /// It goes on in the background.
    ///
    /// # Errors
    ///
    /// [`LeaveError`] if the store did not confirm it: then the record ends with its lease.
    pub async fn leave(self) -> Result<(), LeaveError> {
        self.key.leave(UPDATE_WITHIN).await
    }
}

impl fmt::Debug for InstanceRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InstanceRegistration({} of {}, {:?})", self.id, self.name, self.standing())
    }
}

/// Why an instance was not registered. Nothing of it is left or wanted.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum InstanceError {
    /// Another instance with this id is alive: stop it, choose another id, or wait with [`RegisterInstance::wait_up_to`].
    #[error("{0}")]
    Alive(Box<OtherInstance>),
    /// This session has registered this instance already, or is about to.
    #[error("this session has registered the instance {0} already")]
    OurOwn(InstanceId),
    /// The names of the service and of the instance are too long together.
    #[error("the names of service and instance do not fit into one key")]
    Name(#[from] InvalidName),
    /// The store did not answer in time: try again.
    #[error("the store did not answer within {within:?}, so the instance was not registered")]
    NotYet {
        /// How long was waited.
        within: Duration,
    },
    /// The store will not have it, or cannot be read.
    #[error("the store refuses the instance")]
    Store(#[source] StoreError),
    /// The session is closed.
    #[error("the session is closed")]
    Closed,
}

/// The live instance that has an id already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtherInstance {
    /// Of which service.
    pub name: ServiceName,
    /// The id.
    pub id: InstanceId,
    /// Where it can be reached, if it says so.
    pub address: Option<String>,
    /// Its token.
    pub token: Token,
}

impl OtherInstance {
    fn new(name: ServiceName, id: InstanceId, pair: &KeyValue) -> OtherInstance {
        let value = InstanceValue::read(&pair.value).ok();
        let address = value.and_then(|value| value.address().map(str::to_owned));
        OtherInstance { name, id, address, token: Token(pair.created) }
    }
}

impl fmt::Display for OtherInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address.as_deref().unwrap_or("an unknown address");
        write!(f, "instance {} of {} is alive already: token {} at {address}", self.id, self.name, self.token)
    }
}
