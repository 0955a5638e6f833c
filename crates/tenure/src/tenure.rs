//! The entry point: one handle on the locks, elections, members, services and tasks of a namespace.
//!
//! Everything here is thin: it checks names and passes them to the modules that do the work.

mod builder;
mod tasks;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::id::{ElectionName, InvalidName, LockName, Namespace, NodeId, RegistryKey, ServiceName};
use tenure_core::layout::{Key, Layout};

use crate::closing::Closing;
use crate::election::{Election, Elections, LocalTerms};
use crate::error::{CloseError, ConnectError};
use crate::events::Events;
use crate::id::IntoId;
use crate::identity::{self, Identity};
use crate::lock::{Barrier, LockRequest, Locks, RwLock, Semaphore};
use crate::member::{self, Join, Members};
use crate::once::Once;
use crate::service::{Service, Services};
use crate::session::{Health, Register, Session};
use crate::snapshot::SnapshotRequest;
use crate::store::Store;
use crate::task::access::TaskAccess;

pub use builder::{Source, TenureBuilder};

/// What every request of the front door is when it is awaited.
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Makes a request awaitable by its `send`.
macro_rules! request {
    ($name:ty => $output:ty) => {
        impl std::future::IntoFuture for $name {
            type Output = $output;
            type IntoFuture = $crate::tenure::BoxFuture<$output>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(self.send())
            }
        }
    };
}
pub(crate) use request;

/// How long `close` waits for work to stop. Halved, work that flushes to a slow disk loses its hold; doubled, a program that hangs takes
/// longer to end than most service managers wait.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// A namespace of a store, through one session. Cheap to clone; all clones are one session.
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::builder()
///     .store("memory:")
///     .namespace("shop")
///     .identity("web-1")
///     .ttl(Duration::from_secs(10))
///     .connect()
///     .await?;
///
/// let guard = tenure.lock("deploy").reason("release 4.2").timeout(Duration::from_secs(60)).await?;
/// let term = tenure.election("scheduler").campaign().try_now().await?;
/// assert!(tenure.election("scheduler").is_leader());
///
/// term.resign().await?;
/// guard.release().await?;
/// tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * Clones and handles of other namespaces ([`Tenure::namespace`]) share one session: one lease, renewed once for all of them.
/// * Nothing is sent before a request is awaited, and no lease is granted before one is needed.
/// * Whatever is held is known to be lost before the store can give it to another process; see [`Validity`](crate::Validity).
///
/// # Cancellation
///
/// Dropping the future of a request withdraws it in the background. Dropping the last handle closes the session in the background.
#[derive(Clone)]
pub struct Tenure {
    shared: Arc<TenureShared>,
    scope: Arc<Scope>,
}

/// What all handles share.
struct TenureShared {
    session: Session,
    identity: Identity,
    /// The sender of commands; the name of the identity otherwise.
    sender: Option<NodeId>,
    /// Whether `close` closes the store: a store that was given open may have other users.
    owns_store: bool,
    terms: LocalTerms,
    /// What `close` stops before it ends the session.
    closing: Closing,
    /// One for each namespace in use, so that handles of one namespace share their drivers.
    scopes: Mutex<BTreeMap<Namespace, Weak<Scope>>>,
}

/// The drivers of a namespace.
struct Scope {
    namespace: Namespace,
    layout: Layout,
    locks: Locks,
    elections: Elections,
    tasks: TaskAccess,
}

impl Tenure {
    /// Connects to a store, with the defaults of [`Tenure::builder`].
    ///
    /// # Errors
    ///
    /// [`ConnectError`] explains why it is not connected. It never contains a password.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing open; a store file that did not exist may exist then, empty.
    pub async fn connect(store: impl Into<Source>) -> Result<Tenure, ConnectError> {
        Tenure::builder().store(store).connect().await
    }

    /// A connection with options.
    pub fn builder() -> TenureBuilder {
        TenureBuilder::default()
    }

