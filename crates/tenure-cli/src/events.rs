//! `tenure events`: what happened in a namespace, derived from the history of the store's keys. It reaches back as far as that history.

use clap::Args;
use futures_util::StreamExt;
use serde::Serialize;
use tenure::audit::{AuditAction, AuditRecord};
use tenure::events::{
    ElectionEvent, Event, EventKind, Events, KeyFamily, LockEvent, NodeEvent, PastTerm, QueueHead,
    SentCommand, TaskEvent, TermOutcome, UnheededCommand,
};
use tenure::store::{Get, Revision, Store, StoreError};
use tenure_core::id::Namespace;
use tenure_core::layout::Layout;

use crate::failure::{Code, Failure};
use crate::kv::parse_revision_or_zero;
use crate::node::format_time as timestamp;
use crate::output::Output;

#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// Continue with new events until Ctrl-C.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Start after this revision [default: the oldest that the store still has].
    #[arg(long, value_name = "REV", value_parser = parse_revision_or_zero)]
    after: Option<Revision>,
}

/// Prints the events.
pub(crate) async fn run(
    args: &EventsArgs,
    store: &Store,
    namespace: &Namespace,
    output: &Output,
) -> Result<(), Failure> {
    let mut events = Events::new(store, namespace);
    if let Some(after) = args.after {
        events = events.after(after);
    }
    if args.follow {
        events = events.follow();
    }
    let mut events = match events.await {
        Err(StoreError::FutureRevision) => return Err(not_happened(args, store, namespace).await?),
        events => events?,
    };
    if args.follow {
        output.note("following; Ctrl-C ends");
    }
    while let Some(event) = events.next().await {
        let event = event.map_err(|error| Failure::from(error).while_doing("the history ended early"))?;
        show(&event, output)?;
    }
    Ok(())
}

/// The failure for an `--after` in the future.
async fn not_happened(args: &EventsArgs, store: &Store, namespace: &Namespace) -> Result<Failure, Failure> {
    let everything = Layout::new(namespace).everything();
    let now = store.get(Get::new(everything).limit(1).keys_only()).await?.revision;
    let after = args.after.unwrap_or(Revision::ZERO);
    let message = format!("the store is at revision {now}, so revision {after} does not exist yet");
    Ok(Failure::new(Code::FutureRevision, message).hint(format!("use `--after {now}`")))
}

fn show(event: &Event, output: &Output) -> Result<(), Failure> {
    match &event.kind {
        EventKind::HistoryCompacted { after } => {
            let up_to = event.revision;
            output.note(&format!(
                "the history between revisions {after} and {up_to} was compacted and is not shown"
            ));
        }
        EventKind::Interrupted { reason } => {
            output.note(&format!("the connection to the store was lost, retrying: {reason}"));
        }
        _ => {}
    }
    let Some(line) = EventLine::of(event) else { return Ok(()) };
    if output.is_json {
        return output.object(&line);
    }
    output.record([&line.revision, line.subject, line.event, &line.name, &line.details()])
}

/// The `schema` of event lines.
const SCHEMA: &str = "tenure.event/v1";

/// An event as it is printed.
#[derive(Default, Serialize)]
struct EventLine {
    schema: &'static str,
    revision: String,
    /// What the event is about: `task`, `node`, `lock`, `election`.
    subject: &'static str,
    event: &'static str,
    name: String,
    /// The node, holder or candidate of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// A command, or the reason of an end.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// The process that broke, revoked or deleted it, and the reason, where that is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// How the last term of an election ended: `resigned`, `transferred`, `revoked` or `lapsed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<&'static str>,
    /// For a new leader: bounds of the time without a leader, as far as the history shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    leaderless_min_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leaderless_max_seconds: Option<f64>,
    /// The time, where a record contains one: the store itself counts revisions.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

impl EventLine {
    /// The line of an event; `None` for an event of the reader, such as a gap in the history.
    fn of(event: &Event) -> Option<EventLine> {
        let line = match &event.kind {
            EventKind::Task { id, event } => EventLine { name: id.to_string(), ..EventLine::of_task(event) },
            EventKind::Node { id, event } => EventLine { name: id.to_string(), ..EventLine::of_node(event) },
            EventKind::Lock { name, event } => {
                EventLine { name: name.to_string(), ..EventLine::of_lock(event) }
            }
            EventKind::Election { name, event } => {
                EventLine { name: name.to_string(), ..EventLine::of_election(event) }
            }
            EventKind::LeaseRevoked => EventLine::new("lease", "revoked"),
            EventKind::KeysDeleted => EventLine::new("keys", "deleted"),
            EventKind::UnknownAction => EventLine::new("audit", "unknown"),
            EventKind::UnknownKey { among, key } => {
                let subject = match among {
                    KeyFamily::Tasks => "task",
                    KeyFamily::Nodes => "node",
                };
                let detail = Some("not a key of the layout; no node reads it".to_owned());
                EventLine {
                    name: key.escape_ascii().to_string(),
                    detail,
                    ..EventLine::new(subject, "set_aside")
                }
            }
            _ => return None,
        };
        let line = match &event.audit {
            Some(audit) => line.audited(audit),
            None => line,
        };
        let (revision, at) = (event.revision.to_string(), event.at.and_then(timestamp));
        Some(EventLine { schema: SCHEMA, revision, at, ..line })
    }

