//! One key with one owner: taken when it is free, kept through a session, and released for good
//! when another process owns it.
//!
//! A member's key and the key of a service instance are exclusive keys. The session puts the key
//! under its leases and puts it again after a loss. This machine decides when the session registers
//! the key, whether the stored key is this owner's, and under which token.
//!
//! Intuition: the record contains a nonce that no other owner writes. Replies are lost and leases
//! are replaced, so only the stored key shows its owner. A reply of the session only shows when to
//! read it.
//!
//! ```text
//!             free                 stored              own nonce            leave
//!   Waiting ────────► Registering ────────► Confirming ────────► Kept ───────────────► Leaving ────► Over
//!      ▲                   │ taken                                │ taken    other nonce ▲
//!      └──── Rereading ◄───┘                                      └────► Replaced ───────┘ (or session closed)
//! ```
//!
//! **Invariant** (G1): the status is `Member` only while the key was last read with this owner's
//! nonce, and the session holds the lease that it was read under.
//!
//! **Invariant** (G4): a key is only created or replaced by its owner, never overwritten.
//!
//! **Invariant** (G6): the token is the create revision of the key as it was read, so a create with
//! a lost reply is found by its nonce.
//!
//! **Invariant**: the key is withdrawn only while the session keeps it registered for this owner,
//! so a later owner in the same session is not withdrawn instead.
//!
//! **Invariant**: a reply to an older registration changes nothing.

mod messages;
mod phase;
mod read;
mod record;

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::StoreError;
use crate::kv::KeyValue;
use crate::lease::LeaseId;
use crate::revision::{RequestId, Revision, Token};
use crate::snapshot::FeedItem;
use crate::time::Moment;

use phase::{ObservedOwner, OwnershipPhase, PendingRegistration, RegistrationPurpose};
use record::nonce_of;

pub use messages::{
    ExclusiveKeyError, ExclusiveKeyEvent, ExclusiveKeyOutput, RegisterReply, RegistrationStatus, ReplacedBy,
    SessionView, UpdateError,
};
pub use read::ReadKey;
pub use record::IdentifiedRecord;

/// The timeouts for taking a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakeTimeouts {
    /// The timeout of the store's replies.
    pub store: Duration,
    /// How long to wait for another owner to leave.
    pub owner: Duration,
}

/// One exclusive key, from the wait until it is free to its end.
#[derive(Clone, Debug)]
pub struct ExclusiveKey<R> {
    /// The record that is stored, or will be.
    record: R,
    patience: TakeTimeouts,
    /// When the wait for another owner ends.
    owner_until: Moment,
    /// When taking the key times out, if no other process owns it.
    take_until: Moment,
    phase: OwnershipPhase,
    session: SessionView,
    /// The owner in the items since the last `Synced`. It counts at the next `Synced`.
    incoming: ObservedOwner,
    /// The owner as last read, and the revision of that read.
    read: Option<(ObservedOwner, Revision)>,
    epoch: RequestId,
    /// The registration in flight.
    pending: Option<PendingRegistration<R>>,
    newest: Option<Token>,
    status: RegistrationStatus,
    actions: VecDeque<ExclusiveKeyOutput>,
    notices: VecDeque<ExclusiveKeyEvent>,
}

impl<R: IdentifiedRecord> ExclusiveKey<R> {
    /// Takes the key with this record as soon as it is free.
    pub fn new(record: R, patience: TakeTimeouts, now: Moment) -> ExclusiveKey<R> {
        let owner_until = now + patience.owner;
        ExclusiveKey {
            record,
            patience,
            owner_until,
            take_until: owner_until.max(now + patience.store),
            phase: OwnershipPhase::Waiting,
            session: SessionView::default(),
            incoming: ObservedOwner::None,
            read: None,
            epoch: RequestId(0),
            pending: None,
            newest: None,
            status: RegistrationStatus::Lost,
            actions: VecDeque::new(),
            notices: VecDeque::new(),
        }
    }

