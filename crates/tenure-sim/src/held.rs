//! Who believes what, right now: the one thing that no store can tell.
//!
//! All participants live in one process here, so that the question "who believes that it holds" can be asked of all of them in one instant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure::store::Revision;
use tenure_core::queue::LockMode;
use tenure_core::revision::Token;

use crate::history::{Fact, RunHistory};

/// Whether a hold may be relied upon, as its holder is told.
pub type IsValid = Box<dyn Fn() -> bool + Send + Sync>;

/// The smallest and the largest token there could be.
const FIRST: Token = Token(Revision::ZERO);
const LAST: Token = Token(Revision(i64::MAX));

/// Everybody's holds. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct HoldTracker {
    history: RunHistory,
    inner: Arc<Mutex<TrackerState>>,
}

#[derive(Default)]
struct TrackerState {
    /// By subject and token.
    held: BTreeMap<(String, Token), TrackedHold>,
    /// Who cannot act, because it is stopped or dead.
    absent: BTreeSet<String>,
    /// SeedSelection somebody has deleted by hand, or by revoking a lease: nobody could foresee that.
    deleted: BTreeSet<Token>,
    /// SeedSelection somebody took from whoever holds it, with every right.
    withdrawn: BTreeSet<String>,
}

struct TrackedHold {
    who: String,
    mode: LockMode,
    is_valid: IsValid,
}

impl HoldTracker {
    /// Nobody believes anything.
    pub fn new(history: &RunHistory) -> HoldTracker {
        HoldTracker { history: history.clone(), inner: Arc::default() }
    }

    /// Somebody was told that it holds.
    pub fn begin(&self, subject: &str, who: &str, token: Token, mode: LockMode, is_valid: IsValid) {
        if !is_valid() {
            // It was stopped between the news and its reading, for too long.
            self.history.remark(format!("{who} was told of {subject} with token {token}, too late"));
            return;
        }
        let mut inner = self.lock();
        if inner.deleted.contains(&token) {
            // Somebody deleted it by hand while the news was on its way.
            drop(inner);
            self.history
                .remark(format!("{who} was told of {subject} with token {token}, which is gone by hand"));
            return;
        }
        let hold = TrackedHold { who: who.to_owned(), mode, is_valid };
        inner.held.insert((subject.to_owned(), token), hold);
        let beside = inner.too_many(subject).into_iter().filter(|(_, other)| *other != token).collect();
        drop(inner);
        self.history.note(Fact::Held {
            subject: subject.to_owned(),
            who: who.to_owned(),
            token,
            mode,
            beside,
        });
    }

    /// It gives it up, or was told that it is lost.
    pub fn end(&self, subject: &str, token: Token) {
        let ended = self.lock().held.remove(&(subject.to_owned(), token));
        if let Some(hold) = ended {
            let how = if (hold.is_valid)() { "given up" } else { "lost" };
            self.history.note(Fact::Ended { subject: subject.to_owned(), who: hold.who, token, how });
        }
    }

    /// The store has let go of a place.
    pub fn let_go(&self, subject: &str, token: Token) {
        let inner = self.lock();
        let Some(hold) = inner.held.get(&(subject.to_owned(), token)) else { return };
        let believed = (hold.is_valid)() && !inner.absent.contains(&hold.who);
        let by_hand = inner.deleted.contains(&token) || inner.withdrawn.contains(subject);
        let who = hold.who.clone();
        drop(inner);
        self.history.note(Fact::KeyDeleted { subject: subject.to_owned(), who, token, believed, by_hand });
    }

    /// Somebody is stopped or dead, and what it believes does not matter.
    pub fn leave(&self, who: &str) {
        self.lock().absent.insert(who.to_owned());
    }

    /// Somebody goes on, and what it believes matters again.
    pub fn come_back(&self, who: &str) {
        let mut inner = self.lock();
        inner.absent.remove(who);
        let lines: BTreeSet<String> = inner.held.keys().map(|(subject, _)| subject.clone()).collect();
        let by: Vec<(String, Vec<(String, Token)>)> =
            lines.into_iter().map(|subject| (subject.clone(), inner.too_many(&subject))).collect();
        drop(inner);
        for (subject, by) in by.into_iter().filter(|(_, by)| !by.is_empty()) {
            self.history.note(Fact::Believed { subject, by });
        }
    }

    /// Somebody is about to delete a key by hand, or to revoke its lease.
    pub fn deleted(&self, token: Token) {
        self.lock().deleted.insert(token);
    }

    /// Somebody is about to take this from whoever holds it, as the deletion of a task does.
    pub fn withdrawn(&self, subject: &str) {
        self.lock().withdrawn.insert(subject.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, TrackerState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TrackerState {
    /// All who believe that they hold this now, if they may not do so together.
    fn too_many(&self, subject: &str) -> Vec<(String, Token)> {
        let of_line = (subject.to_owned(), FIRST)..=(subject.to_owned(), LAST);
        let believers = self.held.range(of_line).filter(|((_, token), hold)| {
            !self.absent.contains(&hold.who) && !self.deleted.contains(token) && (hold.is_valid)()
        });
        let (believers, modes): (Vec<(String, Token)>, Vec<LockMode>) =
            believers.map(|((_, token), hold)| ((hold.who.clone(), *token), hold.mode)).unzip();
        let may = modes.iter().all(|mode| match mode {
            LockMode::Exclusive => modes.len() == 1,
            LockMode::Shared => modes.iter().all(|other| *other == LockMode::Shared),
            LockMode::Permit { of } => modes.len() <= of.get() as usize,
        });
        if may { Vec::new() } else { believers }
    }
}
