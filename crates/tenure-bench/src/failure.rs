//! Why a measurement ended: a message, and the exit code.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use tenure::store::{StoreError, WatchError};

/// Why a measurement ended without its figures.
#[derive(Debug)]
pub(crate) struct BenchFailure {
    message: String,
    /// 1 failed, 2 wrong command line or environment, 130 interrupted, as the `tenure` command has them.
    exit: u8,
}

impl BenchFailure {
    pub(crate) fn new(message: impl Into<String>) -> BenchFailure {
        BenchFailure { message: message.into(), exit: 1 }
    }

    /// The command line or a variable is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> BenchFailure {
        BenchFailure { message: message.into(), exit: 2 }
    }

    pub(crate) fn interrupted() -> BenchFailure {
        BenchFailure { message: "interrupted".to_owned(), exit: 130 }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit)
    }
}

impl fmt::Display for BenchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// An error with everything that caused it.
fn chain(error: &dyn Error) -> BenchFailure {
    let causes = std::iter::successors(error.source(), |cause: &&(dyn Error + 'static)| (*cause).source());
    BenchFailure::new(causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}")))
}

impl From<StoreError> for BenchFailure {
    fn from(error: StoreError) -> BenchFailure {
        chain(&error)
    }
}

impl From<WatchError> for BenchFailure {
    fn from(end: WatchError) -> BenchFailure {
        chain(&end)
    }
}

impl From<std::io::Error> for BenchFailure {
    fn from(error: std::io::Error) -> BenchFailure {
        BenchFailure::new(format!("the output cannot be written: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use tenure::store::Cause;

    use super::*;

    #[test]
    fn failure_names_its_causes() {
        let lost = WatchError::Lost(StoreError::Unavailable(Cause::new("connection refused")));
        let text = BenchFailure::from(lost).to_string();
        assert_eq!(text, "the watch was lost: the store cannot be reached: connection refused");
    }
}