    fn new(subject: &'static str, event: &'static str) -> EventLine {
        EventLine { subject, event, ..EventLine::default() }
    }

    fn of_task(event: &TaskEvent) -> EventLine {
        let task = |event| EventLine::new("task", event);
        let name = |node: &Option<_>| node.as_ref().map(ToString::to_string);
        match event {
            TaskEvent::Submitted { kind, has_ended } => {
                let detail = has_ended.then(|| "it has ended already and does not run".to_owned());
                EventLine { kind: kind.clone(), detail, ..task("submitted") }
            }
            TaskEvent::Unreadable { reason } => EventLine {
                detail: Some(format!("its record cannot be read: {reason}")),
                ..task("set_aside")
            },
            TaskEvent::Claimed { node, token } => {
                EventLine { node: name(node), token: Some(token.to_string()), ..task("claimed") }
            }
            TaskEvent::Released { node, token } => {
                let token = token.map(|token| token.to_string());
                EventLine { node: name(node), token, ..task("released") }
            }
            TaskEvent::StateChanged { from, to, node } => {
                let (from, to) = (Some(from.as_str()), Some(to.as_str()));
                EventLine { node: name(node), from, to, ..task("moved") }
            }
            TaskEvent::Ended { state, node, reason } => {
                let (to, detail) = (Some(state.as_str()), reason.clone());
                EventLine { node: name(node), to, detail, ..task("ended") }
            }
            TaskEvent::Deleted { owner } => EventLine { node: name(owner), ..task("deleted") },
            TaskEvent::Forgotten => task("forgotten"),
            TaskEvent::CommandSent(command) => task("command").sent(command),
            TaskEvent::CommandNotDone(command) => task(command.outcome.as_str()).unheeded(command),
            _ => task("unknown"),
        }
    }

    fn of_node(event: &NodeEvent) -> EventLine {
        let node = |event| EventLine::new("node", event);
        match event {
            NodeEvent::Joined { token, state } => {
                EventLine { to: Some(state.as_str()), token: Some(token.to_string()), ..node("joined") }
            }
            NodeEvent::StateChanged { from, to } => {
                EventLine { from: Some(from.as_str()), to: Some(to.as_str()), ..node("moved") }
            }
            NodeEvent::Left => node("left"),
            NodeEvent::Frozen => node("frozen"),
            NodeEvent::Unfrozen => node("unfrozen"),
            NodeEvent::CommandSent(command) => node("command").sent(command),
            NodeEvent::CommandNotDone(command) => node(command.outcome.as_str()).unheeded(command),
            _ => node("unknown"),
        }
    }

    fn of_lock(event: &LockEvent) -> EventLine {
        let lock = |event, holding: &QueueHead| EventLine::new("lock", event).held(holding);
        match event {
            LockEvent::Acquired(holding) => lock("locked", holding),
            LockEvent::Released(holding) => lock("unlocked", holding),
            LockEvent::Broken(holding) => lock("broken", holding),
            _ => EventLine::new("lock", "unknown"),
        }
    }

    fn of_election(event: &ElectionEvent) -> EventLine {
        let election = |event, holding: &QueueHead| EventLine::new("election", event).held(holding);
        match event {
            ElectionEvent::LeaderElected { leader, previous } => {
                let line = election("leader", leader);
                let Some(previous) = previous else { return line };
                let gap = previous.leaderless;
                EventLine {
                    end: Some(previous.outcome.as_str()),
                    leaderless_min_seconds: Some(gap.min.as_secs_f64()),
                    leaderless_max_seconds: gap.max.map(|max| max.as_secs_f64()),
                    detail: Some(previous_term(previous)),
                    ..line
                }
            }
            ElectionEvent::CandidateNext { candidate, previous } => {
                election("next", candidate).ended(*previous)
            }
            ElectionEvent::NoLeader { last, end } => election("none", last).ended(*end),
            _ => EventLine::new("election", "unknown"),
        }
    }

