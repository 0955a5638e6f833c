//! The fold: one revision in, its events out.

use std::collections::{BTreeMap, BTreeSet};

use super::queues::{FirstKey, QueueHistory, QueueName, queue_of};
use super::terms::{TermHistory, time_in, time_of};
use super::{
    ElectionEvent, Event, EventKind, KeyFamily, LockEvent, NodeEvent, SentCommand, TaskEvent, UnheededCommand,
};
use crate::change::Change;
use crate::id::{CommandId, ElectionName, LockName, NodeId, TaskId};
use crate::kv::KeyValue;
use crate::layout::{Key, Layout};
use crate::lease::LeaseId;
use crate::record::{
    AuditAction, AuditRecord, CommandOutcome, CommandRecord, MemberRecord, OwnerRecord, Record,
    ResignationRecord, ResultRecord, TaskRecord, Timestamp,
};
use crate::revision::{Revision, Token};
use crate::task::{StateRecord, TaskState};

impl Event {
    /// An event for which no record contains a time.
    pub fn new(revision: Revision, kind: EventKind) -> Event {
        Event { revision, at: None, audit: None, kind }
    }

    /// With the time of a record; one that was never set is none.
    fn at(mut self, time: Timestamp) -> Event {
        self.at = Some(time).filter(|time| *time != Timestamp::default());
        self
    }

    /// With the author and the reason, where they are recorded, and the time of that.
    fn audited(self, audit: Option<&AuditRecord>) -> Event {
        match audit {
            Some(audit) => Event { audit: Some(audit.clone()), ..self }.at(audit.at),
            None => self,
        }
    }
}

/// Folds changes of keys into events.
///
/// Give it the keys of all locks and elections as they were at some revision with [`EventFold::seed`], then the changes of every later
/// revision in order, each with what was there before, with [`EventFold::handle`].
#[derive(Clone, Debug)]
pub struct EventFold {
    layout: Layout,
    queues: QueueHistory,
    terms: TermHistory,
    /// Leases that an operator revoked: their keys are deleted after the record was put.
    revoked: BTreeMap<LeaseId, AuditRecord>,
}

/// The changes of one revision, by what they mean together.
#[derive(Default)]
struct RevisionChanges {
    deleted: BTreeSet<TaskId>,
    states: BTreeMap<TaskId, StateRecord>,
    owners: BTreeMap<TaskId, OwnerRecord>,
    /// Commands that were deleted or replaced.
    commands: BTreeMap<CommandId, RemovedCommand>,
    audits: Vec<AuditRecord>,
    /// The terms that ended by a request.
    resignations: BTreeMap<Token, ResignationRecord>,
}

impl RevisionChanges {
    /// The record of this action on this target.
    fn audit(&self, action: AuditAction, target: &str) -> Option<&AuditRecord> {
        self.audits.iter().find(|audit| audit.action == action && audit.target == target)
    }
}

/// A command, and its addressee.
struct RemovedCommand {
    addressee: Addressee,
    /// The command, if its record can be read.
    command: Option<String>,
}

#[derive(Clone)]
enum Addressee {
    Task(TaskId),
    Node(NodeId),
}

impl EventFold {
    /// A fold of the keys of one namespace.
    pub fn new(layout: Layout) -> EventFold {
        EventFold {
            layout,
            queues: QueueHistory::default(),
            terms: TermHistory::default(),
            revoked: BTreeMap::new(),
        }
    }

    /// Takes the keys that were there before the first change. Only those of locks and elections matter.
    pub fn seed(&mut self, pairs: impl IntoIterator<Item = KeyValue>) {
        let mut pairs: Vec<KeyValue> = pairs.into_iter().collect();
        // In the order of their creation, not of their keys: a candidate that waited is known by the one before it.
        pairs.sort_by_key(|pair| pair.created);
        for pair in &pairs {
            if let Some(at) = time_of(&self.layout, pair) {
                self.terms.handle_time(at);
            }
            self.queues.handle_put(&self.layout, pair);
        }
    }

    /// Takes all changes of one revision, each with what was there before, and returns what happened.
    pub fn handle(&mut self, changes: &[Change]) -> Vec<Event> {
        let batch = self.gather(changes);
        let revoked = batch.audits.iter().filter(|audit| audit.action == AuditAction::RevokeLease);
        self.revoked
            .extend(revoked.filter_map(|audit| Some((LeaseId::parse_hex(&audit.target)?, audit.clone()))));
        let mut events: Vec<Event> = changes.iter().filter_map(|change| self.event(change, &batch)).collect();
        if let Some(first) = changes.first() {
            self.queue_events(changes, &batch, first.revision(), &mut events);
        }
        // Only what was put before a delete bounds its time, so the times of this revision count from the next one on.
        changes
            .iter()
            .filter_map(|change| time_in(&self.layout, change))
            .for_each(|at| self.terms.handle_time(at));
        events
    }

