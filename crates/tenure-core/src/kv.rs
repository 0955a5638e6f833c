//! Keys, values and reads.

use bytes::Bytes;

use crate::error::{InvalidRequest, StoreError};
use crate::lease::LeaseId;
use crate::revision::Revision;

/// A key with its value and its revisions.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty in a keys-only reply.
    pub value: Bytes,
    /// The revision of the put that created the key. A delete ends the incarnation; the next put
    /// begins another.
    pub created: Revision,
    /// The revision of the last put.
    pub modified: Revision,
    /// The number of puts since the key was created; 1 after the first.
    pub version: i64,
    /// The lease of the key. The store deletes the key when the lease ends.
    pub lease: Option<LeaseId>,
}

/// Values may be secret, so only their size is shown.
impl std::fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?}({} bytes, created {:?}, modified {:?}, version {}, {:?})",
            self.key,
            self.value.len(),
            self.created,
            self.modified,
            self.version,
            self.lease
        )
    }
}

/// A set of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selection {
    /// Exactly this key.
    Key(Bytes),
    /// Every key that begins with these bytes, which must end in `/` or be empty (every key there
    /// is): so one name can never match another.
    Prefix(Bytes),
    /// Every key from the first, inclusive, to the second, exclusive. Nothing if they are not in
    /// order.
    Range(Bytes, Bytes),
    /// Every key from this one on, inclusive.
    From(Bytes),
}

impl Selection {
    /// Exactly this key.
    pub fn key(key: impl Into<Bytes>) -> Selection {
        Selection::Key(key.into())
    }

    /// Every key under this prefix; see [`Selection::Prefix`].
    pub fn prefix(prefix: impl Into<Bytes>) -> Selection {
        Selection::Prefix(prefix.into())
    }

    /// Every key there is.
    pub fn everything() -> Selection {
        Selection::Prefix(Bytes::new())
    }

    /// Whether `key` is selected.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Selection::Key(only) => only == key,
            Selection::Prefix(prefix) => key.starts_with(prefix),
            Selection::Range(from, to) => from <= key && key < &to[..],
            Selection::From(from) => from <= key,
        }
    }

    /// The first key that may be selected, inclusive.
    pub fn first(&self) -> &Bytes {
        match self {
            Selection::Key(key)
            | Selection::Prefix(key)
            | Selection::Range(key, _)
            | Selection::From(key) => key,
        }
    }

    /// The first key after the selection; none if it has no end.
    pub fn end(&self) -> Option<Bytes> {
        match self {
            Selection::Key(key) => {
                let mut end = Vec::with_capacity(key.len() + 1);
                end.extend_from_slice(key);
                end.push(0);
                Some(end.into())
            }
            Selection::Prefix(prefix) => {
                let mut end = prefix.to_vec();
                while let Some(last) = end.pop() {
                    if last < u8::MAX {
                        end.push(last + 1);
                        return Some(end.into());
                    }
                }
                None
            }
            Selection::Range(_, to) => Some(to.clone()),
            Selection::From(_) => None,
        }
    }

    /// Refuses what could match by accident: an empty key, or a prefix that does not end in `/`.
    pub fn check(&self) -> Result<(), StoreError> {
        match self {
            Selection::Key(key) if key.is_empty() => Err(InvalidRequest::EmptyKey.into()),
            Selection::Range(from, _) | Selection::From(from) if from.is_empty() => {
                Err(InvalidRequest::EmptyKey.into())
            }
            Selection::Prefix(prefix) if !prefix.is_empty() && prefix.last() != Some(&b'/') => {
                Err(InvalidRequest::OpenPrefix(prefix.clone()).into())
            }
            Selection::Key(_) | Selection::Prefix(_) | Selection::Range(..) | Selection::From(_) => Ok(()),
        }
    }
}

/// The order in which keys are listed, and cut by a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SortOrder {
    /// By key, ascending.
    #[default]
    Key,
    /// By create revision, oldest first. Keys created in one transaction have no particular order
    /// among each other.
    Created,
    /// By create revision, newest first, with the same ties.
    CreatedDescending,
}

