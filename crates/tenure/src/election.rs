//! Elections: the oldest candidate leads, and its term is invalid before the store can elect another one.
//!
//! An election is a lock queue with a value that all processes can read and that the leader can change. **No election can promise that a
//! leader's effects exclude those of the next one**: a leader can be paused between its last check of the term and its write. A term has a
//! *token* that grows with every leader; let the resource refuse a smaller one ([`Hold::fence`](crate::hold::Hold::fence) inside the store, a
//! [`FenceVerifier`](crate::fence::FenceVerifier) outside).

mod campaign;
mod lead;
mod observe;
mod snapshot;
mod status;
mod step_down;
mod term;

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use tenure_core::cluster::elections_in;
use tenure_core::id::{ElectionName, InvalidName, Namespace};
use tenure_core::layout::Layout;
use tenure_core::queue::QueueKind;

use crate::clock::Clock;
use crate::closing::Closing;
use crate::error::Error;
use crate::hold::Hold;
use crate::id::{IntoId, IntoIdentity};
use crate::identity::{self, Identity};
use crate::queue::QueueDriver;
use crate::session::Session;
use crate::store::{Store, StoreError};

pub use campaign::{Campaign, CampaignError};
pub use lead::LeadError;
pub use observe::{Gap, Observation, Observe, TermEnd};
pub use snapshot::{Candidate, ElectionList, ElectionSnapshot, Leader};
pub use step_down::{StepDown, StepDownError, StepDownOutcome, StepDownRequest};
pub use term::{AnnounceError, InvalidResumeToken, ResumeToken, Term, TransferError};

pub(crate) use status::LocalTerms;

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
/// let election = Elections::new(&session, &Namespace::parse("shop")?).election("scheduler");
///
/// let term = election.campaign().value("10.0.0.7:80").await?;
/// assert_eq!(election.leader().await?.map(|leader| leader.token), Some(term.token()));
/// // The work completes, or is dropped when leadership is not valid any more.
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
/// * At most one candidate of a name has a valid term, as long as no operator deletes keys or revokes leases.
/// * A term is invalid before the store can elect another candidate, although tasks or the store hang, also after a suspend.
/// * Tokens of one name only grow, also when leadership is transferred to a younger candidate.
/// * The oldest candidate leads first, unless one of a higher priority waits when a term begins. A present leader stays, whatever the
///   priorities are.
/// * A campaign fails immediately if its lease expires while it waits, and never leads; a campaign that fails leaves no key.
/// * A candidate costs one key, and one watch on its predecessor; a change of leader wakes one candidate.
///
/// # Not guaranteed
///
/// * That two leaders' effects exclude each other: use the token.
/// * That a leader foresees that an operator deletes its key or revokes its lease: its term is lost within a round trip.
/// * That an observer sees only leaders. It sees the oldest candidate: one that becomes the oldest while a candidate of a higher priority
///   waits transfers before it leads, and may be seen as the leader for that instant.
///
/// # Cancellation
///
/// Dropping the future of a campaign, or a term, deletes the candidate's key in the background.
#[derive(Clone)]
pub struct Elections {
    queues: QueueDriver,
    store: Store,
    clock: Arc<dyn Clock>,
    layout: Arc<Layout>,
    candidate: Arc<str>,
    identity: Arc<Identity>,
    terms: LocalTerms,
    closing: Closing,
}

impl Elections {
    /// The elections of a namespace. Sends nothing yet; an observer never needs a lease.
    pub fn new(session: &Session, namespace: &Namespace) -> Elections {
        let identity = identity::current();
        Elections {
            queues: QueueDriver::open(session, &Layout::new(namespace), QueueKind::Election),
            store: session.store().clone(),
            clock: session.clock().clone(),
            layout: Arc::new(Layout::new(namespace)),
            candidate: identity.name().into(),
            identity: Arc::new(identity),
            terms: LocalTerms::default(),
            closing: Closing::default(),
        }
    }

    /// The identity that is stored with each candidate and each request to step down; [`identity::current`] otherwise. Its name is that of
    /// the candidate.
    #[must_use]
    pub fn identity(mut self, identity: impl IntoIdentity) -> Elections {
        let identity = identity.into_identity();
        self.candidate = identity.name().into();
        self.identity = Arc::new(identity);
        self
    }

