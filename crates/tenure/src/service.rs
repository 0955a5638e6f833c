//! The service registry: which instances of a service there are, and which of them to ask.

mod pick;
mod register;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tenure_core::id::{InstanceId, Namespace, ServiceName};
use tenure_core::layout::Layout;
use tenure_core::record::InstanceValue;

use crate::clock::{BootClock, Clock};
use crate::roster::{self, Follower, InstancePresence, Presence, PresenceEvent, PresenceSnapshot, View};
use crate::session::Session;
use crate::store::{Store, StoreError};

pub use crate::exclusive_key::{
    LeaveError, RegistrationStatus as Standing, ReplacedBy as Successor, UpdateError,
};
pub use pick::Picker;
pub use register::{InstanceError, InstanceRegistration, NewInstance, OtherInstance, RegisterInstance};

/// An instance of a service.
pub type Instance = Presence<InstanceId, InstanceValue>;

/// All instances of a service, at one revision.
pub type InstanceList = PresenceSnapshot<InstanceId, InstanceValue>;

/// What happens among the instances of a service; see [`PresenceEvent`].
pub type InstanceEvent = PresenceEvent<InstanceId, InstanceValue>;

/// A stream of [`InstanceEvent`]s; see [`Follower`].
pub type InstanceWatch = Follower<InstancePresence>;

/// The instances of a service as last known, for many tasks to look at; see [`View`].
pub type InstanceView = View<InstancePresence>;

/// The services of a namespace. Cheap to clone. Whoever only looks needs no session.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tenure::{InstanceId, Namespace, ServiceName};
/// use tenure::service::{NewInstance, Picker, Services};
/// use tenure::session::Session;
/// use tenure::store::Store;
///
/// #[derive(Serialize, Deserialize, PartialEq, Debug)]
/// struct Zone {
///     zone: String,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::memory();
/// let services = Services::new(store.clone(), &Namespace::parse("shop")?);
/// let session = Session::open(store)?;
///
/// let web = ServiceName::parse("web")?;
/// let instance = NewInstance::new(InstanceId::parse("a")?)
///     .address("10.0.0.7:80")
///     .metadata(&Zone { zone: "eu".into() })?;
/// let registration = services.register(&session, &web, instance).await?;
///
/// let mut view = services.view(&web);
/// view.ready().await?;
/// let picker = Picker::new(view);
/// let meant = picker.for_key("customer-4711").expect("somebody is there");
/// assert_eq!(meant.record.address(), Some("10.0.0.7:80"));
/// assert_eq!(meant.record.metadata::<Zone>()?.zone, "eu");
///
/// registration.leave().await?;
/// # Ok(())
/// # }
/// ```
///
/// An instance is the key `registry/services/<name>/<instance>`, in which `/` and `%` inside a name or an id are escaped: the service `a` never
/// shows an instance of `a/b`. Its value is a record with an address and metadata. Whatever else somebody puts there, such as
/// `tenure register web/a=10.0.0.1:80`, is an instance too, and its whole value is its address.
///
/// # Guarantees
///
/// * An instance is registered exactly while its key is in the store, under the lease of its session.
/// * Two live instances never have one id: the second is refused with the address and the token of the first.
/// * The last picture known stays when the store cannot be reached; [`View::age`] says how old it is.
///
/// # Not guaranteed
///
/// That an instance answers: whoever picked one must be ready to pick another.
///
/// # Cancellation
///
/// Dropping the future of [`Services::register`] withdraws the instance. Other futures leave nothing behind.
///
/// # Errors
///
/// Looking fails as a read of the store fails. [`InstanceError`] says why an instance was not registered.
#[derive(Clone)]
pub struct Services {
    store: Store,
    layout: Layout,
    clock: Arc<dyn Clock>,
}

impl Services {
    /// The services of this namespace.
    pub fn new(store: Store, namespace: &Namespace) -> Services {
        Services { store, layout: Layout::new(namespace), clock: Arc::new(BootClock) }
    }

    /// Tells the time by another clock than the machine's boot clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Services {
        self.clock = Arc::new(clock);
        self
    }

    /// Registers an instance of a service, through a session on the same store. `.within()` and `.wait_up_to()` change how long that may take.
    pub fn register(&self, session: &Session, name: &ServiceName, instance: NewInstance) -> RegisterInstance {
        RegisterInstance::new(
            self.store.clone(),
            self.layout.clone(),
            session.clone(),
            name.clone(),
            instance,
        )
    }

    /// All instances of a service, by one linearizable listing at one revision. Nobody is an answer too.
    pub async fn instances(&self, name: &ServiceName) -> Result<InstanceList, StoreError> {
        roster::list(&self.store, self.layout.service(name), self.named(name)).await
    }

    /// The instances of all services, by one linearizable listing at one revision.
    pub async fn everything(
        &self,
    ) -> Result<PresenceSnapshot<(ServiceName, InstanceId), InstanceValue>, StoreError> {
        roster::list(&self.store, self.layout.services(), roster::AllInstancePresence(self.layout.clone()))
            .await
    }

    /// The services that have an instance, and how many each has.
    pub async fn names(&self) -> Result<BTreeMap<ServiceName, usize>, StoreError> {
        let mut names = BTreeMap::new();
        for instance in self.everything().await?.members() {
            *names.entry(instance.id.0.clone()).or_default() += 1;
        }
        Ok(names)
    }

    /// Everything that happens among the instances of a service: the whole picture, then every difference.
    pub fn watch(&self, name: &ServiceName) -> InstanceWatch {
        Follower::open(self.store.clone(), self.layout.service(name), self.named(name), self.clock.clone())
            .expect("the layout's own prefix ends in a slash")
    }

    /// A picture of a service that many tasks can look at while one watch keeps it up to date. Must be called inside a tokio runtime.
    pub fn view(&self, name: &ServiceName) -> InstanceView {
        View::new(self.watch(name))
    }

    fn named(&self, name: &ServiceName) -> InstancePresence {
        InstancePresence { layout: self.layout.clone(), name: name.clone() }
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Services({:?} in {:?})", self.layout.services(), self.store)
    }
}
