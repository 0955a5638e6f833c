//! How a session behaves: what its owner may choose.

use std::time::Duration;

use crate::backoff::Retry;

/// How a session behaves.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The TTL of keys that do not ask for another.
    pub ttl: Duration,
    /// How long to wait before asking for a new lease again.
    pub retry: Retry,
    /// How many keys share a lease. Revoking a lease is one blocking transaction of the store, so this bounds how long everybody waits.
    pub keys_per_lease: usize,
}

impl Plan {
    /// What sessions do unless told otherwise.
    pub const DEFAULT: Plan =
        Plan { ttl: Duration::from_secs(15), retry: Retry::DEFAULT, keys_per_lease: 1_000 };
}
