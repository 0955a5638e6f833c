//! One key that somebody wants registered: where it stands between wish and store.
//!
//! Answers and sightings come on two roads, and either may be first. So an entry keeps the newest sighting, and an answer that is
//! older than it does not hide it.
//!
//! **Invariant**: of two things known about the key, the one with the larger revision counts.

use bytes::Bytes;

use crate::revision::Revision;

use super::{LeaseSlotId, Wish};

/// Whom a put may replace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Anybody.
    Overwrite,
    /// Nobody but ourselves: the wish is refused if somebody else has the key.
    Create,
    /// Nobody but ourselves; if somebody else has the key, it is left to them.
    Restore,
}

/// A wanted key.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub value: Bytes,
    pub mode: Mode,
    pub slot: LeaseSlotId,
    pub wish: Wish,
    pub place: Place,
    /// Whether the key was once stored; from then on nobody is overwritten.
    was_stored: bool,
    /// The newest sighting of the key.
    seen: Option<(Revision, Sight)>,
}

/// Where a wanted key is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Not in the store, as far as we know.
    Wanted,
    /// On its way.
    Putting,
    /// In the store, since this revision.
    Stored(Revision),
    /// Somebody else's at this revision, until they leave.
    Taken(Revision),
}

/// What a watch showed of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sight {
    /// It was deleted.
    Gone,
    /// It is as we want it.
    Ours,
    /// It is ours, with a value or a lease of yesterday: an old request of ours was applied late.
    Stale,
    /// Somebody else put it.
    Theirs,
}

/// What a sighting changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum News {
    /// Nothing.
    None,
    /// It has to be put back.
    Missing,
    /// It has to be put again.
    Stale,
    /// Somebody else has it now.
    Taken,
}

impl Entry {
    pub(super) fn new(value: Bytes, mode: Mode, slot: LeaseSlotId, wish: Wish) -> Entry {
        Entry { value, mode, slot, wish, place: Place::Wanted, was_stored: false, seen: None }
    }

    /// Whom the next put may replace: the wish's own mode once, then nobody.
    pub(super) fn put_mode(&self) -> Mode {
        if self.was_stored { Mode::Restore } else { self.mode }
    }

    /// A put was acknowledged. What was seen since counts more.
    pub(super) fn stored(&mut self, revision: Revision) {
        self.was_stored = true;
        self.place = match self.seen_since(revision) {
            None | Some((_, Sight::Ours)) => Place::Stored(revision),
            Some((_, Sight::Gone | Sight::Stale)) => Place::Wanted,
            Some((at, Sight::Theirs)) => Place::Taken(at),
        };
    }

    /// A put found somebody else's key. They may have left since.
    pub(super) fn found_taken(&mut self, revision: Revision) {
        self.place = match self.seen_since(revision) {
            None => Place::Taken(revision),
            Some((at, Sight::Theirs)) => Place::Taken(at),
            Some((_, Sight::Gone | Sight::Stale | Sight::Ours)) => Place::Wanted,
        };
    }

    /// The key was seen.
    pub(super) fn see(&mut self, revision: Revision, sight: Sight) -> News {
        if self.seen.is_some_and(|(seen, _)| seen >= revision) {
            return News::None;
        }
        self.seen = Some((revision, sight));
        let known = match self.place {
            Place::Stored(since) | Place::Taken(since) => since,
            // The answer that is under way decides, and looks at what was seen.
            Place::Wanted | Place::Putting => return News::None,
        };
        if revision <= known {
            return News::None;
        }
        let was_taken = matches!(self.place, Place::Taken(_));
        match sight {
            Sight::Gone => {
                self.place = Place::Wanted;
                News::Missing
            }
            Sight::Ours if !was_taken => {
                self.place = Place::Stored(revision);
                News::None
            }
            Sight::Ours | Sight::Stale => {
                self.place = Place::Wanted;
                News::Stale
            }
            Sight::Theirs => {
                self.place = Place::Taken(revision);
                if was_taken { News::None } else { News::Taken }
            }
        }
    }

    fn seen_since(&self, revision: Revision) -> Option<(Revision, Sight)> {
        self.seen.filter(|(seen, _)| *seen > revision)
    }
}
