//! Who believes what, right now: the one thing that no store can tell.
//!
//! All participants live in one process here, so that the question "who believes that it holds" can be asked of all of them in one instant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure::store::Revision;
use tenure_core::queue::LockMode;
use tenure_core::revision::Token;

use crate::history::{Fact, History};

/// Whether a hold may be relied upon, as its holder is told.
pub type IsValid = Box<dyn Fn() -> bool + Send + Sync>;

/// The smallest and the largest token there could be.
const FIRST: Token = Token(Revision::ZERO);
const LAST: Token = Token(Revision(i64::MAX));

/// Everybody's beliefs. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Beliefs {
    history: History,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    /// By line and token.
    held: BTreeMap<(String, Token), Belief>,
    /// Who cannot act, because it is stopped or dead.
    absent: BTreeSet<String>,
    /// What somebody has deleted by hand, or by revoking a lease: nobody could foresee that.
    deleted: BTreeSet<Token>,
    /// What somebody took from whoever holds it, with every right.
    withdrawn: BTreeSet<String>,
}

struct Belief {
    who: String,
    mode: LockMode,
    is_valid: IsValid,
}

impl Beliefs {
    /// Nobody believes anything.
    pub fn new(history: &History) -> Beliefs {
        Beliefs { history: history.clone(), inner: Arc::default() }
    }

    /// Somebody was told that it holds.
    pub fn begin(&self, line: &str, who: &str, token: Token, mode: LockMode, is_valid: IsValid) {
        if !is_valid() {
            // It was stopped between the news and its reading, for too long.
            self.history.remark(format!("{who} was told of {line} with token {token}, too late"));
            return;
        }
        let mut inner = self.lock();
        if inner.deleted.contains(&token) {
            // Somebody deleted it by hand while the news was on its way.
            drop(inner);
            self.history
                .remark(format!("{who} was told of {line} with token {token}, which is gone by hand"));
            return;
        }
        let belief = Belief { who: who.to_owned(), mode, is_valid };
        inner.held.insert((line.to_owned(), token), belief);
        let beside = inner.too_many(line).into_iter().filter(|(_, other)| *other != token).collect();
        drop(inner);
        self.history.note(Fact::Held { line: line.to_owned(), who: who.to_owned(), token, mode, beside });
    }

    /// It gives it up, or was told that it is lost.
    pub fn end(&self, line: &str, token: Token) {
        let ended = self.lock().held.remove(&(line.to_owned(), token));
        if let Some(belief) = ended {
            let how = if (belief.is_valid)() { "given up" } else { "lost" };
            self.history.note(Fact::Ended { line: line.to_owned(), who: belief.who, token, how });
        }
    }

    /// The store has let go of a place.
    pub fn let_go(&self, line: &str, token: Token) {
        let inner = self.lock();
        let Some(belief) = inner.held.get(&(line.to_owned(), token)) else { return };
        let believed = (belief.is_valid)() && !inner.absent.contains(&belief.who);
        let by_hand = inner.deleted.contains(&token) || inner.withdrawn.contains(line);
        let who = belief.who.clone();
        drop(inner);
        self.history.note(Fact::LetGo { line: line.to_owned(), who, token, believed, by_hand });
    }

    /// Somebody is stopped or dead, and what it believes does not matter.
    pub fn leave(&self, who: &str) {
        self.lock().absent.insert(who.to_owned());
    }

    /// Somebody goes on, and what it believes matters again.
    pub fn come_back(&self, who: &str) {
        let mut inner = self.lock();
        inner.absent.remove(who);
        let lines: BTreeSet<String> = inner.held.keys().map(|(line, _)| line.clone()).collect();
        let by: Vec<(String, Vec<(String, Token)>)> =
            lines.into_iter().map(|line| (line.clone(), inner.too_many(&line))).collect();
        drop(inner);
        for (line, by) in by.into_iter().filter(|(_, by)| !by.is_empty()) {
            self.history.note(Fact::Believed { line, by });
        }
    }

    /// Somebody is about to delete a key by hand, or to revoke its lease.
    pub fn deleted(&self, token: Token) {
        self.lock().deleted.insert(token);
    }

    /// Somebody is about to take this from whoever holds it, as the deletion of a task does.
    pub fn withdrawn(&self, line: &str) {
        self.lock().withdrawn.insert(line.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// All who believe that they hold this now, if they may not do so together.
    fn too_many(&self, line: &str) -> Vec<(String, Token)> {
        let of_line = (line.to_owned(), FIRST)..=(line.to_owned(), LAST);
        let believers = self.held.range(of_line).filter(|((_, token), belief)| {
            !self.absent.contains(&belief.who) && !self.deleted.contains(token) && (belief.is_valid)()
        });
        let (believers, modes): (Vec<(String, Token)>, Vec<LockMode>) =
            believers.map(|((_, token), belief)| ((belief.who.clone(), *token), belief.mode)).unzip();
        let may = modes.iter().all(|mode| match mode {
            LockMode::Exclusive => modes.len() == 1,
            LockMode::Shared => modes.iter().all(|other| *other == LockMode::Shared),
            LockMode::Permit { of } => modes.len() <= of.get() as usize,
        });
        if may { Vec::new() } else { believers }
    }
}