    /// Handles an item of the key's feed.
    pub fn handle_item(&mut self, item: FeedItem, now: Moment) {
        match item {
            FeedItem::SnapshotBegin => {}
            FeedItem::Put(pair) => self.incoming = self.owner_of(pair),
            FeedItem::Delete { .. } => self.incoming = ObservedOwner::None,
            FeedItem::Synced(revision) => {
                let owner = self.incoming.clone();
                self.observe(owner, revision, now);
            }
        }
    }

    /// Handles the end of the key's feed: the key can not be followed any more.
    pub fn handle_feed_end(&mut self, error: StoreError, now: Moment) {
        match self.phase {
            OwnershipPhase::Waiting
            | OwnershipPhase::Rereading
            | OwnershipPhase::Registering
            | OwnershipPhase::Confirming { .. } => {
                self.fail(ExclusiveKeyError::Store(error));
            }
            // Without reads the owner of the key is unknown, now and later.
            OwnershipPhase::Kept | OwnershipPhase::Replaced => self.end(RegistrationStatus::Left),
            OwnershipPhase::Leaving { .. } => self.finish_leave(ExclusiveKeyEvent::LeaveUnconfirmed),
            OwnershipPhase::Over => {}
        }
        self.advance(now);
    }

    /// Handles the reply to [`ExclusiveKeyOutput::Read`].
    pub fn handle_read(&mut self, reply: Result<(Option<KeyValue>, Revision), StoreError>, now: Moment) {
        let (pair, revision) = match reply {
            Ok(read) => read,
            // A read error leaves the owner unknown, like the end of the feed.
            Err(error) => return self.handle_feed_end(error, now),
        };
        let owner = pair.map_or(ObservedOwner::None, |pair| self.owner_of(pair));
        match (self.phase, &owner) {
            // The other owner is known now, or it has left again.
            (OwnershipPhase::Rereading, _) => self.phase = OwnershipPhase::Waiting,
            (OwnershipPhase::Replaced, ObservedOwner::None | ObservedOwner::This(..)) => {
                self.end(RegistrationStatus::Left);
            }
            (_, _) => {}
        }
        self.observe(owner, revision, now);
    }

    /// Handles the session's reply to a registration.
    pub fn handle_registered(&mut self, epoch: RequestId, reply: RegisterReply, now: Moment) {
        // A reply to an older registration does not concern the record that is registered now.
        let Some(pending) = self.pending.take_if(|pending| pending.epoch == epoch) else { return };
        match self.phase {
            OwnershipPhase::Registering => self.handle_created(reply),
            OwnershipPhase::Kept => self.handle_kept(pending, reply),
            // The registration was withdrawn in the meantime.
            OwnershipPhase::Waiting
            | OwnershipPhase::Rereading
            | OwnershipPhase::Confirming { .. }
            | OwnershipPhase::Replaced
            | OwnershipPhase::Leaving { .. }
            | OwnershipPhase::Over => {}
        }
        self.advance(now);
    }

    /// Takes the session's current state. The driver calls this before it polls the events of any
    /// other input.
    pub fn handle_session(&mut self, session: SessionView, now: Moment) {
        self.session = session;
        self.advance(now);
    }

    /// Advances to the current time.
    pub fn handle_time(&mut self, now: Moment) {
        self.advance(now);
    }

    /// Changes the record and registers it again. Token and identity stay.
    ///
    /// # Errors
    ///
    /// The key is not this owner's any more; nothing changed.
    pub fn update(
        &mut self,
        change: impl FnOnce(&mut R),
        within: Duration,
        now: Moment,
    ) -> Result<RequestId, UpdateError> {
        match (&self.phase, &self.status) {
            (OwnershipPhase::Kept, _) => {}
            (OwnershipPhase::Replaced, _) | (_, RegistrationStatus::Displaced(_)) => {
                return Err(UpdateError::Displaced);
            }
            (_, _) => return Err(UpdateError::Left),
        }
        let before = self.record.clone();
        change(&mut self.record);
        // With another nonce the own key would be read as another owner's.
        self.record.keep_identity(&before);
        let purpose = RegistrationPurpose::Update { before, within, until: Some(now + within) };
        let epoch = self.expect_reply(purpose);
        self.actions.push_back(ExclusiveKeyOutput::Replace { epoch, value: self.record.encode() });
        Ok(epoch)
    }

