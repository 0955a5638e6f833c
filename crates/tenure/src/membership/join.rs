//! Joining: what a node says of itself, how long it tries, and who is in its way.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use tenure_core::exclusive_key::TakeTimeouts;
use tenure_core::id::{InvalidName, NodeId};
use tenure_core::layout::{Key, Layout};
use tenure_core::record::{AcceptedTasks, MemberRecord, MemberState, Record, Timestamp};
use tenure_core::revision::Token;
use thiserror::Error;

use super::Membership;
use crate::clock::wall_time;
use crate::exclusive_key::{ExclusiveKey, ExclusiveKeyError, ExclusiveKeyOptions};
use crate::rng;
use crate::session::Session;
use crate::store::{KeyValue, LeaseId, Store, StoreError};

/// How long joining may take unless told otherwise: long enough for an election of etcd, short enough for a start-up script.
const JOIN_WITHIN: Duration = Duration::from_secs(10);

/// A node that is about to join: what it says of itself.
#[derive(Clone, PartialEq, Debug)]
pub struct NewNode {
    id: NodeId,
    address: Option<String>,
    version: String,
    labels: BTreeMap<String, String>,
    state: MemberState,
    balancer: Option<String>,
    accepts: Option<AcceptedTasks>,
    capacity: Option<u64>,
}

impl NewNode {
    /// A node that is starting, and says nothing else yet.
    pub fn new(id: NodeId) -> NewNode {
        NewNode {
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

    /// Where it can be reached.
    #[must_use]
    pub fn address(mut self, address: impl Into<String>) -> NewNode {
        self.address = Some(address.into());
        self
    }

    /// The version of the program it runs.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> NewNode {
        self.version = version.into();
        self
    }

    /// Something its operator says of it.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> NewNode {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// Whether it takes work already.
    #[must_use]
    pub fn state(mut self, state: MemberState) -> NewNode {
        self.state = state;
        self
    }

    /// By which balancer it takes tasks, so that others know whom to ask about them.
    #[must_use]
    pub(crate) fn balancer(mut self, name: &str) -> NewNode {
        self.balancer = Some(name.to_owned());
        self
    }

    /// Which tasks it accepts and how many it runs at a time, for the balancers of its peers.
    #[must_use]
    pub(crate) fn accepts(mut self, accepts: AcceptedTasks, capacity: Option<usize>) -> NewNode {
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

/// A node about to join.
#[must_use = "nothing joins before this is awaited"]
pub struct Join {
    store: Store,
    layout: Layout,
    session: Session,
    node: NewNode,
    within: Duration,
    wait: Duration,
}

impl Join {
    pub(super) fn new(store: Store, layout: Layout, session: Session, node: NewNode) -> Join {
        Join { store, layout, session, node, within: JOIN_WITHIN, wait: Duration::ZERO }
    }

    /// Waits this long for the store; 10 s.
    pub fn within(mut self, within: Duration) -> Join {
        self.within = within;
        self
    }

    /// Waits this long for another node with the same id to go; not at all unless told.
    ///
    /// For a node that was killed and started again: its former life goes when its lease ends.
    pub fn wait_up_to(mut self, wait: Duration) -> Join {
        self.wait = wait;
        self
    }

    async fn ask(self) -> Result<Membership, JoinError> {
        let id = self.node.id.clone();
        let options = ExclusiveKeyOptions {
            store: self.store,
            session: self.session,
            key: self.layout.encode(&Key::Node(id.clone())),
            patience: TakeTimeouts { store: self.within, owner: self.wait },
        };
        let record = self.node.record(random_nonce()?);
        match ExclusiveKey::take(options, record).await {
            Ok(key) => Ok(Membership { id, key }),
            Err(error) => Err(match error {
                ExclusiveKeyError::Held(pair) => JoinError::Alive(Box::new(OtherNode::new(id, &pair))),
                ExclusiveKeyError::AlreadyRegistered => JoinError::OurOwn(id),
                ExclusiveKeyError::NotYet { within } => JoinError::NotYet { within },
                ExclusiveKeyError::Store(error) => JoinError::Store(error),
                ExclusiveKeyError::Closed => JoinError::Closed,
            }),
        }
    }
}

impl IntoFuture for Join {
    type Output = Result<Membership, JoinError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}

/// Why a node did not join. Nothing of it is left or wanted.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// No node has such a name. Nothing was sent.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// Another node with this id is alive: stop it, choose another id, or wait with [`Join::wait_up_to`] until its lease has ended.
    #[error("{0}")]
    Alive(Box<OtherNode>),
    /// This session has joined under this id already, or is about to.
    #[error("this session has joined as {0} already")]
    OurOwn(NodeId),
    /// A worker needs a handler. Nothing was sent.
    #[error("the worker has no handler")]
    NoHandler,
    /// The store did not answer in time: try again.
    #[error("the store did not answer within {within:?}, so the node did not join")]
    NotYet {
        /// How long was waited.
        within: Duration,
    },
    /// The store will not have it, or cannot be read.
    #[error("the store refuses the node")]
    Store(#[source] StoreError),
    /// The session is closed.
    #[error("the session is closed")]
    Closed,
}

/// The live node that has an id already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtherNode {
    /// The id.
    pub id: NodeId,
    /// Where it can be reached, if it says so.
    pub address: Option<String>,
    /// Its incarnation.
    pub incarnation: Token,
    /// Since when it lives, by its own clock; none if its record cannot be read.
    pub started: Option<Timestamp>,
    /// The lease it lives by.
    pub lease: Option<LeaseId>,
}

impl OtherNode {
    fn new(id: NodeId, pair: &KeyValue) -> OtherNode {
        let record = MemberRecord::decode(&pair.value).ok();
        OtherNode {
            id,
            incarnation: Token(pair.created),
            lease: pair.lease,
            started: record.as_ref().map(|record| record.started),
            address: record.and_then(|record| record.address),
        }
    }
}

impl fmt::Display for OtherNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address.as_deref().unwrap_or("an unknown address");
        write!(f, "node {} is alive already: incarnation {} at {address}", self.id, self.incarnation)?;
        match self.started {
            Some(started) => write!(f, " since {started}"),
            None => Ok(()),
        }
    }
}

/// A number that nobody else has, as text.
pub(crate) fn random_nonce() -> Result<String, StoreError> {
    Ok(format!("{:016x}", u64::from_le_bytes(rng::try_bytes()?)))
}

impl From<StoreError> for JoinError {
    fn from(error: StoreError) -> JoinError {
        JoinError::Store(error)
    }
}