    fn gather(&self, changes: &[Change]) -> RevisionChanges {
        let mut batch = RevisionChanges::default();
        for change in changes {
            match (self.layout.parse(change.key()), change) {
                (Some(Key::Task(task)), Change::Delete { .. }) => drop(batch.deleted.insert(task)),
                (Some(Key::TaskState(task)), Change::Put { pair, .. }) => {
                    batch.states.extend(StateRecord::decode(&pair.value).ok().map(|state| (task, state)));
                }
                (Some(Key::Audit(_)), Change::Put { pair, .. }) => {
                    batch.audits.extend(AuditRecord::decode(&pair.value));
                }
                (Some(Key::Resignation(..)), Change::Put { pair, .. }) => {
                    let record = ResignationRecord::decode(&pair.value).ok();
                    batch.resignations.extend(record.and_then(|record| Some((record.token?, record))));
                }
                (Some(Key::TaskOwner(task)), Change::Delete { previous: Some(previous), .. }) => {
                    batch.owners.extend(OwnerRecord::decode(&previous.value).ok().map(|owner| (task, owner)));
                }
                (
                    Some(Key::TaskCommand(task)),
                    Change::Delete { previous: Some(previous), .. }
                    | Change::Put { previous: Some(previous), .. },
                ) => {
                    if let Ok(CommandRecord { id: Some(id), command, .. }) =
                        CommandRecord::decode(&previous.value)
                    {
                        let addressee = Addressee::Task(task);
                        batch.commands.insert(id, RemovedCommand { addressee, command: Some(command) });
                    }
                }
                (Some(Key::NodeCommand(node, id)), Change::Delete { previous, .. }) => {
                    let record = previous.as_ref().and_then(|pair| CommandRecord::decode(&pair.value).ok());
                    let command = record.map(|record| record.command);
                    batch.commands.insert(id, RemovedCommand { addressee: Addressee::Node(node), command });
                }
                _ => {}
            }
        }
        batch
    }

    /// What one change means, beside the others of its revision.
    fn event(&self, change: &Change, batch: &RevisionChanges) -> Option<Event> {
        let Some(key) = self.layout.parse(change.key()) else { return self.unknown_key(change) };
        let revision = change.revision();
        match key {
            Key::Task(id) => task_event(id, change, batch),
            Key::TaskOwner(id) => owner_event(id, change, batch),
            Key::TaskState(id) => state_event(id, change, batch),
            Key::TaskCommand(id) => {
                let Change::Put { pair, .. } = change else { return None };
                let audit = batch.audit(AuditAction::KillTask, id.as_str()).cloned();
                let (command, at) = sent(pair);
                let kind = EventKind::Task { id, event: TaskEvent::CommandSent(command) };
                Some(Event { audit, ..Event::new(revision, kind).at(at) })
            }
            Key::Node(id) => node_event(id, change),
            Key::NodeCommand(id, _) => {
                let Change::Put { pair, .. } = change else { return None };
                let (command, at) = sent(pair);
                let kind = EventKind::Node { id, event: NodeEvent::CommandSent(command) };
                Some(Event::new(revision, kind).at(at))
            }
            Key::CommandResult(id) => {
                let Change::Put { pair, .. } = change else { return None };
                unheeded(revision, batch.commands.get(&id)?, ResultRecord::decode(&pair.value).ok()?)
            }
            Key::Audit(_) => {
                let Change::Put { pair, .. } = change else { return None };
                let audit = AuditRecord::decode(&pair.value).ok()?;
                Some(Event::new(revision, audit_kind(audit.action)?).audited(Some(&audit)))
            }
            Key::Frozen(id) => {
                let event = match change {
                    Change::Put { pair, .. } if pair.version != 1 => return None,
                    Change::Put { .. } => NodeEvent::Frozen,
                    Change::Delete { .. } => NodeEvent::Unfrozen,
                };
                Some(Event::new(revision, EventKind::Node { id, event }))
            }
            _ => None,
        }
    }

    /// A key among tasks and nodes that the layout does not have: no node handles it.
    fn unknown_key(&self, change: &Change) -> Option<Event> {
        let Change::Put { pair, .. } = change else { return None };
        let families = [(KeyFamily::Tasks, self.layout.tasks()), (KeyFamily::Nodes, self.layout.nodes())];
        let (among, _) = families.into_iter().find(|(_, select)| select.contains(&pair.key))?;
        Some(Event::new(pair.modified, EventKind::UnknownKey { among, key: pair.key.clone() }))
    }