/// Whether values are returned with their keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ValueMode {
    /// With their values.
    #[default]
    Whole,
    /// Keys and revisions only.
    Omitted,
}

/// A read of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Get {
    /// The keys.
    pub select: Selection,
    /// The revision to read at; none for the current one, linearizable.
    pub at: Option<Revision>,
    /// The largest number of keys; none for all that fit into one reply.
    pub limit: Option<u32>,
    /// The order.
    pub order: SortOrder,
    /// Only keys created at or before this revision.
    pub created_max: Option<Revision>,
    /// Whether values are returned.
    pub values: ValueMode,
}

impl Get {
    /// Reads a selection at the current revision, in key order, with values.
    pub fn new(select: Selection) -> Get {
        Get {
            select,
            at: None,
            limit: None,
            order: SortOrder::Key,
            created_max: None,
            values: ValueMode::Whole,
        }
    }

    /// Reads one key.
    pub fn key(key: impl Into<Bytes>) -> Get {
        Get::new(Selection::key(key))
    }

    /// Reads all keys under a prefix that ends in `/`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Get {
        Get::new(Selection::prefix(prefix))
    }

    /// Reads at this revision.
    #[must_use]
    pub fn at(mut self, revision: Revision) -> Get {
        self.at = Some(revision);
        self
    }

    /// Returns at most this many keys.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Get {
        self.limit = Some(limit);
        self
    }

    /// Returns keys in this order.
    #[must_use]
    pub fn order(mut self, order: SortOrder) -> Get {
        self.order = order;
        self
    }

    /// Returns only keys created at or before this revision.
    #[must_use]
    pub fn created_max(mut self, revision: Revision) -> Get {
        self.created_max = Some(revision);
        self
    }

    /// Returns keys without values.
    #[must_use]
    pub fn keys_only(mut self) -> Get {
        self.values = ValueMode::Omitted;
        self
    }

    /// Refuses a read that is invalid on every engine.
    pub fn check(&self) -> Result<(), StoreError> {
        self.select.check()?;
        if self.limit == Some(0) {
            return Err(InvalidRequest::LimitZero.into());
        }
        if let Some(at) = self.at.filter(|&at| at <= Revision::ZERO) {
            return Err(InvalidRequest::NoSuchRevision(at).into());
        }
        Ok(())
    }
}

/// The reply to a [`Get`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The keys, in the requested order.
    pub pairs: Vec<KeyValue>,
    /// Whether the limit left out keys.
    pub more: bool,
    /// The store's revision at the time of the reply, which is not the one requested with `at`.
    pub revision: Revision,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_name() {
        let tasks = Selection::prefix("/t/1/");
        assert!(tasks.contains(b"/t/1/owner"));
        assert!(!tasks.contains(b"/t/10/owner"));
        assert_eq!(tasks.end().unwrap(), "/t/10");
    }

    #[test]
    fn prefix_of_last_byte_has_no_end() {
        assert_eq!(Selection::everything().end(), None);
        assert_eq!(Selection::prefix(vec![1, 0xff]).end().unwrap(), vec![2]);
    }

    #[test]
    fn prefix_without_slash_is_refused() {
        assert!(Selection::prefix("/t/1").check().is_err());
        assert!(Selection::prefix("/t/1/").check().is_ok());
        assert!(Selection::everything().check().is_ok());
        assert!(Selection::key("").check().is_err());
    }

    #[test]
    fn selection_contains_keys_between_its_bounds() {
        let keys: [&[u8]; 6] = [b"a", b"a\0", b"a/", b"a/b", b"a0", b"b"];
        for select in [
            Selection::key("a"),
            Selection::prefix("a/"),
            Selection::everything(),
            Selection::Range("a".into(), "a0".into()),
            Selection::Range("b".into(), "a".into()),
            Selection::From("a/".into()),
        ] {
            for key in keys {
                let between = key >= &select.first()[..] && select.end().is_none_or(|end| key < &end[..]);
                assert_eq!(select.contains(key), between, "{select:?} {key:?}");
            }
        }
    }
}
