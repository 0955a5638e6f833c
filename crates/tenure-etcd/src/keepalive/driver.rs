//! The task that owns the keep-alive stream.
//!
//! It opens a stream when a caller wants a lease renewed, abandons a server with an overdue reply,
//! and repeats unanswered renewals elsewhere. Everything that happens becomes one
//! `KeepAliveDriverEvent`; the work is done after the `select!`.

use std::sync::Arc;

use futures_core::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use super::pending::{PendingRenewals, RenewalCaller};
use super::{KeepAliveInbox, Renewal};
use crate::clock::boot_time;
use crate::connection::Connection;
use crate::endpoints::{ConnectionReport, Endpoints};
use crate::error::Error;
use crate::message::keepalive::{KEEP_ALIVE_PATH, LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use crate::stream::{Incoming, Reconnect, StreamError, abandoned, is_fatal, maybe};

/// Requests between the task and the connection. The stamp is taken when a request goes in here, so a longer queue
/// would only make stamps older than they need be.
const REQUESTS_MAX: usize = 256;

type RenewalReply = oneshot::Sender<Result<Renewal, Error>>;

impl RenewalCaller for RenewalReply {
    fn is_gone(&self) -> bool {
        self.is_closed()
    }
}

/// The task's state.
pub(super) struct KeepAliveDriver {
    endpoints: Arc<Endpoints>,
    inbox: Arc<KeepAliveInbox>,
    pending: PendingRenewals<RenewalReply>,
    link: Option<KeepAliveStream>,
    reconnect: Reconnect,
    is_troubled: bool,
}

/// One stream to one server.
struct KeepAliveStream {
    connection: Arc<Connection>,
    requests: mpsc::Sender<LeaseKeepAliveRequest>,
    incoming: Incoming<LeaseKeepAliveResponse>,
    /// Ends when any user abandons the connection.
    abandoned: BoxFuture<'static, ()>,
}

enum KeepAliveDriverEvent {
    Stop,
    Requests,
    Connected(Result<Arc<Connection>, Error>),
    ConnectionAbandoned,
    Reachable,
    Timer,
    CanSend,
    Received(Result<LeaseKeepAliveResponse, Status>),
}

impl KeepAliveDriver {
    pub(super) fn new(endpoints: Arc<Endpoints>, inbox: Arc<KeepAliveInbox>) -> Self {
        Self {
            endpoints,
            inbox,
            pending: PendingRenewals::new(),
            link: None,
            reconnect: Reconnect::default(),
            is_troubled: false,
        }
    }

    /// Runs until the client closes; waiting callers learn that from the dropped reply channel.
    pub(super) async fn run(mut self) {
        let mut reachable = self.endpoints.changed();
        loop {
            if self.wants_link() {
                self.reconnect.begin(&self.endpoints);
            }
            let due_at = self.due_at();
            let is_pausing = self.reconnect.retry_at().is_some();
            let has_wanted = self.pending.has_wanted();
            let KeepAliveDriver { endpoints, inbox, link, reconnect, .. } = &mut self;
            let (abandoned, requests, incoming) = match link {
                Some(link) => (Some(&mut link.abandoned), Some(&link.requests), Some(&mut link.incoming)),
                None => (None, None, None),
            };
            let event = tokio::select! {
                biased;
                () = endpoints.stop().cancelled() => KeepAliveDriverEvent::Stop,
                connected = reconnect.connected() => KeepAliveDriverEvent::Connected(connected),
                () = maybe(abandoned) => KeepAliveDriverEvent::ConnectionAbandoned,
                // The sender lives as long as the endpoints, which this task holds: it cannot fail.
                _ = reachable.changed(), if is_pausing => KeepAliveDriverEvent::Reachable,
                () = maybe(due_at.map(sleep_until)) => KeepAliveDriverEvent::Timer,
                () = inbox.wait() => KeepAliveDriverEvent::Requests,
                // The incoming side reports a closed channel, with the reason.
                Ok(_) = maybe(requests.filter(|_| has_wanted).map(mpsc::Sender::reserve)) => KeepAliveDriverEvent::CanSend,
                received = maybe(incoming.map(Incoming::next)) => KeepAliveDriverEvent::Received(received),
            };
            match event {
                KeepAliveDriverEvent::Stop => break,
                KeepAliveDriverEvent::Requests => self.on_requests(),
                KeepAliveDriverEvent::Connected(connected) => self.on_connected(connected),
                KeepAliveDriverEvent::ConnectionAbandoned => self.lose(),
                KeepAliveDriverEvent::Reachable => self.reconnect.hurry(),
                KeepAliveDriverEvent::Timer => self.on_timer(),
                KeepAliveDriverEvent::CanSend => self.send(),
                KeepAliveDriverEvent::Received(received) => self.on_received(received),
            }
        }
    }

    fn wants_link(&self) -> bool {
        self.link.is_none() && !self.reconnect.is_connecting() && self.pending.has_wanted()
    }

    fn due_at(&self) -> Option<Instant> {
        if self.wants_link() {
            return self.reconnect.retry_at();
        }
        // Timeouts are kept on the boot clock, which counts suspend; tokio's timers do not.
        let left = self.pending.patience_end()?.saturating_sub(boot_time());
        Some(Instant::now() + left)
    }

    fn on_requests(&mut self) {
        for request in self.inbox.take() {
            self.pending.request(request.lease, request.patience, request.reply);
        }
    }

    fn on_connected(&mut self, connected: Result<Arc<Connection>, Error>) {
        match connected {
            Ok(connection) => self.open(connection),
            Err(error) => self.fail(error),
        }
    }

    fn open(&mut self, connection: Arc<Connection>) {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let incoming = match Incoming::open(&connection, KEEP_ALIVE_PATH, receiver) {
            Ok(incoming) => incoming,
            Err(error) => return self.fail(error),
        };
        let abandoned = abandoned(&self.endpoints, &connection);
        self.link = Some(KeepAliveStream { connection, requests, incoming, abandoned });
        self.send();
    }

    /// Sends as many renewals as the channel takes.
    fn send(&mut self) {
        let Some(link) = &self.link else { return };
        while let Ok(permit) = link.requests.try_reserve() {
            // The stamp is taken before the send: a holder may count its validity only from a time at
            // which the server cannot have renewed the lease yet.
            let Some(id) = self.pending.poll_send(boot_time()) else { break };
            permit.send(LeaseKeepAliveRequest { id });
        }
    }

    fn on_timer(&mut self) {
        let is_overdue = self.pending.patience_end().is_some_and(|end| end <= boot_time());
        if let (true, Some(link)) = (is_overdue, &self.link) {
            // A stopped server keeps its sockets open, so an overdue reply is the only sign of it.
            tracing::warn!(endpoint = %link.connection.address, "keep-alive reply overdue");
            let reason = "a keep-alive was not answered in time".to_owned();
            self.endpoints.report(&link.connection, ConnectionReport::Failed(reason));
            self.lose();
        }
    }

    fn on_received(&mut self, received: Result<LeaseKeepAliveResponse, Status>) {
        let Some(link) = &self.link else { return };
        let response = match received {
            Ok(response) => response,
            Err(status) => {
                tracing::debug!(endpoint = %link.connection.address, %status, "keep-alive stream broke");
                return match StreamError::report(&self.endpoints, &link.connection, &status) {
                    StreamError::Retry(error) => {
                        self.lose();
                        self.trouble(error);
                    }
                    StreamError::Fatal(error @ (Error::Denied(_) | Error::Invalid(_))) => {
                        self.refuse_one(&error);
                    }
                    StreamError::Fatal(error) => self.refuse_all(&error),
                };
            }
        };
        if let Some(Err(error)) =
            response.header.as_ref().map(|header| self.endpoints.identity.observe(header))
        {
            return self.refuse_all(&error);
        }
        // A reply proves that the server works: the next break reconnects without a pause.
        self.reconnect.reset();
        if std::mem::take(&mut self.is_troubled) {
            self.inbox.set_trouble(None);
            tracing::info!(endpoint = %link.connection.address, "keep-alive stream resumed");
        }
        let Some(answered) = self.pending.answered(response.id) else { return };
        // etcd replies with a TTL of 0 for a lease that it does not know.
        let renewal = match response.ttl {
            1.. => Renewal::Renewed { ttl_s: response.ttl, sent_at: answered.sent_at },
            _ => Renewal::Gone,
        };
        for caller in answered.callers {
            // It fails only for a caller that was dropped.
            let _ = caller.send(Ok(renewal));
        }
    }

    /// The stream is lost: its unanswered renewals are sent again on another one, after a pause.
    fn lose(&mut self) {
        if self.link.take().is_some() {
            // Replies of this stream can no longer arrive, so its sends must not match later ones.
            self.pending.lost();
            self.reconnect.pause();
        }
    }

    /// No connection could be opened.
    fn fail(&mut self, error: Error) {
        if is_fatal(&error) {
            // Another cluster answers: no reply of it may extend a lease of the known one.
            return self.refuse_all(&error);
        }
        self.reconnect.pause();
        self.trouble(error);
    }

    fn trouble(&mut self, error: Error) {
        if !std::mem::replace(&mut self.is_troubled, true) {
            tracing::warn!(%error, "keep-alive stream interrupted");
        }
        self.inbox.set_trouble(Some(error));
    }

    /// The user may not renew one lease, for instance because another user attached a key to it
    /// without permission for this one. The server then ends the whole stream; the other renewals
    /// are sent again immediately.
    fn refuse_one(&mut self, error: &Error) {
        for caller in self.pending.refused() {
            let _ = caller.send(Err(error.clone()));
        }
        self.lose();
        // The server works and only one lease was refused, so the pause would delay healthy leases.
        self.reconnect.hurry();
    }

    fn refuse_all(&mut self, error: &Error) {
        self.link = None;
        for caller in self.pending.take_all() {
            let _ = caller.send(Err(error.clone()));
        }
    }
}