    /// New holders and leaders after these changes.
    fn queue_events(
        &mut self,
        changes: &[Change],
        batch: &RevisionChanges,
        revision: Revision,
        events: &mut Vec<Event>,
    ) {
        let touched = changes.iter().filter_map(|change| queue_of(&self.layout, change.key()));
        let names: BTreeSet<QueueName> = touched.map(|(name, _)| name).collect();
        let before: Vec<(QueueName, BTreeMap<Token, FirstKey>)> =
            names.into_iter().map(|name| (name.clone(), self.queues.first(&name))).collect();
        for change in changes {
            match change {
                Change::Put { pair, .. } => self.queues.handle_put(&self.layout, pair),
                Change::Delete { .. } => self.queues.handle_delete(&self.layout, change),
            }
        }
        for (name, before) in before {
            let now = self.queues.first(&name);
            let turn = QueueTurn { revision, before, now };
            match name {
                QueueName::Lock(name) => self.lock_events(&name, &turn, batch, events),
                QueueName::Election(name) => self.election_events(&name, &turn, batch, events),
            }
        }
    }

    fn lock_events(
        &self,
        name: &LockName,
        turn: &QueueTurn,
        batch: &RevisionChanges,
        events: &mut Vec<Event>,
    ) {
        let event = |event| Event::new(turn.revision, EventKind::Lock { name: name.clone(), event });
        for (token, one) in turn.gone() {
            let broken = batch.audit(AuditAction::BreakLock, name.as_str());
            // A lock is taken from its holder by the delete of its key, or by the revoke of its lease.
            let audit = broken.filter(|audit| audit.token == Some(token));
            let audit = audit.or_else(|| self.revoked.get(&one.lease));
            let holding = one.holding(token);
            events.push(match audit {
                Some(_) => event(LockEvent::Broken(holding)).audited(audit),
                None => event(LockEvent::Released(holding)),
            });
        }
        for (token, one) in turn.now.iter().filter(|(token, _)| !turn.before.contains_key(token)) {
            events.push(event(LockEvent::Acquired(one.holding(*token))));
        }
    }

    fn election_events(
        &mut self,
        name: &ElectionName,
        turn: &QueueTurn,
        batch: &RevisionChanges,
        events: &mut Vec<Event>,
    ) {
        let event = |event| Event::new(turn.revision, EventKind::Election { name: name.clone(), event });
        for (token, one) in turn.gone() {
            let revoked = self.revoked.get(&one.lease);
            // A candidate that never led had no term that could end.
            let is_term = !one.is_unconfirmed;
            let resignation = batch.resignations.get(&token);
            let end = is_term.then(|| self.terms.handle_end(name, (token, one), resignation, revoked));
            if turn.now.is_empty() {
                let last = one.holding(token);
                events.push(event(ElectionEvent::NoLeader { last, end }).audited(revoked));
            }
        }
        // The key that becomes the first may belong to a dead process. Only its own mark shows that it leads.
        for (token, one) in &turn.now {
            let is_new = turn.before.get(token).is_none_or(|before| before.is_unconfirmed);
            if !is_new || turn.before.get(token) == Some(one) {
                continue;
            }
            events.push(event(if one.is_unconfirmed {
                let candidate = one.holding(*token);
                ElectionEvent::CandidateNext { candidate, previous: self.terms.last(name) }
            } else {
                let previous = self.terms.handle_begin(name).map(|ended| ended.before(one.began()));
                ElectionEvent::LeaderElected { leader: one.holding(*token), previous }
            }));
        }
    }
}

/// The first keys of a queue before and after a revision.
struct QueueTurn {
    revision: Revision,
    before: BTreeMap<Token, FirstKey>,
    now: BTreeMap<Token, FirstKey>,
}

impl QueueTurn {
    fn gone(&self) -> impl Iterator<Item = (Token, &FirstKey)> {
        let gone = self.before.iter().filter(|(token, _)| !self.now.contains_key(token));
        gone.map(|(token, one)| (*token, one))
    }
}

fn task_event(id: TaskId, change: &Change, batch: &RevisionChanges) -> Option<Event> {
    let revision = change.revision();
    let task = |id, event| Event::new(revision, EventKind::Task { id, event });
    match change {
        // A record that is written again submits nothing.
        Change::Put { pair, .. } if pair.version != 1 => None,
        Change::Put { pair, .. } => Some(match TaskRecord::decode(&pair.value) {
            Ok(record) => {
                let event = TaskEvent::Submitted { kind: record.kind, has_ended: record.ended };
                task(id, event).at(record.submitted_at)
            }
            Err(bad) => task(id, TaskEvent::Unreadable { reason: bad.reason() }),
        }),
        Change::Delete { .. } => {
            let owner = batch.owners.get(&id).map(|owner| owner.node.clone());
            match batch.states.get(&id).filter(|state| state.state.is_terminal()) {
                Some(record) => {
                    let node = record.by.clone().or(owner);
                    let (state, reason) = (record.state.kind(), record.reason.clone());
                    Some(task(id, TaskEvent::Ended { state, node, reason }).at(record.updated_at))
                }
                None => {
                    let audit = batch.audit(AuditAction::DeleteTask, id.as_str());
                    Some(task(id, TaskEvent::Deleted { owner }).audited(audit))
                }
            }
        }
    }
}

