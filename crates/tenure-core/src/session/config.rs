//! How a session behaves: what its owner may choose.

use std::time::Duration;

use crate::backoff::Backoff;

/// How a session behaves.
#[derive(Clone, Copy, Debug)]
pub struct SessionConfig {
    /// The TTL of keys that do not ask for another.
    pub ttl: Duration,
    /// How long to wait before asking for a new lease again.
    pub retry: Backoff,
    /// How many keys share a lease. Revoking a lease is one blocking transaction of the store, so this bounds how long everybody waits.
    pub keys_per_lease: usize,
}

impl SessionConfig {
    /// What sessions do unless told otherwise.
    pub const DEFAULT: SessionConfig =
        SessionConfig { ttl: Duration::from_secs(15), retry: Backoff::DEFAULT, keys_per_lease: 1_000 };
}
