//! Members: the nodes of a namespace that are alive, as every process sees them.

mod join;

use std::fmt;
use std::sync::Arc;

use tenure_core::id::{Namespace, NodeId};
use tenure_core::layout::Layout;

use crate::clock::{BootClock, Clock};
use crate::id::IntoId;
use crate::presence::{
    self, NodePresence, Presence, PresenceEvent, PresenceSnapshot, PresenceView, PresenceWatch,
};
use crate::session::{Registration, Session};
use crate::store::{Store, StoreError};

pub use join::{Join, JoinError};
pub(crate) use join::{NewMember, owner_wait, random_nonce};
pub use tenure_core::record::{MemberRecord, MemberState};

/// A node that is alive.
pub type Member = Presence<NodeId, MemberRecord>;

/// All members, at one revision.
pub type MemberSnapshot = PresenceSnapshot<NodeId, MemberRecord>;

/// A change of the members; see [`PresenceEvent`].
pub type MemberEvent = PresenceEvent<NodeId, MemberRecord>;

/// A stream of [`MemberEvent`]s; see [`PresenceWatch`].
pub type MemberWatch = PresenceWatch<NodePresence>;

/// A local copy of the members that one watch keeps current; see [`PresenceView`].
pub type MemberView = PresenceView<NodePresence>;

/// A node that has joined. Dropping it leaves, in the background; see [`Registration`].
pub type Membership = Registration<MemberRecord>;

/// The members of a namespace. Cheap to clone. Reading needs no session.
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tenure = Tenure::connect("memory:").await?;
/// let mut view = tenure.members().view();
/// let membership = tenure.join("web-1").address("10.0.0.7:80").await?;
///
/// let members = view.wait_for(|members| !members.is_empty()).await?;
/// assert_eq!(Some(members.members()[0].token), membership.token());
///
/// membership.unregister().await?;
/// assert!(tenure.members().list().await?.is_empty());
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * A node is a member exactly while its key is in the store, under the lease of its session.
/// * Two live nodes never have one id: the second is refused with the address and the token of the first, also if both join at the same
///   time.
/// * The token of a member is the create revision of its key. It grows with every restart, and whenever the key was deleted in between, so
///   the store refuses a fenced write of an earlier incarnation.
/// * A member that is lost knows it from [`Registration::status`] before another process can join under its id, as far as its lease shows it.
///
/// # Not guaranteed
///
/// * That a member works: its process renews a lease, no more.
/// * That a node that died is not a member any more: it is until its TTL has passed.
///
/// # Cancellation
///
/// Dropping the future of [`Members::join`] withdraws the node. Other futures leave nothing behind.
///
/// # Errors
///
/// Those of a read. [`JoinError`] explains why a node did not join.
#[derive(Clone)]
pub struct Members {
    store: Store,
    layout: Layout,
    clock: Arc<dyn Clock>,
}

impl Members {
    /// The members of a namespace. Sends nothing yet.
    pub fn new(store: Store, namespace: &Namespace) -> Members {
        Members { store, layout: Layout::new(namespace), clock: Arc::new(BootClock) }
    }

    /// The clock that the age of views is counted on; the boot clock of the machine otherwise.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Members {
        self.clock = Arc::new(clock);
        self
    }

    /// Joins as a node, through a session on the same store.
    pub fn join(&self, session: &Session, node: impl IntoId<NodeId>) -> Join {
        Join::new(&self.store, &self.layout, session, node.into_id().map(NewMember::new))
    }

    /// Joins with a record that is complete already.
    pub(crate) fn join_as(&self, session: &Session, member: NewMember) -> Join {
        Join::new(&self.store, &self.layout, session, Ok(member))
    }

    /// All members, by one linearizable listing at one revision.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub async fn list(&self) -> Result<MemberSnapshot, StoreError> {
        presence::list(&self.store, self.layout.nodes(), NodePresence(self.layout.clone())).await
    }

    /// All members, then every change.
    pub fn watch(&self) -> MemberWatch {
        let nodes = NodePresence(self.layout.clone());
        PresenceWatch::open(self.store.clone(), self.layout.nodes(), nodes, self.clock.clone())
            .expect("the layout's own prefix ends in a slash")
    }

    /// A local copy that one watch keeps current. Must be called inside a tokio runtime.
    pub fn view(&self) -> MemberView {
        PresenceView::new(self.watch())
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Members({:?} in {:?})", self.layout.nodes(), self.store)
    }
}
