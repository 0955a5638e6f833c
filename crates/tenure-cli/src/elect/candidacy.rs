//! The line of an election, and what is said of it.

use std::time::Duration;

use tenure::election::{Election, ElectionSnapshot, Elections, Leader, Term};
use tenure::store::{LeaseId, StoreError};
use tenure_core::id::ElectionName;

use super::ElectArgs;
use crate::hold::{Line, Look, NotHeld, Stage, Wait};

/// Being a candidate.
pub(super) struct Candidacy<'a> {
    pub(super) stage: &'a Stage<'a>,
    pub(super) args: &'a ElectArgs,
    pub(super) name: &'a ElectionName,
    election: Election,
    pub(super) candidate: String,
    pub(super) value: String,
}

impl<'a> Candidacy<'a> {
    pub(super) fn new(stage: &'a Stage<'a>, name: &'a ElectionName, args: &'a ElectArgs) -> Candidacy<'a> {
        let node = || stage.who.node.clone();
        let candidate = args.candidate.as_ref().map_or_else(node, ToString::to_string);
        let election = Elections::new(&stage.session, &stage.namespace).introduce(&candidate).open(name);
        let value = args.value.clone().unwrap_or_else(node);
        Candidacy { stage, args, name, election, candidate, value }
    }
}

impl Line for Candidacy<'_> {
    type Held = Term;

    /// A candidate may wait for months, and whoever leads can be asked of `tenure election`.
    const STATUS_EVERY: Option<Duration> = None;

    fn name(&self) -> &str {
        self.name.as_str()
    }

    async fn stand(&self, wait: Wait) -> Result<Term, NotHeld> {
        let campaign = self.election.campaign(self.value.clone()).priority(self.args.priority);
        let campaign = match wait {
            Wait::Endless => campaign,
            Wait::UpTo(wait) => campaign.wait_up_to(wait),
            Wait::None => campaign.try_once(),
        };
        campaign.await.map_err(|error| NotHeld::campaign(self.name(), error))
    }

    async fn look(&self, lease: Option<LeaseId>) -> Result<Look, StoreError> {
        let view = self.election.view().await?;
        let place = lease.and_then(|lease| place(&view, lease));
        let had_by = view.leader.as_ref().map(|leader| format!("led by {}", named(leader)));
        let status = had_by.as_ref().map(|by| {
            let ahead = match place {
                Some(0) => ", you are next".to_owned(),
                Some(count) => format!(", {count} ahead of you"),
                None => String::new(),
            };
            format!("waiting to lead '{}': {by}{ahead}", self.name)
        });
        Ok(Look { is_in_line: place.is_some(), had_by, status })
    }

    fn shown_by(&self) -> String {
        format!("tenure election show {}", self.name)
    }
}

/// How many wait before the place that hangs on this lease; none if it is not in the line.
fn place(view: &ElectionSnapshot, lease: LeaseId) -> Option<usize> {
    let waits = view.candidates.iter().position(|candidate| candidate.place.lease == lease);
    waits.or_else(|| view.leader.as_ref().filter(|leader| leader.place.lease == lease).map(|_| 0))
}

/// `web-2, fence 17`
pub(crate) fn named(leader: &Leader) -> String {
    let candidate = &leader.record.candidate;
    let candidate = if candidate.is_empty() { "somebody" } else { candidate };
    format!("{candidate}, fence {}", leader.token)
}
