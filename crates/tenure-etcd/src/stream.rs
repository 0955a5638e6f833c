//! What the watch stream and the keep-alive stream share: opening a stream, and reconnecting after
//! it broke.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use futures_core::future::BoxFuture;
use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use crate::classify::{Class, RequestSize, classify};
use crate::connection::{Connection, RequireLeader};
use crate::endpoints::{ConnectionReport, Endpoints};
use crate::error::{Cause, Error};

/// Longest wait before the first new try: long enough to spread a thousand clients of one dead member.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// Longest wait at all. Doubled, a short lease would not survive a restart; halved, a dead cluster
/// gets useless attempts.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The receiving side of a stream, which may still be opening.
pub(crate) enum Incoming<R> {
    /// etcd sends its headers with its first response, so this lasts until then.
    Opening(BoxFuture<'static, Result<Streaming<R>, Status>>),
    Open(Box<Streaming<R>>),
}

impl<R: prost::Message + Default + 'static> Incoming<R> {
    /// Opens a stream for the requests of the channel `requests`, which must contain the first one
    /// already.
    ///
    /// The member must know a leader and ends the stream when it loses it: otherwise silence would
    /// look like a store without changes.
    pub(crate) fn open<Q>(
        connection: &Connection,
        path: &'static str,
        requests: mpsc::Receiver<Q>,
    ) -> Result<Self, Error>
    where
        Q: prost::Message + 'static,
    {
        let request = connection.request(Requests(requests), RequireLeader::Yes)?;
        let mut grpc = connection.grpc();
        Ok(Incoming::Opening(Box::pin(async move {
            let codec = ProstCodec::<Q, R>::default();
            let response = grpc.streaming(request, PathAndQuery::from_static(path), codec).await?;
            Ok(response.into_inner())
        })))
    }

    /// The next response. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<R, Status> {
        loop {
            match self {
                Incoming::Opening(opening) => {
                    let stream = opening.await?;
                    *self = Incoming::Open(Box::new(stream));
                }
                Incoming::Open(stream) => {
                    return stream
                        .message()
                        .await?
                        .ok_or_else(|| Status::unavailable("the server ended the stream"));
                }
            }
        }
    }
}

/// A broken stream, as it concerns the connection and the waiting callers.
#[derive(Debug)]
pub(crate) enum StreamError {
    /// Try again, elsewhere if need be.
    Retry(Error),
    /// No other member would accept it either.
    Fatal(Error),
}

impl StreamError {
    /// Interprets the status that ended a stream, and reports to the endpoints what it proves about
    /// the member.
    pub(crate) fn report(endpoints: &Endpoints, connection: &Connection, status: &Status) -> StreamError {
        let is_transport = std::error::Error::source(status).is_some();
        let (report, broken) = match classify(status, RequestSize::default()) {
            Class::Answer(error) if is_fatal(&error) => (None, StreamError::Fatal(error)),
            Class::Answer(error) => (None, StreamError::Retry(error)),
            Class::Stale(text) => (Some(ConnectionReport::Unauthenticated), retry(connection, text)),
            Class::Refused(text) => (Some(ConnectionReport::Failed(text.clone())), retry(connection, text)),
            Class::Unsent(text) | Class::Lost(text) if is_transport => {
                (Some(ConnectionReport::Gone), retry(connection, text))
            }
            Class::Unsent(text) | Class::Lost(text) | Class::Overlong(text) => {
                (None, retry(connection, text))
            }
        };
        if let Some(report) = report {
            endpoints.report(connection, report);
        }
        broken
    }
}

fn retry(connection: &Connection, text: String) -> StreamError {
    StreamError::Retry(Error::Unavailable(Cause::at(&connection.address, text)))
}

/// Whether no other member and no later time will make a difference for this client.
pub(crate) fn is_fatal(error: &Error) -> bool {
    matches!(
        error,
        Error::Denied(_) | Error::Replaced(_) | Error::Closed | Error::Invalid(_) | Error::Corrupt(_)
    )
}

/// The path to the next connection: when it may be requested, and the request in flight.
#[derive(Default)]
pub(crate) struct Reconnect {
    connecting: Option<BoxFuture<'static, Result<Arc<Connection>, Error>>>,
    /// Not before this.
    retry_at: Option<Instant>,
    pause: Pause,
}

impl Reconnect {
    /// Requests a connection, unless there is a pause. Must not be called while a request is in
    /// flight.
    pub(crate) fn begin(&mut self, endpoints: &Arc<Endpoints>) {
        if self.retry_at.is_some_and(|retry_at| retry_at > Instant::now()) {
            return;
        }
        self.retry_at = None;
        let endpoints = Arc::clone(endpoints);
        self.connecting =
            Some(Box::pin(async move { endpoints.connection(endpoints.config.deadline).await }));
    }

    /// Whether a connection was requested and has not come.
    pub(crate) fn is_connecting(&self) -> bool {
        self.connecting.is_some()
    }

    /// When the pause ends, if there is one.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// The requested connection; never ready if none was requested. Cancel-safe.
    pub(crate) async fn connected(&mut self) -> Result<Arc<Connection>, Error> {
        let connected = maybe(self.connecting.as_mut()).await;
        self.connecting = None;
        connected
    }

    /// The next connection after a pause, and a longer one each time.
    pub(crate) fn pause(&mut self) {
        self.retry_at = Some(Instant::now() + self.pause.next());
    }

    /// The next connection without waiting any longer.
    pub(crate) fn hurry(&mut self) {
        self.retry_at = None;
    }

    /// The last stream worked: the next pause is a short one.
    pub(crate) fn reset(&mut self) {
        self.pause.reset();
    }
}

/// Ends when any user abandons the connection.
pub(crate) fn abandoned(endpoints: &Arc<Endpoints>, connection: &Arc<Connection>) -> BoxFuture<'static, ()> {
    let (endpoints, connection) = (Arc::clone(endpoints), Arc::clone(connection));
    Box::pin(async move { endpoints.abandoned(&connection).await })
}

/// How long to wait after a stream broke: exponential, with full jitter.
#[derive(Debug, Default)]
struct Pause {
    failures: u32,
}

impl Pause {
    /// The next wait, and a longer one after it.
    fn next(&mut self) -> Duration {
        let longest =
            PAUSE_FIRST.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX)).min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        longest.mul_f64(random_fraction())
    }

    /// The last stream worked: begin with the shortest pause.
    fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Between 0 and 1; without entropy always the middle.
fn random_fraction() -> f64 {
    let mut bytes = [0_u8, 128];
    let thrown = getrandom::fill(&mut bytes).map_or(0x8000, |()| u16::from_le_bytes(bytes));
    f64::from(thrown) / f64::from(u16::MAX)
}

/// Awaits a future that may be absent; an absent one is never ready.
pub(crate) async fn maybe<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// The requests as tonic expects them.
struct Requests<Q>(mpsc::Receiver<Q>);

impl<Q> Stream for Requests<Q> {
    type Item = Q;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Q>> {
        self.0.poll_recv(context)
    }
}

#[cfg(test)]
mod tests {
    use super::{PAUSE_FIRST, PAUSE_MAX, Pause};

    #[test]
    fn pause_grows_to_bound_and_resets() {
        let mut pause = Pause::default();
        for failures in 0..40_u32 {
            let longest = PAUSE_FIRST.saturating_mul(2_u32.saturating_pow(failures)).min(PAUSE_MAX);
            let wait = pause.next();
            assert!(wait <= longest, "{wait:?} after {failures} failures");
        }
        pause.reset();
        assert!(pause.next() <= PAUSE_FIRST);
    }
}
