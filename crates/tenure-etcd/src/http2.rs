//! One HTTP/2 connection, and the requests on it.
//!
//! It takes the place of tonic's channel. That one puts a queue and a task of its own between a
//! call and the connection, reconnects by itself, and does not report whether a request was sent.
//! Here the caller itself hands its request to the connection, which either takes it or refuses it.
//! A refused request is [`Http2Error::Unsent`], and no other is.
//!
//! One task moves the bytes (`drive`). It ends with the last user of the connection, and soon after
//! the client closed. The task that reads the replies of a stream also sends its requests, so that
//! streams need no task of their own.

mod pings;

use std::error::Error as StdError;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::header::{HeaderValue, USER_AGENT};
use http_body::{Body as _, Frame};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;

use pings::{Pings, ReadObserver};

/// Bytes one reply may be ahead of its reader. Less would make a long listing wait for the network;
/// etcd sends no faster for more.
const STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;

/// The same for all replies of a connection together, so that one slow reader does not stop the
/// others.
const CONNECTION_WINDOW_BYTES: u32 = 5 * 1024 * 1024;

/// How long an unused connection may take to close, and calls in flight to end when the client
/// closes. A peer that reads nothing would otherwise keep the task until TCP gives in.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// The name of this client in the server's logs.
static CLIENT_NAME: HeaderValue =
    HeaderValue::from_static(concat!("tenure-etcd/", env!("CARGO_PKG_VERSION")));

/// A handle on an open connection. Clones are cheap and share it; it never reconnects.
#[derive(Clone)]
pub(crate) struct Http2Channel(Arc<Http2Connection>);

struct Http2Connection {
    streams: SendRequest<Bytes>,
    /// Scheme and authority, as every request has to carry them.
    origin: http::Uri,
    /// Requests without a complete reply.
    in_flight: Arc<AtomicUsize>,
    /// Ends the task that drives the connection.
    _end: DropGuard,
}

/// What a connection can run on.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Socket for S {}

/// Keeps the tasks of connections and signals when all of them end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    pub(crate) tasks: &'a TaskTracker,
    pub(crate) stop: &'a CancellationToken,
}

