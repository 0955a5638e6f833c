//! From a gRPC status to what it means for the request: applied, not applied, or unknown.
//!
//! The origin comes first: the server, or the transport and tonic. Then the text. Never the code
//! alone: the same fault was seen under different codes, and tonic's own "decoded message length
//! too large" has the code of a compacted revision. What is not in the list is unknown, never a
//! failure.

use tonic::{Code, Status};

use crate::dial::explain;
use crate::error::{Denied, Error, Invalid};
use crate::http2::is_unsent;

/// The beginning of what is reported of a server that has no gRPC.
pub(crate) const NO_GRPC: &str = "the server does not speak gRPC, is that an etcd?";

/// What a failed call means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The server decided. It is healthy, and another member would reply the same.
    Answer(Error),
    /// The token is missing, expired or outdated. Nothing happened: sign in again.
    Stale(String),
    /// Nothing left this machine.
    Unsent(String),
    /// The member reports that it did nothing because it cannot serve now: another may.
    Refused(String),
    /// The reply exists but is larger than the client takes. A write was applied.
    Overlong(String),
    /// The request may have been applied.
    Lost(String),
}

/// The sizes of a request, for errors that name both numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestSize {
    /// Size of the encoded request.
    pub(crate) bytes: usize,
    /// The size the server takes.
    pub(crate) bytes_max: usize,
    /// Operations of a transaction.
    pub(crate) ops: usize,
    /// The operations the server takes.
    pub(crate) ops_max: usize,
    /// The time to live of a grant, in seconds.
    pub(crate) ttl: u64,
}

/// Reads a status.
pub(crate) fn classify(status: &Status, size: RequestSize) -> Class {
    if let Some(source) = std::error::Error::source(status) {
        // Only tonic attaches a source: the server cannot.
        return if is_unsent(source) {
            Class::Unsent("the connection was closed before the request was sent".to_owned())
        } else {
            Class::Lost(explain(source))
        };
    }
    let text = status.message();
    if text.contains("decoded message length too large") {
        return Class::Overlong(text.to_owned());
    }
    by_text(status.code(), text, size)
}

/// The texts of etcd and its gRPC library, as they are in their sources.
fn by_text(code: Code, text: &str, size: RequestSize) -> Class {
    let says = |words: &str| text.contains(words);
    let answer = Class::Answer;
    let invalid = |invalid: Invalid| Class::Answer(Error::Invalid(invalid));
    let credentials = |text: &str| Class::Answer(Error::Denied(Denied::Credentials(text.to_owned())));

    if says("requested lease not found") {
        answer(Error::LeaseNotFound)
    } else if says("lease already exists") {
        answer(Error::LeaseExists)
    } else if says("too large lease TTL") {
        invalid(Invalid::TtlTooLarge { ttl: std::time::Duration::from_secs(size.ttl) })
    } else if says("required revision has been compacted") {
        answer(Error::Compacted { at: None })
    } else if says("required revision is a future revision") {
        answer(Error::FutureRevision)
    } else if says("key is not provided") {
        invalid(Invalid::EmptyKey)
    } else if says("etcdserver: key not found") {
        answer(Error::KeyNotFound)
    } else if says("duplicate key given in txn request") {
        invalid(Invalid::DuplicateKey)
    } else if says("too many operations in txn request") {
        invalid(Invalid::TooManyOps { count: size.ops, limit: size.ops_max })
    } else if says("request is too large") || says("received message larger than max") {
        invalid(Invalid::TooLarge { bytes: size.bytes, limit: size.bytes_max })
    } else if says("database space exceeded") {
        answer(Error::NoSpace)
    } else if says("too many requests") {
        answer(Error::RateLimited)
    } else if says("raft proposal dropped") {
        answer(Error::Busy(crate::error::Cause::new(text)))
    } else if says("corrupt cluster") {
        answer(Error::Corrupt(text.to_owned()))
    } else if says("invalid auth token")
        || says("user name is empty")
        || says("revision of auth store is old")
        || says("revision in header is old")
    {
        Class::Stale(text.to_owned())
    } else if says("authentication failed, invalid user ID or password") {
        credentials("wrong user name or password")
    } else if says("authentication is not enabled") {
        credentials(
            "a user is configured, but the server has authentication switched off: \
             remove the user, or enable authentication",
        )
    } else if says("etcdserver: permission denied") {
        // The keys and the access are known only where the request is.
        let access = crate::error::RequiredAccess::ReadWrite;
        answer(Error::Denied(Denied::Permission { user: None, access, ranges: Vec::new() }))
    } else if says("etcdserver: no leader") || says("rpc not supported for learner") {
        Class::Refused(text.to_owned())
    } else if text.starts_with("etcdserver: ")
        && matches!(code, Code::InvalidArgument | Code::FailedPrecondition | Code::NotFound)
    {
        // etcd uses these codes for invalid requests, which it finds before it proposes anything.
        invalid(Invalid::Other(text.to_owned()))
    } else if code == Code::Unimplemented && says("mapped from HTTP status code") {
        // No gRPC server answers like this: it has no such page. So it did nothing.
        Class::Refused(format!("{NO_GRPC} {text}"))
    } else if code == Code::Unimplemented {
        invalid(Invalid::UnknownCall(text.to_owned()))
    } else {
        Class::Lost(format!("{text} ({code:?})"))
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests;
