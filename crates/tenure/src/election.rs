//! Elections: who stands first in line leads, and is told before that stops being true.
//!
//! The same line as that of locks, with a value that everybody can see and that its leader can change. **No election can promise that a
//! leader's effects exclude those of the next one**: a leader can be paused between its last look at its term and its write. What a term
//! gives is a *token* that grows with every leader; let whatever is written refuse a smaller one ([`Hold::fence`](crate::hold::Hold::fence) inside the store, a
//! [`FenceVerifier`](crate::fence::FenceVerifier) outside).

mod ask;
mod campaign;
mod lead;
mod observe;
mod term;
mod view;

use std::sync::Arc;

use bytes::Bytes;
use tenure_core::cluster::elections_in;
use tenure_core::id::{ElectionName, InvalidName, Namespace};
use tenure_core::layout::Layout;
use tenure_core::queue::QueueKind;

use crate::clock::Clock;
use crate::identity::{self, Identity};
use crate::queue::QueueDriver;
use crate::session::Session;
use crate::store::{Store, StoreError};

pub use ask::{Answer, Ask, AskError, Dismissal};
pub use campaign::{Campaign, CampaignError};
pub use lead::LeadError;
pub use observe::{Gap, Observation, Observe, TermEnd};
pub use term::{ProclaimError, Term, TransferError};
pub use view::{Candidate, ElectionList, ElectionSnapshot, Leader};

pub use crate::hold::{Lost, ReleaseError};

/// The elections of a namespace, on a session. Cheap to clone.
///
/// ```
/// use tenure::Namespace;
/// use tenure::election::Elections;
/// use tenure::session::Session;
/// use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let session = Session::open(Store::memory())?;
/// let election = Elections::new(&session, &Namespace::parse("shop")?).election("scheduler")?;
///
/// let term = election.campaign("10.0.0.7:80").await?;
/// assert_eq!(election.leader().await?.map(|leader| leader.token), Some(term.token()));
/// // The work ends with it, or is dropped the moment leadership cannot be proven any more.
/// let done = term.run(async { "scheduled" }).await?;
/// assert_eq!(done, "scheduled");
/// term.resign().await?;
/// assert_eq!(election.leader().await?, None);
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * At most one candidate of a name believes that it leads, as long as nobody deletes keys or revokes leases by hand.
/// * A leader stops believing before the store can let anybody else lead, whatever hangs, also after a suspend.
/// * Tokens of one name only grow, also when leadership is handed to somebody who came later.
/// * Who comes first leads first, unless somebody of a higher priority waits when the turn comes. Nobody is deposed for a priority.
/// * A candidate whose lease dies while it waits is told at once and never leads; a campaign that fails leaves no key behind.
/// * A candidate costs one key, and one watch on the candidate before it; a change of leader wakes one candidate.
///
/// # Not guaranteed
///
/// * That two leaders' effects exclude each other: use the token.
/// * That a leader whose key is deleted or whose lease is revoked by hand foresees it: it is told within a round trip.
/// * What an observer sees is who stands first. A candidate that becomes the first while somebody of a higher priority waits hands over
///   before it leads, and may be seen as the leader for that instant.
///
/// # Cancellation
///
/// Dropping the future of a campaign, or a term, leaves the line in the background.
#[derive(Clone)]
pub struct Elections {
    queues: QueueDriver,
    store: Store,
    clock: Arc<dyn Clock>,
    layout: Arc<Layout>,
    candidate: Arc<str>,
    identity: Arc<Identity>,
}

impl Elections {
    /// The elections of a namespace. Asks nothing of the store yet; who only observes never needs a lease.
    pub fn new(session: &Session, namespace: &Namespace) -> Elections {
        let identity = identity::current();
        Elections {
            queues: QueueDriver::open(session, &Layout::new(namespace), QueueKind::Election),
            store: session.store().clone(),
            clock: session.clock().clone(),
            layout: Arc::new(Layout::new(namespace)),
            candidate: identity.name().into(),
            identity: Arc::new(identity),
        }
    }

    /// The name that others see of us as a candidate, and when we ask something of a leader; host and process id otherwise.
    #[must_use]
    pub fn introduce(mut self, candidate: &str) -> Elections {
        self.candidate = candidate.into();
        self
    }

    /// The identity that is stored with each candidate; [`identity::current`] otherwise. Its name is that of the candidate.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Elections {
        self.candidate = identity.name().into();
        self.identity = Arc::new(identity);
        self
    }

    /// One election. Asks nothing of the store.
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election, InvalidName> {
        Ok(self.open(&ElectionName::parse(name.as_ref())?))
    }

    /// One election, by a name that was read already. Asks nothing of the store.
    pub fn open(&self, name: &ElectionName) -> Election {
        let queue = self.layout.candidates(name).first().clone();
        Election { elections: self.clone(), name: name.clone(), queue }
    }

    /// All elections that have a candidate, by name.
    pub async fn list(&self) -> Result<ElectionList, StoreError> {
        let page = self.store.list(self.layout.elections()).await?;
        let revision = page.revision;
        let elections = elections_in(&self.layout, page.pairs, revision).into_values().collect();
        Ok(ElectionList { elections, revision })
    }
}

/// One election. Cheap to clone.
#[derive(Clone)]
pub struct Election {
    elections: Elections,
    name: ElectionName,
    /// The prefix of its candidates' keys.
    queue: Bytes,
}

impl Election {
    /// Its name.
    pub fn name(&self) -> &ElectionName {
        &self.name
    }

    /// Wants to lead, and to tell everybody this value meanwhile. Nothing happens before the result is awaited.
    pub fn campaign(&self, value: impl Into<String>) -> Campaign {
        Campaign::new(self.clone(), value.into())
    }

    /// Leads whenever it can: campaigns, does the work while leadership is proven, campaigns again after a loss. See [`Campaign::lead`].
    pub async fn lead<T, Work: Future<Output = T>>(
        &self,
        value: impl Into<String>,
        work: impl FnMut(Arc<Term>) -> Work,
    ) -> Result<T, LeadError> {
        self.campaign(value).lead(work).await
    }

    /// Who leads, now and whenever that changes, without being a candidate.
    pub fn observe(&self) -> Observe {
        Observe::new(self)
    }

    fn store(&self) -> &Store {
        &self.elections.store
    }
}
