//! The conformance suite for engines: those of this crate, and your own.
//!
//! Three engines that nearly agree are worse than one: code that was tested on one of them breaks on another. So the behaviour of a store
//! is written down as cases, each with an id, a claim and a check, and every engine runs all of them.
//! An engine of your own runs them in five lines:
//!
//! ```
//! # use tenure::store::{Store, memory::MemoryEngine as MyEngine};
//! use tenure::conformance;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! # let only = |id: &str| conformance::cases().into_iter().filter(|case| case.id == id).collect::<Vec<_>>();
//! # conformance::run_cases(only("K01"), || async { Store::new(MyEngine::new()) }).await.assert_passed();
//! # return;
//! let report = conformance::run(|| async { Store::new(MyEngine::new()) }).await;
//! report.assert_passed();
//! # }
//! ```
//!
//! All cases share one store and run one after the other, each under a prefix of its own, so the suite also runs on a server
//! that holds other keys, as long as no other client writes meanwhile: revisions are counted from the start of a case.
//! Where stores may differ the cases read [`Store::info`](crate::store::Store::info) instead of the engine's name; what differs
//! on purpose is listed by [`differences`].

mod check;

mod context;

mod watching;

mod case;

mod report;

mod differences;

mod markdown;

mod keys;

mod reads;

mod transactions;

mod leases;

mod watches;

mod compaction;

mod queue;

mod load;

mod equivalence;

mod closing;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, timeout};

use crate::store::{Get, Store};

pub use case::Case;
pub use check::{CheckFailure, CheckResult};
pub use context::TestContext;
pub use differences::{Difference, differences};
pub use equivalence::{EquivalenceSize, log_equivalence};
pub use markdown::markdown;
pub use report::{CaseOutcome, CaseResult, Report};

/// How long one case may take. The longest waits for two TTLs of a few seconds; twenty times that of the others. Halved, a store
/// with a TTL floor of 8 s could not pass; doubled, a store that hangs is found later.
const CASE_MAX: Duration = Duration::from_secs(30);

/// How long a store that let one case hang may take for a read, before the other cases are skipped.
const READ_MAX: Duration = Duration::from_secs(5);

/// All cases, in the order in which they run.
pub fn cases() -> Vec<Case> {
    sections().into_iter().flat_map(|section| section.cases).collect()
}

/// Runs all cases on the store that `open` opens, and closes it.
///
/// # Cancellation
///
/// Dropping the future leaves keys under `/conformance/` and leases of a minute behind, and the store open.
pub async fn run<F: Future<Output = Store>>(open: impl FnOnce() -> F) -> Report {
    run_cases(cases(), open).await
}

/// Runs some of the [`cases`]; see [`run`].
pub async fn run_cases<F: Future<Output = Store>>(cases: Vec<Case>, open: impl FnOnce() -> F) -> Report {
    let store = open().await;
    let mut report = Report::new(store.info().clone());
    let mut skip_reason = None;
    for case in cases {
        let began = Instant::now();
        let outcome = match &skip_reason {
            Some(reason) => CaseOutcome::NotRun(String::clone(reason)),
            None => run_one(&case, &store).await,
        };
        if let CaseOutcome::TimedOut(_) = outcome
            && timeout(READ_MAX, store.get(Get::key("/conformance"))).await.is_err()
        {
            skip_reason = Some(format!("the store stopped responding after {}", case.id));
        }
        report.results.push(CaseResult { id: case.id, claim: case.claim, outcome, took: began.elapsed() });
    }
    // A store that hangs while closing has failed the case for that, and must not hang the suite.
    let _ = timeout(READ_MAX, store.close()).await;
    report
}

async fn run_one(case: &Case, store: &Store) -> CaseOutcome {
    let context = TestContext::new(store.clone(), case.id);
    let result = AssertUnwindSafe(timeout(CASE_MAX, case.check(&context))).catch_unwind().await;
    let outcome = match result {
        Ok(Ok(Ok(()))) => CaseOutcome::Passed,
        Ok(Ok(Err(failure))) => CaseOutcome::Failed(failure.to_string()),
        Ok(Err(_)) => CaseOutcome::TimedOut(CASE_MAX),
        Err(panic) => CaseOutcome::Failed(format!("panicked: {}", panic_text(&*panic))),
    };
    // If the cleanup fails because the store fails, a case of its own fails.
    let _ = timeout(READ_MAX, context.tidy()).await;
    outcome
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// The cases of one part of the contract.
struct Section {
    title: &'static str,
    cases: Vec<Case>,
}

fn sections() -> Vec<Section> {
    vec![
        Section { title: "Revisions and keys", cases: keys::cases() },
        Section { title: "Reads", cases: reads::cases() },
        Section { title: "Transactions", cases: transactions::cases() },
        Section { title: "Leases", cases: leases::cases() },
        Section { title: "Watches", cases: watches::cases() },
        Section { title: "Compaction", cases: compaction::cases() },
        Section { title: "Queues: locks and elections as transactions", cases: queue::cases() },
        Section { title: "Under load", cases: load::cases() },
        Section { title: "Closing", cases: closing::cases() },
    ]
}