fn owner_event(id: TaskId, change: &Change, batch: &RevisionChanges) -> Option<Event> {
    let event = match change {
        Change::Put { pair, .. } => TaskEvent::Claimed {
            node: OwnerRecord::decode(&pair.value).ok().map(|owner| owner.node),
            token: Token(pair.created),
        },
        // The end of the task is the event.
        Change::Delete { .. } if batch.deleted.contains(&id) => return None,
        Change::Delete { previous, .. } => TaskEvent::Released {
            node: batch.owners.get(&id).map(|owner| owner.node.clone()),
            token: previous.as_ref().map(|previous| Token(previous.created)),
        },
    };
    Some(Event::new(change.revision(), EventKind::Task { id, event }))
}

fn state_event(id: TaskId, change: &Change, batch: &RevisionChanges) -> Option<Event> {
    let revision = change.revision();
    match change {
        Change::Put { previous, .. } => {
            let record = batch.states.get(&id)?;
            let before = previous.as_ref().and_then(|pair| StateRecord::decode(&pair.value).ok());
            let from = before.map_or(TaskState::Runnable, |before| before.state.kind());
            let to = record.state.kind();
            if from == to || batch.deleted.contains(&id) {
                return None;
            }
            let event = TaskEvent::StateChanged { from, to, node: record.by.clone() };
            Some(Event::new(revision, EventKind::Task { id, event }).at(record.updated_at))
        }
        Change::Delete { .. } => {
            let audit = batch.audit(AuditAction::ForgetTask, id.as_str());
            let kind = EventKind::Task { id, event: TaskEvent::Forgotten };
            Some(Event::new(revision, kind).audited(audit))
        }
    }
}

fn node_event(id: NodeId, change: &Change) -> Option<Event> {
    let revision = change.revision();
    let Change::Put { pair, previous } = change else {
        return Some(Event::new(revision, EventKind::Node { id, event: NodeEvent::Left }));
    };
    let record = MemberRecord::decode(&pair.value).ok()?;
    let Some(before) = previous.as_ref().filter(|_| pair.version > 1) else {
        let event = NodeEvent::Joined { token: Token(pair.created), state: record.state };
        return Some(Event::new(revision, EventKind::Node { id, event }).at(record.started));
    };
    let (from, to) = (MemberRecord::decode(&before.value).ok()?.state, record.state);
    let event = NodeEvent::StateChanged { from, to };
    (from != to).then(|| Event::new(revision, EventKind::Node { id, event }))
}

/// What an audit record alone means. Where the change itself is in the same transaction, the event of that has the record.
fn audit_kind(action: AuditAction) -> Option<EventKind> {
    match action {
        AuditAction::RevokeLease => Some(EventKind::LeaseRevoked),
        AuditAction::DeleteKeys => Some(EventKind::KeysDeleted),
        AuditAction::BreakLock
        | AuditAction::KillTask
        | AuditAction::DeleteTask
        | AuditAction::ForgetTask => None,
        AuditAction::Other => Some(EventKind::UnknownAction),
    }
}

/// How a command ended that was not done. What one did that was done, other events show.
fn unheeded(revision: Revision, sent: &RemovedCommand, result: ResultRecord) -> Option<Event> {
    let ResultRecord { handled_by, outcome, at, why: reason, .. } = result;
    if outcome == CommandOutcome::Done {
        return None;
    }
    let command = UnheededCommand { command: sent.command.clone(), outcome, handled_by, reason };
    let kind = match sent.addressee.clone() {
        Addressee::Task(id) => EventKind::Task { id, event: TaskEvent::CommandNotDone(command) },
        Addressee::Node(id) => EventKind::Node { id, event: NodeEvent::CommandNotDone(command) },
    };
    Some(Event::new(revision, kind).at(at))
}

/// A command and when it was sent.
fn sent(pair: &KeyValue) -> (SentCommand, Timestamp) {
    match CommandRecord::decode(&pair.value) {
        Ok(record) => {
            let by = Some(record.by).filter(|by| !by.is_empty());
            (SentCommand { command: Ok(record.command), by }, record.sent_at)
        }
        Err(bad) => (SentCommand { command: Err(bad.reason()), by: None }, Timestamp::default()),
    }
}
