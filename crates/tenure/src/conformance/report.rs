//! The report of the suite.

use std::fmt;
use std::time::Duration;

use super::{Difference, differences};
use crate::store::StoreInfo;

/// The results of the suite on a store.
#[derive(Clone, Debug)]
#[must_use = "an unread report hides its failures"]
pub struct Report {
    /// The store.
    pub store: StoreInfo,
    /// One for each case, in the order in which they ran.
    pub results: Vec<CaseResult>,
}

/// The result of one case.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// The case's id.
    pub id: &'static str,
    /// What it claims.
    pub claim: &'static str,
    /// Its outcome.
    pub outcome: CaseOutcome,
    /// How long it took.
    pub took: Duration,
}

/// The outcome of a case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CaseOutcome {
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
        Report { store, results: Vec::new() }
    }

    /// Whether every claim holds.
    pub fn has_passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// What did not pass.
    pub fn failures(&self) -> impl Iterator<Item = &CaseResult> {
        self.results.iter().filter(|case| case.outcome != CaseOutcome::Passed)
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
        let passed = self.results.len() - self.failures().count();
        write!(f, "{}: {passed} of {} cases passed", self.store.kind, self.results.len())?;
        for case in self.failures() {
            write!(f, "\n{} {}\n    {}", case.id, case.claim, case.outcome)?;
        }
        Ok(())
    }
}

impl fmt::Display for CaseOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaseOutcome::Passed => write!(f, "passed"),
            CaseOutcome::Failed(reason) => write!(f, "failed: {reason}"),
            CaseOutcome::TimedOut(after) => write!(f, "failed: did not end within {after:?}"),
            CaseOutcome::NotRun(reason) => write!(f, "not run: {reason}"),
        }
    }
}