    fn new(
        session: Session,
        namespace: Namespace,
        (identity, sender): (Identity, Option<NodeId>),
        owns_store: bool,
    ) -> Tenure {
        let scopes = Mutex::default();
        let (terms, closing) = (LocalTerms::default(), Closing::default());
        let shared = Arc::new(TenureShared { session, identity, sender, owns_store, terms, closing, scopes });
        let scope = shared.scope(namespace);
        Tenure { shared, scope }
    }

    /// A handle on an open session.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](crate::InvalidName) if no namespace has such a name.
    pub fn on_session(session: &Session, namespace: impl IntoId<Namespace>) -> Result<Tenure, InvalidName> {
        Ok(Tenure::new(session.clone(), namespace.into_id()?, (identity::current(), None), false))
    }

    /// A handle on another namespace, on the same session.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](crate::InvalidName) if no namespace has such a name.
    pub fn namespace(&self, name: impl IntoId<Namespace>) -> Result<Tenure, InvalidName> {
        let scope = self.shared.scope(name.into_id()?);
        Ok(Tenure { shared: self.shared.clone(), scope })
    }

    /// The namespace of this handle.
    pub fn current_namespace(&self) -> &Namespace {
        &self.scope.namespace
    }

    /// What other processes see of this one.
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// The store.
    pub fn store(&self) -> &Store {
        self.shared.session.store()
    }

    /// The session: keys under leases of this process, and its states and events.
    pub fn session(&self) -> &Session {
        &self.shared.session
    }

    /// The health of the session, all at one moment. Sends nothing.
    pub fn health(&self) -> Health {
        self.shared.session.health()
    }

    /// A lock that one process holds. Nothing is sent before the result is awaited.
    pub fn lock(&self, name: impl IntoId<LockName>) -> LockRequest {
        self.scope.locks.lock(name)
    }

    /// A lock that many readers or one writer hold.
    pub fn rw_lock(&self, name: impl IntoId<LockName>) -> RwLock {
        self.scope.locks.rw_lock(name)
    }

    /// A number of permits. All callers of the name must use the same number.
    pub fn semaphore(&self, name: impl IntoId<LockName>, permits: u32) -> Semaphore {
        self.scope.locks.semaphore(name, permits)
    }

    /// A point that a number of parties pass together. All callers of the name must use the same number.
    pub fn barrier(&self, name: impl IntoId<LockName>, parties: u32) -> Barrier {
        self.scope.locks.barrier(name, parties)
    }

    /// All locks of the namespace: their holders and waiters, and breaking a hold.
    pub fn locks(&self) -> Locks {
        self.scope.locks.clone()
    }

    /// Work that runs at most once in each period of this length, whichever process does it. A wrong name is reported by its run.
    pub fn once(&self, name: impl IntoId<LockName>, every: Duration) -> Once {
        let (session, Scope { locks, namespace, .. }) = (&self.shared.session, &*self.scope);
        let once = Once::with_locks(locks.clone(), session, namespace, name.into_id(), every);
        once.identity(self.shared.identity.clone())
    }

    /// One election. A wrong name is reported by its requests.
    pub fn election(&self, name: impl IntoId<ElectionName>) -> Election {
        self.scope.elections.election(name)
    }

    /// All elections of the namespace.
    pub fn elections(&self) -> Elections {
        self.scope.elections.clone()
    }

    /// Registers a key of the namespace, `registry/KEY`, for as long as the session lives.
    pub fn register(&self, key: impl IntoId<RegistryKey>, value: impl Into<Bytes>) -> Register {
        let key = key.into_id().map(|key| self.scope.layout.encode(&Key::Registration(key)));
        self.shared.session.register(key, value.into())
    }

    /// Joins the members of the namespace under this id.
    pub fn join(&self, node: impl IntoId<NodeId>) -> Join {
        self.members().join(&self.shared.session, node)
    }

    /// The members of the namespace.
    pub fn members(&self) -> Members {
        let members = Members::new(self.store().clone(), &self.scope.namespace);
        members.clock(self.shared.session.clock().clone())
    }

    /// One service: its instances, and registering one.
    pub fn service(&self, name: impl IntoId<ServiceName>) -> Service {
        self.services().service(&self.shared.session, name)
    }

