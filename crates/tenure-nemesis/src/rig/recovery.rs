//! What must hold when all faults have ended: all clients go on, settle and exit, and nothing is
//! left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tenure::session::Session;
use tenure::store::{KeyValue, Selection, Store, StoreError};
use tenure::task::TaskState;
use tenure::{Error, Tenure};
use tenure_core::id::{Namespace, TaskId};
use tenure_core::layout::{Key, KeyLifetime as Stay, Layout};

use super::Rig;
use crate::check::settled;
use crate::check::{Violation, command_replies};
use crate::client::{NAMESPACE, registered};
use crate::history::{HistoryEvent, OperationKind, OperationOutcome, Stamp};

/// For all clients to do each kind of operation again. Guaranteed are twice the TTL and three
/// seconds for one waiter; many wait for one another here, on a machine that may be busy with other
/// things.
const GOING_ON: Duration = Duration::from_secs(45);

/// For operations in flight to end: a sender waits ten seconds for its reply, a waiter of a lock
/// eight.
const SETTLING: Duration = Duration::from_secs(60);

/// For all tasks to end.
const TASKS_END: Duration = Duration::from_secs(60);

/// For all clients to close what they have open.
const GOING: Duration = Duration::from_secs(40);

/// What etcd takes to look whether a lease is over, and what a busy machine adds.
const LOOKING: Duration = Duration::from_secs(4);

/// The tasks of the namespace. Needs no lease, so the session sends nothing.
fn tasks_of(store: Store) -> Tenure {
    let session = Session::open(store).expect("the default TTL is valid");
    Tenure::on_session(&session, namespace()).expect("a good name")
}

/// Names are valid here, so only the store fails.
fn store_error(error: Error) -> StoreError {
    match error {
        Error::Store(error) => error,
        other => StoreError::Corrupt(other.to_string()),
    }
}

/// Checks what is there after the faults.
pub(super) struct Recovery<'a> {
    rig: &'a mut Rig,
    violations: Vec<Violation>,
}

