//! The failure of a command: a code for scripts, a message and a hint for the user.
//!
//! The exit codes are stable: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 store unavailable,
//! 6 denied, 8 wait timed out, 10 and 11 the awaited task ended failed and killed, 130 interrupted. Wrappers use other codes: 125 if the command
//! was not started, 126 if it is not executable, 127 if it was not found, 124 if the lock was not acquired, 122 if it was lost.

mod access;

use std::error::Error as StdError;
use std::io;
use std::process::ExitCode;

use serde::Serialize;
use tenure::store::{Denied, InvalidRequest, StoreError, StoreReplaced, UnusableStore, WatchError};

pub(crate) use access::set_namespace;

/// The kind of a failure: the stable `code` in `--json`, and the exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Code {
    /// Any other failure.
    Failed,
    /// The command line, a variable or a configuration file is wrong.
    Usage,
    /// The request is invalid for this store, independently of its content.
    Invalid,
    /// The requested object does not exist.
    NotFound,
    /// A condition of the request does not hold.
    Conflict,
    /// The store cannot be reached or is not ready.
    Unavailable,
    /// The store denies access.
    Denied,
    /// TLS: a certificate is refused, by this side or by the server.
    Untrusted,
    /// The time limit has passed.
    TimedOut,
    /// The awaited task has failed.
    TaskFailed,
    /// The awaited task was killed.
    TaskKilled,
    /// Ctrl-C was pressed.
    Interrupted,
    /// That part of the history was compacted.
    Compacted,
    /// The revision does not exist yet.
    FutureRevision,
    /// The request may or may not have been applied.
    Ambiguous,
    /// The store has no space left.
    NoSpace,
    /// The store at the address cannot be used by this version, or is not safe to use.
    Unusable,
    /// The store was replaced or is corrupt.
    StoreLost,
    /// The reader of the output has closed the pipe.
    BrokenPipe,
    /// The command may not be executed.
    NotExecutable,
    /// The command was not found.
    CommandNotFound,
    /// Another process holds it, or has done the run.
    NotAcquired,
    /// The hold was lost.
    Lost,
}

/// The exit code of a wrapper that failed before its command started, as of timeout(1).
pub(crate) const WRAPPER_FAILED: u8 = 125;

/// The exit code if another process holds it, or has done the run.
pub(crate) const NOT_ACQUIRED: u8 = 124;

/// The exit code of a command that was stopped because the hold was lost.
pub(crate) const LOST: u8 = 122;

impl Code {
    fn exit(self) -> u8 {
        match self {
            // The reader closed the pipe, as `| head` does. With `pipefail`, any other code would fail the pipeline.
            Code::BrokenPipe => 0,
            Code::Failed
            | Code::Compacted
            | Code::FutureRevision
            | Code::Ambiguous
            | Code::NoSpace
            | Code::Unusable
            | Code::StoreLost => 1,
            Code::Usage | Code::Invalid => 2,
            Code::NotFound => 3,
            Code::Conflict => 4,
            Code::Unavailable => 5,
            Code::Denied | Code::Untrusted => 6,
            Code::TimedOut => 8,
            Code::TaskFailed => 10,
            Code::TaskKilled => 11,
            Code::Interrupted => 130,
            Code::NotExecutable => 126,
            Code::CommandNotFound => 127,
            Code::NotAcquired => NOT_ACQUIRED,
            Code::Lost => LOST,
        }
    }
}

/// The reason why a command fails.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    /// What went wrong and why.
    pub(crate) message: String,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), hint: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Code::Usage, message)
    }

    /// Adds what to do next.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// Puts the failed operation in front of the message.
    #[must_use]
    pub(crate) fn while_doing(mut self, what: &str) -> Failure {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// The failure for a store of a newer version.
    fn newer_format(code: Code, found: u32, known: u32) -> Failure {
        let version = env!("CARGO_PKG_VERSION");
        Failure::new(
            code,
            format!(
                "the store has format {found}, and tenure {version} knows formats up to {known}: a newer tenure wrote it; \
                 nothing was changed"
            ),
        )
        .hint("install a tenure as new as the one that wrote it, or name another store with --store file:///path/store.db")
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code.exit())
    }

    /// The exit code of a wrapper that did not start its command. Scripts must be able to distinguish it from the command's own.
    pub(crate) fn wrapper_exit_code(&self) -> ExitCode {
        match self.code {
            Code::NotExecutable
            | Code::CommandNotFound
            | Code::Interrupted
            | Code::NotAcquired
            | Code::Lost => self.exit_code(),
            _ => ExitCode::from(WRAPPER_FAILED),
        }
    }
}