    /// All services of the namespace.
    pub fn services(&self) -> Services {
        let services = Services::new(self.store().clone(), &self.scope.namespace);
        services.clock(self.shared.session.clock().clone())
    }

    /// What happened in the namespace, from the history that the store keeps.
    pub fn events(&self) -> Events {
        Events::new(self.store(), &self.scope.namespace).clock(self.shared.session.clock().clone())
    }

    /// Members, tasks, locks and elections of the namespace at one revision.
    pub fn snapshot(&self) -> SnapshotRequest {
        SnapshotRequest::new(self.store(), &self.scope.namespace)
    }

    /// Ends everything of this session, in all namespaces, in this order: workers stop their handlers and release their tasks, `lead`s
    /// drop their work and resign, new requests fail, holds become invalid with [`LossReason::Closed`](crate::LossReason::Closed), registrations are deleted, leases are revoked, and the store
    /// is closed if [`TenureBuilder::connect`] opened it. All callers get the same result. [`Close::timeout`] bounds the first step.
    ///
    /// Release guards and resign terms of your own before: a lease with a live guard or term is not revoked.
    ///
    /// # Errors
    ///
    /// [`CloseError`] names what was still held. It expires with its lease.
    ///
    /// # Cancellation
    ///
    /// The session is closed in the background once its last handle is dropped, and the store stays open until then.
    pub fn close(&self) -> Close {
        Close { tenure: self.clone(), timeout: None }
    }

    /// What is stopped before the session ends.
    pub(crate) fn closing(&self) -> &Closing {
        &self.shared.closing
    }

    /// How long another process with the same id is waited for.
    pub(crate) fn owner_wait(&self) -> Duration {
        member::owner_wait(&self.shared.session)
    }

    /// The keys of the namespace.
    pub(crate) fn layout(&self) -> &Layout {
        &self.scope.layout
    }
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tenure({} in {:?})", self.scope.namespace, self.shared.session)
    }
}

/// The end of a connection, about to begin. Made by [`Tenure::close`].
#[derive(Clone, Debug)]
#[must_use = "nothing is closed before it is awaited"]
pub struct Close {
    tenure: Tenure,
    timeout: Option<Duration>,
}

impl Close {
    /// How long `lead`s and workers may take to stop and to release; the longest grace of a worker and 5 s otherwise. What has not stopped
    /// then loses its hold.
    pub fn timeout(mut self, timeout: Duration) -> Close {
        self.timeout = Some(timeout);
        self
    }

    async fn send(self) -> Result<(), CloseError> {
        let shared = &self.tenure.shared;
        let clock = shared.session.clock();
        let timeout = self.timeout.unwrap_or(shared.closing.grace() + STOP_WITHIN);
        shared.closing.close(clock.now() + timeout, clock).await;
        let closed = shared.session.close().await;
        if shared.owns_store {
            shared.session.store().close().await;
        }
        closed
    }
}

request!(Close => Result<(), CloseError>);

impl TenureShared {
    /// The drivers of a namespace: those in use, or new ones.
    fn scope(&self, namespace: Namespace) -> Arc<Scope> {
        let mut scopes = self.scopes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scope) = scopes.get(&namespace).and_then(Weak::upgrade) {
            return scope;
        }
        scopes.retain(|_, scope| scope.strong_count() > 0);
        let scope = Arc::new(Scope::open(self, namespace.clone()));
        scopes.insert(namespace, Arc::downgrade(&scope));
        scope
    }
}

impl Scope {
    fn open(shared: &TenureShared, namespace: Namespace) -> Scope {
        let TenureShared { session, identity, sender, terms, closing, .. } = shared;
        let process = (sender.clone(), identity.clone());
        Scope {
            layout: Layout::new(&namespace),
            locks: Locks::new(session, &namespace).identity(identity.clone()),
            elections: Elections::new(session, &namespace)
                .identity(identity.clone())
                .terms(terms)
                .closing(closing),
            tasks: TaskAccess::new(session.store(), session.clock(), &namespace, process),
            namespace,
        }
    }
}
