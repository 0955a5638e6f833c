//! What a case says in the end, and the few sentences it says it with.

use std::fmt;
use std::panic::Location;

use crate::store::{Revision, StoreError};

/// What a case says: nothing if all is well, otherwise what is wrong.
pub type Verdict<T = ()> = Result<T, Failure>;

/// What a case found wrong, and where it looked.
#[derive(Clone, Debug)]
pub struct Failure {
    what: String,
    place: &'static Location<'static>,
}

impl Failure {
    /// What is wrong, at the place of the caller.
    #[track_caller]
    pub fn new(what: impl Into<String>) -> Failure {
        Failure { what: what.into(), place: Location::caller() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.what, self.place.file(), self.place.line())
    }
}

impl std::error::Error for Failure {}

/// A request that should have succeeded did not.
impl From<StoreError> for Failure {
    #[track_caller]
    fn from(error: StoreError) -> Failure {
        Failure::new(format!("the store refused: {error}"))
    }
}

/// Says that two things must be the same.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "the cases compare what they just made")]
pub(super) fn equal<T: PartialEq + fmt::Debug>(what: &str, found: T, expected: T) -> Verdict {
    if found == expected {
        return Ok(());
    }
    Err(Failure::new(format!("{what}: expected {expected:?}, found {found:?}")))
}

/// Says that something must hold.
#[track_caller]
pub(super) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Failure::new(otherwise())) }
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
            Err(other) => Err(Failure::new(format!(
                "{}: expected {}, was refused with: {other}",
                $what,
                stringify!($error)
            ))),
            Ok(_) => Err(Failure::new(format!("{}: expected {}, was accepted", $what, stringify!($error)))),
        }
    };
}

pub(super) use refused;
