//! The request to register an instance: its record, and how long to wait.

use std::time::Duration;

use serde::Serialize;
use tenure_core::exclusive_key::TakeTimeouts;
use tenure_core::id::{InstanceId, InvalidName, RegistryKey};
use tenure_core::layout::Key;
use tenure_core::record::{InstanceRecord, InstanceValue};
use tenure_core::revision::Token;

use super::Service;
use crate::clock::wall_time;
use crate::exclusive_key::{ExclusiveKeyError, ExclusiveKeyOptions, Registration};
use crate::member::{owner_wait, random_nonce};
use crate::session::{KeyOwner, RegisterError};
use crate::store::KeyValue;
use crate::tenure::request;

/// How long the store may take by default: long enough for an election of etcd, short enough for a start-up script.
const REGISTER_WITHIN: Duration = Duration::from_secs(10);

/// An instance of a service that is about to be registered. Awaiting it returns a [`Registration`].
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tenure = Tenure::connect("memory:").await?;
/// let web = tenure.service("web");
/// let registration = web.register("web-1", "10.0.0.7:80").metadata(&"eu")?.try_now().await?;
/// assert_eq!(web.instances().await?.members()[0].record.metadata::<String>()?, "eu");
/// # drop(registration);
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// It waits for another process with the same id for the TTL and 5 s.
///
/// # Cancellation
///
/// Dropping the future withdraws the instance.
///
/// # Errors
///
/// [`RegisterError`]; a wrong name is reported when it is awaited.
#[must_use = "nothing is registered before this is awaited"]
pub struct RegisterInstance {
    service: Service,
    id: Result<InstanceId, InvalidName>,
    address: String,
    metadata: serde_json::Value,
    patience: TakeTimeouts,
}

request!(RegisterInstance => Result<Registration<InstanceRecord>, RegisterError>);

impl RegisterInstance {
    pub(super) fn new(
        service: &Service,
        id: Result<InstanceId, InvalidName>,
        address: String,
    ) -> RegisterInstance {
        let patience = TakeTimeouts { store: REGISTER_WITHIN, owner: owner_wait(&service.session) };
        let metadata = serde_json::Value::Null;
        RegisterInstance { service: service.clone(), id, address, metadata, patience }
    }

    /// The metadata that the clients of the service read.
    ///
    /// # Errors
    ///
    /// If it cannot be written as JSON.
    pub fn metadata(mut self, metadata: &impl Serialize) -> Result<RegisterInstance, serde_json::Error> {
        self.metadata = serde_json::to_value(metadata)?;
        Ok(self)
    }

    /// Waits at most this long, for the store and for another process with the same id.
    pub fn timeout(mut self, timeout: Duration) -> RegisterInstance {
        self.patience = TakeTimeouts { store: timeout, owner: timeout };
        self
    }

    /// Fails immediately with [`RegisterError::Held`] instead of waiting for another process with the same id.
    pub fn try_now(mut self) -> RegisterInstance {
        self.patience.owner = Duration::ZERO;
        self
    }

    async fn send(self) -> Result<Registration<InstanceRecord>, RegisterError> {
        let (name, id) = (self.service.name?, self.id?);
        let record = InstanceRecord {
            address: Some(self.address),
            metadata: self.metadata,
            started: wall_time(),
            nonce: random_nonce().map_err(RegisterError::Store)?,
            unknown: serde_json::Map::new(),
        };
        let key = Key::Registration(RegistryKey::of_instance(&name, &id)?);
        let options = ExclusiveKeyOptions {
            store: self.service.services.store,
            session: self.service.session,
            key: self.service.services.layout.encode(&key),
            patience: self.patience,
        };
        Registration::take(options, record).await.map_err(|error| match error {
            ExclusiveKeyError::Held(pair) => {
                let by = owner(format!("instance {id} of {name}"), &pair);
                RegisterError::Held { by: Some(Box::new(by)) }
            }
            ExclusiveKeyError::AlreadyRegistered => RegisterError::AlreadyRegistered,
            ExclusiveKeyError::NotYet { within } => RegisterError::Timeout { after: within },
            ExclusiveKeyError::Store(error) => RegisterError::Store(error),
            ExclusiveKeyError::Closed => RegisterError::Closed,
        })
    }
}

fn owner(subject: String, pair: &KeyValue) -> KeyOwner {
    let value = InstanceValue::read(&pair.value).ok();
    KeyOwner {
        subject,
        token: Token(pair.created),
        address: value.and_then(|value| value.address().map(str::to_owned)),
        started: None,
        lease: pair.lease,
    }
}
