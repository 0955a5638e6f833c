//! Leaders and candidates as `--json` and tables show them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tenure::election::{Candidate, ElectionSnapshot, Leader};
use tenure::store::LeaseId;
use tenure_core::layout::QueueKey;
use tenure_core::record::{CandidateRecord, StepDownRecord};
use tenure_core::revision::Token;

use crate::node::format_time;

/// An election.
#[derive(Serialize)]
pub(super) struct ElectionRow {
    name: String,
    pub(super) leader: Option<LeaderRow>,
    pub(super) candidates: Vec<CandidateRow>,
}

/// A leader.
#[derive(Serialize)]
pub(super) struct LeaderRow {
    #[serde(flatten)]
    pub(super) candidate: CandidateRow,
    pub(super) remaining_seconds: Option<f64>,
}

/// A leader or a candidate.
#[derive(Serialize)]
pub(super) struct CandidateRow {
    candidate: String,
    value: String,
    token: String,
    /// For a leader: when its term began; null if its record does not contain that yet. For a candidate: when it entered the queue.
    since: Option<String>,
    /// When it entered the queue.
    queued: Option<String>,
    host: Option<String>,
    pid: Option<u32>,
    user: Option<String>,
    priority: i32,
    lease: String,
    #[serde(rename = "asked")]
    pub(super) step_down: Option<StepDownRow>,
}

/// A request to step down.
#[derive(Serialize)]
pub(super) struct StepDownRow {
    by: String,
    what: &'static str,
    to: Option<String>,
}

impl ElectionRow {
    pub(super) fn new(view: &ElectionSnapshot, left: &BTreeMap<LeaseId, Duration>) -> ElectionRow {
        let leader = view.leader.as_ref().map(|leader| LeaderRow {
            remaining_seconds: left.get(&leader.place.lease).map(Duration::as_secs_f64),
            candidate: CandidateRow::leading(leader, &view.candidates),
        });
        let candidate =
            |other: &Candidate| CandidateRow::new(other.place, other.token, &other.record, &view.candidates);
        ElectionRow {
            name: view.name.to_string(),
            leader,
            candidates: view.candidates.iter().map(candidate).collect(),
        }
    }
}

impl CandidateRow {
    /// A leader by itself; the name of a requested successor is not resolved.
    pub(super) fn of(leader: &Leader) -> CandidateRow {
        CandidateRow::leading(leader, &[])
    }

    fn leading(leader: &Leader, others: &[Candidate]) -> CandidateRow {
        let since = leader.record.acquired.and_then(format_time);
        CandidateRow { since, ..CandidateRow::new(leader.place, leader.token, &leader.record, others) }
    }

    fn new(place: QueueKey, token: Token, record: &CandidateRecord, others: &[Candidate]) -> CandidateRow {
        CandidateRow {
            candidate: record.candidate.clone(),
            value: record.value.clone(),
            token: token.to_string(),
            since: format_time(record.queued),
            queued: format_time(record.queued),
            host: Some(record.host.clone()).filter(|host| !host.is_empty()),
            pid: Some(record.pid).filter(|pid| *pid != 0),
            user: Some(record.user.clone()).filter(|user| !user.is_empty()),
            priority: record.priority,
            lease: place.lease.to_string(),
            step_down: record.asked.as_ref().map(|request| StepDownRow::new(request, others)),
        }
    }

    pub(super) fn into_row(self, what: &str, left: String) -> Vec<String> {
        let since = self.since.unwrap_or_else(|| "-".to_owned());
        let priority = self.priority.to_string();
        vec![what.to_owned(), self.token, self.candidate, self.value, priority, since, left]
    }
}

impl StepDownRow {
    fn new(request: &StepDownRecord, others: &[Candidate]) -> StepDownRow {
        let (what, to) = match &request.heir {
            None => ("resign", None),
            Some(key) => {
                let named = others.iter().find(|other| other.place.to_string() == *key);
                ("transfer", Some(named.map_or_else(|| key.clone(), |other| other.record.candidate.clone())))
            }
        };
        StepDownRow { by: request.by.clone(), what, to }
    }

    pub(super) fn describe(&self) -> String {
        match &self.to {
            None => format!("{} requests that the leader resigns", self.by),
            Some(to) => format!("{} requests that the leader hands over to {to}", self.by),
        }
    }
}
