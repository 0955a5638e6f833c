//! Leases as a store grants them: an id, a bounded life, the keys that die with it.

use std::fmt;
use std::num::NonZeroI64;
use std::time::Duration;

use bytes::Bytes;

use crate::time::Moment;

/// The id of a lease; never zero, because zero means "no lease" on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub NonZeroI64);

impl LeaseId {
    /// The lease with this id, or none for zero.
    pub fn new(id: i64) -> Option<LeaseId> {
        NonZeroI64::new(id).map(LeaseId)
    }

    /// The id made of random bytes: positive, as etcd's own are, and never zero.
    pub fn from_random(bytes: [u8; 8]) -> LeaseId {
        let positive = i64::from_le_bytes(bytes) & i64::MAX;
        LeaseId(NonZeroI64::new(positive).unwrap_or(NonZeroI64::MIN.saturating_neg()))
    }

    /// The id as the wire carries it.
    pub const fn get(self) -> i64 {
        self.0.get()
    }

    /// Reads what [`Display`](fmt::Display) writes: hexadecimal, as etcd's own tools show it.
    pub fn parse_hex(text: &str) -> Option<LeaseId> {
        LeaseId::new(u64::from_str_radix(text, 16).ok()?.cast_signed())
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lease:{self}")
    }
}

/// A lease that was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The lease.
    pub id: LeaseId,
    /// The TTL that the store *granted*: never less than asked, more where the store's floor is higher.
    pub ttl: Duration,
    /// When the request was sent, on the holder's clock: validity is counted from here, never from the answer.
    pub asked_at: Moment,
}

/// What a store says to a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewal {
    /// The lease lives at least `ttl` from `asked_at`.
    Renewed {
        /// The granted TTL, once more in full.
        ttl: Duration,
        /// When the renewal that was answered was sent, on the holder's clock.
        asked_at: Moment,
    },
    /// The lease is over, and its keys are gone or going; nothing can bring it back.
    Gone,
}

/// A lease as an onlooker sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseView {
    /// The TTL that was granted.
    pub granted: Duration,
    /// How long it would live without another renewal.
    pub remaining: Duration,
    /// The keys attached to it, in key order.
    pub keys: Vec<Bytes>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_id_shows_and_reads_the_same_hex() {
        for id in [1, 0x7587_8f3b_2a11, i64::MAX, -1, i64::MIN] {
            let id = LeaseId::new(id).unwrap();
            assert_eq!(LeaseId::parse_hex(&id.to_string()), Some(id));
        }
        assert_eq!(LeaseId::parse_hex("0"), None);
        assert_eq!(LeaseId::parse_hex("xyz"), None);
    }

    #[test]
    fn random_bytes_never_make_the_id_that_means_none() {
        for bytes in [[0; 8], [0xff; 8], [0, 0, 0, 0, 0, 0, 0, 0x80], [1, 0, 0, 0, 0, 0, 0, 0]] {
            assert!(LeaseId::from_random(bytes).get() > 0);
        }
    }
}