impl From<tenure::Error> for Failure {
    fn from(error: tenure::Error) -> Failure {
        match error {
            tenure::Error::Store(error) => error.into(),
            tenure::Error::InvalidName(error) => Failure::usage(error.to_string()),
            error => Failure::new(Code::Failed, error.to_string()),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let message = error.to_string();
        let (code, hint) = match error {
            StoreError::Invalid(invalid) => {
                // A library error begins with "invalid request"; here the request is the command line, so that prefix is left out.
                let failure = Failure::new(Code::Invalid, invalid.to_string());
                return match invalid {
                    InvalidRequest::TooLarge { .. } => {
                        failure.hint("store large data elsewhere, and its address here")
                    }
                    InvalidRequest::TooManyOps { .. } => failure.hint("split it into several transactions"),
                    InvalidRequest::TtlTooLarge { .. } => {
                        failure.hint("use a shorter --ttl; 15s suits most programs")
                    }
                    InvalidRequest::OpenPrefix(_) => failure.hint("add a '/' at the end"),
                    _ => failure,
                };
            }
            StoreError::LeaseNotFound => {
                (Code::NotFound, "get a new lease with `tenure kv put KEY VALUE --ttl 15s`")
            }
            StoreError::LeaseExists => (Code::Conflict, "choose another id"),
            StoreError::KeyNotFound => (Code::NotFound, "list the keys with `tenure kv range ''`"),
            StoreError::Compacted { .. } => (
                Code::Compacted,
                "list the keys with `tenure kv range --json`, then continue after its revision",
            ),
            StoreError::FutureRevision => {
                (Code::FutureRevision, "`tenure kv range '' --limit 1 --json` shows the current revision")
            }
            StoreError::Busy(_) | StoreError::RateLimited => (Code::Unavailable, "try again in a moment"),
            StoreError::NoSpace => (
                Code::NoSpace,
                "free space on its disk, or delete keys and compact the history; then run `tenure doctor`",
            ),
            StoreError::Unavailable(_) => {
                (Code::Unavailable, "check the address with `tenure config show`, then run `tenure doctor`")
            }
            StoreError::Ambiguous(_) => (
                Code::Ambiguous,
                "the request may have been applied: read the key with `tenure kv get KEY` before you try again",
            ),
            StoreError::Unusable(UnusableStore::NewerFormat { found, supported }) => {
                return Failure::newer_format(Code::Unusable, found, supported);
            }
            StoreError::Replaced(StoreReplaced::FormatChanged { found, supported }) if found > supported => {
                return Failure::newer_format(Code::StoreLost, found, supported);
            }
            StoreError::Unusable(_) => {
                (Code::Unusable, "name another place with --store file:///path/store.db")
            }
            StoreError::Replaced(_) | StoreError::Corrupt(_) => {
                (Code::StoreLost, "run `tenure doctor` to see the state of the store")
            }
            StoreError::Denied(Denied::MissingGrant(grant)) => {
                return Failure::new(Code::Denied, message).hint(access::grant_hint(&grant));
            }
            StoreError::Denied(_) => (Code::Denied, "check user and password with `tenure config show`"),
            StoreError::Tls { endpoint, failure } => return access::tls_failure(&endpoint, &failure),
            StoreError::Closed => (Code::Failed, "run the command again"),
            _ => (Code::Failed, "run `tenure doctor`"),
        };
        Failure::new(code, message).hint(hint)
    }
}

impl From<WatchError> for Failure {
    fn from(end: WatchError) -> Failure {
        match end {
            WatchError::Compacted { at } => StoreError::Compacted { at: Some(at) }.into(),
            WatchError::Lost(error) => Failure::from(error).while_doing("the watch ended"),
        }
    }
}

/// For `doctor`, which uses the etcd client without an engine.
impl From<tenure_etcd::Error> for Failure {
    fn from(error: tenure_etcd::Error) -> Failure {
        use tenure_etcd::Error;
        let cause = StdError::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        let message = format!("{error}{cause}");
        match error {
            Error::Invalid(_) => Failure::usage(message),
            Error::Unavailable(_) | Error::Busy(_) | Error::RateLimited => {
                Failure::new(Code::Unavailable, message)
                    .hint("check the addresses with `tenure config show`, and that the members run")
            }
            error => tenure::store::etcd::connect_error(error).into(),
        }
    }
}

/// A failed write to stdout.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => {
                Failure::new(Code::BrokenPipe, "the reader of the output has closed the pipe")
                    .hint("read the output, or let tenure run a command with `-- CMD`")
            }
            _ => Failure::new(Code::Failed, format!("cannot write the output: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure::store::{Cause, Revision};

    use super::*;

    #[test]
    fn each_store_error_has_code_and_hint() {
        for (error, exit) in [
            (StoreError::LeaseNotFound, 3),
            (StoreError::KeyNotFound, 3),
            (StoreError::LeaseExists, 4),
            (StoreError::Compacted { at: Some(Revision(7)) }, 1),
            (StoreError::FutureRevision, 1),
            (StoreError::Busy(Cause::new("x")), 5),
            (StoreError::RateLimited, 5),
            (StoreError::Unavailable(Cause::new("x")), 5),
            (StoreError::NoSpace, 1),
            (StoreError::Ambiguous(Cause::new("x")), 1),
            (StoreError::Corrupt("x".into()), 1),
            (StoreError::Denied("x".into()), 6),
            (StoreError::Closed, 1),
        ] {
            let failure = Failure::from(error);
            assert_eq!(failure.code.exit(), exit, "{failure:?}");
            assert!(failure.hint.is_some(), "{failure:?}");
        }
        assert_eq!(Failure::from(StoreError::from(InvalidRequest::EmptyKey)).code.exit(), 2);
    }

    #[test]
    fn json_failure_has_code_message_and_hint() {
        let failure = Failure::new(Code::TimedOut, "too late").hint("wait longer");
        let json = serde_json::to_string(&failure).unwrap();
        assert_eq!(json, r#"{"code":"timed_out","message":"too late","hint":"wait longer"}"#);
    }
}
