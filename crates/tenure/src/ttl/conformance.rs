//! A suite that checks whether a storage is safe for elections.
//!
//! ```
//! use tenure::BootClock;
//! use tenure::ttl::MemoryStorage as MyStorage;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let report = tenure::ttl::conformance::run(|| async { MyStorage::<String, String>::new(BootClock) }).await;
//! report.assert_passed();
//! # }
//! ```
//!
//! Cases of tokens and watches run if the storage has these capabilities. TTLs are real: the suite takes some seconds.

mod capabilities;
mod context;
mod operations;
mod time;

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use tokio::time::{Instant, timeout};

use super::storage::{Capabilities, StorageError, TtlStorage};
use crate::conformance::{CaseOutcome, CaseResult, CheckFailure, CheckResult};
use context::{StorageContext, TextStorage};

/// The limit of one case. The longest waits for two TTLs of a second, and for a storage that is ten seconds late.
const CASE_MAX: Duration = Duration::from_secs(40);

/// How many cases run at once. Most only wait for a TTL; more would measure the machine and not the storage.
const CASES_AT_ONCE: usize = 6;

/// The check of a case, in flight.
type StorageCheckFn<'a> = Pin<Box<dyn Future<Output = CheckResult> + Send + 'a>>;

/// One claim that every storage must fulfil.
struct StorageCase<S> {
    id: &'static str,
    claim: &'static str,
    needs: fn(Capabilities) -> bool,
    check: for<'a> fn(&'a StorageContext<S>) -> StorageCheckFn<'a>,
}

/// Makes a case of a function.
macro_rules! case {
    ($id:literal, $claim:literal, $check:path) => {
        case!($id, $claim, $check, |_| true)
    };
    ($id:literal, $claim:literal, $check:path, $needs:expr) => {
        StorageCase { id: $id, claim: $claim, needs: $needs, check: |context| Box::pin($check(context)) }
    };
}

use case;

/// The results of the suite on one storage.
#[derive(Clone, Debug)]
#[must_use = "an unread report hides its failures"]
pub struct StorageReport {
    /// What the storage can do by its own account.
    pub capabilities: Capabilities,
    /// One for each case, in order.
    pub results: Vec<CaseResult>,
}

/// Runs all cases on the storage that `open` opens.
///
/// # Cancellation
///
/// Dropping the future leaves keys that begin with `conformance-` behind, for a minute at most.
pub async fn run<S, F>(open: impl FnOnce() -> F) -> StorageReport
where
    S: TtlStorage<Key: From<String>, Value: From<String>>,
    F: Future<Output = S>,
{
    let storage = Arc::new(open().await);
    let capabilities = storage.capabilities();
    let cases = operations::cases().into_iter().chain(time::cases()).chain(capabilities::cases());
    let results = stream::iter(cases.map(|case| run_one(case, storage.clone(), capabilities)))
        .buffered(CASES_AT_ONCE)
        .collect()
        .await;
    StorageReport { capabilities, results }
}

async fn run_one<S: TextStorage>(
    case: StorageCase<S>,
    storage: Arc<S>,
    capabilities: Capabilities,
) -> CaseResult {
    let began = Instant::now();
    let outcome = if (case.needs)(capabilities) {
        let context = StorageContext::new(storage, case.id);
        let verdict = AssertUnwindSafe(timeout(CASE_MAX, (case.check)(&context))).catch_unwind().await;
        match verdict {
            Ok(Ok(Ok(()))) => CaseOutcome::Passed,
            Ok(Ok(Err(failure))) => CaseOutcome::Failed(failure.to_string()),
            Ok(Err(_)) => CaseOutcome::TimedOut(CASE_MAX),
            Err(_) => CaseOutcome::Failed("panicked".to_owned()),
        }
    } else {
        CaseOutcome::NotRun("the storage does not have this capability".to_owned())
    };
    CaseResult { id: case.id, claim: case.claim, outcome, took: began.elapsed() }
}

impl StorageReport {
    /// Whether all cases have passed that the storage's capabilities require.
    pub fn has_passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// The cases that have not passed.
    pub fn failures(&self) -> impl Iterator<Item = &CaseResult> {
        self.results
            .iter()
            .filter(|ruling| !matches!(ruling.outcome, CaseOutcome::Passed | CaseOutcome::NotRun(_)))
    }

    /// Panics with the list of all cases, if one has failed.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.has_passed(), "{self}");
    }
}

impl fmt::Display for StorageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failures().count();
        write!(f, "{failed} of {} cases failed; the storage has: {}", self.results.len(), self.capabilities)?;
        for ruling in &self.results {
            write!(f, "\n{} {}\n    {}", ruling.id, ruling.claim, ruling.outcome)?;
        }
        Ok(())
    }
}

/// A request failed that had to succeed.
impl From<StorageError> for CheckFailure {
    #[track_caller]
    fn from(error: StorageError) -> CheckFailure {
        CheckFailure::new(format!("the storage failed: {error}"))
    }
}

/// Requires this reply of the storage.
#[track_caller]
fn expect(what: &str, answer: Result<bool, StorageError>, expected: bool) -> CheckResult {
    match answer {
        Ok(answer) if answer == expected => Ok(()),
        Ok(answer) => {
            Err(CheckFailure::new(format!("{what}: expected {expected}, the storage returned {answer}")))
        }
        Err(error) => {
            Err(CheckFailure::new(format!("{what}: expected {expected}, the storage failed: {error}")))
        }
    }
}

/// Requires that a condition holds.
#[track_caller]
fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> CheckResult {
    if holds { Ok(()) } else { Err(CheckFailure::new(otherwise())) }
}
