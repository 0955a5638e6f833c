//! The election in which `tenure elect` is a candidate.

use std::time::Duration;

use tenure::election::{Election, ElectionSnapshot, Elections, Leader, Term};
use tenure::store::{LeaseId, StoreError};
use tenure_core::id::ElectionName;

use super::ElectArgs;
use crate::hold::{HoldContext, HoldSubject, NotHeld, QueueStatus, Wait};
use crate::lock::ahead_of_you;

/// An election and the way to campaign in it.
pub(super) struct ElectionSubject<'a> {
    pub(super) context: &'a HoldContext<'a>,
    pub(super) args: &'a ElectArgs,
    pub(super) name: &'a ElectionName,
    election: Election,
    pub(super) candidate: String,
    pub(super) value: String,
}

impl<'a> ElectionSubject<'a> {
    pub(super) fn new(
        context: &'a HoldContext<'a>,
        name: &'a ElectionName,
        args: &'a ElectArgs,
    ) -> ElectionSubject<'a> {
        let node = || context.identity.node.clone();
        let candidate = args.candidate.as_ref().map_or_else(node, ToString::to_string);
        let election =
            Elections::new(&context.session, &context.namespace).identity(candidate.as_str()).election(name);
        let value = args.value.clone().unwrap_or_else(node);
        ElectionSubject { context, args, name, election, candidate, value }
    }
}

impl HoldSubject for ElectionSubject<'_> {
    type Held = Term;

    /// A candidate may wait for months, and `tenure election show` prints the leader at any time.
    const STATUS_EVERY: Option<Duration> = None;

    fn name(&self) -> &str {
        self.name.as_str()
    }

    async fn acquire(&self, wait: Wait) -> Result<Term, NotHeld> {
        let campaign = self.election.campaign().value(self.value.clone()).priority(self.args.priority);
        let campaign = match wait {
            Wait::Endless => campaign,
            Wait::UpTo(wait) => campaign.timeout(wait),
            Wait::None => campaign.try_now(),
        };
        campaign.await.map_err(|error| NotHeld::campaign(self.name(), error))
    }

    async fn status(&self, lease: Option<LeaseId>) -> Result<QueueStatus, StoreError> {
        let view = self.election.snapshot().await.map_err(store_error)?;
        let ahead = lease.and_then(|lease| ahead(&view, lease));
        let held_by = view.leader.as_ref().map(|leader| format!("led by {}", leader_name(leader)));
        let text = held_by
            .as_ref()
            .map(|by| format!("waiting to lead '{}': {by}{}", self.name, ahead_of_you(ahead)));
        Ok(QueueStatus { is_queued: ahead.is_some(), held_by, text })
    }

    fn show_command(&self) -> String {
        format!("tenure election show {}", self.name)
    }
}

/// The name of the election is valid, so that reads only fail as the store does.
fn store_error(error: tenure::Error) -> StoreError {
    match error {
        tenure::Error::Store(error) => error,
        _ => StoreError::Closed,
    }
}

/// How many candidates are ahead of the key under this lease; `None` if it is not in the queue.
fn ahead(view: &ElectionSnapshot, lease: LeaseId) -> Option<usize> {
    let waits = view.candidates.iter().position(|candidate| candidate.place.lease == lease);
    waits.or_else(|| view.leader.as_ref().filter(|leader| leader.place.lease == lease).map(|_| 0))
}

/// `web-2, token 17`
pub(crate) fn leader_name(leader: &Leader) -> String {
    let candidate = &leader.record.candidate;
    let candidate = if candidate.is_empty() { "an unnamed candidate" } else { candidate };
    format!("{candidate}, token {}", leader.token)
}
