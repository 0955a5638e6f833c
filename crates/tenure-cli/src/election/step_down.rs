//! `election resign` and `election transfer`: requests a step-down, and waits until the leader has stepped down.
//!
//! The leader stops its work before it resigns, so the wait lasts as long as that stop.

use std::time::Duration;

use serde::Serialize;
use tenure::election::{Candidate, ElectionSnapshot, Leader, StepDown, StepDownError, StepDownOutcome};
use tenure::store::Revision;
use tenure_core::id::ElectionName;
use tenure_core::revision::Token;

use super::rows::CandidateRow;
use super::{ElectionTarget, ResignArgs, SCHEMA, TransferArgs, shown_by};
use crate::elect::leader_name;
use crate::failure::{Code, Failure};
use crate::output::Output;

pub(super) async fn resign(
    args: &ResignArgs,
    ElectionTarget { name, election }: &ElectionTarget,
    output: &Output,
) -> Result<(), Failure> {
    let leader = leader(election.snapshot().await?, name)?;
    if let Some(token) = args.token.map(|token| Token(Revision(token)))
        && token != leader.token
    {
        let message =
            format!("'{name}' is led by {}, not by the leader with token {token}", leader_name(&leader));
        return Err(Failure::new(Code::Conflict, message).hint(shown_by(name)));
    }
    match outcome(election.request_resign().of(&leader), &leader, name, args.timeout.wait).await? {
        Some(next) => report(name, &leader, next.as_deref(), output),
        None => Err(declined(&leader, name, "it declines to resign")),
    }
}

pub(super) async fn transfer(
    args: &TransferArgs,
    ElectionTarget { name, election }: &ElectionTarget,
    output: &Output,
) -> Result<(), Failure> {
    let mut view = election.snapshot().await?;
    let candidates = std::mem::take(&mut view.candidates);
    let leader = leader(view, name)?;
    let token = args.token.map(|token| Token(Revision(token)));
    let Some(successor) = successor(&candidates, &args.candidate, token, name)? else {
        let is_meant =
            leader.record.candidate == args.candidate && token.is_none_or(|token| token == leader.token);
        if is_meant {
            output.note(&format!("'{name}' is led by {} already", leader_name(&leader)));
            return report(name, &leader, Some(&leader), output);
        }
        let message = format!("'{name}' has no candidate {}", args.candidate);
        return Err(Failure::new(Code::NotFound, message).hint(shown_by(name)));
    };
    if let Some(above) = above(successor, &candidates) {
        let message = format!(
            "{} waits with priority {}, so {} would never lead '{name}'",
            above.record.candidate, above.record.priority, args.candidate
        );
        return Err(Failure::new(Code::Conflict, message)
            .hint(format!("hand over to the candidate with the highest priority; {}", shown_by(name))));
    }
    let request = election.request_transfer(args.candidate.as_str()).of(&leader).to(successor);
    match outcome(request, &leader, name, args.timeout.wait).await? {
        Some(Some(next)) if next.token == successor.token => report(name, &leader, Some(&next), output),
        Some(next) => {
            let by = next.as_deref().map_or("no candidate".to_owned(), leader_name);
            let message =
                format!("{} has stepped down, but '{name}' is led by {by} now", leader_name(&leader));
            Err(Failure::new(Code::Conflict, message).hint(shown_by(name)))
        }
        None => {
            let why = format!("it declines to hand over, or {} is no longer a candidate", args.candidate);
            Err(declined(&leader, name, &why))
        }
    }
}

fn leader(view: ElectionSnapshot, name: &ElectionName) -> Result<Leader, Failure> {
    view.leader.ok_or_else(|| {
        Failure::new(Code::NotFound, format!("'{name}' has no leader"))
            .hint("list the elections with a leader with `tenure election ls`")
    })
}

/// The candidate with this name; `None` if there is none.
fn successor<'a>(
    candidates: &'a [Candidate],
    wanted: &str,
    token: Option<Token>,
    name: &ElectionName,
) -> Result<Option<&'a Candidate>, Failure> {
    let mut meant = candidates.iter().filter(|candidate| {
        candidate.record.candidate == wanted && token.is_none_or(|token| token == candidate.token)
    });
    let (first, others) = (meant.next(), meant.count());
    if others > 0 {
        let message = format!("'{name}' has {} candidates with the name {wanted}", others + 1);
        return Err(Failure::new(Code::Conflict, message)
            .hint(format!("choose one with --token; {}", shown_by(name))));
    }
    Ok(first)
}

/// A candidate behind the successor with a higher priority: the successor would hand over to it immediately. A transfer skips the candidates in front.
fn above<'a>(successor: &Candidate, candidates: &'a [Candidate]) -> Option<&'a Candidate> {
    let is_above = |other: &&Candidate| {
        other.token > successor.token && other.record.priority > successor.record.priority
    };
    candidates.iter().find(is_above)
}

/// Sends a request, and waits until the leader has stepped down. Returns the next leader, if there is one; `None` if the leader declined.
async fn outcome(
    request: StepDown,
    leader: &Leader,
    name: &ElectionName,
    wait: Duration,
) -> Result<Option<Option<Box<Leader>>>, Failure> {
    match request.timeout(wait).await {
        Ok(StepDownOutcome::SteppedDown { next }) => Ok(Some(next)),
        Ok(_) => Ok(None),
        Err(StepDownError::NoLeader) => Err(overtaken(leader, name)),
        Err(StepDownError::Timeout { .. }) => {
            let message =
                format!("'{name}' is still led by {}, {wait:?} after the request", leader_name(leader));
            Err(Failure::new(Code::TimedOut, message).hint(format!(
                "the leader may still step down; wait longer with --wait, or {}",
                shown_by(name)
            )))
        }
        Err(error) => Err(request_failed(error, name)),
    }
}

fn overtaken(leader: &Leader, name: &ElectionName) -> Failure {
    let message = format!("{} no longer leads '{name}', so no request was sent", leader_name(leader));
    Failure::new(Code::Conflict, message).hint(format!("find the new leader: {}", shown_by(name)))
}

fn declined(leader: &Leader, name: &ElectionName, why: &str) -> Failure {
    let message = format!("{} still leads '{name}': {why}", leader_name(leader));
    Failure::new(Code::Conflict, message).hint(shown_by(name))
}

fn request_failed(error: StepDownError, name: &ElectionName) -> Failure {
    match error {
        StepDownError::Store(error) => {
            Failure::from(error).while_doing(&format!("the request to the leader of '{name}' was not sent"))
        }
        error => {
            Failure::new(Code::Failed, format!("the request to the leader of '{name}' was not sent: {error}"))
                .hint(shown_by(name))
        }
    }
}

/// Prints the former and the new leader.
fn report(
    name: &ElectionName,
    former: &Leader,
    now: Option<&Leader>,
    output: &Output,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct StepDownReport<'a> {
        schema: &'static str,
        name: &'a str,
        former: CandidateRow,
        leader: Option<CandidateRow>,
    }
    if output.is_json {
        let (former, leader) = (CandidateRow::of(former), now.map(CandidateRow::of));
        return output.object(&StepDownReport { schema: SCHEMA, name: name.as_str(), former, leader });
    }
    match now {
        Some(now) => output.record([now.token.to_string(), now.record.candidate.clone()]),
        None => output.record(["-", "-"]),
    }
}
