//! What the suite found.

use std::fmt;
use std::time::Duration;

use super::{Difference, differences};
use crate::store::StoreInfo;

/// What the suite found out about a store.
#[derive(Clone, Debug)]
#[must_use = "a report that nobody reads hides its failures"]
pub struct Report {
    /// The store.
    pub store: StoreInfo,
    /// One for each case, in the order in which they ran.
    pub rulings: Vec<Ruling>,
}

/// What became of one case.
#[derive(Clone, Debug)]
pub struct Ruling {
    /// The case's id.
    pub id: &'static str,
    /// What it claims.
    pub claim: &'static str,
    /// What became of it.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

/// What became of a case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The claim holds.
    Passed,
    /// It does not, and why.
    Failed(String),
    /// It did not end in this time.
    TimedOut(Duration),
    /// It was not tried, and why.
    NotRun(String),
}

impl Report {
    pub(super) fn new(store: StoreInfo) -> Report {
        Report { store, rulings: Vec::new() }
    }

    /// Whether every claim holds.
    pub fn has_passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// What did not pass.
    pub fn failures(&self) -> impl Iterator<Item = &Ruling> {
        self.rulings.iter().filter(|ruling| ruling.outcome != Outcome::Passed)
    }

    /// What differs on purpose between this store's engine and others.
    pub fn differences(&self) -> impl Iterator<Item = &'static Difference> {
        differences().iter().filter(|difference| difference.engine == self.store.kind)
    }

    /// Panics with all failures, if there are any.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.has_passed(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passed = self.rulings.len() - self.failures().count();
        write!(f, "{}: {passed} of {} cases passed", self.store.kind, self.rulings.len())?;
        for ruling in self.failures() {
            write!(f, "\n{} {}\n    {}", ruling.id, ruling.claim, ruling.outcome)?;
        }
        Ok(())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Passed => write!(f, "passed"),
            Outcome::Failed(why) => write!(f, "failed: {why}"),
            Outcome::TimedOut(after) => write!(f, "failed: did not end within {after:?}"),
            Outcome::NotRun(why) => write!(f, "not run: {why}"),
        }
    }
}
