//! The steps of an exclusive key: what each reply and each read leads to.

use std::time::Duration;

use crate::error::StoreError;
use crate::kv::KeyValue;
use crate::lease::LeaseId;
use crate::revision::{RequestId, Revision, Token};
use crate::time::Moment;

use super::{
    ExclusiveKey, ExclusiveKeyError, ExclusiveKeyEvent, ExclusiveKeyOutput, IdentifiedRecord, RegisterReply,
    RegistrationStatus, ReplacedBy, SessionView, UpdateError,
};

/// The phase of an exclusive key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OwnershipPhase {
    /// Waits until the key is read as free.
    Waiting,
    /// Another process created the key first. A read shows which, or that it is gone again: what
    /// the feed shows meanwhile may be older.
    Rereading,
    /// The session registers the key.
    Registering,
    /// The key is stored since this revision, and not yet read.
    Confirming { since: Revision },
    /// The key is this owner's, or the session is registering it again.
    Kept,
    /// The session found another process's key and does not register this one any more. A read
    /// shows which.
    Replaced,
    /// The key is withdrawn, and has to be deleted by this moment.
    Leaving { until: Moment },
    /// It has ended.
    Over,
}

/// The owner of the key, as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ObservedOwner {
    /// The key does not exist.
    None,
    /// This owner's, under a token, and under a lease unless another client put it without one.
    This(Token, Option<LeaseId>),
    /// Another owner's.
    Other(KeyValue),
}

/// A registration in flight.
#[derive(Clone, Debug)]
pub(super) struct PendingRegistration<R> {
    pub(super) epoch: RequestId,
    purpose: RegistrationPurpose<R>,
}

/// What is registered.
#[derive(Clone, Debug)]
pub(super) enum RegistrationPurpose<R> {
    /// The key, for the first time.
    Create,
    /// Another record.
    Update {
        /// The record before.
        before: R,
        within: Duration,
        /// Until when the result has to be reported; none if it was.
        until: Option<Moment>,
    },
}

impl<R> PendingRegistration<R> {
    pub(super) fn until(&self) -> Option<Moment> {
        match self.purpose {
            RegistrationPurpose::Create => None,
            RegistrationPurpose::Update { until, .. } => until,
        }
    }
}

impl<R: IdentifiedRecord> ExclusiveKey<R> {
    /// Takes the next step of the phase.
    pub(super) fn advance(&mut self, now: Moment) {
        match self.phase {
            OwnershipPhase::Waiting => self.advance_waiting(now),
            OwnershipPhase::Registering | OwnershipPhase::Confirming { .. } => self.advance_taking(),
            OwnershipPhase::Kept => self.advance_kept(),
            OwnershipPhase::Replaced => self.advance_replaced(),
            OwnershipPhase::Leaving { .. } => self.advance_leaving(),
            OwnershipPhase::Rereading | OwnershipPhase::Over => {}
        }
        // An earlier step may already have changed the phase, so the deadline is read after it.
        if self.next_wake().is_some_and(|wake| now >= wake) {
            self.expire();
        }
    }

    fn advance_waiting(&mut self, now: Moment) {
        if self.session.is_closed {
            return self.fail(ExclusiveKeyError::Closed);
        }
        match &self.read {
            None => {}
            Some((ObservedOwner::Other(_), _)) if self.session.has_key => {
                self.fail(ExclusiveKeyError::AlreadyRegistered);
            }
            Some((ObservedOwner::Other(_), _)) => {}
            // An own key in this phase is an earlier create that was applied late. The session
            // replaces it.
            Some((ObservedOwner::None | ObservedOwner::This(..), revision)) => {
                let revision = *revision;
                if now < self.take_until {
                    self.create(revision);
                }
            }
        }
    }

    fn create(&mut self, revision: Revision) {
        self.record.created_after(revision);
        let epoch = self.expect_reply(RegistrationPurpose::Create);
        self.actions.push_back(ExclusiveKeyOutput::Create { epoch, value: self.record.encode() });
        self.phase = OwnershipPhase::Registering;
    }

    pub(super) fn expect_reply(&mut self, purpose: RegistrationPurpose<R>) -> RequestId {
        self.epoch = RequestId(self.epoch.0 + 1);
        self.pending = Some(PendingRegistration { epoch: self.epoch, purpose });
        self.epoch
    }