    fn held(self, QueueHead { holder, token }: &QueueHead) -> EventLine {
        EventLine { node: Some(holder.clone()), token: Some(token.to_string()), ..self }
    }

    fn ended(self, end: Option<TermOutcome>) -> EventLine {
        let end = end.map(TermOutcome::as_str);
        EventLine { end, detail: end.map(str::to_owned), ..self }
    }

    fn sent(self, SentCommand { command, by }: &SentCommand) -> EventLine {
        let detail = match command {
            Ok(command) => command.clone(),
            Err(reason) => format!("a command that cannot be read: {reason}"),
        };
        EventLine { node: by.clone(), detail: Some(detail), ..self }
    }

    fn unheeded(self, command: &UnheededCommand) -> EventLine {
        let detail: Vec<&str> = command.command.iter().chain(&command.reason).map(String::as_str).collect();
        let detail = (!detail.is_empty()).then(|| detail.join(": "));
        EventLine { node: Some(command.handled_by.to_string()), detail, ..self }
    }

    /// Adds the author and the reason.
    fn audited(mut self, audit: &AuditRecord) -> EventLine {
        let count = match audit.count {
            None => String::new(),
            Some(1) => "1 key, ".to_owned(),
            Some(count) => format!("{count} keys, "),
        };
        let verb = if audit.action == AuditAction::KillTask { "kill" } else { audit.verb() };
        self.detail = Some(format!("{count}{verb} {}", audit.origin()));
        self.by = Some(audit.by.to_string());
        self.reason = Some(audit.reason.clone()).filter(|reason| !reason.is_empty());
        if self.name.is_empty() {
            self.name.clone_from(&audit.target);
        }
        self
    }

    /// The details as one cell.
    fn details(&self) -> String {
        let step = match (self.from, self.to) {
            (Some(from), Some(to)) => Some(format!("{from} to {to}")),
            (None, Some(to)) => Some(to.to_owned()),
            (_, None) => None,
        };
        // `detail` names the process that broke a lock.
        let by = if self.event == "broken" { "held by" } else { "by" };
        let node = self.node.as_ref().map(|node| format!("{by} {node}"));
        let token = self.token.as_ref().map(|token| format!("token {token}"));
        let details: Vec<String> = [step, node, token, self.detail.clone()].into_iter().flatten().collect();
        if details.is_empty() { "-".to_owned() } else { details.join(", ") }
    }
}

/// How the term before a leader's ended, and the bounds of the time without a leader.
fn previous_term(PastTerm { token, outcome, leaderless }: &PastTerm) -> String {
    let end = outcome.as_str();
    let gap = match (outcome, leaderless.max) {
        (TermOutcome::Transferred, _) => return format!("after token {token} was {end}"),
        (TermOutcome::Resigned | TermOutcome::Revoked, Some(max)) => format!("{:.3} s", max.as_secs_f64()),
        (_, Some(max)) => {
            format!("between {:.1} s and {:.1} s", leaderless.min.as_secs_f64(), max.as_secs_f64())
        }
        (_, None) if leaderless.min.is_zero() => "an unknown time".to_owned(),
        (_, None) => format!("at least {:.1} s", leaderless.min.as_secs_f64()),
    };
    format!("after token {token} {end}, no leader for {gap}")
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
        previous_term(&PastTerm { token: Token(Revision(7)), outcome, leaderless })
    }

    #[test]
    fn gap_between_terms_is_shown_with_its_bounds() {
        for (shown, expected) in [
            (text(TermOutcome::Resigned, 4, Some(4)), "after token 7 resigned, no leader for 0.004 s"),
            (text(TermOutcome::Resigned, 0, None), "after token 7 resigned, no leader for an unknown time"),
            (text(TermOutcome::Transferred, 0, Some(0)), "after token 7 was transferred"),
            (
                text(TermOutcome::Lapsed, 2_000, Some(4_000)),
                "after token 7 lapsed, no leader for between 2.0 s and 4.0 s",
            ),
            (text(TermOutcome::Lapsed, 2_000, None), "after token 7 lapsed, no leader for at least 2.0 s"),
            (text(TermOutcome::Lapsed, 0, None), "after token 7 lapsed, no leader for an unknown time"),
        ] {
            assert_eq!(shown, expected);
        }
    }
}
