//! Detects that the peer is gone although the socket reports nothing: a ping after a silence.
//!
//! Only while a request is in flight. etcd treats pings on an idle connection as abuse: it closed
//! such a connection after 24 s.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// How long a silence may be. etcd closes connections that are pinged more often than every five seconds.
const EVERY: Duration = Duration::from_secs(6);

/// A ping unanswered this long means that the peer is gone.
const PATIENCE: Duration = Duration::from_secs(2);

/// The pings of one connection.
pub(super) struct Pings {
    pinger: PingPong,
    last_received: LastReceived,
    in_flight: Arc<AtomicUsize>,
    state: PingState,
    timer: Pin<Box<Sleep>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PingState {
    /// The timer fires when the silence has been long enough.
    Listening,
    /// The timer fires when the pong is overdue.
    Asked,
}

impl Pings {
    pub(super) fn new(pinger: PingPong, last_received: LastReceived, in_flight: Arc<AtomicUsize>) -> Self {
        Self { pinger, last_received, in_flight, state: PingState::Listening, timer: Box::pin(sleep(EVERY)) }
    }

    /// Ready when the peer did not answer a ping. Must be polled whenever the connection is polled:
    /// a request on a connection that was idle for long is followed by a ping at once, and only
    /// that poll registers its wake-up.
    pub(super) fn poll_dead(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.state == PingState::Asked {
                match self.pinger.poll_pong(context) {
                    Poll::Ready(Ok(_)) => self.listen_until(Instant::now() + EVERY),
                    // The connection is closed and reports that by itself.
                    Poll::Ready(Err(_)) => return Poll::Pending,
                    Poll::Pending => return self.timer.as_mut().poll(context),
                }
            }
            ready!(self.timer.as_mut().poll(context));
            let due = self.last_received.at() + EVERY;
            if due > Instant::now() {
                self.listen_until(due);
            } else if self.in_flight.load(Ordering::Relaxed) == 0
                || self.pinger.send_ping(Ping::opaque()).is_err()
            {
                return Poll::Pending;
            } else {
                self.state = PingState::Asked;
                self.timer.as_mut().reset(Instant::now() + PATIENCE);
            }
        }
    }

    fn listen_until(&mut self, due: Instant) {
        self.state = PingState::Listening;
        self.timer.as_mut().reset(due);
    }
}

/// When something was received from the peer last.
#[derive(Clone)]
pub(super) struct LastReceived {
    started: Instant,
    /// Since then, in milliseconds.
    last: Arc<AtomicU64>,
}

impl LastReceived {
    fn set_now(&self) {
        let since = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
    }

    fn at(&self) -> Instant {
        self.started + Duration::from_millis(self.last.load(Ordering::Relaxed))
    }
}

/// A socket that records when something is received.
pub(super) struct ReadObserver<S> {
    socket: S,
    last_received: LastReceived,
}

impl<S> ReadObserver<S> {
    pub(super) fn new(socket: S) -> (Self, LastReceived) {
        let last_received = LastReceived { started: Instant::now(), last: Arc::default() };
        (Self { socket, last_received: last_received.clone() }, last_received)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadObserver<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.socket).poll_read(context, buffer));
        if buffer.filled().len() > before {
            self.last_received.set_now();
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadObserver<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}
