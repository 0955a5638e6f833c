//! One registered key: what is known of it in the store.
//!
//! Replies and watched changes arrive independently, in any order. The newest observation is kept,
//! so that an older reply does not hide it.
//!
//! **Invariant**: of two facts about the key, the one with the larger revision counts.

use bytes::Bytes;

use crate::revision::Revision;

use super::{LeaseSlotId, RegistrationId};

/// Which existing key a put may replace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutMode {
    /// Any key.
    Overwrite,
    /// Only a key of this session: the registration is refused if another client has the key.
    Create,
    /// Only a key of this session. If another client has the key, it is left alone.
    Restore,
}

/// A registered key.
#[derive(Clone, Debug)]
pub(super) struct RegisteredKey {
    pub value: Bytes,
    pub mode: PutMode,
    pub slot: LeaseSlotId,
    pub registration: RegistrationId,
    pub location: KeyLocation,
    /// Whether the key was stored once. From then on no other client's key is overwritten.
    was_stored: bool,
    /// The newest observation of the key.
    observed: Option<(Revision, KeyObservation)>,
}

/// Where a registered key is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyLocation {
    /// Not in the store, as far as is known.
    Wanted,
    /// A put is in flight.
    Putting,
    /// In the store, since this revision.
    Stored(Revision),
    /// Owned by another client at this revision, until it deletes the key.
    Taken(Revision),
}

/// What a watch showed of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyObservation {
    /// The key was deleted.
    Deleted,
    /// It has the registered value and is under the lease of its slot.
    Current,
    /// It is this session's with an earlier value or lease: an earlier put was applied late.
    Outdated,
    /// Another client put it.
    Foreign,
}

/// What an observation changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyChange {
    /// Nothing.
    None,
    /// The key was deleted and must be put again.
    Missing,
    /// The key is outdated and must be put again.
    Outdated,
    /// Another client has the key now.
    Taken,
}

impl RegisteredKey {
    pub(super) fn new(
        value: Bytes,
        mode: PutMode,
        slot: LeaseSlotId,
        registration: RegistrationId,
    ) -> RegisteredKey {
        RegisteredKey {
            value,
            mode,
            slot,
            registration,
            location: KeyLocation::Wanted,
            was_stored: false,
            observed: None,
        }
    }

    /// Which existing key the next put may replace: the registration's mode once, then only an own
    /// key.
    pub(super) fn put_mode(&self) -> PutMode {
        if self.was_stored { PutMode::Restore } else { self.mode }
    }

    /// Records an acknowledged put. A newer observation counts more.
    pub(super) fn stored(&mut self, revision: Revision) {
        self.was_stored = true;
        self.location = match self.observed_since(revision) {
            None | Some((_, KeyObservation::Current)) => KeyLocation::Stored(revision),
            Some((_, KeyObservation::Deleted | KeyObservation::Outdated)) => KeyLocation::Wanted,
            Some((at, KeyObservation::Foreign)) => KeyLocation::Taken(at),
        };
    }

    /// Records a put that found another client's key. That key may be deleted since.
    pub(super) fn found_taken(&mut self, revision: Revision) {
        self.location = match self.observed_since(revision) {
            None => KeyLocation::Taken(revision),
            Some((at, KeyObservation::Foreign)) => KeyLocation::Taken(at),
            Some((_, KeyObservation::Deleted | KeyObservation::Outdated | KeyObservation::Current)) => {
                KeyLocation::Wanted
            }
        };
    }

    /// Records an observation of the key.
    pub(super) fn observe(&mut self, revision: Revision, observation: KeyObservation) -> KeyChange {
        if self.observed.is_some_and(|(observed, _)| observed >= revision) {
            return KeyChange::None;
        }
        self.observed = Some((revision, observation));
        let known = match self.location {
            KeyLocation::Stored(since) | KeyLocation::Taken(since) => since,
            // The reply in flight decides, together with this observation.
            KeyLocation::Wanted | KeyLocation::Putting => return KeyChange::None,
        };
        if revision <= known {
            return KeyChange::None;
        }
        let was_taken = matches!(self.location, KeyLocation::Taken(_));
        match observation {
            KeyObservation::Deleted => {
                self.location = KeyLocation::Wanted;
                KeyChange::Missing
            }
            KeyObservation::Current if !was_taken => {
                self.location = KeyLocation::Stored(revision);
                KeyChange::None
            }
            KeyObservation::Current | KeyObservation::Outdated => {
                self.location = KeyLocation::Wanted;
                KeyChange::Outdated
            }
            KeyObservation::Foreign => {
                self.location = KeyLocation::Taken(revision);
                if was_taken { KeyChange::None } else { KeyChange::Taken }
            }
        }
    }

    fn observed_since(&self, revision: Revision) -> Option<(Revision, KeyObservation)> {
        self.observed.filter(|(observed, _)| *observed > revision)
    }
}
