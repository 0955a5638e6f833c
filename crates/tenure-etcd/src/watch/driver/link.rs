//! One stream to one server, from the first request on.

use std::sync::Arc;

use futures_core::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::super::queue::QueueSender;
use super::super::router::Router;
use super::super::watchdog::{Watchdog, WatchdogTimeouts};
use crate::connection::Connection;
use crate::endpoints::Endpoints;
use crate::error::Error;
use crate::message::watch::{WATCH_PATH, WatchRequest, WatchResponse};
use crate::stream::{Incoming, abandoned};

/// Requests between the task and the connection. A thousand watchers are created in a few turns. A
/// longer channel would only move requests out of the machine, which forgets those of dropped
/// watchers.
const REQUESTS_MAX: usize = 256;

/// An open stream, or one that is opening.
pub(super) struct WatchLink {
    pub(super) connection: Arc<Connection>,
    pub(super) requests: mpsc::Sender<WatchRequest>,
    pub(super) incoming: Incoming<WatchResponse>,
    /// Ends when any user abandons the connection.
    pub(super) abandoned: BoxFuture<'static, ()>,
    pub(super) watchdog: Watchdog,
    pub(super) opened_at: Instant,
}

/// Whether the connection takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendWindow {
    Free,
    /// The connection has dropped its end; the incoming side reports the reason.
    Closed,
}

impl WatchLink {
    /// Opens a stream with the requests that wait in the machine; there must be one.
    pub(super) fn open(
        endpoints: &Arc<Endpoints>,
        connection: Arc<Connection>,
        router: &mut Router<QueueSender>,
        timeouts: WatchdogTimeouts,
    ) -> Result<Self, Error> {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let incoming = Incoming::open(&connection, WATCH_PATH, receiver)?;
        let now = Instant::now();
        let abandoned = abandoned(endpoints, &connection);
        let watchdog = Watchdog::new(timeouts, now);
        let mut link = Self { connection, requests, incoming, abandoned, watchdog, opened_at: now };
        link.send(SendWindow::Free, router);
        Ok(link)
    }

    /// Sends as many requests as the channel takes.
    pub(super) fn send(&mut self, window: SendWindow, router: &mut Router<QueueSender>) {
        match window {
            SendWindow::Free => {}
            SendWindow::Closed => return router.discard_requests(),
        }
        while let Ok(permit) = self.requests.try_reserve() {
            let Some(request) = router.poll_request() else { break };
            if request.is_answered_at_once() {
                self.watchdog.requested(Instant::now());
            }
            permit.send(request);
        }
    }
}

/// Waits until a request can be sent.
pub(super) async fn window(requests: &mpsc::Sender<WatchRequest>) -> SendWindow {
    match requests.reserve().await {
        Ok(_) => SendWindow::Free,
        Err(_) => SendWindow::Closed,
    }
}
