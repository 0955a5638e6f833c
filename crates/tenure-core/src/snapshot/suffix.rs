//! A key without the prefix that all keys of a picture have, its first bytes beside the pointer to the others.
//!
//! A picture looks a key up for every change. With whole keys each of a dozen comparisons would fetch a text from somewhere in memory and go
//! through the same prefix again; like this most are settled by three words that lie beside each other.
//!
//! **Invariant**: tails are in the order of their keys.

use std::cmp::Ordering;

use bytes::Bytes;

/// How many bytes stand beside the pointer: with 16, most keys of owners (`<task>/owner`) needed memory of their own for a byte or two.
const HEAD_BYTES: usize = 24;

/// What follows the prefix in a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KeySuffix {
    /// Its first bytes, filled up with zeros.
    head: [u64; 3],
    /// How many bytes it has.
    len: usize,
    /// Those after the first.
    rest: Box<[u8]>,
}

impl KeySuffix {
    /// What follows the prefix; none if the key has another.
    pub(super) fn of(key: &[u8], prefix: &[u8]) -> Option<KeySuffix> {
        let tail = key.strip_prefix(prefix)?;
        let (first, rest) = tail.split_at(tail.len().min(HEAD_BYTES));
        let mut bytes = [0; HEAD_BYTES];
        bytes[..first.len()].copy_from_slice(first);
        let (halves, _) = bytes.as_chunks::<8>();
        let head = std::array::from_fn(|n| u64::from_be_bytes(halves[n]));
        Some(KeySuffix { head, len: tail.len(), rest: rest.into() })
    }

    /// The key.
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
    /// Where the first bytes are alike and one tail ends among them, the other has zeros there; so the shorter one comes first.
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
        // Few different bytes, zeros among them, and lengths on both sides of what stands beside the pointer.
        prop::collection::vec(prop::sample::select(vec![0_u8, 1, b'a']), 0..30)
    }

    proptest! {
        #[test]
        fn tails_are_in_the_order_of_their_keys_and_give_them_back(one in key(), other in key()) {
            let with_prefix = |tail: &[u8]| [b"/p/", tail].concat();
            let tail = |tail: &[u8]| KeySuffix::of(&with_prefix(tail), b"/p/").unwrap();
            prop_assert_eq!(tail(&one).cmp(&tail(&other)), one.cmp(&other));
            prop_assert_eq!(tail(&one) == tail(&other), one == other);
            prop_assert_eq!(tail(&one).after(b"/p/"), with_prefix(&one));
        }
    }

    #[test]
    fn a_key_with_another_prefix_has_no_tail() {
        assert_eq!(KeySuffix::of(b"/q/a", b"/p/"), None);
        assert_eq!(KeySuffix::of(b"/p", b"/p/"), None);
    }
}