impl Recovery<'_> {
    pub(super) fn new(rig: &mut Rig) -> Recovery<'_> {
        Recovery { rig, violations: Vec::new() }
    }

    pub(super) fn violations(self) -> Vec<Violation> {
        self.violations
    }

    fn broken(&mut self, promise: &'static str, what: impl Into<String>) {
        self.violations.push(Violation { promise, what: what.into() });
    }

    /// What was to be so.
    pub(super) fn must(&mut self, outcome: Result<(), Violation>) {
        self.violations.extend(outcome.err());
    }

    /// All clients do each kind of operation again.
    pub(super) fn check_progress(&self, since: Stamp) -> Result<(), Violation> {
        let went_on = self.rig.processes.await_progress(since, GOING_ON, self.rig.options.against);
        went_on.map_err(|names| Violation {
            promise: "work goes on",
            what: format!("{} did not, {GOING_ON:?} after the last fault", names.join(", ")),
        })
    }

    /// All clients finish their work.
    pub(super) fn check_settled(&mut self) {
        self.rig.processes.calm();
        if let Err(names) = self.rig.processes.await_settled(SETTLING) {
            self.broken("clients settle", format!("{} did not within {SETTLING:?}", names.join(", ")));
        }
    }

    /// Every task that was submitted has ended, as it should.
    pub(super) fn tasks_end(&mut self) {
        let deadline = Instant::now() + TASKS_END;
        loop {
            let listing = self.rig.place.insist("listing tasks", |store| async move {
                tasks_of(store).tasks().list().await.map_err(store_error)
            });
            let tasks = match listing {
                Ok(listing) => listing.tasks,
                Err(what) => return self.broken("tasks end", what),
            };
            if tasks.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                let names: Vec<String> =
                    tasks.iter().map(|task| format!("{} ({:?})", task.id, task.state())).collect();
                return self
                    .broken("tasks end", format!("still there after {TASKS_END:?}: {}", names.join(", ")));
            }
            // The client that should let it run was killed after it had paused it.
            for task in tasks.iter().filter(|task| task.state() == Some(TaskState::Paused)) {
                let id = task.id.clone();
                self.rig.place.read(async |store| tasks_of(store).task(&id).resume().no_reply().await);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        for (id, file) in self.recorded(|event, open| match event {
            HistoryEvent::Asked { op, work: OperationKind::Submit, line, .. } => {
                open.insert(*op, line.clone());
                None
            }
            HistoryEvent::Answered { op, outcome: OperationOutcome::Ok, .. } => open.remove(op),
            _ => None,
        }) {
            let Ok(task) = TaskId::parse(&id) else { continue };
            let state = self.rig.place.insist("reading a state", |store| {
                let task = task.clone();
                async move { tasks_of(store).task(&task).summary().await.map_err(store_error) }
            });
            match state {
                Ok(Some(task)) if task.state() == Some(TaskState::Completed) => {}
                Ok(task) => {
                    let state = task.and_then(|task| task.state());
                    self.broken("no task is lost", format!("{id} of {file} was submitted and is {state:?}"));
                }
                Err(what) => self.broken("no task is lost", what),
            }
        }
    }

    /// Exactly what the living want is registered.
    pub(super) fn registrations_are_there(&mut self) {
        let lives = match self.rig.processes.living() {
            Ok(lives) => lives,
            Err(what) => return self.broken("registrations match", what),
        };
        let wanted = settled::wanted(&lives.iter().collect::<Vec<_>>());
        // Keys of the killed go with their leases.
        let deadline = Instant::now() + self.leases_end_within();
        loop {
            let found = match self.list(&Selection::prefix(registered())) {
                Ok(pairs) => pairs,
                Err(what) => return self.broken("registrations match", what),
            };
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let found: BTreeMap<String, String> =
                found.iter().map(|pair| (text(&pair.key), text(&pair.value))).collect();
            let differences = settled::registrations(&wanted, &found);
            if differences.is_empty() || Instant::now() > deadline {
                self.violations.extend(differences);
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Each command that was sent has one answer.
    pub(super) fn commands_are_answered(&mut self) {
        let sent = self.recorded(|event, _| match event {
            HistoryEvent::Sent { command } => Some(command.clone()),
            _ => None,
        });
        let pairs = match self.list(&Selection::everything()) {
            Ok(pairs) => pairs,
            Err(what) => return self.broken("commands are answered", what),
        };
        let (mut results, mut waiting) = (Vec::new(), Vec::new());
        for pair in &pairs {
            match layout().parse(&pair.key) {
                Some(Key::CommandResult(command)) => {
                    results.push((command.to_string(), pair.created == pair.modified));
                }
                Some(Key::TaskCommand(task)) => waiting.push(format!("the command to {task}")),
                _ => {}
            }
        }
        self.violations.extend(command_replies::against(&sent, &results, &waiting));
    }

    /// All clients close what they have open, and exit.
    pub(super) fn check_exit(&mut self) {
        self.rig.processes.go();
        for what in self.rig.processes.await_end(GOING) {
            self.broken("nothing leaks", what);
        }
        for what in self.rig.processes.panics() {
            self.broken("no client panics", what);
        }
    }

    /// No key, no lease, no watcher, no file and no task of a runtime is left, but what is meant to stay.
    pub(super) fn nothing_is_left(&mut self) {
        match self.rig.processes.living() {
            Ok(lives) => self.violations.extend(lives.iter().flat_map(settled::left)),
            Err(what) => self.broken("nothing leaks", what),
        }
        let deadline = Instant::now() + self.leases_end_within();
        let left = loop {
            let left = match self.list(&Selection::everything()) {
                Ok(pairs) => pairs.into_iter().filter(|pair| !stays(pair)).collect::<Vec<_>>(),
                Err(what) => return self.broken("nothing leaks", what),
            };
            if left.is_empty() || Instant::now() > deadline {
                break left;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        for pair in left {
            self.broken("nothing leaks", format!("the key {}", String::from_utf8_lossy(&pair.key)));
        }
        if let Err(what) = self.leases_end() {
            self.broken("nothing leaks", what);
        }
        let watchers = self.rig.place.watchers_left();
        if watchers > 0 {
            self.broken("nothing leaks", format!("{watchers} watchers at etcd"));
        }
    }

    /// For leases of the killed to end: twice the TTL, because etcd refreshes them when its leader changes.
    fn leases_end_within(&self) -> Duration {
        2 * self.rig.options.against.ttl() + LOOKING
    }

    /// Leases that carry none of what stays end by themselves, or are ended.
    fn leases_end(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + self.leases_end_within();
        loop {
            let kept: BTreeSet<_> =
                self.list(&Selection::everything())?.into_iter().filter_map(|pair| pair.lease).collect();
            let leases =
                self.rig.place.insist("listing leases", |store| async move { store.leases().await })?;
            let mut left = Vec::new();
            for lease in leases.into_iter().filter(|lease| !kept.contains(lease)) {
                let view =
                    self.rig.place.insist("a lease", |store| async move { store.lease(lease).await })?;
                left.extend(view.map(|view| (lease, view.granted)));
            }
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let (leases, granted): (Vec<_>, Vec<_>) = left.into_iter().unzip();
                return Err(format!("leases without keys: {leases:?} of {granted:?}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn list(&self, select: &Selection) -> Result<Vec<KeyValue>, String> {
        self.rig.place.insist("listing", |store| {
            let select = select.clone();
            async move { store.list(select).await.map(|page| page.pairs) }
        })
    }

    /// The records of all incarnations, with the history of each.
    fn recorded(
        &mut self,
        mut read: impl FnMut(&HistoryEvent, &mut BTreeMap<u64, String>) -> Option<String>,
    ) -> Vec<(String, String)> {
        let lives = match self.rig.processes.lives() {
            Ok(lives) => lives,
            Err(what) => {
                self.broken("histories can be read", what);
                return Vec::new();
            }
        };
        let mut records = Vec::new();
        for life in lives {
            let mut open = BTreeMap::new();
            for line in &life.lines {
                records.extend(read(&line.event, &mut open).map(|what| (what, life.file.clone())));
            }
        }
        records
    }
}

/// States of ended tasks and their entries are kept for days, commands for a week, their results for a day, audit records for a week; the register is the rig's own.
fn stays(pair: &KeyValue) -> bool {
    match layout().parse(&pair.key) {
        Some(Key::TaskState(_) | Key::EndedTask(..)) => true,
        // The rig sends none.
        Some(Key::NodeCommand(..)) => false,
        Some(key) => matches!(key.life(), Stay::ExpiresAfter(_) | Stay::KeptFor(_)),
        None => pair.key == format!("/{NAMESPACE}-register").as_bytes(),
    }
}

fn layout() -> Layout {
    Layout::new(&namespace())
}

fn namespace() -> Namespace {
    Namespace::parse(NAMESPACE).expect("a good name")
}
