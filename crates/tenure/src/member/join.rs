//! The request to join: the record of the node, how long to wait, and why it did not join.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::exclusive_key::TakeTimeouts;
use tenure_core::id::{InvalidName, NodeId};
use tenure_core::layout::{Key, Layout};
use tenure_core::record::{AcceptedTasks, MemberRecord, MemberState, Record};
use tenure_core::revision::Token;
use thiserror::Error;

use super::Membership;
use crate::clock::wall_time;
use crate::error::{ErrorClass, classified};
use crate::exclusive_key::{ExclusiveKeyError, ExclusiveKeyOptions, Registration};
use crate::rng;
use crate::session::{KeyOwner, Session};
use crate::store::{KeyValue, Store, StoreError};
use crate::tenure::request;

/// How long the store may take by default: long enough for an election of etcd, short enough for a start-up script.
const JOIN_WITHIN: Duration = Duration::from_secs(10);

/// How much longer than the TTL a join waits for the key of the former process of a restarted program.
const OWNER_MARGIN: Duration = Duration::from_secs(5);

/// How long a request waits for another process with the same id: until the key of a process that was killed has expired.
pub(crate) fn owner_wait(session: &Session) -> Duration {
    session.ttl().saturating_add(OWNER_MARGIN)
}

/// The record of a node that is about to join.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct NewMember {
    id: NodeId,
    address: Option<String>,
    version: String,
    labels: BTreeMap<String, String>,
    state: MemberState,
    balancer: Option<String>,
    accepts: Option<AcceptedTasks>,
    capacity: Option<u64>,
}

impl NewMember {
    /// A node that is starting, with an otherwise empty record.
    pub(crate) fn new(id: NodeId) -> NewMember {
        NewMember {
            id,
            address: None,
            version: String::new(),
            labels: BTreeMap::new(),
            state: MemberState::Starting,
            balancer: None,
            accepts: None,
            capacity: None,
        }
    }

    pub(crate) fn address(mut self, address: impl Into<String>) -> NewMember {
        self.address = Some(address.into());
        self
    }

    pub(crate) fn version(mut self, version: impl Into<String>) -> NewMember {
        self.version = version.into();
        self
    }

    pub(crate) fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> NewMember {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// Whether it takes work already.
    pub(crate) fn state(mut self, state: MemberState) -> NewMember {
        self.state = state;
        self
    }

    /// The balancer by which it claims tasks, so that others know which node to ask about them.
    pub(crate) fn balancer(mut self, name: &str) -> NewMember {
        self.balancer = Some(name.to_owned());
        self
    }

    /// Which tasks it accepts and how many it runs at a time, for the balancers of its peers.
    pub(crate) fn accepts(mut self, accepts: AcceptedTasks, capacity: Option<usize>) -> NewMember {
        self.accepts = Some(accepts);
        self.capacity = capacity.map(|capacity| capacity as u64);
        self
    }

    /// The record, complete but for the revision that the key is created after.
    fn record(self, nonce: String) -> MemberRecord {
        MemberRecord {
            address: self.address,
            incarnation: 0,
            started: wall_time(),
            nonce,
            version: self.version,
            labels: self.labels,
            state: self.state,
            balancer: self.balancer,
            accepts: self.accepts,
            capacity: self.capacity,
            load: None,
            unknown: serde_json::Map::new(),
        }
    }
}

/// A node that is about to join. Awaiting it returns a [`Membership`].
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let membership = tenure.join("web-1").address("10.0.0.7:80").label("zone", "eu").await?;
/// assert_eq!(Some(tenure.members().list().await?.members()[0].token), membership.token());
/// # drop(membership);
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// It waits for another process with the same id for the TTL and 5 s, so a restarted program joins when the key of its former process has
/// expired.
///
/// # Cancellation
///
/// Dropping the future withdraws the node.
///
/// # Errors
///
/// [`JoinError`]; a wrong name is reported when it is awaited.
#[must_use = "nothing joins before this is awaited"]
pub struct Join {
    store: Store,
    layout: Layout,
    session: Session,
    member: Result<NewMember, InvalidName>,
    patience: TakeTimeouts,
}

request!(Join => Result<Membership, JoinError>);

impl Join {
    pub(super) fn new(
        store: &Store,
        layout: &Layout,
        session: &Session,
        member: Result<NewMember, InvalidName>,
    ) -> Join {
        let patience = TakeTimeouts { store: JOIN_WITHIN, owner: owner_wait(session) };
        Join { store: store.clone(), layout: layout.clone(), session: session.clone(), member, patience }
    }

