//! One key that somebody wants registered: where it stands between wish and store.

use bytes::Bytes;

use crate::revision::Revision;

use super::{SlotId, Wish};

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
    pub slot: SlotId,
    pub wish: Wish,
    pub place: Place,
    /// Whether the key was once stored; from then on nobody is overwritten.
    was_stored: bool,
    /// Whether whoever wished was told.
    was_told: bool,
    /// The newest delete of the key that was seen; it may be seen before the answer to an older put.
    deleted_at: Revision,
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

impl Entry {
    pub(super) fn new(value: Bytes, mode: Mode, slot: SlotId, wish: Wish) -> Entry {
        Entry {
            value,
            mode,
            slot,
            wish,
            place: Place::Wanted,
            was_stored: false,
            was_told: false,
            deleted_at: Revision::ZERO,
        }
    }

    /// Whom the next put may replace: the wish's own mode once, then nobody.
    pub(super) fn put_mode(&self) -> Mode {
        if self.was_stored { Mode::Restore } else { self.mode }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.place == Place::Wanted
    }

    /// A put was acknowledged. The key may have been deleted since.
    pub(super) fn stored(&mut self, revision: Revision) {
        self.was_stored = true;
        self.place = if self.deleted_at > revision { Place::Wanted } else { Place::Stored(revision) };
    }

    /// True once: whoever wished has to be told.
    pub(super) fn tell(&mut self) -> bool {
        !std::mem::replace(&mut self.was_told, true)
    }

    /// The key was deleted. True if it has to be put back.
    pub(super) fn deleted(&mut self, revision: Revision) -> bool {
        self.deleted_at = self.deleted_at.max(revision);
        let missing = match self.place {
            Place::Stored(since) | Place::Taken(since) => revision > since,
            Place::Wanted | Place::Putting => false,
        };
        if missing {
            self.place = Place::Wanted;
        }
        missing
    }

    /// Somebody else put the key. True if that is news.
    pub(super) fn taken(&mut self, revision: Revision) -> bool {
        match self.place {
            Place::Stored(since) if revision > since => {
                self.place = Place::Taken(revision);
                true
            }
            Place::Stored(_) | Place::Wanted | Place::Putting | Place::Taken(_) => false,
        }
    }
}
