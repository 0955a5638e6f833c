//! The result of a check, and the assertions that checks are made of.

use std::fmt;
use std::panic::Location;

use crate::store::{Revision, StoreError};

/// The result of a check: an error describes what is wrong.
pub type CheckResult<T = ()> = Result<T, CheckFailure>;

/// What a check found wrong, and where in its source.
#[derive(Clone, Debug)]
pub struct CheckFailure {
    what: String,
    place: &'static Location<'static>,
}

impl CheckFailure {
    /// Makes a failure at the line of the caller.
    #[track_caller]
    pub fn new(what: impl Into<String>) -> CheckFailure {
        CheckFailure { what: what.into(), place: Location::caller() }
    }
}

impl fmt::Display for CheckFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.what, self.place.file(), self.place.line())
    }
}

impl std::error::Error for CheckFailure {}

/// A request that should have succeeded did not.
impl From<StoreError> for CheckFailure {
    #[track_caller]
    fn from(error: StoreError) -> CheckFailure {
        CheckFailure::new(format!("a request failed: {error}"))
    }
}

/// Requires that two values are equal.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "the cases compare what they just made")]
pub(super) fn equal<T: PartialEq + fmt::Debug>(what: &str, found: T, expected: T) -> CheckResult {
    if found == expected {
        return Ok(());
    }
    Err(CheckFailure::new(format!("{what}: expected {expected:?}, found {found:?}")))
}

/// Requires that a condition holds.
#[track_caller]
pub(super) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> CheckResult {
    if holds { Ok(()) } else { Err(CheckFailure::new(otherwise())) }
}

/// The revision this many after `start`: the "+n" of a claim.
pub(super) fn plus(start: Revision, steps: i64) -> Revision {
    Revision(start.0 + steps)
}

/// Requires that a request is refused with this error.
macro_rules! refused {
    ($what:expr, $answer:expr, $error:pat) => {
        match $answer {
            Err($error) => Ok(()),
            Err(other) => Err(CheckFailure::new(format!(
                "{}: expected {}, was refused with: {other}",
                $what,
                stringify!($error)
            ))),
            Ok(_) => {
                Err(CheckFailure::new(format!("{}: expected {}, was accepted", $what, stringify!($error))))
            }
        }
    };
}

pub(super) use refused;
