//! How a [`Tenure`] is connected: which store, which namespace, as which process.
//!
//! **Invariant**: no error and no `Debug` contains a password.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backoff::Backoff;
use tenure_core::id::{InvalidName, Namespace, NodeId};

use super::Tenure;
use crate::clock::{BootClock, Clock};
use crate::error::ConnectError;
use crate::id::{IntoId, IntoIdentity};
use crate::identity::{self, Identity};
use crate::session::{Session, SessionOptions};
#[cfg(feature = "etcd")]
use crate::store::etcd::{Config, EtcdEngine, Secret};
use crate::store::{Store, StoreUrl};

/// The variable that names the store where the program does not.
const STORE_VARIABLE: &str = "TENURE_STORE";

/// The namespace unless another one is given, as in the command.
const NAMESPACE: &str = "tenure";

/// The TTL of leases unless another one is given.
const TTL: Duration = Duration::from_secs(15);

/// Which store: from the text of an address, a [`StoreUrl`], an open [`Store`], or the options of etcd.
///
/// ```
/// use tenure::{Source, Store, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let store = Store::memory();
/// let (one, two) = (Tenure::connect(store.clone()).await?, Tenure::connect(Source::from(store)).await?);
/// let guard = one.lock("deploy").await?;
/// assert!(two.lock("deploy").try_now().await.is_err());
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
pub struct Source {
    kind: SourceKind,
}

enum SourceKind {
    Text(String),
    Url(StoreUrl),
    Open(Store),
    #[cfg(feature = "etcd")]
    Etcd(Box<Config>),
}

impl From<&str> for Source {
    fn from(text: &str) -> Source {
        Source { kind: SourceKind::Text(text.to_owned()) }
    }
}

impl From<String> for Source {
    fn from(text: String) -> Source {
        Source { kind: SourceKind::Text(text) }
    }
}

impl From<&String> for Source {
    fn from(text: &String) -> Source {
        Source { kind: SourceKind::Text(text.clone()) }
    }
}

impl From<StoreUrl> for Source {
    fn from(url: StoreUrl) -> Source {
        Source { kind: SourceKind::Url(url) }
    }
}

impl From<Store> for Source {
    fn from(store: Store) -> Source {
        Source { kind: SourceKind::Open(store) }
    }
}

#[cfg(feature = "etcd")]
impl From<Config> for Source {
    fn from(config: Config) -> Source {
        Source { kind: SourceKind::Etcd(Box::new(config)) }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            // It may contain a password, and is not parsed yet.
            SourceKind::Text(_) => f.write_str("Source(an address)"),
            SourceKind::Url(url) => write!(f, "Source({url})"),
            SourceKind::Open(store) => write!(f, "Source({store:?})"),
            #[cfg(feature = "etcd")]
            SourceKind::Etcd(_) => f.write_str("Source(etcd)"),
        }
    }
}

/// How a [`Tenure`] is connected. Wrong values are reported by [`TenureBuilder::connect`].
///
/// ```
/// use std::time::Duration;
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let builder = Tenure::builder().store("memory:").namespace("shop").identity("web-1");
/// let tenure = builder.ttl(Duration::from_secs(10)).connect().await?;
/// assert_eq!(tenure.current_namespace().as_str(), "shop");
/// assert_eq!(tenure.identity().node, "web-1");
/// tenure.close().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is connected before `connect`"]
pub struct TenureBuilder {
    source: Option<Source>,
    user: Option<(String, String)>,
    namespace: Result<Namespace, InvalidName>,
    identity: Option<Identity>,
    sender: Option<NodeId>,
    ttl: Duration,
    retry: Option<Backoff>,
    clock: Arc<dyn Clock>,
}

impl Default for TenureBuilder {
    fn default() -> TenureBuilder {
        TenureBuilder {
            source: None,
            user: None,
            namespace: Namespace::parse(NAMESPACE),
            identity: None,
            sender: None,
            ttl: TTL,
            retry: None,
            clock: Arc::new(BootClock),
        }
    }
}

impl TenureBuilder {
    /// The store: `memory:`, `file:///path`, `etcd://a:2379,b:2379`, an open [`Store`], …; the environment variable `TENURE_STORE` otherwise.
    ///
    /// A store that was given open is not closed by [`Tenure::close`].
    pub fn store(mut self, store: impl Into<Source>) -> TenureBuilder {
        self.source = Some(store.into());
        self
    }

