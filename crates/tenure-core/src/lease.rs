//! Leases of a store: an id, a TTL, and the keys that are deleted with it.

use std::fmt;
use std::num::NonZeroI64;
use std::time::Duration;

use bytes::Bytes;

use crate::time::Moment;

/// The id of a lease; never zero, because zero means "no lease" on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub NonZeroI64);

impl LeaseId {
    /// Returns the lease with this id, or none for zero.
    pub fn new(id: i64) -> Option<LeaseId> {
        NonZeroI64::new(id).map(LeaseId)
    }

    /// Makes an id of random bytes: positive, as etcd's own are, and never zero.
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
    /// The TTL that the store *granted*: never less than requested, more where the store's minimum
    /// is higher.
    pub ttl: Duration,
    /// When the request was sent, on the holder's clock. Validity is counted from here, never from
    /// the reply.
    pub asked_at: Moment,
}

/// The result of a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewal {
    /// The store keeps the lease for at least `ttl` from `asked_at`.
    Renewed {
        /// The granted TTL, restarted in full.
        ttl: Duration,
        /// When this renewal was sent, on the holder's clock.
        asked_at: Moment,
    },
    /// The lease has ended, and its keys are deleted or being deleted. No request can bring it
    /// back.
    Gone,
}

/// A lease as an observer reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseView {
    /// The TTL that was granted.
    pub granted: Duration,
    /// The remaining TTL without another renewal.
    pub remaining: Duration,
    /// The keys attached to it, in key order.
    pub keys: Vec<Bytes>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_id_round_trips_as_hex() {
        for id in [1, 0x7587_8f3b_2a11, i64::MAX, -1, i64::MIN] {
            let id = LeaseId::new(id).unwrap();
            assert_eq!(LeaseId::parse_hex(&id.to_string()), Some(id));
        }
        assert_eq!(LeaseId::parse_hex("0"), None);
        assert_eq!(LeaseId::parse_hex("xyz"), None);
    }

    #[test]
    fn random_lease_id_is_never_zero() {
        for bytes in [[0; 8], [0xff; 8], [0, 0, 0, 0, 0, 0, 0, 0x80], [1, 0, 0, 0, 0, 0, 0, 0]] {
            assert!(LeaseId::from_random(bytes).get() > 0);
        }
    }
}