    /// Handles the reply to the create.
    pub(super) fn handle_created(&mut self, reply: RegisterReply) {
        match reply {
            RegisterReply::Stored(since) => {
                self.phase = OwnershipPhase::Confirming { since };
                // The feed shows the key too, but it may lag behind or be listing again.
                self.actions.push_back(ExclusiveKeyOutput::Read);
            }
            RegisterReply::Taken => {
                self.phase = OwnershipPhase::Rereading;
                self.actions.push_back(ExclusiveKeyOutput::Read);
            }
            RegisterReply::AlreadyRegistered | RegisterReply::Superseded => {
                self.fail_unregistered(ExclusiveKeyError::AlreadyRegistered);
            }
            RegisterReply::Invalid(invalid) => {
                self.fail_unregistered(ExclusiveKeyError::Store(invalid.into()));
            }
            RegisterReply::Refused(error) => self.fail_unregistered(ExclusiveKeyError::Store(error)),
            RegisterReply::Closed => self.fail_unregistered(ExclusiveKeyError::Closed),
        }
    }

    /// Handles the reply to an update, or to a create of a key that was read before the reply
    /// arrived.
    pub(super) fn handle_kept(&mut self, pending: PendingRegistration<R>, reply: RegisterReply) {
        match reply {
            RegisterReply::Stored(_) => self.report(&pending, Ok(())),
            // The session still keeps the record before.
            RegisterReply::Invalid(invalid) => self.refuse(&pending, invalid.into()),
            RegisterReply::Refused(error) => {
                self.refuse(&pending, error);
                self.end_unregistered(RegistrationStatus::Left);
            }
            RegisterReply::Taken => {
                // The owner of the key is not known yet. The read shows it and decides the status.
                self.phase = OwnershipPhase::Replaced;
                self.set_status(RegistrationStatus::Lost);
                self.pending = Some(pending);
                self.actions.push_back(ExclusiveKeyOutput::Read);
            }
            RegisterReply::AlreadyRegistered | RegisterReply::Superseded | RegisterReply::Closed => {
                self.pending = Some(pending);
                self.end_unregistered(RegistrationStatus::Left);
            }
        }
    }

    fn advance_taking(&mut self) {
        if self.session.is_closed {
            return self.fail_unregistered(ExclusiveKeyError::Closed);
        }
        let since = match self.phase {
            OwnershipPhase::Confirming { since } => Some(since),
            _ => None,
        };
        match &self.read {
            Some((ObservedOwner::This(token, Some(lease)), _)) if self.session.held == Some(*lease) => {
                let token = *token;
                self.phase = OwnershipPhase::Kept;
                self.notices.push_back(ExclusiveKeyEvent::Taken(token));
                self.advance_kept();
            }
            // Before the key was stored, its predecessor may be read. After that it was replaced.
            Some((ObservedOwner::Other(pair), at)) if since.is_some_and(|since| *at > since) => {
                let pair = pair.clone();
                self.fail(ExclusiveKeyError::Held(pair));
            }
            _ => {}
        }
    }

    fn advance_kept(&mut self) {
        match self.decide(self.session) {
            RegistrationStatus::Left => self.end_unregistered(RegistrationStatus::Left),
            // The key is not registered again when the other owner leaves. Its clients know the
            // other owner, and a return would replace it unnoticed.
            displaced @ RegistrationStatus::Displaced(_) => self.end(displaced),
            status @ (RegistrationStatus::Member(_) | RegistrationStatus::Lost) => self.set_status(status),
        }
    }

    /// Returns the status while the key is kept.
    ///
    /// A session that holds another lease than the one that the key was read under has recovered.
    /// The end of the former key was not read yet, and another process may have owned the key in
    /// between.
    pub(super) fn decide(&self, session: SessionView) -> RegistrationStatus {
        match &self.read {
            _ if session.is_closed => RegistrationStatus::Left,
            Some((ObservedOwner::Other(pair), _)) => {
                RegistrationStatus::Displaced(ReplacedBy::new(pair.clone()))
            }
            Some((ObservedOwner::This(token, Some(lease)), _)) if session.held == Some(*lease) => {
                RegistrationStatus::Member(*token)
            }
            Some((ObservedOwner::This(..) | ObservedOwner::None, _)) | None => RegistrationStatus::Lost,
        }
    }