    /// Its address.
    pub fn address(mut self, address: impl Into<String>) -> Join {
        self.member = self.member.map(|member| member.address(address));
        self
    }

    /// The version of its program.
    pub fn version(mut self, version: impl Into<String>) -> Join {
        self.member = self.member.map(|member| member.version(version));
        self
    }

    /// A label.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Join {
        self.member = self.member.map(|member| member.label(name, value));
        self
    }

    /// Whether it takes work already; [`MemberState::Starting`] otherwise.
    pub fn state(mut self, state: MemberState) -> Join {
        self.member = self.member.map(|member| member.state(state));
        self
    }

    /// Waits at most this long, for the store and for another process with the same id.
    pub fn timeout(mut self, timeout: Duration) -> Join {
        self.patience = TakeTimeouts { store: timeout, owner: timeout };
        self
    }

    /// Fails immediately with [`JoinError::Held`] instead of waiting for another process with the same id.
    pub fn try_now(mut self) -> Join {
        self.patience.owner = Duration::ZERO;
        self
    }

    async fn send(self) -> Result<Membership, JoinError> {
        let member = self.member?;
        let id = member.id.clone();
        let options = ExclusiveKeyOptions {
            store: self.store,
            session: self.session,
            key: self.layout.encode(&Key::Node(id.clone())),
            patience: self.patience,
        };
        // The nonce identifies this process: after a lost reply it shows whether the stored key is its own.
        let record = member.record(random_nonce()?);
        Registration::take(options, record).await.map_err(|error| match error {
            ExclusiveKeyError::Held(pair) => JoinError::Held { by: Box::new(owner(&id, &pair)) },
            ExclusiveKeyError::AlreadyRegistered => JoinError::AlreadyJoined,
            ExclusiveKeyError::NotYet { within } => JoinError::Timeout { after: within },
            ExclusiveKeyError::Store(error) => JoinError::Store(error),
            ExclusiveKeyError::Closed => JoinError::Closed,
        })
    }
}

/// Why a node did not join. Nothing of it is stored or kept registered.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// No node has such a name. Nothing was sent.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// Another process has joined under this id: stop it, or choose another id.
    #[error("{by}")]
    Held {
        /// The other process.
        by: Box<KeyOwner>,
    },
    /// This session has joined under this id already, or is about to.
    #[error("this session has joined under this id already")]
    AlreadyJoined,
    /// A worker needs a handler. Nothing was sent.
    #[error("the worker has no handler")]
    NoHandler,
    /// The store did not reply in time.
    #[error("the store did not reply within {after:?}, so the node did not join")]
    Timeout {
        /// How long the request waited.
        after: Duration,
    },
    /// The store refuses the node, or its key cannot be read.
    #[error("the store refuses the node")]
    Store(#[from] StoreError),
    /// The session is closed.
    #[error("the session is closed")]
    Closed,
}

impl JoinError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            JoinError::InvalidName(_) | JoinError::AlreadyJoined | JoinError::NoHandler => {
                ErrorClass::Invalid
            }
            JoinError::Held { .. } => ErrorClass::Conflict,
            JoinError::Timeout { .. } => ErrorClass::Timeout,
            JoinError::Store(error) => error.into(),
            JoinError::Closed => ErrorClass::Closed,
        }
    }
}

classified!(JoinError);

fn owner(id: &NodeId, pair: &KeyValue) -> KeyOwner {
    let record = MemberRecord::decode(&pair.value).ok();
    KeyOwner {
        subject: format!("node {id}"),
        token: Token(pair.created),
        lease: pair.lease,
        started: record.as_ref().map(|record| record.started),
        address: record.and_then(|record| record.address),
    }
}

/// A text that no other process has, which identifies the owner of a record.
pub(crate) fn random_nonce() -> Result<String, StoreError> {
    Ok(format!("{:016x}", u64::from_le_bytes(rng::try_bytes()?)))
}
