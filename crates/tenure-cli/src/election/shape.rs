//! Leaders and candidates as `--json` and tables show them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tenure::core::layout::Place;
use tenure::core::record::{AskRecord, CandidateRecord};
use tenure::core::revision::Token;
use tenure::election::{Candidate, ElectionView, Leader};
use tenure::store::LeaseId;

use crate::node::said;

/// An election.
#[derive(Serialize)]
pub(super) struct Shown {
    name: String,
    pub(super) leader: Option<ShownLeader>,
    pub(super) candidates: Vec<Person>,
}

/// Who leads.
#[derive(Serialize)]
pub(super) struct ShownLeader {
    #[serde(flatten)]
    pub(super) person: Person,
    pub(super) remaining_seconds: Option<f64>,
}

/// One who leads or wants to.
#[derive(Serialize)]
pub(super) struct Person {
    candidate: String,
    value: String,
    fence: String,
    /// Since when it is a candidate: nothing is written when one of them becomes the first.
    since: Option<String>,
    priority: i32,
    lease: String,
    pub(super) asked: Option<Asked>,
}

/// What somebody asks of it.
#[derive(Serialize)]
pub(super) struct Asked {
    by: String,
    what: &'static str,
    to: Option<String>,
}

impl Shown {
    pub(super) fn new(view: &ElectionView, left: &BTreeMap<LeaseId, Duration>) -> Shown {
        let leader = view.leader.as_ref().map(|leader| ShownLeader {
            remaining_seconds: left.get(&leader.place.lease).map(Duration::as_secs_f64),
            person: Person::new(leader.place, leader.token, &leader.record, &view.candidates),
        });
        let candidate = |one: &Candidate| Person::new(one.place, one.token, &one.record, &view.candidates);
        Shown {
            name: view.name.to_string(),
            leader,
            candidates: view.candidates.iter().map(candidate).collect(),
        }
    }
}

impl Person {
    /// One by itself, whom nobody is known to ask anything.
    pub(super) fn of(leader: &Leader) -> Person {
        Person::new(leader.place, leader.token, &leader.record, &[])
    }

    fn new(place: Place, token: Token, record: &CandidateRecord, others: &[Candidate]) -> Person {
        Person {
            candidate: record.candidate.clone(),
            value: record.value.clone(),
            fence: token.to_string(),
            since: said(record.since),
            priority: record.priority,
            lease: place.lease.to_string(),
            asked: record.asked.as_ref().map(|ask| Asked::new(ask, others)),
        }
    }

    pub(super) fn into_row(self, what: &str, left: String) -> Vec<String> {
        let since = self.since.unwrap_or_else(|| "-".to_owned());
        let priority = self.priority.to_string();
        vec![what.to_owned(), self.fence, self.candidate, self.value, priority, since, left]
    }
}

impl Asked {
    fn new(ask: &AskRecord, others: &[Candidate]) -> Asked {
        let (what, to) = match &ask.heir {
            None => ("resign", None),
            Some(heir) => {
                let named = others.iter().find(|other| other.place.to_string() == *heir);
                ("transfer", Some(named.map_or_else(|| heir.clone(), |other| other.record.candidate.clone())))
            }
        };
        Asked { by: ask.by.clone(), what, to }
    }

    pub(super) fn said(&self) -> String {
        match &self.to {
            None => format!("{} asks the leader to resign", self.by),
            Some(to) => format!("{} asks the leader to hand over to {to}", self.by),
        }
    }
}