    /// Records its terms together with those of other namespaces.
    pub(crate) fn terms(mut self, terms: &LocalTerms) -> Elections {
        self.terms = terms.clone();
        self
    }

    /// Ends its `lead`s when the connection is closed.
    pub(crate) fn closing(mut self, closing: &Closing) -> Elections {
        self.closing = closing.clone();
        self
    }

    /// One election. Sends nothing; a wrong name is reported by its requests.
    pub fn election(&self, name: impl IntoId<ElectionName>) -> Election {
        Election { elections: self.clone(), name: name.into_id() }
    }

    /// All elections that have a candidate, by name.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub async fn list(&self) -> Result<ElectionList, StoreError> {
        let page = self.store.list(self.layout.elections()).await?;
        let revision = page.revision;
        let elections = elections_in(&self.layout, page.pairs, revision).into_values().collect();
        Ok(ElectionList { elections, revision })
    }
}

/// One election. Cheap to clone.
///
/// ```
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let election = tenure.election("scheduler");
/// let done = election.campaign().value("10.0.0.7:80").lead(|term| async move { term.token() }).await?;
/// assert!(done.0 > tenure::Revision::ZERO);
///
/// let term = election.campaign().await?;
/// assert!(tenure.election("scheduler").is_leader());
/// term.resign().await?;
/// assert!(!election.is_leader());
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * Those of [`Elections`]: at most one candidate of a name is the valid leader at a time, and tokens only grow.
/// * [`Election::is_leader`] is false before the store can elect another candidate, although no task of this process was scheduled.
#[derive(Clone)]
pub struct Election {
    elections: Elections,
    name: Result<ElectionName, InvalidName>,
}

impl Election {
    /// A candidacy that is about to begin.
    pub fn campaign(&self) -> Campaign {
        Campaign::new(self)
    }

    /// Leads whenever it can: campaigns, runs the work while leadership is valid, campaigns again after a loss. See [`Campaign::lead`].
    ///
    /// # Errors
    ///
    /// [`LeadError`] for what another campaign cannot mend.
    pub async fn lead<T, Work: Future<Output = T>>(
        &self,
        work: impl FnMut(Term) -> Work,
    ) -> Result<T, LeadError> {
        self.campaign().lead(work).await
    }

    /// Whether this process leads, by its own clock. Sends nothing. All handles of the name on this session return the same.
    pub fn is_leader(&self) -> bool {
        self.hold().is_some()
    }

    /// The hold of the term that this process has, if it leads. It keeps nothing alive.
    pub fn hold(&self) -> Option<Hold> {
        self.elections.terms.valid(&self.queue().ok()?.prefix)
    }

    /// The leader, now and after each change, without being a candidate. A wrong name is reported as its only item.
    pub fn observe(&self) -> Observe {
        Observe::new(self.queue())
    }

    /// The leader, as the store shows it now.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] or [`Error::Store`].
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        Ok(self.queue()?.leader().await?)
    }

    /// The leader and the candidates that wait, at one revision.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] or [`Error::Store`].
    pub async fn snapshot(&self) -> Result<ElectionSnapshot, Error> {
        Ok(self.queue()?.snapshot().await?)
    }

    /// Asks the leader to resign, and waits for the outcome.
    pub fn request_resign(&self) -> StepDown {
        StepDown::resign(self.queue())
    }

    /// Asks the leader to transfer leadership to the candidate with this name, and waits for the outcome.
    pub fn request_transfer(&self, candidate: impl Into<String>) -> StepDown {
        StepDown::transfer(self.queue(), candidate.into())
    }

    fn queue(&self) -> Result<ElectionQueue, InvalidName> {
        Ok(ElectionQueue::new(&self.elections, self.name.clone()?))
    }
}

/// The queue of an election with a valid name.
#[derive(Clone)]
struct ElectionQueue {
    elections: Elections,
    name: ElectionName,
    /// The prefix of its candidates' keys.
    prefix: Bytes,
}

impl ElectionQueue {
    fn new(elections: &Elections, name: ElectionName) -> ElectionQueue {
        let prefix = elections.layout.candidates(&name).first().clone();
        ElectionQueue { elections: elections.clone(), name, prefix }
    }

    fn store(&self) -> &Store {
        &self.elections.store
    }
}
