//! Membership: which nodes are alive, seen by all of them and by anybody who looks.

mod join;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::id::{Namespace, NodeId};
use tenure_core::layout::Layout;
use tenure_core::record::{MemberRecord, MemberState};
use tenure_core::revision::Token;
use tokio::sync::watch;

use crate::clock::{BootClock, Clock};
use crate::exclusive_key::ExclusiveKey;
use crate::roster::{self, Follower, NodePresence, Presence, PresenceEvent, PresenceSnapshot, View};
use crate::session::Session;
use crate::store::{Store, StoreError};

pub use crate::exclusive_key::{
    LeaveError, RegistrationStatus as Standing, ReplacedBy as Successor, UpdateError,
};
pub(crate) use join::random_nonce;
pub use join::{Join, JoinError, NewNode, OtherNode};

/// How long a change or a departure may take: as long as a session's own tidying up.
const UPDATE_WITHIN: Duration = Duration::from_secs(5);

/// A node that is alive.
pub type Node = Presence<NodeId, MemberRecord>;

/// All nodes that are alive, at one revision.
pub type Members = PresenceSnapshot<NodeId, MemberRecord>;

/// What happens among the nodes; see [`PresenceEvent`].
pub type MemberEvent = PresenceEvent<NodeId, MemberRecord>;

/// A stream of [`MemberEvent`]s; see [`Follower`].
pub type MemberWatch = Follower<NodePresence>;

/// The nodes as last known, for many tasks to look at; see [`View`].
pub type MemberView = View<NodePresence>;

/// The nodes of a namespace. Cheap to clone. Whoever only looks needs no session.
///
/// ```
/// use tenure::{Namespace, NodeId};
/// use tenure::membership::{Cluster, NewNode};
/// use tenure::session::Session;
/// use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::memory();
/// let cluster = Cluster::new(store.clone(), &Namespace::parse("shop")?);
/// let session = Session::open(store)?;
///
/// let mut view = cluster.view();
/// let node = NewNode::new(NodeId::parse("web-1")?).address("10.0.0.7:80");
/// let membership = cluster.join(&session, node).await?;
///
/// let members = view.wait_for(|members| !members.is_empty()).await?;
/// assert_eq!(members.members()[0].token, membership.incarnation());
///
/// membership.leave().await?;
/// assert!(cluster.members().await?.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * A node is a member exactly while its key is in the store, under the lease of its session.
/// * Two live nodes never have one id: the second is refused with the address and the incarnation of the first, also if both come at once.
/// * A member's incarnation is its [`Token`]: the create revision of its key. It grows with every restart and whenever the
///   key was gone in between, so a guarded write of a former life is refused by the store.
/// * A member that loses its place is told through [`Membership::standing`] before anybody else can have it, as far as its lease can tell.
///
/// # Not guaranteed
///
/// * That a member does anything: its process renews a lease, no more.
/// * That a node that died is gone at once: it is for as long as its TTL lasts.
///
/// # Cancellation
///
/// Dropping the future of [`Cluster::join`] withdraws the node. Other futures leave nothing behind.
///
/// # Errors
///
/// Looking fails as a read of the store fails. [`JoinError`] says why a node did not join.
#[derive(Clone)]
pub struct Cluster {
    store: Store,
    layout: Layout,
    clock: Arc<dyn Clock>,
}

impl Cluster {
    /// The nodes of this namespace.
    pub fn new(store: Store, namespace: &Namespace) -> Cluster {
        Cluster { store, layout: Layout::new(namespace), clock: Arc::new(BootClock) }
    }

    /// Tells the time by another clock than the machine's boot clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Cluster {
        self.clock = Arc::new(clock);
        self
    }

    /// Joins as a node, through a session on the same store. `.within()` and `.wait_up_to()` change how long that may take.
    pub fn join(&self, session: &Session, node: NewNode) -> Join {
        Join::new(self.store.clone(), self.layout.clone(), session.clone(), node)
    }

    /// All nodes that are alive, by one linearizable listing at one revision.
    pub async fn members(&self) -> Result<Members, StoreError> {
        roster::list(&self.store, self.layout.nodes(), NodePresence(self.layout.clone())).await
    }

    /// Everything that happens among the nodes: the whole picture, then every difference.
    pub fn watch(&self) -> MemberWatch {
        let nodes = NodePresence(self.layout.clone());
        Follower::open(self.store.clone(), self.layout.nodes(), nodes, self.clock.clone())
            .expect("the layout's own prefix ends in a slash")
    }

    /// A picture that many tasks can look at while one watch keeps it up to date. Must be called inside a tokio runtime.
    pub fn view(&self) -> MemberView {
        View::new(self.watch())
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({:?} in {:?})", self.layout.nodes(), self.store)
    }
}

/// A node that has joined. Dropping it leaves, in the background.
///
/// # Guarantees
///
/// * It stays a member through broken connections, restarts of the store and lost leases, until it leaves or somebody else has its id.
/// * A change of what it says keeps its token.
///
/// # Not guaranteed
///
/// That it is a member at this moment: [`Membership::token`] is some only while that is certain.
///
/// # Cancellation
///
/// Dropping the future of a change leaves the change wanted. Dropping the future of [`Membership::leave`] goes on leaving in the background.
pub struct Membership {
    id: NodeId,
    key: ExclusiveKey<MemberRecord>,
}

impl Membership {
    /// Who this is.
    pub fn id(&self) -> &NodeId {
        &self.id
    }

    /// The newest incarnation of this handle: a token that this node has, or had before it was lost.
    pub fn incarnation(&self) -> Token {
        self.key.newest_token()
    }

    /// The token, while this is certainly a member; nothing else than this proves it.
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

    /// Waits until this is not certainly a member under this token any more. It may become one again, under a larger token or, if nobody could
    /// have had the id meanwhile, under the same; [`Membership::changes`] tells.
    pub async fn lost(&self, token: Token) {
        self.key.lost(token).await;
    }

    /// What this node says of itself, as it is wanted in the store.
    pub fn record(&self) -> MemberRecord {
        self.key.record()
    }

    /// Says whether it takes work.
    pub async fn set_state(&self, state: MemberState) -> Result<(), UpdateError> {
        self.update(|record| record.state = state).await
    }

    /// Says where it can be reached.
    pub async fn set_address(&self, address: impl Into<String>) -> Result<(), UpdateError> {
        let address = address.into();
        self.update(|record| record.address = Some(address)).await
    }

    /// Replaces its labels.
    pub async fn set_labels<K: Into<String>, V: Into<String>>(
        &self,
        labels: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(), UpdateError> {
        let labels = labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        self.update(|record| record.labels = labels).await
    }

    /// Changes several things that it says of itself at once. Who it is, and since when, stays.
    ///
    /// # Errors
    ///
    /// See [`UpdateError`]; one that is refused changes nothing.
    pub async fn update(&self, change: impl FnOnce(&mut MemberRecord)) -> Result<(), UpdateError> {
        self.key.update(change, UPDATE_WITHIN).await
    }

    /// Leaves, and waits until the store was seen without this node; at most 5 s.
    ///
    /// Stop the node's work first: from here on others may take its place.
    ///
    /// # Errors
    ///
    /// [`LeaveError`] if the store did not confirm it: then the record ends with its lease.
    pub async fn leave(self) -> Result<(), LeaveError> {
        self.key.leave(UPDATE_WITHIN).await
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Membership({}, {:?})", self.id, self.standing())
    }
}
