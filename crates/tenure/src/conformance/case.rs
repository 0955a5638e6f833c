//! One case: an id that never changes, a claim in prose, and its check.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use super::{CheckResult, TestContext};

/// The check of a case, in flight.
pub(super) type CheckFn<'a> = Pin<Box<dyn Future<Output = CheckResult> + Send + 'a>>;

/// One thing that every store does.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name for good: `K01`. The letters are those of the sections; numbers from 20 on are rules that this contract adds to etcd's.
    pub id: &'static str,
    /// What is claimed. "+n" means n revisions after the case began.
    pub claim: &'static str,
    check: for<'a> fn(&'a TestContext) -> CheckFn<'a>,
}

impl Case {
    pub(super) const fn new(
        id: &'static str,
        claim: &'static str,
        check: for<'a> fn(&'a TestContext) -> CheckFn<'a>,
    ) -> Case {
        Case { id, claim, check }
    }

    /// Checks the claim. It has no deadline of its own: [`run_cases`](super::run_cases) gives it one.
    pub fn check<'a>(&self, context: &'a TestContext) -> impl Future<Output = CheckResult> + Send + 'a {
        (self.check)(context)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.claim)
    }
}