    /// Withdraws the key, and waits until this moment for it to be deleted.
    pub fn leave(&mut self, until: Moment, now: Moment) {
        let was_read = self.is_followed();
        self.release();
        if matches!(self.status, RegistrationStatus::Displaced(_)) {
            // Another process's key was read in its place.
            self.finish_leave(ExclusiveKeyEvent::Left);
            return;
        }
        if !was_read {
            // The feed was closed with the key's end; a new one begins.
            (self.incoming, self.read) = (ObservedOwner::None, None);
        }
        self.phase = OwnershipPhase::Leaving { until };
        self.advance(now);
    }

    /// Withdraws the key and ends.
    pub fn release(&mut self) {
        let status = match self.status {
            RegistrationStatus::Displaced(_) => self.status.clone(),
            RegistrationStatus::Member(_) | RegistrationStatus::Lost | RegistrationStatus::Left => {
                RegistrationStatus::Left
            }
        };
        self.end(status);
    }

    /// The next output for the driver.
    pub fn poll_output(&mut self) -> Option<ExclusiveKeyOutput> {
        self.actions.pop_front()
    }

    /// The next event for the owner.
    pub fn poll_event(&mut self) -> Option<ExclusiveKeyEvent> {
        self.notices.pop_front()
    }

    /// When to call [`ExclusiveKey::handle_time`] if nothing else happens.
    pub fn next_wake(&self) -> Option<Moment> {
        match self.phase {
            OwnershipPhase::Waiting if self.other().is_some() => Some(self.owner_until),
            OwnershipPhase::Waiting
            | OwnershipPhase::Rereading
            | OwnershipPhase::Registering
            | OwnershipPhase::Confirming { .. } => Some(self.take_until),
            OwnershipPhase::Kept | OwnershipPhase::Replaced => {
                self.pending.as_ref().and_then(PendingRegistration::until)
            }
            OwnershipPhase::Leaving { until } => Some(until),
            OwnershipPhase::Over => None,
        }
    }

    /// Whether the driver follows the key with a feed.
    pub fn is_followed(&self) -> bool {
        !self.is_over()
    }

    /// Whether the machine has ended. [`leave`](ExclusiveKey::leave) may still be called.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, OwnershipPhase::Over)
    }

    /// Whether the key is not taken yet.
    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, OwnershipPhase::Waiting | OwnershipPhase::Rereading)
    }

    /// The lease that the own key was last read under.
    pub fn lease(&self) -> Option<LeaseId> {
        match &self.read {
            Some((ObservedOwner::This(_, lease), _)) => *lease,
            Some((ObservedOwner::None | ObservedOwner::Other(_), _)) | None => None,
        }
    }

    /// The status, given what the session reports at this moment.
    pub fn status(&self, session: SessionView) -> RegistrationStatus {
        match self.phase {
            OwnershipPhase::Kept => self.decide(session),
            _ => self.status.clone(),
        }
    }

    /// The newest token of the key as this owner's; none if it was never taken.
    pub fn newest_token(&self) -> Option<Token> {
        self.newest
    }

    /// The record that is stored, or will be.
    pub fn record(&self) -> &R {
        &self.record
    }

    fn owner_of(&self, pair: KeyValue) -> ObservedOwner {
        if nonce_of(&pair.value).as_deref() == Some(self.record.nonce()) {
            ObservedOwner::This(Token(pair.created), pair.lease)
        } else {
            ObservedOwner::Other(pair)
        }
    }

    /// The other owner, if the key was last read with one.
    fn other(&self) -> Option<&KeyValue> {
        match &self.read {
            Some((ObservedOwner::Other(pair), _)) => Some(pair),
            Some((ObservedOwner::None | ObservedOwner::This(..), _)) | None => None,
        }
    }

    /// Two sources show the key, the feed and reads. The newer one counts.
    fn observe(&mut self, owner: ObservedOwner, revision: Revision, now: Moment) {
        // A read may overtake the feed. An older item must not replace what the read showed.
        if self.read.as_ref().is_none_or(|(_, at)| *at <= revision) {
            self.read = Some((owner, revision));
        }
        self.advance(now);
    }
}

#[cfg(test)]
mod tests;
