//! The task that owns the keep-alive stream.
//!
//! It opens a stream when somebody wants a lease renewed, leaves a server whose answer is overdue, and sends again
//! elsewhere what was not answered. Everything that happened becomes one `KeepAliveDriverEvent`; the work is done after the `select!`.

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
    /// Ends when anybody gives up the connection.
    abandoned: BoxFuture<'static, ()>,
}

enum KeepAliveDriverEvent {
    Stop,
    News,
    Connected(Result<Arc<Connection>, Error>),
    Abandoned,
    Reachable,
    Timer,
    SendWindow,
    Came(Result<LeaseKeepAliveResponse, Status>),
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

    /// Until the client closes; those who wait then learn it from the dropped reply.
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
                () = maybe(abandoned) => KeepAliveDriverEvent::Abandoned,
                // The sender lives as long as the endpoints, which this task holds: it cannot fail.
                _ = reachable.changed(), if is_pausing => KeepAliveDriverEvent::Reachable,
                () = maybe(due_at.map(sleep_until)) => KeepAliveDriverEvent::Timer,
                () = inbox.wait() => KeepAliveDriverEvent::News,
                // A closed channel is told by the incoming side, with the reason.
                Ok(_) = maybe(requests.filter(|_| has_wanted).map(mpsc::Sender::reserve)) => KeepAliveDriverEvent::SendWindow,
                came = maybe(incoming.map(Incoming::next)) => KeepAliveDriverEvent::Came(came),
            };
            match event {
                KeepAliveDriverEvent::Stop => break,
                KeepAliveDriverEvent::News => self.on_news(),
                KeepAliveDriverEvent::Connected(connected) => self.on_connected(connected),
                KeepAliveDriverEvent::Abandoned => self.lose(),
                KeepAliveDriverEvent::Reachable => self.reconnect.hurry(),
                KeepAliveDriverEvent::Timer => self.on_timer(),
                KeepAliveDriverEvent::SendWindow => self.send(),
                KeepAliveDriverEvent::Came(came) => self.on_came(came),
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
        let left = self.pending.patience_end()?.saturating_sub(boot_time());
        Some(Instant::now() + left)
    }

    fn on_news(&mut self) {
        for wish in self.inbox.take() {
            self.pending.ask(wish.lease, wish.patience, wish.reply);
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

    /// Sends as much as there is room for.
    fn send(&mut self) {
        let Some(link) = &self.link else { return };
        while let Ok(permit) = link.requests.try_reserve() {
            let Some(id) = self.pending.poll_send(boot_time()) else { break };
            permit.send(LeaseKeepAliveRequest { id });
        }
    }

    fn on_timer(&mut self) {
        let is_overdue = self.pending.patience_end().is_some_and(|end| end <= boot_time());
        if let (true, Some(link)) = (is_overdue, &self.link) {
            tracing::warn!(endpoint = %link.connection.address, "keep-alive was not answered in time, leaving");
            let reason = "a keep-alive was not answered in time".to_owned();
            self.endpoints.report(&link.connection, ConnectionReport::Failed(reason));
            self.lose();
        }
    }

    fn on_came(&mut self, came: Result<LeaseKeepAliveResponse, Status>) {
        let Some(link) = &self.link else { return };
        let response = match came {
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
        self.reconnect.reset();
        if std::mem::take(&mut self.is_troubled) {
            self.inbox.set_trouble(None);
            tracing::info!(endpoint = %link.connection.address, "keep-alives flow again");
        }
        let Some(answered) = self.pending.answered(response.id) else { return };
        let renewal = match response.ttl {
            1.. => Renewal::Renewed { ttl_s: response.ttl, sent_at: answered.sent_at },
            _ => Renewal::Gone,
        };
        for caller in answered.callers {
            // A caller that left does not mind.
            let _ = caller.send(Ok(renewal));
        }
    }

    /// The stream is gone; what it owed is sent again, on another one, after a pause.
    fn lose(&mut self) {
        if self.link.take().is_some() {
            self.pending.lost();
            self.reconnect.pause();
        }
    }

    /// There was no connection to be had.
    fn fail(&mut self, error: Error) {
        if is_fatal(&error) {
            return self.refuse_all(&error);
        }
        self.reconnect.pause();
        self.trouble(error);
    }

    fn trouble(&mut self, error: Error) {
        if !std::mem::replace(&mut self.is_troubled, true) {
            tracing::warn!(%error, "keep-alives are interrupted");
        }
        self.inbox.set_trouble(Some(error));
    }

    /// One lease is not ours to renew, for instance because a stranger hung a key on it that we may not touch. The
    /// server ends the whole stream over it; the others go on at once.
    fn refuse_one(&mut self, error: &Error) {
        for caller in self.pending.refused() {
            let _ = caller.send(Err(error.clone()));
        }
        self.lose();
        self.reconnect.hurry();
    }

    fn refuse_all(&mut self, error: &Error) {
        self.link = None;
        for caller in self.pending.take_all() {
            let _ = caller.send(Err(error.clone()));
        }
    }
}
