//! The outputs, replies and events between an exclusive key's machine and its driver.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use crate::error::{InvalidRequest, StoreError};
use crate::kv::KeyValue;
use crate::lease::LeaseId;
use crate::revision::{RequestId, Revision, Token};

/// An output for the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExclusiveKeyOutput {
    /// Registers the key through the session, which creates it and overwrites no other process's.
    /// Only if the session does not keep the key registered already.
    Create {
        /// The registration.
        epoch: RequestId,
        /// The encoded record.
        value: Bytes,
    },
    /// Registers the key again, with another value.
    Replace {
        /// The registration.
        epoch: RequestId,
        /// The encoded record.
        value: Bytes,
    },
    /// Unregisters the key. The session deletes it if it is under one of its leases.
    Withdraw,
    /// Reads the key with a [`ReadKey`](super::ReadKey), for
    /// [`ExclusiveKey::handle_read`](super::ExclusiveKey::handle_read).
    Read,
}

/// The session's reply to a registration.
#[derive(Clone, Debug)]
pub enum RegisterReply {
    /// The key is in the store since this revision.
    Stored(Revision),
    /// Another process owns the key. The session does not keep it registered any more.
    Taken,
    /// The session keeps the key registered for another owner, and that did not change.
    AlreadyRegistered,
    /// Another registration of the key, or its end, came later.
    Superseded,
    /// No store accepts this key or value. Nothing changed.
    Invalid(InvalidRequest),
    /// The store refuses the key. The session does not keep it registered any more.
    Refused(StoreError),
    /// The session is closed.
    Closed,
}

/// What the session reports at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionView {
    /// Whether it is closed.
    pub is_closed: bool,
    /// The lease of [`ExclusiveKey::lease`](super::ExclusiveKey::lease), if the session is live and
    /// holds it at this moment.
    pub held: Option<LeaseId>,
    /// Whether it keeps the key registered, for this owner or for another one.
    pub has_key: bool,
}

/// An event for the owner.
#[derive(Clone, Debug)]
pub enum ExclusiveKeyEvent {
    /// The key is this owner's, under this token.
    Taken(Token),
    /// The key was not taken. Nothing of it remains or will be registered.
    NotTaken(ExclusiveKeyError),
    /// The status changed.
    Status(RegistrationStatus),
    /// The result of an update.
    Updated(RequestId, Result<(), UpdateError>),
    /// After a leave, the store was read without this owner's key.
    Left,
    /// After a leave, the store did not confirm in time that this owner's key is deleted.
    LeaveUnconfirmed,
}

/// Why an exclusive key was not taken.
#[derive(Clone, Debug)]
pub enum ExclusiveKeyError {
    /// Another process owns it.
    Held(KeyValue),
    /// The same session keeps it registered for another owner.
    AlreadyRegistered,
    /// The store did not reply in time.
    NotYet {
        /// The bound.
        within: Duration,
    },
    /// The store refuses the key, or it cannot be read.
    Store(StoreError),
    /// The session is closed.
    Closed,
}

/// The status of a registration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegistrationStatus {
    /// It is registered, under this token, and its lease is valid.
    Member(Token),
    /// Its lease was lost or its key was deleted: it must not act as a member. The session is
    /// trying to register it again; a return is a [`RegistrationStatus::Member`] with the same
    /// token if no other process could have had the id meanwhile, and with a larger one otherwise.
    Lost,
    /// Another process has the id. Final: the session does not register it again.
    Displaced(ReplacedBy),
    /// It left, or its session was closed. Final.
    Left,
}

/// The process that has the id now.
#[derive(Clone, PartialEq, Eq)]
pub struct ReplacedBy(KeyValue);

impl ReplacedBy {
    /// The owner of this stored key.
    pub fn new(pair: KeyValue) -> ReplacedBy {
        ReplacedBy(pair)
    }

    /// The other's incarnation.
    pub fn token(&self) -> Token {
        Token(self.0.created)
    }

    /// The value that the other process put.
    pub fn value(&self) -> &Bytes {
        &self.0.value
    }
}

impl fmt::Debug for ReplacedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value may be secret.
        write!(f, "ReplacedBy({})", self.token())
    }
}

/// Why a registered record was not changed.
#[derive(Clone, Debug, Error)]
pub enum UpdateError {
    /// Another process has the id: this handle is no member any more.
    #[error("another process has taken this id, so there is nothing left to change")]
    Displaced,
    /// It has left, or its session was closed.
    #[error("it has left already")]
    Left,
    /// The store did not reply in time. The change is still registered and will be stored when the
    /// store replies.
    #[error("the store did not take the change within {within:?}; it will be made when the store answers")]
    NotYet {
        /// The bound.
        within: Duration,
    },
    /// The store will never take it.
    #[error("the store refuses the change")]
    Refused(#[source] StoreError),
}
