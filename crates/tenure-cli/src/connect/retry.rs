//! Retries of opening a store, within a time limit.
//!
//! A server that does not reply may be paused or in an election, so the request is retried until the time limit. A refused connection is a reply:
//! no process listens there. It is retried only if the caller waits anyway, with `--wait`.

use std::time::Duration;

use tenure::store::StoreError;
use tokio::time::{Instant, sleep, timeout_at};

/// The default of `--connect-timeout`. Scripts rely on a reply within 6 s, start and end of the process included. Halved, an etcd in an election
/// would look dead.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The lower limit for connecting. A shorter `--wait` limits the lock; a connection needs a few round trips on any network.
const WITHIN_MIN: Duration = Duration::from_secs(1);

/// The pause between two tries. A refused connection fails immediately, so only this pause limits the rate.
const PAUSE: Duration = Duration::from_millis(200);

/// The time limit of opening, and the treatment of refused connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConnectRetry {
    pub(crate) within: Duration,
    pub(crate) refused: Refused,
}

/// The treatment of a refused connection, where no process listens at the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// Fail immediately.
    Ends,
    /// Retry: the server may be about to start.
    Retried,
}

impl Default for ConnectRetry {
    fn default() -> ConnectRetry {
        ConnectRetry { within: CONNECT_TIMEOUT, refused: Refused::Ends }
    }
}

impl ConnectRetry {
    /// From `--connect-timeout`.
    pub(crate) fn new(connect_timeout: Option<Duration>) -> ConnectRetry {
        ConnectRetry { within: connect_timeout.unwrap_or(CONNECT_TIMEOUT), ..ConnectRetry::default() }
    }

    /// The limit for a command with `--wait`: it waits for the store as long as for the lock. `--connect-timeout` limits that, if it is given.
    pub(crate) fn with_wait(self, wait: Option<Duration>, connect_timeout: Option<Duration>) -> ConnectRetry {
        let Some(wait) = wait else { return self };
        let within = wait.max(WITHIN_MIN);
        let within = connect_timeout.map_or(within, |limit| within.min(limit));
        ConnectRetry { within, refused: Refused::Retried }
    }

    /// Tries to open until it succeeds, the error is permanent or the time is over. Returns the last error; `None` if there was no reply at all.
    pub(crate) async fn open<T, E, F, Fut>(self, mut try_once: F) -> Result<T, Option<E>>
    where
        E: Transient,
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let until = Instant::now() + self.within;
        let mut last = None;
        loop {
            let error = match timeout_at(until, try_once()).await {
                Ok(Ok(opened)) => return Ok(opened),
                Ok(Err(error)) => error,
                Err(_) => return Err(last),
            };
            let is_final = match error.kind() {
                ErrorKind::Permanent => true,
                ErrorKind::Refused => self.refused == Refused::Ends,
                ErrorKind::Passing => false,
            };
            if is_final || Instant::now() + PAUSE >= until {
                return Err(Some(error));
            }
            last = Some(error);
            sleep(PAUSE).await;
        }
    }
}

/// Whether a retry may help.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ErrorKind {
    Permanent,
    Refused,
    Passing,
}

/// An error of opening.
pub(crate) trait Transient {
    fn kind(&self) -> ErrorKind;
}

impl Transient for tenure_etcd::Error {
    fn kind(&self) -> ErrorKind {
        match self {
            tenure_etcd::Error::Unavailable(cause) if cause.is_refused() => ErrorKind::Refused,
            error if error.is_retryable() => ErrorKind::Passing,
            _ => ErrorKind::Permanent,
        }
    }
}

impl Transient for StoreError {
    fn kind(&self) -> ErrorKind {
        match self {
            StoreError::Unavailable(cause)
                if cause.downcast_ref::<tenure_etcd::Cause>().is_some_and(tenure_etcd::Cause::is_refused) =>
            {
                ErrorKind::Refused
            }
            error if error.is_retryable() => ErrorKind::Passing,
            _ => ErrorKind::Permanent,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tenure::store::Cause;

    use super::*;

    struct FailedTry(ErrorKind);

    impl Transient for FailedTry {
        fn kind(&self) -> ErrorKind {
            self.0
        }
    }

    /// The number of tries for a store that opens at the given try, and whether it was opened.
    async fn tries(retry: ConnectRetry, kind: ErrorKind, opens_at: u32) -> (u32, bool) {
        let count = Cell::new(0);
        let opened = retry
            .open(|| {
                count.set(count.get() + 1);
                let n = count.get();
                async move { if n >= opens_at { Ok(()) } else { Err(FailedTry(kind)) } }
            })
            .await;
        (count.get(), opened.is_ok())
    }

    #[tokio::test(start_paused = true)]
    async fn silent_store_is_retried_until_timeout() {
        let retry = ConnectRetry::new(None);
        assert_eq!(tries(retry, ErrorKind::Passing, 5).await, (5, true));
        assert_eq!(tries(retry, ErrorKind::Permanent, 2).await, (1, false));
        assert_eq!(
            tries(retry, ErrorKind::Refused, 2).await,
            (1, false),
            "nothing listens: fails immediately"
        );
        let waiting = retry.with_wait(Some(Duration::from_secs(30)), None);
        assert_eq!(tries(waiting, ErrorKind::Refused, 100).await, (100, true), "with --wait it is retried");
        let begin = Instant::now();
        assert!(!tries(retry, ErrorKind::Passing, u32::MAX).await.1);
        assert!(begin.elapsed() <= CONNECT_TIMEOUT, "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_try_ends_at_timeout() {
        let hanging = ConnectRetry::new(Some(Duration::from_secs(2)));
        let begin = Instant::now();
        let opened = hanging.open(std::future::pending::<Result<(), FailedTry>>).await;
        assert!(matches!(opened, Err(None)));
        assert_eq!(begin.elapsed(), Duration::from_secs(2));
    }

    #[test]
    fn wait_and_connect_timeout_limit_each_other() {
        let seconds = Duration::from_secs;
        for (wait, limit, within) in [
            (None, None, 5),
            (None, Some(9), 9),
            (Some(30), None, 30),
            (Some(30), Some(9), 9),
            (Some(3), Some(9), 3),
            (Some(0), None, 1),
        ] {
            let (wait, limit) = (wait.map(seconds), limit.map(seconds));
            assert_eq!(
                ConnectRetry::new(limit).with_wait(wait, limit).within,
                seconds(within),
                "{wait:?} {limit:?}"
            );
        }
    }

    #[test]
    fn store_and_etcd_errors_are_classified() {
        assert_eq!(StoreError::Unavailable(Cause::new("silent")).kind(), ErrorKind::Passing);
        assert_eq!(StoreError::Denied("no".into()).kind(), ErrorKind::Permanent);
        assert_eq!(tenure_etcd::Error::Closed.kind(), ErrorKind::Permanent);
    }
}
