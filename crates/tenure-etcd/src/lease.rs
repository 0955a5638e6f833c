//! Leases: grant, revoke, read. `keepalive` renews them.

use std::time::Duration;

use bytes::Bytes;

use crate::call::{Call, CallKind};
use crate::classify::RequestSize;
use crate::client::Client;
use crate::clock::boot_time;
use crate::error::{Error, Invalid};
use crate::message::lease as message;

/// The server's ceiling for a time to live, in seconds.
const TTL_SECONDS_MAX: u64 = 9_000_000_000;

/// A lease as it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its id.
    pub id: i64,
    /// The TTL that was granted, which is the one that counts: the server raises a TTL below its
    /// minimum.
    pub ttl: Duration,
    /// [`boot_time`] before the request was sent: validity counts from here.
    pub asked_at: Duration,
}

/// A lease as the server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// The TTL that was granted.
    pub granted: Duration,
    /// The remaining time.
    pub remaining: Duration,
    /// The keys attached to it.
    pub keys: Vec<Bytes>,
}

impl Client {
    /// Grants a lease of at least `ttl`, rounded up to seconds, under the given id (0: the server
    /// chooses one).
    ///
    /// With an id of the client's choice an ambiguous grant is settled by repeating it:
    /// [`Error::LeaseExists`] means that the first one was applied.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseExists`], [`Error::NoSpace`] (a full database grants no lease),
    /// [`Error::Ambiguous`], [`Invalid::TtlTooLarge`].
    ///
    /// # Cancellation
    ///
    /// The lease may exist without a process that renews it; it expires by itself.
    pub async fn lease_grant(&self, id: i64, ttl: Duration) -> Result<Grant, Error> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let whole = i64::try_from(seconds).ok().filter(|_| seconds <= TTL_SECONDS_MAX);
        let Some(whole) = whole else { return Err(Invalid::TtlTooLarge { ttl }.into()) };
        let asked_at = boot_time();
        let call = Call {
            path: "/etcdserverpb.Lease/LeaseGrant",
            kind: CallKind::Write,
            message: message::LeaseGrantRequest { ttl: whole, id },
            size: RequestSize { ttl: seconds, ..RequestSize::default() },
        };
        let answer: message::LeaseGrantResponse = self.endpoints().call(call).await?;
        if !answer.error.is_empty() {
            return Err(Error::Corrupt(format!(
                "the grant was answered with both a lease and {:?}",
                answer.error
            )));
        }
        Ok(Grant { id: answer.id, ttl: seconds_of(answer.ttl)?, asked_at })
    }

    /// Ends a lease and deletes its keys, all at one revision, which is returned.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseNotFound`] when it is gone already, [`Error::Ambiguous`].
    ///
    /// # Cancellation
    ///
    /// The lease may still be revoked.
    pub async fn lease_revoke(&self, id: i64) -> Result<i64, Error> {
        let call = Call {
            path: "/etcdserverpb.Lease/LeaseRevoke",
            kind: CallKind::Write,
            message: message::LeaseRevokeRequest { id },
            size: RequestSize::default(),
        };
        let answer: message::LeaseRevokeResponse = self.endpoints().call(call).await?;
        Ok(answer.header.map_or(0, |header| header.revision))
    }

    /// Reads a lease and its keys; `None` when there is no such lease.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when no member replied in time.
    ///
    /// # Cancellation
    ///
    /// Safe: nothing was changed.
    pub async fn lease_time_to_live(&self, id: i64) -> Result<Option<LeaseView>, Error> {
        let call = Call {
            path: "/etcdserverpb.Lease/LeaseTimeToLive",
            kind: CallKind::LocalRead,
            message: message::LeaseTimeToLiveRequest { id, keys: true },
            size: RequestSize::default(),
        };
        let answer: message::LeaseTimeToLiveResponse = match self.endpoints().call(call).await {
            Ok(answer) => answer,
            Err(Error::LeaseNotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        if answer.ttl < 0 {
            return Ok(None);
        }
        Ok(Some(LeaseView {
            granted: seconds_of(answer.granted_ttl)?,
            remaining: seconds_of(answer.ttl)?,
            keys: answer.keys,
        }))
    }

    /// The ids of all leases.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when no member replied in time.
    ///
    /// # Cancellation
    ///
    /// Safe: nothing was changed.
    pub async fn leases(&self) -> Result<Vec<i64>, Error> {
        let call = Call {
            path: "/etcdserverpb.Lease/LeaseLeases",
            kind: CallKind::LocalRead,
            message: message::LeaseLeasesRequest {},
            size: RequestSize::default(),
        };
        let answer: message::LeaseLeasesResponse = self.endpoints().call(call).await?;
        Ok(answer.leases.into_iter().map(|lease| lease.id).collect())
    }
}

fn seconds_of(ttl: i64) -> Result<Duration, Error> {
    u64::try_from(ttl)
        .map(Duration::from_secs)
        .map_err(|_| Error::Corrupt(format!("the server granted a lease of {ttl} s")))
}
