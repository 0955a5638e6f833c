//! The limits of a store: sizes, counts and TTLs, checked before anything is sent or written.

use std::time::Duration;

use crate::error::{InvalidRequest, StoreError};

/// The limits of a store. Requests beyond them are refused with both numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Operations in each list of a transaction (conditions, then, otherwise). etcd's default is
    /// 128; a larger one would work on the embedded engines only.
    pub txn_ops_max: usize,
    /// Bytes of one request. etcd's default is 1.5 MiB.
    pub request_bytes_max: usize,
    /// The shortest TTL that is granted; shorter ones are raised to it, as etcd does.
    pub ttl_min: Duration,
    /// The longest TTL that is granted; longer ones are refused.
    pub ttl_max: Duration,
}

impl Limits {
    /// The limits of the embedded engines: etcd's own, so that nothing works in a test that fails
    /// in production.
    ///
    /// A process that shares its machine with others cannot hold a TTL below one second.
    pub const EMBEDDED: Limits = Limits {
        txn_ops_max: 128,
        request_bytes_max: 1_572_864,
        ttl_min: Duration::from_secs(1),
        ttl_max: Duration::from_secs(9_000_000_000),
    };

    /// Returns the TTL that the store grants for a requested `ttl`.
    pub fn grant_ttl(&self, ttl: Duration) -> Result<Duration, StoreError> {
        if ttl.is_zero() {
            return Err(InvalidRequest::TtlZero.into());
        }
        if ttl > self.ttl_max {
            return Err(InvalidRequest::TtlTooLarge { asked: ttl, max: self.ttl_max }.into());
        }
        Ok(ttl.max(self.ttl_min))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_ttl_is_raised_and_zero_refused() {
        let limits = Limits::EMBEDDED;
        assert_eq!(limits.grant_ttl(Duration::from_millis(5)).unwrap(), Duration::from_secs(1));
        assert_eq!(limits.grant_ttl(Duration::from_millis(1500)).unwrap(), Duration::from_millis(1500));
        assert!(matches!(
            limits.grant_ttl(Duration::ZERO),
            Err(StoreError::Invalid(InvalidRequest::TtlZero))
        ));
        assert!(limits.grant_ttl(Duration::from_secs(9_000_000_001)).is_err());
    }
}
