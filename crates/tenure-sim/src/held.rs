//! Which holds are valid right now: the one thing that no store can report.
//!
//! All processes of a run live in one process of the machine, so that the validity of all holds can
//! be read in one instant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure::store::Revision;
use tenure_core::queue::LockMode;
use tenure_core::revision::Token;

use crate::history::{Fact, RunHistory};

/// Whether a hold may be relied upon, as its holder sees it.
pub type IsValid = Box<dyn Fn() -> bool + Send + Sync>;

/// The smallest and the largest token there could be.
const FIRST: Token = Token(Revision::ZERO);
const LAST: Token = Token(Revision(i64::MAX));

/// The holds of all processes. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub struct HoldTracker {
    history: RunHistory,
    inner: Arc<Mutex<TrackerState>>,
}

#[derive(Default)]
struct TrackerState {
    /// By subject and token.
    held: BTreeMap<(String, Token), TrackedHold>,
    /// Processes that cannot act, because they are stopped or dead.
    absent: BTreeSet<String>,
    /// Tokens of queue keys that an operator deleted, directly or with their lease: no holder could
    /// foresee that.
    deleted: BTreeSet<Token>,
    /// Subjects that were taken from their holder on purpose.
    withdrawn: BTreeSet<String>,
}

struct TrackedHold {
    process: String,
    mode: LockMode,
    is_valid: IsValid,
}

impl HoldTracker {
    /// No hold yet.
    pub fn new(history: &RunHistory) -> HoldTracker {
        HoldTracker { history: history.clone(), inner: Arc::default() }
    }

    /// A process was notified that it holds.
    pub fn begin(&self, subject: &str, process: &str, token: Token, mode: LockMode, is_valid: IsValid) {
        if !is_valid() {
            // The process was stopped between the notification and reading it, for too long.
            self.history.remark(format!("{process} was notified of {subject} with token {token}, too late"));
            return;
        }
        let mut inner = self.lock();
        if inner.deleted.contains(&token) {
            // An operator deleted the key while the notification was in flight.
            drop(inner);
            self.history.remark(format!(
                "{process} was notified of {subject} with token {token}, deleted by an operator"
            ));
            return;
        }
        let hold = TrackedHold { process: process.to_owned(), mode, is_valid };
        inner.held.insert((subject.to_owned(), token), hold);
        let conflicting = inner.too_many(subject).into_iter().filter(|(_, other)| *other != token).collect();
        drop(inner);
        self.history.note(Fact::Held {
            subject: subject.to_owned(),
            process: process.to_owned(),
            token,
            mode,
            conflicting,
        });
    }

    /// The process releases the hold, or was notified that it is lost.
    pub fn end(&self, subject: &str, token: Token) {
        let ended = self.lock().held.remove(&(subject.to_owned(), token));
        if let Some(hold) = ended {
            let how = if (hold.is_valid)() { "released" } else { "lost" };
            self.history.note(Fact::Ended { subject: subject.to_owned(), process: hold.process, token, how });
        }
    }

    /// The store has deleted a queue key.
    pub fn key_deleted(&self, subject: &str, token: Token) {
        let inner = self.lock();
        let Some(hold) = inner.held.get(&(subject.to_owned(), token)) else { return };
        let was_valid = (hold.is_valid)() && !inner.absent.contains(&hold.process);
        let by_operator = inner.deleted.contains(&token) || inner.withdrawn.contains(subject);
        let process = hold.process.clone();
        drop(inner);
        self.history.note(Fact::KeyDeleted {
            subject: subject.to_owned(),
            process,
            token,
            was_valid,
            by_operator,
        });
    }

    /// A process is stopped or dead, and its holds do not matter.
    pub fn leave(&self, process: &str) {
        self.lock().absent.insert(process.to_owned());
    }

    /// A process resumes, and its holds matter again.
    pub fn come_back(&self, process: &str) {
        let mut inner = self.lock();
        inner.absent.remove(process);
        let lines: BTreeSet<String> = inner.held.keys().map(|(subject, _)| subject.clone()).collect();
        let by: Vec<(String, Vec<(String, Token)>)> =
            lines.into_iter().map(|subject| (subject.clone(), inner.too_many(&subject))).collect();
        drop(inner);
        for (subject, by) in by.into_iter().filter(|(_, by)| !by.is_empty()) {
            self.history.note(Fact::Overlapping { subject, by });
        }
    }

    /// An operator is about to delete a key, or to revoke its lease.
    pub fn deleted(&self, token: Token) {
        self.lock().deleted.insert(token);
    }

    /// A client is about to take this from its holder on purpose, as the deletion of a task does.
    pub fn withdrawn(&self, subject: &str) {
        self.lock().withdrawn.insert(subject.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, TrackerState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TrackerState {
    /// All processes with a valid hold now, if they may not hold together.
    fn too_many(&self, subject: &str) -> Vec<(String, Token)> {
        let of_line = (subject.to_owned(), FIRST)..=(subject.to_owned(), LAST);
        let believers = self.held.range(of_line).filter(|((_, token), hold)| {
            !self.absent.contains(&hold.process) && !self.deleted.contains(token) && (hold.is_valid)()
        });
        let (believers, modes): (Vec<(String, Token)>, Vec<LockMode>) =
            believers.map(|((_, token), hold)| ((hold.process.clone(), *token), hold.mode)).unzip();
        let may = modes.iter().all(|mode| match mode {
            LockMode::Exclusive => modes.len() == 1,
            LockMode::Shared => modes.iter().all(|other| *other == LockMode::Shared),
            LockMode::Permit { of } => modes.len() <= of.get() as usize,
        });
        if may { Vec::new() } else { believers }
    }
}
