//! How a command fails: a code for scripts, a message and a hint for people.
//!
//! The exit codes are a promise: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 store unavailable,
//! 6 denied, 8 wait timed out, 10 and 11 the awaited task ended failed and killed, 130 interrupted. Wrappers that run a command have their own: 125 for everything that keeps the command
//! from being started, except 126 not executable and 127 not found; 124 not acquired and 122 lost.

mod access;

use std::error::Error as StdError;
use std::io;
use std::process::ExitCode;

use serde::Serialize;
use tenure::store::{Denied, InvalidRequest, StoreError, StoreReplaced, UnusableStore, WatchError};

pub(crate) use access::set_namespace;

/// What kind of failure it is: the stable word in `--json`, and the exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Code {
    /// It failed, and no other word fits.
    Failed,
    /// The command line, a variable or a configuration file is wrong.
    Usage,
    /// The store refuses such a request, whatever it holds.
    Invalid,
    /// The thing asked for does not exist.
    NotFound,
    /// Something is not as the request demands.
    Conflict,
    /// The store cannot be reached or used just now.
    Unavailable,
    /// The store does not let us.
    Denied,
    /// TLS: a certificate is refused, by this side or by the server.
    Untrusted,
    /// The time given ran out.
    TimedOut,
    /// The task that was waited for has failed.
    TaskFailed,
    /// The task that was waited for was killed.
    TaskKilled,
    /// Somebody pressed Ctrl-C.
    Interrupted,
    /// That part of history is gone.
    Compacted,
    /// That part of history has not happened.
    FutureRevision,
    /// The request may or may not have been applied.
    Ambiguous,
    /// The store has no space left.
    NoSpace,
    /// What is at the address must not be used by this program.
    Unusable,
    /// The store is not the one it was, or makes no sense.
    StoreLost,
    /// Whoever read our output has left: no failure to speak of.
    BrokenPipe,
    /// The command to run may not be executed.
    NotExecutable,
    /// There is no such command to run.
    CommandNotFound,
    /// Somebody else holds it, or has done it.
    NotAcquired,
    /// What the command relied on was lost.
    Lost,
}

/// What a wrapper ends with when it failed before its command started, as timeout(1) does.
pub(crate) const WRAPPER_FAILED: u8 = 125;

/// What scripts see when somebody else holds it, or has done it.
pub(crate) const NOT_ACQUIRED: u8 = 124;

/// What scripts see when a command was stopped because what it relied on was lost.
pub(crate) const LOST: u8 = 122;

impl Code {
    fn exit(self) -> u8 {
        match self {
            // The reader had enough, as in `| head`; under pipefail anything but 0 would make that an error.
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

/// Why a command ends with anything but 0.
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

    /// Says what was being done, in front of what went wrong.
    #[must_use]
    pub(crate) fn while_doing(mut self, what: &str) -> Failure {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// A newer program wrote the store.
    fn newer_format(code: Code, found: u32, ours: u32) -> Failure {
        let version = env!("CARGO_PKG_VERSION");
        Failure::new(
            code,
            format!(
                "the store has format {found}, and tenure {version} knows formats up to {ours}: a newer tenure wrote it; \
                 nothing was changed"
            ),
        )
        .hint("install a tenure as new as the one that wrote it, or name another store with --store file:///path/store.db")
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code.exit())
    }

    /// The exit code of a wrapper whose command was not started: scripts must be able to tell it from the command's own.
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
                // The prefix "invalid request" helps a library's caller; here the request is the command line.
                let failure = Failure::new(Code::Invalid, invalid.to_string());
                return match invalid {
                    InvalidRequest::TooLarge { .. } => {
                        failure.hint("keep large things elsewhere and store their address")
                    }
                    InvalidRequest::TooManyOps { .. } => failure.hint("split it into several transactions"),
                    InvalidRequest::TtlTooLarge { .. } => {
                        failure.hint("use a shorter --ttl; 15s suits nearly everybody")
                    }
                    InvalidRequest::OpenPrefix(_) => failure.hint("add a '/' at the end"),
                    _ => failure,
                };
            }
            StoreError::LeaseNotFound => (Code::NotFound, "ask for a new one with `--ttl 15s`"),
            StoreError::LeaseExists => (Code::Conflict, "choose another id"),
            StoreError::KeyNotFound => (Code::NotFound, "list what there is with `tenure kv range ''`"),
            StoreError::Compacted { .. } => {
                (Code::Compacted, "list again with `tenure kv range`, then go on from the revision it shows")
            }
            StoreError::FutureRevision => {
                (Code::FutureRevision, "`tenure kv range '' --limit 1 --json` shows the current revision")
            }
            StoreError::Busy(_) | StoreError::RateLimited => (Code::Unavailable, "try again in a moment"),
            StoreError::NoSpace => (
                Code::NoSpace,
                "make space on its disk, or delete keys and compact history; then run `tenure doctor`",
            ),
            StoreError::Unavailable(_) => {
                (Code::Unavailable, "check the address with `tenure config show`, then run `tenure doctor`")
            }
            StoreError::Ambiguous(_) => {
                (Code::Ambiguous, "read the key back before you try again: `tenure kv get KEY`")
            }
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
                (Code::StoreLost, "run `tenure doctor` to see what is there now")
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
            WatchError::Lost(error) => Failure::from(error).while_doing("the watch was lost"),
        }
    }
}

/// For `doctor`, which talks to etcd without an engine in between.
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

/// Trouble with our own output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::new(Code::BrokenPipe, "nobody reads the output any more")
                .hint("read it, or have a command run by `-- CMD`"),
            _ => Failure::new(Code::Failed, format!("the output cannot be written: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure::store::{Cause, Revision};

    use super::*;

    #[test]
    fn every_store_error_has_its_exit_code_and_a_next_step() {
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
    fn a_failure_in_json_is_a_code_a_message_and_a_hint() {
        let failure = Failure::new(Code::TimedOut, "too late").hint("wait longer");
        let json = serde_json::to_string(&failure).unwrap();
        assert_eq!(json, r#"{"code":"timed_out","message":"too late","hint":"wait longer"}"#);
    }
}
