//! Maps the errors of the client to those of the contract. The client has already decided what was applied.

use tenure_etcd::Error;

use crate::store::etcd::{TTL_MAX, translate};
use crate::store::{
    AccessKind, Cause, Denied, InvalidRequest, KeyRange, MissingGrant, Revision, StoreError, StoreReplaced,
    TlsFailure,
};

/// The error of a call.
pub(super) fn from(error: Error) -> StoreError {
    match error {
        Error::Invalid(invalid) => StoreError::Invalid(from_invalid(invalid)),
        Error::LeaseNotFound => StoreError::LeaseNotFound,
        Error::LeaseExists => StoreError::LeaseExists,
        Error::KeyNotFound => StoreError::KeyNotFound,
        Error::Compacted { at } => StoreError::Compacted { at: at.map(Revision) },
        Error::FutureRevision => StoreError::FutureRevision,
        Error::Busy(cause) => StoreError::Busy(Cause::new(cause)),
        Error::NoSpace => StoreError::NoSpace,
        Error::RateLimited => StoreError::RateLimited,
        // In the life of a handle a certificate may be wrong for a while, as when certificates are exchanged: nothing left.
        error @ Error::Tls { .. } => StoreError::Unavailable(Cause::new(error)),
        Error::Unavailable(cause) => StoreError::Unavailable(Cause::new(cause)),
        Error::Ambiguous(cause) => StoreError::Ambiguous(Cause::new(cause)),
        Error::Replaced(replaced) => match replaced {
            tenure_etcd::ClusterReplaced::OtherCluster { was, now } => {
                StoreError::Replaced(StoreReplaced::Identity {
                    expected: translate::store_id(was),
                    found: translate::store_id(now),
                })
            }
            tenure_etcd::ClusterReplaced::WentBack { was, now } => {
                StoreError::Replaced(StoreReplaced::RevisionRegress {
                    seen: Revision(was),
                    found: Revision(now),
                })
            }
            other => StoreError::Corrupt(other.to_string()),
        },
        Error::Corrupt(text) => StoreError::Corrupt(text),
        Error::Denied(denied) => StoreError::Denied(from_denied(denied)),
        Error::Closed => StoreError::Closed,
        // A future error of the client must not be taken for a definite one.
        other => StoreError::Ambiguous(Cause::new(other)),
    }
}

/// The error of the first connection: without trust there is no store to wait for.
pub(super) fn from_connecting(error: Error) -> StoreError {
    match error {
        Error::Tls { endpoint, failure } => StoreError::Tls { endpoint, failure: from_tls(failure) },
        other => from(other),
    }
}

fn from_tls(failure: tenure_etcd::TlsFailure) -> TlsFailure {
    use tenure_etcd::TlsFailure as Etcd;
    match failure {
        Etcd::ServerIsPlain => TlsFailure::ServerIsPlain,
        Etcd::ServerIsTls => TlsFailure::ServerIsTls,
        Etcd::UnknownAuthority(text) => TlsFailure::UnknownAuthority(text),
        Etcd::WrongName(text) => TlsFailure::WrongName(text),
        Etcd::NotValidNow(text) => TlsFailure::NotValidNow(text),
        Etcd::NoClientCertificate => TlsFailure::NoClientCertificate,
        Etcd::ClientCertificateRefused(text) => TlsFailure::ClientCertificateRefused(text),
        other => TlsFailure::Other(other.to_string()),
    }
}

fn from_denied(denied: tenure_etcd::Denied) -> Denied {
    match denied {
        tenure_etcd::Denied::Permission { user, access, ranges } => {
            let access = match access {
                tenure_etcd::RequiredAccess::Read => AccessKind::Read,
                tenure_etcd::RequiredAccess::Write => AccessKind::Write,
                tenure_etcd::RequiredAccess::ReadWrite => AccessKind::ReadWrite,
                tenure_etcd::RequiredAccess::Root => AccessKind::Root,
            };
            let ranges =
                ranges.into_iter().map(|range| KeyRange { key: range.key, end: range.end }).collect();
            Denied::MissingGrant(MissingGrant { user, access, ranges })
        }
        other => Denied::Refused(other.to_string()),
    }
}

fn from_invalid(invalid: tenure_etcd::Invalid) -> InvalidRequest {
    match invalid {
        tenure_etcd::Invalid::EmptyKey => InvalidRequest::EmptyKey,
        tenure_etcd::Invalid::TooManyOps { count, limit } => InvalidRequest::TooManyOps { count, max: limit },
        tenure_etcd::Invalid::TooLarge { bytes, limit } => InvalidRequest::TooLarge { bytes, max: limit },
        tenure_etcd::Invalid::AnswerTooLarge(text) => InvalidRequest::AnswerTooLarge(text),
        tenure_etcd::Invalid::TtlTooLarge { ttl } => InvalidRequest::TtlTooLarge { asked: ttl, max: TTL_MAX },
        // The key is not named by the server; where one transaction is at fault, `Txn::check` has named it before.
        other => InvalidRequest::Other(other.to_string()),
    }
}
