//! Elections, and whether this process leads.
//!
//! **Invariant**: the kept hold of an election is the one with the largest token, and it keeps nothing alive.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::id::{ElectionName, InvalidName, Namespace};

use super::request;
use crate::election::{self, CampaignError, Elections, LeadError, Leader, Observe, Term};
use crate::error::Error;
use crate::hold::Hold;

/// The terms that this process has, by election.
#[derive(Clone, Default)]
pub(super) struct Terms {
    holds: Arc<Mutex<BTreeMap<(Namespace, ElectionName), Hold>>>,
}

impl Terms {
    fn record(&self, of: (Namespace, ElectionName), hold: Hold) {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        holds.retain(|_, hold| hold.is_valid());
        // A campaign may learn of its term after a later one has begun.
        if holds.get(&of).is_none_or(|newest| newest.token() < hold.token()) {
            holds.insert(of, hold);
        }
    }

    fn valid(&self, of: &(Namespace, ElectionName)) -> Option<Hold> {
        let holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        holds.get(of).filter(|hold| hold.is_valid()).cloned()
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
    namespace: Namespace,
    name: Result<ElectionName, InvalidName>,
    terms: Terms,
}

impl Election {
    pub(super) fn new(
        elections: &Elections,
        namespace: &Namespace,
        name: Result<ElectionName, InvalidName>,
        terms: &Terms,
    ) -> Election {
        Election { elections: elections.clone(), namespace: namespace.clone(), name, terms: terms.clone() }
    }

    /// A candidacy that is about to begin.
    pub fn campaign(&self) -> Campaign {
        let campaign = self.name.clone().map(|name| {
            let campaign = self.elections.open(&name).campaign("");
            ((self.namespace.clone(), name), campaign)
        });
        Campaign { campaign, terms: self.terms.clone() }
    }

    /// Leads whenever it can: campaigns, runs the work while leadership is valid, campaigns again after a loss. See [`Campaign::lead`].
    ///
    /// # Errors
    ///
    /// [`LeadError`] for what another campaign cannot mend.
    pub async fn lead<T, Work: Future<Output = T>>(
        &self,
        work: impl FnMut(Arc<Term>) -> Work,
    ) -> Result<T, LeadError> {
        self.campaign().lead(work).await
    }

    /// Whether this process leads, by its own clock. Sends nothing. All handles of the name on this session answer the same.
    pub fn is_leader(&self) -> bool {
        self.hold().is_some()
    }

    /// The hold of the term that this process has, if it leads. It keeps nothing alive.
    pub fn hold(&self) -> Option<Hold> {
        let name = self.name.clone().ok()?;
        self.terms.valid(&(self.namespace.clone(), name))
    }

    /// Who leads, as the store shows it now.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] or [`Error::Store`].
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        Ok(self.open()?.leader().await?)
    }

    /// Who leads, now and after each change, without being a candidate.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](crate::InvalidName) if no election has such a name.
    pub fn observe(&self) -> Result<Observe, InvalidName> {
        Ok(self.open()?.observe())
    }

    /// The election with its candidates and requests to step down.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](crate::InvalidName) if no election has such a name.
    pub fn open(&self) -> Result<election::Election, InvalidName> {
        Ok(self.elections.open(self.name.as_ref().map_err(Clone::clone)?))
    }
}

/// A candidacy that is about to begin. Awaiting it gives a [`Term`].
///
/// ```
/// use std::time::Duration;
/// use tenure::{CampaignError, Tenure};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// let tenure = Tenure::connect("memory:").await?;
/// let election = tenure.election("scheduler");
/// let term = election.campaign().value("10.0.0.7:80").priority(5).timeout(Duration::from_secs(60)).await?;
/// assert!(matches!(election.campaign().try_now().await, Err(CampaignError::Held { .. })));
/// term.resign().await?;
/// # tenure.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancellation
///
/// Dropping the future deletes the candidate's key in the background.
///
/// # Errors
///
/// [`CampaignError`]; a wrong name is reported when it is awaited.
#[derive(Clone)]
#[must_use = "nothing is a candidate before this is awaited"]
pub struct Campaign {
    campaign: Result<((Namespace, ElectionName), election::Campaign), InvalidName>,
    terms: Terms,
}

request!(Campaign => Result<Term, CampaignError>);

impl Campaign {
    /// The value that all can see, such as an address; empty otherwise.
    pub fn value(self, value: impl Into<String>) -> Campaign {
        self.with(|campaign| campaign.value(value.into()))
    }

    /// Leads before candidates of a lower priority; 0 otherwise. A present leader stays.
    pub fn priority(self, priority: i32) -> Campaign {
        self.with(|campaign| campaign.priority(priority))
    }

    /// With a lease of this TTL; that of the session otherwise.
    pub fn ttl(self, ttl: Duration) -> Campaign {
        self.with(|campaign| campaign.ttl(ttl))
    }

    /// Waits at most this long, then fails with [`CampaignError::Timeout`]. Zero is [`Campaign::try_now`].
    pub fn timeout(self, timeout: Duration) -> Campaign {
        self.with(|campaign| campaign.wait_up_to(timeout))
    }

    /// Fails at once with [`CampaignError::Held`] instead of waiting for another leader.
    pub fn try_now(self) -> Campaign {
        self.with(election::Campaign::try_once)
    }

    /// For [`Campaign::lead`]: does not campaign again after a loss or a request to step down.
    pub fn one_term(self) -> Campaign {
        self.with(election::Campaign::once)
    }

    /// Campaigns, runs the work while leadership is valid, and resigns when the work has ended. Campaigns again after a loss.
    ///
    /// The work is a future, made anew for each term, and dropped when leadership is not valid any more.
    ///
    /// # Errors
    ///
    /// [`LeadError`] for what another campaign cannot mend, such as a closed session; with [`Campaign::one_term`] for every loss.
    ///
    /// # Cancellation
    ///
    /// Drops the work and resigns in the background.
    pub async fn lead<T, Work: Future<Output = T>>(
        self,
        mut work: impl FnMut(Arc<Term>) -> Work,
    ) -> Result<T, LeadError> {
        let Campaign { campaign, terms } = self;
        let (of, campaign) = campaign.map_err(CampaignError::from)?;
        let work = |term: Arc<Term>| {
            terms.record(of.clone(), term.hold());
            work(term)
        };
        campaign.lead(work).await
    }

    async fn send(self) -> Result<Term, CampaignError> {
        let (of, campaign) = self.campaign?;
        let term = campaign.await?;
        self.terms.record(of, term.hold());
        Ok(term)
    }

    fn with(mut self, change: impl FnOnce(election::Campaign) -> election::Campaign) -> Campaign {
        self.campaign = self.campaign.map(|(of, campaign)| (of, change(campaign)));
        self
    }
}
