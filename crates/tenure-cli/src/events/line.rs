//! An event as a line of text or of JSON.

use serde::Serialize;
use tenure::audit::{AuditAction, AuditRecord};
use tenure::events::{
    ElectionEvent, Event, EventKind, Holding, KeyFamily, LockEvent, NodeEvent, PastTerm, SentCommand,
    TaskEvent, TermOutcome, UnheededCommand,
};

use crate::node::said;

/// What streams of events carry as `schema`.
const SCHEMA: &str = "tenure.event/v1";

/// An event as it is shown.
#[derive(Default, Serialize)]
pub(super) struct Line {
    schema: &'static str,
    pub(super) revision: String,
    /// To what it happened: `task`, `node`, `lock`, `election`.
    pub(super) subject: &'static str,
    pub(super) event: &'static str,
    pub(super) name: String,
    /// The node, holder or candidate of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// A command, or why a task ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    said: Option<String>,
    /// The process that took it away, and why, where that is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// How the last term of an election ended: `resigned`, `transferred`, `revoked` or `lapsed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<&'static str>,
    /// For a new leader: bounds of the time without one, as far as the history shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    leaderless_min_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leaderless_max_seconds: Option<f64>,
    /// When, where a record contains that: the store itself counts revisions, not time.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

impl Line {
    /// The line of an event; none for what is no event of the namespace but of the reading.
    pub(super) fn of(event: &Event) -> Option<Line> {
        let line = match &event.kind {
            EventKind::Task { id, event } => Line { name: id.to_string(), ..Line::of_task(event) },
            EventKind::Node { id, event } => Line { name: id.to_string(), ..Line::of_node(event) },
            EventKind::Lock { name, event } => Line { name: name.to_string(), ..Line::of_lock(event) },
            EventKind::Election { name, event } => {
                Line { name: name.to_string(), ..Line::of_election(event) }
            }
            EventKind::LeaseRevoked => Line::new("lease", "revoked"),
            EventKind::KeysDeleted => Line::new("keys", "deleted"),
            EventKind::UnknownAction => Line::new("audit", "unknown"),
            EventKind::UnknownKey { among, key } => {
                let subject = match among {
                    KeyFamily::Tasks => "task",
                    KeyFamily::Nodes => "node",
                };
                let said = Some("no key of the layout: no node reads it".to_owned());
                Line { name: key.escape_ascii().to_string(), said, ..Line::new(subject, "set_aside") }
            }
            _ => return None,
        };
        let line = match &event.audit {
            Some(audit) => line.audited(audit),
            None => line,
        };
        let (revision, at) = (event.revision.to_string(), event.at.and_then(said));
        Some(Line { schema: SCHEMA, revision, at, ..line })
    }

    fn new(subject: &'static str, event: &'static str) -> Line {
        Line { subject, event, ..Line::default() }
    }

    fn of_task(event: &TaskEvent) -> Line {
        let task = |event| Line::new("task", event);
        let name = |node: &Option<_>| node.as_ref().map(ToString::to_string);
        match event {
            TaskEvent::Submitted { kind, has_ended } => {
                let said = has_ended.then(|| "it has ended before and does not run".to_owned());
                Line { kind: kind.clone(), said, ..task("submitted") }
            }
            TaskEvent::Unreadable { reason } => {
                Line { said: Some(format!("its record cannot be read: {reason}")), ..task("set_aside") }
            }
            TaskEvent::Claimed { node, token } => {
                Line { node: name(node), fence: Some(token.to_string()), ..task("claimed") }
            }
            TaskEvent::Released { node, token } => {
                let fence = token.map(|token| token.to_string());
                Line { node: name(node), fence, ..task("released") }
            }
            TaskEvent::StateChanged { from, to, node } => {
                let (from, to) = (Some(from.as_str()), Some(to.as_str()));
                Line { node: name(node), from, to, ..task("moved") }
            }
            TaskEvent::Ended { state, node, reason } => {
                let (to, said) = (Some(state.as_str()), reason.clone());
                Line { node: name(node), to, said, ..task("ended") }
            }
            TaskEvent::Deleted { owner } => Line { node: name(owner), ..task("deleted") },
            TaskEvent::Forgotten => task("forgotten"),
            TaskEvent::CommandSent(command) => task("told").sent(command),
            TaskEvent::CommandNotDone(command) => task(command.outcome.as_str()).unheeded(command),
            _ => task("unknown"),
        }
    }

    fn of_node(event: &NodeEvent) -> Line {
        let node = |event| Line::new("node", event);
        match event {
            NodeEvent::Joined { token, state } => {
                Line { to: Some(state.as_str()), fence: Some(token.to_string()), ..node("joined") }
            }
            NodeEvent::StateChanged { from, to } => {
                Line { from: Some(from.as_str()), to: Some(to.as_str()), ..node("moved") }
            }
            NodeEvent::Left => node("left"),
            NodeEvent::Frozen => node("frozen"),
            NodeEvent::Unfrozen => node("unfrozen"),
            NodeEvent::CommandSent(command) => node("told").sent(command),
            NodeEvent::CommandNotDone(command) => node(command.outcome.as_str()).unheeded(command),
            _ => node("unknown"),
        }
    }

    fn of_lock(event: &LockEvent) -> Line {
        let lock = |event, holding: &Holding| Line::new("lock", event).held(holding);
        match event {
            LockEvent::Acquired(holding) => lock("locked", holding),
            LockEvent::Released(holding) => lock("unlocked", holding),
            LockEvent::Broken(holding) => lock("broken", holding),
            _ => Line::new("lock", "unknown"),
        }
    }