    /// Signs in to etcd. An address never contains a user or a password.
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> TenureBuilder {
        self.user = Some((name.into(), password.into()));
        self
    }

    /// The namespace; `tenure` otherwise, as in the command.
    pub fn namespace(mut self, name: impl IntoId<Namespace>) -> TenureBuilder {
        self.namespace = name.into_id();
        self
    }

    /// What is stored with locks, candidates and commands of this process: a name, or an [`Identity`]; host and process id otherwise.
    pub fn identity(mut self, identity: impl IntoIdentity) -> TenureBuilder {
        self.identity = Some(identity.into_identity());
        self
    }

    /// The name in the commands that this process sends; the name of the identity otherwise.
    pub fn sender(mut self, name: NodeId) -> TenureBuilder {
        self.sender = Some(name);
        self
    }

    /// The TTL of requests that do not choose another; 15 s.
    pub fn ttl(mut self, ttl: Duration) -> TenureBuilder {
        self.ttl = ttl;
        self
    }

    /// How long to wait before another request for a lease after one was lost; 1, 2, 4, 8 s with full jitter.
    pub fn retry(mut self, retry: Backoff) -> TenureBuilder {
        self.retry = Some(retry);
        self
    }

    /// The clock that validity, retries and waits use; the boot clock of the machine. In a `testing::World`, that of its participant.
    pub fn clock(mut self, clock: impl Clock) -> TenureBuilder {
        self.clock = Arc::new(clock);
        self
    }

    /// Opens the store and a session on it. Must be called inside a tokio runtime, on which the session's task runs.
    ///
    /// Nothing is sent to a store that was given open.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] explains why it is not connected. It never contains a password.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing open; a store file that did not exist may exist then, empty.
    pub async fn connect(self) -> Result<Tenure, ConnectError> {
        let TenureBuilder { source, user, namespace, identity, sender, ttl, retry, clock } = self;
        let namespace = namespace?;
        let source = source.or_else(from_environment).ok_or(ConnectError::NoStore)?;
        let owns_store = !matches!(source.kind, SourceKind::Open(_));
        let store = source.open(user).await?;
        let options = Session::options().ttl(ttl).clock(clock);
        let options = retry.into_iter().fold(options, SessionOptions::retry);
        match options.open(store.clone()) {
            Ok(session) => {
                let identity = identity.unwrap_or_else(identity::current);
                Ok(Tenure::new(session, namespace, (identity, sender), owns_store))
            }
            Err(error) => {
                if owns_store {
                    store.close().await;
                }
                Err(error.into())
            }
        }
    }
}

impl fmt::Debug for TenureBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TenureBuilder({:?}, {:?}, {:?})", self.source, self.namespace, self.ttl)
    }
}

impl Source {
    async fn open(self, user: Option<(String, String)>) -> Result<Store, ConnectError> {
        let url = match self.kind {
            SourceKind::Text(text) => text.parse()?,
            SourceKind::Url(url) => url,
            SourceKind::Open(store) => {
                return match user {
                    Some(_) => Err(ConnectError::NoUsers { engine: store.info().kind }),
                    None => Ok(store),
                };
            }
            #[cfg(feature = "etcd")]
            SourceKind::Etcd(config) => return open_etcd(*config, user).await,
        };
        match (url, user) {
            (url, None) => Ok(Store::open(&url).await?),
            (StoreUrl::Memory, Some(_)) => Err(ConnectError::NoUsers { engine: "memory" }),
            (StoreUrl::File(_), Some(_)) => Err(ConnectError::NoUsers { engine: "file" }),
            #[cfg(feature = "etcd")]
            (StoreUrl::Etcd { endpoints, security }, user) => {
                open_etcd(EtcdEngine::config(&endpoints, security), user).await
            }
            #[cfg(not(feature = "etcd"))]
            (url @ StoreUrl::Etcd { .. }, Some(_)) => Ok(Store::open(&url).await?),
        }
    }
}

#[cfg(feature = "etcd")]
async fn open_etcd(config: Config, user: Option<(String, String)>) -> Result<Store, ConnectError> {
    let config = match user {
        Some((name, password)) => config.with_user(name, Secret::new(password)),
        None => config,
    };
    Ok(Store::new(EtcdEngine::connect(config).await?))
}

/// The store that the environment names. An empty variable names none.
fn from_environment() -> Option<Source> {
    let text = std::env::var(STORE_VARIABLE).ok()?;
    (!text.is_empty()).then(|| Source::from(text))
}