impl Http2Channel {
    /// Begins HTTP/2 on an open socket.
    pub(crate) async fn open(
        socket: Box<dyn Socket>,
        origin: http::Uri,
        owner: Owner<'_>,
    ) -> Result<Self, h2::Error> {
        let (socket, last_received) = ReadObserver::new(socket);
        let (streams, mut connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            // h2 counts small frames that were not read yet, never forgets those of calls that were
            // dropped, and ends the connection when there are too many. A call that is cancelled
            // while its reply arrives is normal here, and the server is trusted.
            .data_frame_budget(usize::MAX)
            .enable_push(false)
            .handshake::<_, Bytes>(socket)
            .await?;
        let in_flight = Arc::new(AtomicUsize::new(0));
        let pinger = connection.ping_pong().expect("it is taken once");
        let pings = Pings::new(pinger, last_received, Arc::clone(&in_flight));
        let end = owner.stop.child_token();
        owner.tasks.spawn(drive(connection, pings, end.clone()));
        Ok(Self(Arc::new(Http2Connection { streams, origin, in_flight, _end: end.drop_guard() })))
    }

    /// Scheme and authority of the requests.
    pub(crate) fn origin(&self) -> &http::Uri {
        &self.0.origin
    }
}

/// Moves the bytes of one connection until it breaks, or no user of it is left.
async fn drive<S: Socket>(
    mut connection: h2::client::Connection<ReadObserver<S>, Bytes>,
    mut pings: Pings,
    end: CancellationToken,
) {
    let mut running = pin!(poll_fn(|context| {
        if let Poll::Ready(ended) = Pin::new(&mut connection).poll(context) {
            if let Err(error) = ended {
                tracing::debug!(%error, "connection broke");
            }
            return Poll::Ready(());
        }
        // After reading: if this process was suspended, the reply to a ping is already there and
        // only looks overdue.
        ready!(pings.poll_dead(context));
        tracing::debug!("ping unanswered");
        Poll::Ready(())
    }));
    tokio::select! {
        biased;
        () = end.cancelled() => {}
        () = &mut running => return,
    }
    // What it could not send by then is replaced by closing the socket.
    let _ = timeout(CLOSE_GRACE, running).await;
}

impl Service<http::Request<Body>> for Http2Channel {
    type Response = http::Response<ResponseBody>;
    type Error = Http2Error;
    type Future = Sending;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Http2Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Sending {
        request.headers_mut().insert(USER_AGENT, CLIENT_NAME.clone());
        Sending::Unsent { request: Some(request), channel: self.clone() }
    }
}

/// A request until its reply begins.
pub(crate) enum Sending {
    Unsent { request: Option<http::Request<Body>>, channel: Http2Channel },
    Sent { response: ResponseFuture, outgoing: Option<RequestBody>, in_flight: Option<InFlightGuard> },
}

impl Future for Sending {
    type Output = Result<http::Response<ResponseBody>, Http2Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Self::Unsent { request, channel } = this {
            let request = request.take().expect("a future is not polled after its end");
            *this = send(channel, request, context)?;
        }
        match this {
            Self::Unsent { .. } => unreachable!("it was sent above"),
            Self::Sent { response, outgoing, in_flight } => {
                move_along(outgoing, context);
                let answer = ready!(Pin::new(response).poll(context)).map_err(Http2Error::Broken)?;
                let (outgoing, in_flight) = (outgoing.take(), in_flight.take());
                Poll::Ready(Ok(answer.map(|incoming| ResponseBody {
                    incoming,
                    outgoing,
                    is_data_over: false,
                    _in_flight: in_flight,
                })))
            }
        }
    }
}

/// Hands the request to the connection. The body is polled first: a complete request is sent in one
/// piece.
fn send(
    channel: &Http2Channel,
    request: http::Request<Body>,
    context: &mut Context<'_>,
) -> Result<Sending, Http2Error> {
    let (head, mut body) = request.into_parts();
    let head = http::Request::from_parts(head, ());
    let first = poll_chunk(&mut body, context).map_err(Http2Error::Garbled)?;
    let rest = match first {
        Poll::Ready(Some(_)) => poll_chunk(&mut body, context).map_err(Http2Error::Garbled)?,
        Poll::Ready(None) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    };
    let (response, mut stream) =
        channel.0.streams.clone().send_request(head, false).map_err(Http2Error::Unsent)?;
    let outgoing = match (first, rest) {
        // Nearly all requests. Where the peer's window is smaller, the connection keeps the rest until there is room.
        (Poll::Ready(Some(chunk)), Poll::Ready(None)) => {
            stream.send_data(chunk, true).map_err(Http2Error::Broken)?;
            None
        }
        (Poll::Ready(None), _) => {
            stream.send_data(Bytes::new(), true).map_err(Http2Error::Broken)?;
            None
        }
        (Poll::Ready(Some(chunk)), Poll::Ready(Some(next))) => {
            stream.send_data(chunk, false).map_err(Http2Error::Broken)?;
            Some(RequestBody { stream, body, chunk: Some(next) })
        }
        (Poll::Ready(Some(chunk)), Poll::Pending) => {
            stream.send_data(chunk, false).map_err(Http2Error::Broken)?;
            Some(RequestBody { stream, body, chunk: None })
        }
        (Poll::Pending, _) => Some(RequestBody { stream, body, chunk: None }),
    };
    Ok(Sending::Sent { response, outgoing, in_flight: Some(InFlightGuard::new(&channel.0)) })
}

/// The requests of a stream that are still to be sent.
pub(crate) struct RequestBody {
    stream: SendStream<Bytes>,
    body: Body,
    /// Taken out of the body, and waiting for window.
    chunk: Option<Bytes>,
}

