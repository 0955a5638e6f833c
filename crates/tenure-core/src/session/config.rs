//! The configuration of a session.

use std::time::Duration;

use crate::backoff::Backoff;

/// The configuration of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionConfig {
    /// The TTL of keys and users that do not choose one.
    pub ttl: Duration,
    /// The backoff between requests for a new lease.
    pub retry: Backoff,
    /// How many keys share a lease. The store revokes a lease in one blocking transaction, so this
    /// bounds how long all other requests wait for it.
    pub keys_per_lease: usize,
}

impl SessionConfig {
    /// The defaults of a session.
    pub const DEFAULT: SessionConfig =
        SessionConfig { ttl: Duration::from_secs(15), retry: Backoff::DEFAULT, keys_per_lease: 1_000 };
}
