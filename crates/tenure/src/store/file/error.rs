//! What SQLite's errors mean for the caller: did the request certainly have no effect?
//!
//! Before COMMIT everything is definite, because SQLite rolls back. An error of COMMIT itself is not: the last frame may already
//! be in the write-ahead log, and the next opener may find it complete.

use rusqlite::{Error, ErrorCode, ffi};

use crate::store::{Cause, StoreError, StoreReplaced, UnusableStore};

/// An error from before COMMIT: nothing happened.
pub(super) fn before_commit(error: Error) -> StoreError {
    let Some(code) = error.sqlite_error() else {
        // A row that does not match the schema.
        return StoreError::Corrupt(error.to_string());
    };
    if code.extended_code == ffi::SQLITE_READONLY_DBMOVED {
        return StoreError::Replaced(StoreReplaced::Files);
    }
    match code.code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => StoreError::Busy(Cause::new(error)),
        ErrorCode::DiskFull => StoreError::NoSpace,
        ErrorCode::DatabaseCorrupt => StoreError::Corrupt(error.to_string()),
        ErrorCode::NotADatabase => StoreError::Unusable(UnusableStore::NotAStore(error.to_string())),
        ErrorCode::PermissionDenied | ErrorCode::ReadOnly | ErrorCode::CannotOpen => {
            StoreError::Denied(error.to_string().into())
        }
        _ => StoreError::Unavailable(Cause::new(error)),
    }
}

/// An error of COMMIT: ambiguous, unless SQLite only waited for another process or found no space for the last frame.
///
/// A full disk is definite. The frame that makes a commit is the last one that is written, so a write that found no space
/// was that one or one before it, and a frame that is not whole does not count.
pub(super) fn of_commit(error: Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy(Cause::new(error)),
        Some(ErrorCode::DiskFull) => StoreError::NoSpace,
        _ => StoreError::Ambiguous(Cause::new(error)),
    }
}

/// An error of a file beside the database.
pub(super) fn of_side_file(what: &str, error: &std::io::Error) -> StoreError {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            StoreError::Denied(format!("{what}: {error}").into())
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::NoSpace,
        _ => StoreError::Unavailable(Cause::new(format!("{what}: {error}"))),
    }
}

/// Whether the request itself was refused, so that the transaction around it can still commit.
pub(super) fn is_refusal(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Invalid(_)
            | StoreError::LeaseNotFound
            | StoreError::LeaseExists
            | StoreError::KeyNotFound
            | StoreError::Compacted { .. }
            | StoreError::FutureRevision
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sqlite(code: i32) -> Error {
        Error::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn io_error_is_ambiguous_from_commit_on() {
        assert!(matches!(before_commit(sqlite(ffi::SQLITE_IOERR_WRITE)), StoreError::Unavailable(_)));
        assert!(matches!(of_commit(sqlite(ffi::SQLITE_IOERR_WRITE)), StoreError::Ambiguous(_)));
        assert!(matches!(of_commit(sqlite(ffi::SQLITE_IOERR_FSYNC)), StoreError::Ambiguous(_)));
        assert!(matches!(of_commit(sqlite(ffi::SQLITE_FULL)), StoreError::NoSpace));
        assert!(matches!(of_commit(sqlite(ffi::SQLITE_BUSY)), StoreError::Busy(_)));
    }

    #[test]
    fn sqlite_codes_map_to_store_errors() {
        assert!(matches!(before_commit(sqlite(ffi::SQLITE_BUSY)), StoreError::Busy(_)));
        assert!(matches!(before_commit(sqlite(ffi::SQLITE_FULL)), StoreError::NoSpace));
        assert!(matches!(before_commit(sqlite(ffi::SQLITE_CORRUPT)), StoreError::Corrupt(_)));
        assert!(matches!(before_commit(sqlite(ffi::SQLITE_NOTADB)), StoreError::Unusable(_)));
        assert!(matches!(before_commit(sqlite(ffi::SQLITE_READONLY)), StoreError::Denied(_)));
        assert!(matches!(
            before_commit(sqlite(ffi::SQLITE_READONLY_DBMOVED)),
            StoreError::Replaced(StoreReplaced::Files)
        ));
    }
}
