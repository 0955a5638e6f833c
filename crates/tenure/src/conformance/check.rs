//! What a case says in the end, and the few sentences it says it with.

use std::fmt;
use std::panic::Location;

use crate::store::{Revision, StoreError};

/// What a case says: nothing if all is well, otherwise what is wrong.
pub type CheckResult<T = ()> = Result<T, CheckFailure>;

/// What a case found wrong, and where it looked.
#[derive(Clone, Debug)]
pub struct CheckFailure {
    what: String,
    place: &'static Location<'static>,
}

impl CheckFailure {
    /// What is wrong, at the place of the caller.
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
        CheckFailure::new(format!("the store refused: {error}"))
    }
}

/// Says that two things must be the same.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "the cases compare what they just made")]
pub(super) fn equal<T: PartialEq + fmt::Debug>(what: &str, found: T, expected: T) -> CheckResult {
    if found == expected {
        return Ok(());
    }
    Err(CheckFailure::new(format!("{what}: expected {expected:?}, found {found:?}")))
}

/// Says that something must hold.
#[track_caller]
pub(super) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> CheckResult {
    if holds { Ok(()) } else { Err(CheckFailure::new(otherwise())) }
}

/// The revision this many after `start`: the "+n" of a claim.
pub(super) fn plus(start: Revision, steps: i64) -> Revision {
    Revision(start.0 + steps)
}

/// Says that a request must be refused, and how.
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
