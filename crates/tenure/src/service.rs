//! The service registry: the instances of a service, and picking one of them.

mod picker;
mod register;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tenure_core::id::{InstanceId, InvalidName, Namespace, ServiceName};
use tenure_core::layout::Layout;

use crate::clock::{BootClock, Clock};
use crate::error::Error;
use crate::id::IntoId;
use crate::presence::{
    self, InstancePresence, Presence, PresenceEvent, PresenceSnapshot, PresenceView, PresenceWatch,
};
use crate::session::Session;
use crate::store::{Store, StoreError};

pub use picker::Picker;
pub use register::RegisterInstance;
pub use tenure_core::record::{InstanceRecord, InstanceValue};

/// An instance of a service.
pub type Instance = Presence<InstanceId, InstanceValue>;

/// All instances of a service, at one revision.
pub type InstanceSnapshot = PresenceSnapshot<InstanceId, InstanceValue>;

/// A change of the instances of a service; see [`PresenceEvent`].
pub type InstanceEvent = PresenceEvent<InstanceId, InstanceValue>;

/// A stream of [`InstanceEvent`]s; see [`PresenceWatch`].
pub type InstanceWatch = PresenceWatch<InstancePresence>;

/// A local copy of the instances of a service that one watch keeps current; see [`PresenceView`].
pub type InstanceView = PresenceView<InstancePresence>;

/// The services of a namespace. Cheap to clone. Reading needs no session.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tenure::Tenure;
///
/// #[derive(Serialize, Deserialize, PartialEq, Debug)]
/// struct Zone {
///     zone: String,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tenure = Tenure::connect("memory:").await?;
/// let web = tenure.service("web");
/// let registration = web.register("a", "10.0.0.7:80").metadata(&Zone { zone: "eu".into() })?.await?;
///
/// let picker = web.picker().await?;
/// let instance = picker.for_key("customer-4711").expect("one instance is registered");
/// assert_eq!(instance.record.address(), Some("10.0.0.7:80"));
/// assert_eq!(instance.record.metadata::<Zone>()?.zone, "eu");
///
/// registration.unregister().await?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// An instance is the key `registry/services/<name>/<instance>`, in which `/` and `%` inside a name or an id are escaped: the service `a` never
/// shows an instance of `a/b`. Its value is a record with an address and metadata. Another value, such as that of
/// `tenure register web/a=10.0.0.1:80`, is an instance too, with the whole value as its address.
///
/// # Guarantees
///
/// * An instance is registered exactly while its key is in the store, under the lease of its session.
/// * Two live instances never have one id: the second is refused with the address and the token of the first.
/// * The last known snapshot stays when the store cannot be reached; [`PresenceView::age`] returns its age.
///
/// # Not guaranteed
///
/// That an instance replies: a client must be ready to pick another one.
///
/// # Cancellation
///
/// Dropping the future of [`Service::register`] withdraws the instance. Other futures leave nothing behind.
///
/// # Errors
///
/// Those of a read. [`RegisterError`](crate::RegisterError) explains why an instance was not registered.
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

    /// The clock that the age of views is counted on; the boot clock of the machine otherwise.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Services {
        self.clock = Arc::new(clock);
        self
    }

    /// One service, with instances that are registered through a session on the same store. A wrong name is reported by its requests.
    pub fn service(&self, session: &Session, name: impl IntoId<ServiceName>) -> Service {
        Service { services: self.clone(), session: session.clone(), name: name.into_id() }
    }

    /// All instances of a service, by one linearizable listing at one revision. It may be empty.
    pub async fn instances(&self, name: &ServiceName) -> Result<InstanceSnapshot, StoreError> {
        presence::list(&self.store, self.layout.service(name), self.named(name)).await
    }

    /// The instances of all services, by one linearizable listing at one revision.
    pub async fn all_instances(
        &self,
    ) -> Result<PresenceSnapshot<(ServiceName, InstanceId), InstanceValue>, StoreError> {
        presence::list(
            &self.store,
            self.layout.services(),
            presence::AllInstancePresence(self.layout.clone()),
        )
        .await
    }

    /// The services that have an instance, and how many each has.
    pub async fn list(&self) -> Result<BTreeMap<ServiceName, usize>, StoreError> {
        let mut names = BTreeMap::new();
        for instance in self.all_instances().await?.members() {
            *names.entry(instance.id.0.clone()).or_default() += 1;
        }
        Ok(names)
    }

    /// All instances of a service, then every change.
    pub fn watch(&self, name: &ServiceName) -> InstanceWatch {
        PresenceWatch::open(
            self.store.clone(),
            self.layout.service(name),
            self.named(name),
            self.clock.clone(),
        )
        .expect("the layout's own prefix ends in a slash")
    }

    /// A local copy of a service that one watch keeps current. Must be called inside a tokio runtime.
    pub fn view(&self, name: &ServiceName) -> InstanceView {
        PresenceView::new(self.watch(name))
    }

    fn named(&self, name: &ServiceName) -> InstancePresence {
        InstancePresence { layout: self.layout.clone(), name: name.clone() }
    }
}

/// One service. Cheap to clone.
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let web = tenure.service("web");
/// let registration = web.register("web-1", "10.0.0.7:80").await?;
/// let picker = web.picker().await?;
/// assert_eq!(picker.for_key("customer-4711").unwrap().record.address(), Some("10.0.0.7:80"));
/// # drop(registration);
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Service {
    services: Services,
    session: Session,
    name: Result<ServiceName, InvalidName>,
}

impl Service {
    /// An instance that is about to be registered.
    pub fn register(&self, id: impl IntoId<InstanceId>, address: impl Into<String>) -> RegisterInstance {
        RegisterInstance::new(self, id.into_id(), address.into())
    }

    /// All instances, at one revision.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] or [`Error::Store`].
    pub async fn instances(&self) -> Result<InstanceSnapshot, Error> {
        Ok(self.services.instances(self.name()?).await?)
    }

    /// All instances, then every change.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] if no service has such a name.
    pub fn watch(&self) -> Result<InstanceWatch, InvalidName> {
        Ok(self.services.watch(self.name()?))
    }

    /// Picks instances from a local copy that one watch keeps current. Waits for the first snapshot.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] or [`Error::Store`].
    pub async fn picker(&self) -> Result<Picker, Error> {
        let mut view = self.services.view(self.name()?);
        view.ready().await?;
        Ok(Picker::new(view))
    }

    fn name(&self) -> Result<&ServiceName, InvalidName> {
        self.name.as_ref().map_err(Clone::clone)
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Services({:?} in {:?})", self.layout.services(), self.store)
    }
}
