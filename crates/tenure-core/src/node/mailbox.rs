//! The commands that wait for tasks: the fold of the feed of `commands/`.
//!
//! A claim reads the command of its task in the same step, so this picture is needed only for what comes after. But between a claim and its
//! answer a command may be seen here first; so all of them are kept, whoever owns the tasks. There are few: a command is deleted when it was handled.
//!
//! A command lies under a lease that was granted for it alone. Its sender ends that lease when it is told, if it lives that long; so does whoever
//! answers it. An answer may be lost, and its task with it; then the feed says that the command is gone, and its lease is over all the same.
//!
//! **Invariant**: a lease is said to be over only when the command that it was granted for is known to be gone.

use std::collections::BTreeMap;

use crate::kv::KeyValue;
use crate::layout::{Key, Layout};
use crate::lease::LeaseId;
use crate::name::{CommandId, TaskId};
use crate::picture::FeedItem;
use crate::record::{CommandRecord, Record};
use crate::revision::Revision;
use crate::task::Message;

/// A command to a task, as it was read.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Mail {
    /// When it was put.
    pub(super) modified: Revision,
    /// Under which id its sender waits.
    pub(super) id: Option<CommandId>,
    /// The lease that it alone lies under.
    pub(super) own_lease: Option<LeaseId>,
    /// What it says; or why that cannot be understood.
    pub(super) message: Result<Message, String>,
}

impl Mail {
    pub(super) fn read(pair: &KeyValue) -> Mail {
        let record = CommandRecord::decode(&pair.value).map_err(|error| error.reason());
        let id = record.as_ref().ok().and_then(|record| record.id.clone());
        let own_lease = record.as_ref().ok().and_then(|record| record.own_lease(pair.lease));
        let message = record.and_then(|record| Message::parse(&record).map_err(|bad| bad.to_string()));
        Mail { modified: pair.modified, id, own_lease, message }
    }
}

/// What became of a command.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum MailChange {
    /// It was put.
    Came(TaskId, Mail),
    /// It is gone: handled, withdrawn or expired.
    Went(TaskId, Revision),
    /// One that was answered from here is gone, and nothing lies under its lease any more.
    Over(LeaseId),
}

/// All commands that wait.
#[derive(Clone, Debug)]
pub(super) struct Mailbox {
    layout: Layout,
    mails: BTreeMap<TaskId, Mail>,
    pending: BTreeMap<TaskId, MailChange>,
    /// The leases of those whose answer was sent, until it is known that they are gone; with them when they were put.
    answering: BTreeMap<TaskId, BTreeMap<Revision, LeaseId>>,
}

impl Mailbox {
    pub(super) fn new(layout: Layout) -> Mailbox {
        Mailbox { layout, mails: BTreeMap::new(), pending: BTreeMap::new(), answering: BTreeMap::new() }
    }

    /// The command that waits for a task, as far as is known.
    pub(super) fn get(&self, task: &TaskId) -> Option<&Mail> {
        self.mails.get(task)
    }

    /// A command is being answered: once it is gone, so should its lease be, whatever becomes of the answer.
    pub(super) fn answer(&mut self, task: &TaskId, modified: Revision, own_lease: LeaseId) {
        self.answering.entry(task.clone()).or_default().insert(modified, own_lease);
    }

    /// It was answered, and is gone: its lease is over.
    pub(super) fn answered(&mut self, task: &TaskId, modified: Revision) -> Option<LeaseId> {
        let leases = self.answering.get_mut(task)?;
        let over = leases.remove(&modified);
        if leases.is_empty() {
            self.answering.remove(task);
        }
        over
    }

    /// Something came from the feed; says what changed when the picture is whole.
    pub(super) fn handle_item(&mut self, item: FeedItem) -> Vec<MailChange> {
        match item {
            FeedItem::Begin => {}
            FeedItem::Put(pair) => {
                if let Some(Key::TaskCommand(task)) = self.layout.parse(&pair.key) {
                    self.pending.insert(task.clone(), MailChange::Came(task, Mail::read(&pair)));
                }
            }
            FeedItem::Delete { key, revision } => {
                if let Some(Key::TaskCommand(task)) = self.layout.parse(&key) {
                    self.pending.insert(task.clone(), MailChange::Went(task, revision));
                }
            }
            FeedItem::Whole(_) => {
                let mut changes: Vec<MailChange> = std::mem::take(&mut self.pending).into_values().collect();
                let mut over = Vec::new();
                for change in &changes {
                    match change {
                        MailChange::Came(task, mail) => {
                            over.extend(self.over_before(task, mail.modified));
                            self.mails.insert(task.clone(), mail.clone());
                        }
                        MailChange::Went(task, at) => {
                            over.extend(self.over_before(task, *at));
                            self.mails.remove(task);
                        }
                        MailChange::Over(_) => {}
                    }
                }
                changes.extend(over.into_iter().map(MailChange::Over));
                return changes;
            }
        }
        Vec::new()
    }

    /// The leases of those to a task that were answered, and that something newer is known to have taken the place of.
    fn over_before(&mut self, task: &TaskId, at: Revision) -> Vec<LeaseId> {
        let Some(leases) = self.answering.get_mut(task) else { return Vec::new() };
        let later = leases.split_off(&at);
        let over = std::mem::replace(leases, later).into_values().collect();
        if leases.is_empty() {
            self.answering.remove(task);
        }
        over
    }
}
