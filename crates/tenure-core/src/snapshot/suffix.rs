//! A key without the common prefix. Its first bytes are stored inline, the others behind a pointer.
//!
//! Each change needs a lookup in the map. With whole keys, each of a dozen comparisons would follow
//! a pointer and compare the same prefix again. With inline bytes most comparisons need three
//! machine integers.
//!
//! **Invariant**: suffixes sort in the order of their keys.

use std::cmp::Ordering;

use bytes::Bytes;

/// The number of inline bytes. With 16, most owner keys (`<task>/owner`) needed an allocation for
/// one or two bytes.
const HEAD_BYTES: usize = 24;

/// The part of a key after the prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KeySuffix {
    /// The first bytes, padded with zeros.
    head: [u64; 3],
    /// The number of bytes.
    len: usize,
    /// The bytes after the inline ones.
    rest: Box<[u8]>,
}

impl KeySuffix {
    /// Returns the part after the prefix; none if the key has another prefix.
    pub(super) fn of(key: &[u8], prefix: &[u8]) -> Option<KeySuffix> {
        let suffix = key.strip_prefix(prefix)?;
        let (first, rest) = suffix.split_at(suffix.len().min(HEAD_BYTES));
        let mut bytes = [0; HEAD_BYTES];
        bytes[..first.len()].copy_from_slice(first);
        let (halves, _) = bytes.as_chunks::<8>();
        let head = std::array::from_fn(|n| u64::from_be_bytes(halves[n]));
        Some(KeySuffix { head, len: suffix.len(), rest: rest.into() })
    }

    /// Returns the whole key.
    pub(super) fn after(&self, prefix: &[u8]) -> Bytes {
        let first = self.head.map(u64::to_be_bytes).concat();
        [prefix, &first[..self.len.min(HEAD_BYTES)], &self.rest].concat().into()
    }
}

impl PartialOrd for KeySuffix {
    fn partial_cmp(&self, other: &KeySuffix) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeySuffix {
    /// If one suffix ends among equal inline bytes, it is padded with zeros there, so the shorter
    /// one sorts first.
    fn cmp(&self, other: &KeySuffix) -> Ordering {
        self.head.cmp(&other.head).then_with(|| {
            if self.len > HEAD_BYTES && other.len > HEAD_BYTES {
                self.rest.cmp(&other.rest)
            } else {
                self.len.cmp(&other.len)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        // Few different bytes, zeros among them, and lengths below and above the number of inline
        // bytes.
        prop::collection::vec(prop::sample::select(vec![0_u8, 1, b'a']), 0..30)
    }

    proptest! {
        #[test]
        fn suffixes_sort_and_convert_back(one in key(), other in key()) {
            let with_prefix = |suffix: &[u8]| [b"/p/", suffix].concat();
            let suffix = |suffix: &[u8]| KeySuffix::of(&with_prefix(suffix), b"/p/").unwrap();
            prop_assert_eq!(suffix(&one).cmp(&suffix(&other)), one.cmp(&other));
            prop_assert_eq!(suffix(&one) == suffix(&other), one == other);
            prop_assert_eq!(suffix(&one).after(b"/p/"), with_prefix(&one));
        }
    }

    #[test]
    fn key_with_other_prefix_has_no_suffix() {
        assert_eq!(KeySuffix::of(b"/q/a", b"/p/"), None);
        assert_eq!(KeySuffix::of(b"/p", b"/p/"), None);
    }
}
