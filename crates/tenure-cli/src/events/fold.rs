//! From changes of keys to what happened. The changes of one revision belong together: an end is a state that was written and a task that was deleted.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tenure::audit::{AuditAction, AuditRecord};
use tenure::core::layout::{Key, Layout};
use tenure::core::name::{CommandId, TaskId};
use tenure::core::record::{
    CommandOutcome, CommandRecord, NodeRecord, OwnerRecord, Record, ResultRecord, TaskRecord, WallTime,
};
use tenure::core::revision::Token;
use tenure::core::task::{StateKind, StateRecord};
use tenure::store::{Change, KeyValue, LeaseId, Revision};

use super::lines::{First, LineOf, Lines, place};
use crate::node::said;

/// What streams of events carry as `schema`.
const SCHEMA: &str = "tenure.event/v1";

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct Event {
    schema: &'static str,
    pub(super) revision: String,
    /// What it happened to: `task`, `node`, `lock`, `election`.
    pub(super) subject: &'static str,
    pub(super) event: &'static str,
    pub(super) name: String,
    /// The node, holder or candidate that has to do with it.
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
    /// What was said: a command, or why a task ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    said: Option<String>,
    /// The process that took it away, and why, where that is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// When, where somebody wrote that down: the store itself counts revisions, not time.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

impl Event {
    fn new(revision: Revision, subject: &'static str, event: &'static str, name: impl Into<String>) -> Event {
        let (revision, name) = (revision.to_string(), name.into());
        Event { schema: SCHEMA, revision, subject, event, name, ..Event::default() }
    }

    fn node(mut self, node: Option<impl ToString>) -> Event {
        self.node = node.map(|node| node.to_string());
        self
    }

    fn fence(mut self, revision: Revision) -> Event {
        self.fence = Some(Token(revision).to_string());
        self
    }

    fn at(mut self, time: WallTime) -> Event {
        self.at = said(time);
        self
    }

    /// With the author and the reason, where they are recorded.
    fn audited(mut self, audit: Option<&AuditRecord>) -> Event {
        let Some(audit) = audit else { return self };
        let count = audit.count.map_or(String::new(), |count| format!("{count} keys, "));
        self.said = Some(format!("{count}{} {}", audit.verb(), audit.who_and_why()));
        self.by = Some(audit.by.to_string());
        self.reason(&audit.reason).at(audit.at)
    }

    fn reason(mut self, reason: &str) -> Event {
        self.reason = Some(reason.to_owned()).filter(|reason| !reason.is_empty());
        self
    }

    /// The details as one cell.
    pub(super) fn said(&self) -> String {
        let step = match (self.from, self.to) {
            (Some(from), Some(to)) => Some(format!("{from} to {to}")),
            (None, Some(to)) => Some(to.to_owned()),
            (_, None) => None,
        };
        let node = self.node.as_ref().map(|node| format!("by {node}"));
        let fence = self.fence.as_ref().map(|fence| format!("fence {fence}"));
        let details: Vec<String> = [step, node, fence, self.said.clone()].into_iter().flatten().collect();
        if details.is_empty() { "-".to_owned() } else { details.join(", ") }
    }
}

/// Makes events of changes.
pub(super) struct Fold {
    layout: Layout,
    lines: Lines,
    /// Leases that an operator revoked, and who did: their keys go later than the record.
    revoked: BTreeMap<LeaseId, AuditRecord>,
}

/// What one revision says of tasks.
#[derive(Default)]
struct Batch {
    deleted: BTreeSet<TaskId>,
    states: BTreeMap<TaskId, StateRecord>,
    owners: BTreeMap<TaskId, OwnerRecord>,
    /// Commands that are gone, or that another took the place of.
    commands: BTreeMap<CommandId, Commanded>,
    /// What was done to something of another process.
    audits: Vec<AuditRecord>,
}

impl Batch {
    /// The record of this action on this target.
    fn audit(&self, action: AuditAction, target: &str) -> Option<&AuditRecord> {
        self.audits.iter().find(|audit| audit.action == action && audit.target == target)
    }
}

/// A command, and what it was sent to.
struct Commanded {
    subject: &'static str,
    name: String,
    /// What it said, if that can be read.
    word: Option<String>,
}

impl Fold {
    pub(super) fn new(layout: Layout) -> Fold {
        Fold { layout, lines: Lines::default(), revoked: BTreeMap::new() }
    }

    /// A key that was there before the first change.
    pub(super) fn seed(&mut self, pair: &KeyValue) {
        self.lines.stand(&self.layout, pair);
    }

    /// All changes of one revision.
    pub(super) fn handle(&mut self, changes: &[Change]) -> Vec<Event> {
        let batch = self.gather(changes);
        let revoked = batch.audits.iter().filter(|audit| audit.action == AuditAction::RevokeLease);
        self.revoked
            .extend(revoked.filter_map(|audit| Some((LeaseId::parse_hex(&audit.target)?, audit.clone()))));
        let mut events: Vec<Event> = changes.iter().filter_map(|change| self.event(change, &batch)).collect();
        if let Some(first) = changes.first() {
            events.extend(self.line_events(changes, &batch, first.revision()));
        }
        events
    }

    fn gather(&self, changes: &[Change]) -> Batch {
        let mut batch = Batch::default();
        for change in changes {
            match (self.layout.parse(change.key()), change) {
                (Some(Key::Task(task)), Change::Delete { .. }) => drop(batch.deleted.insert(task)),
                (Some(Key::TaskState(task)), Change::Put { pair, .. }) => {
                    batch.states.extend(StateRecord::decode(&pair.value).ok().map(|state| (task, state)));
                }
                (Some(Key::Audit(_)), Change::Put { pair, .. }) => {
                    batch.audits.extend(AuditRecord::decode(&pair.value));
                }
                (Some(Key::TaskOwner(task)), Change::Delete { previous: Some(previous), .. }) => {
                    batch.owners.extend(OwnerRecord::decode(&previous.value).ok().map(|owner| (task, owner)));
                }
                (
                    Some(Key::TaskCommand(task)),
                    Change::Delete { previous: Some(previous), .. }
                    | Change::Put { previous: Some(previous), .. },
                ) => {
                    let (subject, name) = ("task", task.to_string());
                    if let Ok(CommandRecord { id: Some(id), command, .. }) =
                        CommandRecord::decode(&previous.value)
                    {
                        batch.commands.insert(id, Commanded { subject, name, word: Some(command) });
                    }
                }
                (Some(Key::NodeCommand(node, id)), Change::Delete { previous, .. }) => {
                    let record = previous.as_ref().and_then(|pair| CommandRecord::decode(&pair.value).ok());
                    let (subject, name) = ("node", node.to_string());
                    let word = record.map(|record| record.command);
                    batch.commands.insert(id, Commanded { subject, name, word });
                }
                _ => {}
            }
        }
        batch
    }

    fn event(&self, change: &Change, batch: &Batch) -> Option<Event> {
        let revision = change.revision();
        let task = |event, task: &TaskId| Event::new(revision, "task", event, task.as_str());
        let Some(key) = self.layout.parse(change.key()) else { return self.foreign(change) };
        Some(match (key, change) {
            (Key::Task(id), Change::Put { pair, .. }) => {
                if pair.version != 1 {
                    return None;
                }
                let record = match TaskRecord::decode(&pair.value) {
                    Ok(record) => record,
                    Err(bad) => {
                        let said = Some(format!("its record cannot be read: {}", bad.reason()));
                        return Some(Event { said, ..task("set_aside", &id) });
                    }
                };
                let event = task("submitted", &id).at(record.submitted_at);
                let said = record.ended.then(|| "it has ended before and does not run".to_owned());
                Event { kind: record.kind, said, ..event }
            }
            (Key::Task(id), Change::Delete { .. }) => {
                let owner = batch.owners.get(&id).map(|owner| &owner.node);
                match batch.states.get(&id).filter(|state| state.state.is_terminal()) {
                    Some(state) => {
                        let event = task("ended", &id).node(state.by.as_ref().or(owner)).at(state.updated_at);
                        Event { to: Some(state.state.kind().as_str()), said: state.reason.clone(), ..event }
                    }
                    None => {
                        let audit = batch.audit(AuditAction::DeleteTask, id.as_str());
                        task("deleted", &id).node(owner).audited(audit)
                    }
                }
            }
            (Key::TaskOwner(id), Change::Put { pair, .. }) => {
                let owner = OwnerRecord::decode(&pair.value).ok().map(|owner| owner.node);
                task("claimed", &id).node(owner).fence(pair.created)
            }
            (Key::TaskOwner(id), Change::Delete { previous, .. }) => {
                if batch.deleted.contains(&id) {
                    return None;
                }
                let event = task("released", &id).node(batch.owners.get(&id).map(|owner| &owner.node));
                match previous {
                    Some(previous) => event.fence(previous.created),
                    None => event,
                }
            }
            (Key::TaskState(id), Change::Put { previous, .. }) => {
                let state = batch.states.get(&id)?;
                let before = previous.as_ref().and_then(|pair| StateRecord::decode(&pair.value).ok());
                let from = before.map_or(StateKind::Runnable, |before| before.state.kind());
                let to = state.state.kind();
                if from == to || batch.deleted.contains(&id) {
                    return None;
                }
                let event = task("moved", &id).node(state.by.as_ref()).at(state.updated_at);
                Event { from: Some(from.as_str()), to: Some(to.as_str()), ..event }
            }
            (Key::TaskState(id), Change::Delete { .. }) => {
                task("forgotten", &id).audited(batch.audit(AuditAction::ForgetTask, id.as_str()))
            }
            (Key::TaskCommand(id), Change::Put { pair, .. }) => {
                let event = told(task("told", &id), pair);
                let Some(audit) = batch.audit(AuditAction::KillTask, id.as_str()) else { return Some(event) };
                let by = Some(audit.by.to_string());
                Event { said: Some(format!("kill {}", audit.who_and_why())), by, ..event }
                    .reason(&audit.reason)
            }
            (Key::Node(id), Change::Put { pair, previous }) => {
                let record = NodeRecord::decode(&pair.value).ok()?;
                let node = |event| Event::new(revision, "node", event, id.as_str());
                let Some(before) = previous.as_ref().filter(|_| pair.version > 1) else {
                    let event = node("joined").fence(pair.created).at(record.started);
                    return Some(Event { to: Some(record.state.as_str()), ..event });
                };
                let before = NodeRecord::decode(&before.value).ok()?.state;
                if before == record.state {
                    return None;
                }
                Event { from: Some(before.as_str()), to: Some(record.state.as_str()), ..node("moved") }
            }
            (Key::Node(id), Change::Delete { .. }) => Event::new(revision, "node", "left", id.as_str()),
            (Key::NodeCommand(id, _), Change::Put { pair, .. }) => {
                told(Event::new(revision, "node", "told", id.as_str()), pair)
            }
            (Key::CommandResult(id), Change::Put { pair, .. }) => {
                unheeded(revision, batch.commands.get(&id)?, &ResultRecord::decode(&pair.value).ok()?)?
            }
            (Key::Audit(_), Change::Put { pair, .. }) => {
                let audit = AuditRecord::decode(&pair.value).ok()?;
                let (subject, event) = match audit.action {
                    AuditAction::RevokeLease => ("lease", "revoked"),
                    AuditAction::DeleteKeys => ("keys", "deleted"),
                    // The change itself is in the same transaction, and its event names the author.
                    AuditAction::BreakLock
                    | AuditAction::KillTask
                    | AuditAction::DeleteTask
                    | AuditAction::ForgetTask => return None,
                    _ => ("audit", "unknown"),
                };
                Event::new(revision, subject, event, audit.target.as_str()).audited(Some(&audit))
            }
            (Key::Frozen(id), Change::Put { pair, .. }) => {
                if pair.version != 1 {
                    return None;
                }
                Event::new(revision, "node", "frozen", id.as_str())
            }
            (Key::Frozen(id), Change::Delete { .. }) => Event::new(revision, "node", "unfrozen", id.as_str()),
            _ => return None,
        })
    }

    /// A key among tasks and nodes that the layout does not have: no node handles it.
    fn foreign(&self, change: &Change) -> Option<Event> {
        let Change::Put { pair, .. } = change else { return None };
        let subjects = [("task", self.layout.tasks()), ("node", self.layout.nodes())];
        let (subject, _) = subjects.into_iter().find(|(_, select)| select.contains(&pair.key))?;
        let event = Event::new(pair.modified, subject, "set_aside", pair.key.escape_ascii().to_string());
        Some(Event { said: Some("no key of the layout: no node reads it".to_owned()), ..event })
    }

    /// Who holds and who leads after these changes and did not before.
    fn line_events(&mut self, changes: &[Change], batch: &Batch, revision: Revision) -> Vec<Event> {
        let touched = changes.iter().filter_map(|change| place(&self.layout, change.key()));
        let lines: BTreeSet<LineOf> = touched.map(|(line, _)| line).collect();
        let before: Vec<(LineOf, BTreeMap<Token, First>)> =
            lines.into_iter().map(|line| (line.clone(), self.lines.first(&line))).collect();
        for change in changes {
            match change {
                Change::Put { pair, .. } => drop(self.lines.stand(&self.layout, pair)),
                Change::Delete { .. } => drop(self.lines.leave(&self.layout, change)),
            }
        }
        let mut events = Vec::new();
        for (line, before) in before {
            let now = self.lines.first(&line);
            let gone = before.iter().filter(|(token, _)| !now.contains_key(token));
            let come = now.iter().filter(|(token, _)| !before.contains_key(token));
            let event = |subject, event, name: &String, (token, one): (&Token, &First)| {
                Event::new(revision, subject, event, name.as_str()).node(Some(&one.who)).fence(token.0)
            };
            match &line {
                LineOf::Lock(name) => {
                    events.extend(gone.map(|one| match self.taken(batch, name, one) {
                        Some(audit) => event("lock", "broken", name, one).audited(Some(audit)),
                        None => event("lock", "unlocked", name, one),
                    }));
                    events.extend(come.map(|one| event("lock", "locked", name, one)));
                }
                LineOf::Election(name) => {
                    let is_led = !now.is_empty();
                    let taken = before.values().find_map(|one| self.revoked.get(&one.lease));
                    events.extend(
                        gone.filter(|_| !is_led)
                            .map(|one| event("election", "none", name, one).audited(taken)),
                    );
                    // The key that becomes the first may belong to a dead process. Only its own mark shows that it leads.
                    let former = before.keys().next().filter(|token| !now.contains_key(token));
                    let after = former.map(|token| {
                        format!("after fence {token}; history has no times, so how long no process led is not known")
                    });
                    for one in now.iter().filter(|(token, one)| before.get(token) != Some(one)) {
                        let is_new = before.get(one.0).is_none_or(|before| before.is_unconfirmed);
                        let what = if one.1.is_unconfirmed { "next" } else { "leader" };
                        if is_new {
                            events.push(Event { said: after.clone(), ..event("election", what, name, one) });
                        }
                    }
                }
            }
        }
        events
    }
}

impl Fold {
    /// The record of the operator who took a lock from this holder: its key was deleted, or its lease revoked.
    fn taken<'a>(
        &'a self,
        batch: &'a Batch,
        name: &str,
        (token, one): (&Token, &First),
    ) -> Option<&'a AuditRecord> {
        let broken = batch.audit(AuditAction::BreakLock, name).filter(|audit| audit.token == Some(*token));
        broken.or_else(|| self.revoked.get(&one.lease))
    }
}

/// What became of a command that was not done; of one that was done, what it did is told.
fn unheeded(revision: Revision, command: &Commanded, result: &ResultRecord) -> Option<Event> {
    if result.outcome == CommandOutcome::Done {
        return None;
    }
    let event = Event::new(revision, command.subject, result.outcome.as_str(), command.name.as_str());
    let said: Vec<&str> = command.word.iter().chain(&result.why).map(String::as_str).collect();
    let said = (!said.is_empty()).then(|| said.join(": "));
    Some(Event { said, ..event.node(Some(&result.handled_by)).at(result.at) })
}

fn told(event: Event, pair: &KeyValue) -> Event {
    match CommandRecord::decode(&pair.value) {
        Ok(record) => {
            let event = event.node(Some(record.by).filter(|by| !by.is_empty())).at(record.sent_at);
            Event { said: Some(record.command), ..event }
        }
        Err(bad) => Event { said: Some(format!("a command that cannot be read: {}", bad.reason())), ..event },
    }
}