impl RequestBody {
    /// Sends what fits into the window. Ready when nothing more will come, or can be sent; the
    /// reading side gets the reason.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.chunk.is_none() {
                match ready!(poll_chunk(&mut self.body, context)) {
                    Ok(Some(chunk)) => self.chunk = Some(chunk),
                    Ok(None) => {
                        // An error means that the stream is closed already, as intended.
                        let _ = self.stream.send_data(Bytes::new(), true);
                        return Poll::Ready(());
                    }
                    Err(_) => {
                        self.stream.send_reset(Reason::INTERNAL_ERROR);
                        return Poll::Ready(());
                    }
                }
                // Reserving one byte is enough to be woken, and takes no window from the other
                // requests.
                self.stream.reserve_capacity(1);
            }
            while self.stream.capacity() == 0 {
                match ready!(self.stream.poll_capacity(context)) {
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Poll::Ready(()),
                }
            }
            if let Some(chunk) = self.chunk.take()
                && self.stream.send_data(chunk, false).is_err()
            {
                return Poll::Ready(());
            }
        }
    }
}

fn move_along(outgoing: &mut Option<RequestBody>, context: &mut Context<'_>) {
    if outgoing.as_mut().is_some_and(|outgoing| outgoing.poll(context).is_ready()) {
        *outgoing = None;
    }
}

/// The next bytes of a request; none at its end. A client sends no trailers.
fn poll_chunk(body: &mut Body, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
    let frame = ready!(Pin::new(body).poll_frame(context)).transpose()?;
    Poll::Ready(Ok(frame.and_then(|frame| frame.into_data().ok())))
}

/// The bytes of a reply as they arrive.
pub(crate) struct ResponseBody {
    incoming: RecvStream,
    outgoing: Option<RequestBody>,
    is_data_over: bool,
    _in_flight: Option<InFlightGuard>,
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Http2Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Http2Error>>> {
        let this = &mut *self;
        move_along(&mut this.outgoing, context);
        if !this.is_data_over {
            match ready!(this.incoming.poll_data(context)) {
                Some(Ok(bytes)) => {
                    // It fails only when more is released than was received.
                    let _ = this.incoming.flow_control().release_capacity(bytes.len());
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                // With these reasons a server ends a stream without reading its remaining requests:
                // a regular end, no error.
                Some(Err(error)) if matches!(error.reason(), Some(Reason::NO_ERROR | Reason::CANCEL)) => {
                    return Poll::Ready(None);
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(Http2Error::Broken(error)))),
                None => this.is_data_over = true,
            }
        }
        match ready!(this.incoming.poll_trailers(context)) {
            Ok(trailers) => Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers)))),
            Err(error) if error.reason() == Some(Reason::NO_ERROR) => Poll::Ready(None),
            Err(error) => Poll::Ready(Some(Err(Http2Error::Broken(error)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }
}

/// Counts one request for as long as it lives, and keeps the connection open.
pub(crate) struct InFlightGuard(Arc<Http2Connection>);

impl InFlightGuard {
    fn new(line: &Arc<Http2Connection>) -> Self {
        line.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(line))
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a request has no reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Http2Error {
    /// The connection did not take the request: no byte of it was sent.
    #[error("the connection took no more requests")]
    Unsent(#[source] h2::Error),
    /// A message could not be encoded, which no message of this crate should cause.
    #[error("the request could not be encoded")]
    Garbled(#[source] Status),
    /// The connection had taken the request. How much of it was sent is unknown.
    #[error("the connection broke")]
    Broken(#[source] h2::Error),
}

/// Whether an error proves that its request was never sent.
pub(crate) fn is_unsent(error: &(dyn StdError + 'static)) -> bool {
    std::iter::successors(Some(error), |error| (*error).source())
        .any(|error| matches!(error.downcast_ref(), Some(Http2Error::Unsent(_))))
}

#[cfg(test)]
mod tests;