    fn advance_replaced(&mut self) {
        if let Some(other) = self.other() {
            let other = ReplacedBy::new(other.clone());
            self.end(RegistrationStatus::Displaced(other));
        }
    }

    fn advance_leaving(&mut self) {
        match &self.read {
            Some((ObservedOwner::None | ObservedOwner::Other(_), _)) => {
                self.finish_leave(ExclusiveKeyEvent::Left);
            }
            Some((ObservedOwner::This(..), _)) | None => {}
        }
    }

    /// Handles the deadline of the phase.
    fn expire(&mut self) {
        match self.phase {
            OwnershipPhase::Waiting => {
                let not_yet = ExclusiveKeyError::NotYet { within: self.patience.store };
                self.fail(self.other().cloned().map_or(not_yet, ExclusiveKeyError::Held));
            }
            OwnershipPhase::Rereading | OwnershipPhase::Registering | OwnershipPhase::Confirming { .. } => {
                self.fail(ExclusiveKeyError::NotYet { within: self.patience.store });
            }
            OwnershipPhase::Kept => {
                let Some(PendingRegistration {
                    epoch,
                    purpose: RegistrationPurpose::Update { within, until, .. },
                }) = &mut self.pending
                else {
                    return;
                };
                // The session goes on; its reply is still expected.
                *until = None;
                let error = UpdateError::NotYet { within: *within };
                self.notices.push_back(ExclusiveKeyEvent::Updated(*epoch, Err(error)));
            }
            OwnershipPhase::Replaced => self.end(RegistrationStatus::Left),
            OwnershipPhase::Leaving { .. } => self.finish_leave(ExclusiveKeyEvent::LeaveUnconfirmed),
            OwnershipPhase::Over => {}
        }
    }

    fn report(&mut self, pending: &PendingRegistration<R>, result: Result<(), UpdateError>) {
        if pending.until().is_some() {
            self.notices.push_back(ExclusiveKeyEvent::Updated(pending.epoch, result));
        }
    }

    /// Restores the record before an update that the store rejects.
    fn refuse(&mut self, pending: &PendingRegistration<R>, error: StoreError) {
        if let RegistrationPurpose::Update { before, .. } = &pending.purpose {
            self.record = before.clone();
        }
        self.report(pending, Err(UpdateError::Refused(error)));
    }

    /// The key is not taken; what the session registers of it is withdrawn.
    pub(super) fn fail(&mut self, error: ExclusiveKeyError) {
        self.withdraw();
        self.fail_unregistered(error);
    }

    /// The key is not taken, and the session does not register it.
    fn fail_unregistered(&mut self, error: ExclusiveKeyError) {
        self.phase = OwnershipPhase::Over;
        self.pending = None;
        self.status = RegistrationStatus::Left;
        self.notices.push_back(ExclusiveKeyEvent::NotTaken(error));
    }

    /// The key is not this owner's any more; what the session registers of it is withdrawn.
    pub(super) fn end(&mut self, status: RegistrationStatus) {
        self.withdraw();
        self.end_unregistered(status);
    }

    fn end_unregistered(&mut self, status: RegistrationStatus) {
        let was_replaced = matches!(self.phase, OwnershipPhase::Replaced);
        self.phase = OwnershipPhase::Over;
        if let Some(pending) = self.pending.take() {
            let error = match status {
                RegistrationStatus::Displaced(_) => UpdateError::Displaced,
                _ if was_replaced => UpdateError::Displaced,
                _ => UpdateError::Left,
            };
            self.report(&pending, Err(error));
        }
        self.set_status(status);
    }

    /// In all other phases the session does not register the key for this owner.
    fn withdraw(&mut self) {
        if matches!(
            self.phase,
            OwnershipPhase::Registering | OwnershipPhase::Confirming { .. } | OwnershipPhase::Kept
        ) {
            self.actions.push_back(ExclusiveKeyOutput::Withdraw);
        }
    }

    pub(super) fn finish_leave(&mut self, notice: ExclusiveKeyEvent) {
        self.phase = OwnershipPhase::Over;
        self.notices.push_back(notice);
    }

    fn set_status(&mut self, status: RegistrationStatus) {
        if let RegistrationStatus::Member(token) = status {
            self.newest = self.newest.max(Some(token));
        }
        if self.status != status {
            self.status = status.clone();
            self.notices.push_back(ExclusiveKeyEvent::Status(status));
        }
    }
}
