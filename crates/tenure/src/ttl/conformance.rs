//! The kit that tells whether a storage deserves elections: run it on your own in five lines.
//!
//! ```
//! use tenure::clock::BootClock;
//! use tenure::ttl::Memory as MyStorage;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let report = tenure::ttl::conformance::run(|| async { MyStorage::<String, String>::new(BootClock) }).await;
//! report.assert_passed();
//! # }
//! ```
//!
//! Cases of tokens and watches run where the storage says that it has them. TTLs are real: the kit takes some seconds.

mod offers;
mod scene;
mod time;
mod verbs;

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use tokio::time::{Instant, timeout};

use super::elections::Key;
use super::stamp::Value;
use super::storage::{Capabilities, StorageError, TtlStorage};
use crate::conformance::{Failure, Outcome, Ruling, Verdict};
use scene::Scene;

/// How long one case may take: the longest waits for two TTLs of a second and for a storage that is ten seconds late.
const CASE_MAX: Duration = Duration::from_secs(40);

/// How many cases run at once. Most of them only wait for a TTL; more would measure the machine and not the storage.
const CASES_AT_ONCE: usize = 6;

/// The check of a case, under way.
type Checking<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

/// One thing that every storage does.
struct Case<K, V, S> {
    id: &'static str,
    claim: &'static str,
    needs: fn(Capabilities) -> bool,
    check: for<'a> fn(&'a Scene<K, V, S>) -> Checking<'a>,
}

/// Makes a case of a function.
macro_rules! case {
    ($id:literal, $claim:literal, $check:path) => {
        case!($id, $claim, $check, |_| true)
    };
    ($id:literal, $claim:literal, $check:path, $needs:expr) => {
        Case { id: $id, claim: $claim, needs: $needs, check: |scene| Box::pin($check(scene)) }
    };
}

use case;

/// What the kit found out about a storage.
#[derive(Clone, Debug)]
#[must_use = "a report that nobody reads hides its failures"]
pub struct Report {
    /// What the storage says that it can do.
    pub capabilities: Capabilities,
    /// One for each case, in order.
    pub rulings: Vec<Ruling>,
}

/// Runs all cases on the storage that `open` opens.
///
/// # Cancellation
///
/// Dropping the future leaves keys that begin with `conformance-` behind, for a minute at most.
pub async fn run<K, V, S, F>(open: impl FnOnce() -> F) -> Report
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
    F: Future<Output = S>,
{
    let storage = Arc::new(open().await);
    let capabilities = storage.capabilities();
    let cases = verbs::cases().into_iter().chain(time::cases()).chain(offers::cases());
    let rulings = stream::iter(cases.map(|case| run_one(case, storage.clone(), capabilities)))
        .buffered(CASES_AT_ONCE)
        .collect()
        .await;
    Report { capabilities, rulings }
}

async fn run_one<K, V, S>(case: Case<K, V, S>, storage: Arc<S>, capabilities: Capabilities) -> Ruling
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    let began = Instant::now();
    let outcome = if (case.needs)(capabilities) {
        let scene = Scene::new(storage, case.id);
        let verdict = AssertUnwindSafe(timeout(CASE_MAX, (case.check)(&scene))).catch_unwind().await;
        match verdict {
            Ok(Ok(Ok(()))) => Outcome::Passed,
            Ok(Ok(Err(failure))) => Outcome::Failed(failure.to_string()),
            Ok(Err(_)) => Outcome::TimedOut(CASE_MAX),
            Err(_) => Outcome::Failed("panicked".to_owned()),
        }
    } else {
        Outcome::NotRun("the storage does not offer this".to_owned())
    };
    Ruling { id: case.id, claim: case.claim, outcome, took: began.elapsed() }
}

impl Report {
    /// Whether every claim holds that the storage makes.
    pub fn has_passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// What did not pass.
    pub fn failures(&self) -> impl Iterator<Item = &Ruling> {
        self.rulings.iter().filter(|ruling| !matches!(ruling.outcome, Outcome::Passed | Outcome::NotRun(_)))
    }

    /// Panics with the list of all cases, if one has failed.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.has_passed(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failures().count();
        write!(
            f,
            "{failed} of {} cases failed; the storage offers: {}",
            self.rulings.len(),
            self.capabilities
        )?;
        for ruling in &self.rulings {
            write!(f, "\n{} {}\n    {}", ruling.id, ruling.claim, ruling.outcome)?;
        }
        Ok(())
    }
}

/// A request that should have succeeded did not.
impl From<StorageError> for Failure {
    #[track_caller]
    fn from(error: StorageError) -> Failure {
        Failure::new(format!("the storage failed: {error}"))
    }
}

/// Says that a storage must have answered like this.
#[track_caller]
fn expect(what: &str, answer: Result<bool, StorageError>, expected: bool) -> Verdict {
    match answer {
        Ok(answer) if answer == expected => Ok(()),
        Ok(answer) => Err(Failure::new(format!("{what}: expected {expected}, the storage said {answer}"))),
        Err(error) => Err(Failure::new(format!("{what}: expected {expected}, the storage failed: {error}"))),
    }
}

/// Says that something must hold.
#[track_caller]
fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Failure::new(otherwise())) }
}