    fn of_election(event: &ElectionEvent) -> Line {
        let election = |event, holding: &Holding| Line::new("election", event).held(holding);
        match event {
            ElectionEvent::LeaderElected { leader, previous } => {
                let line = election("leader", leader);
                let Some(previous) = previous else { return line };
                let gap = previous.leaderless;
                Line {
                    end: Some(previous.outcome.as_str()),
                    leaderless_min_seconds: Some(gap.min.as_secs_f64()),
                    leaderless_max_seconds: gap.max.map(|max| max.as_secs_f64()),
                    said: Some(shown(previous)),
                    ..line
                }
            }
            ElectionEvent::CandidateNext { candidate, previous } => {
                election("next", candidate).ended(*previous)
            }
            ElectionEvent::NoLeader { last, end } => election("none", last).ended(*end),
            _ => Line::new("election", "unknown"),
        }
    }

    fn held(self, Holding { holder, token }: &Holding) -> Line {
        Line { node: Some(holder.clone()), fence: Some(token.to_string()), ..self }
    }

    fn ended(self, end: Option<TermOutcome>) -> Line {
        let end = end.map(TermOutcome::as_str);
        Line { end, said: end.map(str::to_owned), ..self }
    }

    fn sent(self, SentCommand { command, by }: &SentCommand) -> Line {
        let said = match command {
            Ok(command) => command.clone(),
            Err(reason) => format!("a command that cannot be read: {reason}"),
        };
        Line { node: by.clone(), said: Some(said), ..self }
    }

    fn unheeded(self, command: &UnheededCommand) -> Line {
        let said: Vec<&str> = command.command.iter().chain(&command.reason).map(String::as_str).collect();
        let said = (!said.is_empty()).then(|| said.join(": "));
        Line { node: Some(command.handled_by.to_string()), said, ..self }
    }

    /// With the author and the reason.
    fn audited(mut self, audit: &AuditRecord) -> Line {
        let count = match audit.count {
            None => String::new(),
            Some(1) => "1 key, ".to_owned(),
            Some(count) => format!("{count} keys, "),
        };
        let verb = if audit.action == AuditAction::KillTask { "kill" } else { audit.verb() };
        self.said = Some(format!("{count}{verb} {}", audit.who_and_why()));
        self.by = Some(audit.by.to_string());
        self.reason = Some(audit.reason.clone()).filter(|reason| !reason.is_empty());
        if self.name.is_empty() {
            self.name.clone_from(&audit.target);
        }
        self
    }

    /// The details as one cell.
    pub(super) fn details(&self) -> String {
        let step = match (self.from, self.to) {
            (Some(from), Some(to)) => Some(format!("{from} to {to}")),
            (None, Some(to)) => Some(to.to_owned()),
            (_, None) => None,
        };
        // The author of a broken lock is named in `said`.
        let by = if self.event == "broken" { "held by" } else { "by" };
        let node = self.node.as_ref().map(|node| format!("{by} {node}"));
        let fence = self.fence.as_ref().map(|fence| format!("fence {fence}"));
        let details: Vec<String> = [step, node, fence, self.said.clone()].into_iter().flatten().collect();
        if details.is_empty() { "-".to_owned() } else { details.join(", ") }
    }
}

/// How the term before a leader's ended, and the bounds of the time without a leader.
fn shown(PastTerm { token, outcome, leaderless }: &PastTerm) -> String {
    let end = outcome.as_str();
    let gap = match (outcome, leaderless.max) {
        (TermOutcome::Transferred, _) => return format!("after fence {token} was {end}"),
        (TermOutcome::Resigned | TermOutcome::Revoked, Some(max)) => format!("{:.3} s", max.as_secs_f64()),
        (_, Some(max)) => {
            format!("between {:.1} s and {:.1} s", leaderless.min.as_secs_f64(), max.as_secs_f64())
        }
        (_, None) if leaderless.min.is_zero() => "an unknown time".to_owned(),
        (_, None) => format!("at least {:.1} s", leaderless.min.as_secs_f64()),
    };
    format!("after fence {token} {end}, no leader for {gap}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tenure::events::Leaderless;
    use tenure::store::Revision;
    use tenure_core::revision::Token;

    fn text(outcome: TermOutcome, min_ms: u64, max_ms: Option<u64>) -> String {
        let leaderless =
            Leaderless { min: Duration::from_millis(min_ms), max: max_ms.map(Duration::from_millis) };
        shown(&PastTerm { token: Token(Revision(7)), outcome, leaderless })
    }

    #[test]
    fn gap_between_terms_is_shown_with_its_bounds() {
        for (shown, expected) in [
            (text(TermOutcome::Resigned, 4, Some(4)), "after fence 7 resigned, no leader for 0.004 s"),
            (text(TermOutcome::Resigned, 0, None), "after fence 7 resigned, no leader for an unknown time"),
            (text(TermOutcome::Transferred, 0, Some(0)), "after fence 7 was transferred"),
            (
                text(TermOutcome::Lapsed, 2_000, Some(4_000)),
                "after fence 7 lapsed, no leader for between 2.0 s and 4.0 s",
            ),
            (text(TermOutcome::Lapsed, 2_000, None), "after fence 7 lapsed, no leader for at least 2.0 s"),
            (text(TermOutcome::Lapsed, 0, None), "after fence 7 lapsed, no leader for an unknown time"),
        ] {
            assert_eq!(shown, expected);
        }
    }
}
