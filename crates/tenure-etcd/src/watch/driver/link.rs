//! One stream to one server, from the first request on.

use std::sync::Arc;

use futures_core::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::super::queue::Feeder;
use super::super::router::Router;
use super::super::watchdog::{Patience, Watchdog};
use crate::connection::Connection;
use crate::endpoints::Endpoints;
use crate::error::Error;
use crate::message::watch::{WATCH_PATH, WatchRequest, WatchResponse};
use crate::stream::{Incoming, given_up};

/// Requests between the task and the connection. A thousand watchers are created in a few turns; more would only move
/// the queue from the machine, where a dropped watcher is forgotten, to where it is sent all the same.
const REQUESTS_MAX: usize = 256;

/// An open stream, or one that is opening.
pub(super) struct Link {
    pub(super) connection: Arc<Connection>,
    pub(super) requests: mpsc::Sender<WatchRequest>,
    pub(super) incoming: Incoming<WatchResponse>,
    /// Ends when anybody gives up the connection.
    pub(super) given_up: BoxFuture<'static, ()>,
    pub(super) watchdog: Watchdog,
    pub(super) opened_at: Instant,
}

/// Whether the connection takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    /// The connection has dropped its end; the incoming side will say why.
    Closed,
}

impl Link {
    /// Opens a stream with the requests that wait in the machine; there must be one.
    pub(super) fn open(
        endpoints: &Arc<Endpoints>,
        connection: Arc<Connection>,
        router: &mut Router<Feeder>,
        patience: Patience,
    ) -> Result<Self, Error> {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let incoming = Incoming::open(&connection, WATCH_PATH, receiver)?;
        let now = Instant::now();
        let given_up = given_up(endpoints, &connection);
        let watchdog = Watchdog::new(patience, now);
        let mut link = Self { connection, requests, incoming, given_up, watchdog, opened_at: now };
        link.send(Room::Free, router);
        Ok(link)
    }

    /// Sends as much as there is room for.
    pub(super) fn send(&mut self, room: Room, router: &mut Router<Feeder>) {
        match room {
            Room::Free => {}
            Room::Closed => return router.discard_requests(),
        }
        while let Ok(permit) = self.requests.try_reserve() {
            let Some(request) = router.poll_request() else { break };
            if request.is_answered_at_once() {
                self.watchdog.asked(Instant::now());
            }
            permit.send(request);
        }
    }
}

/// Waits until a request can be sent.
pub(super) async fn room(requests: &mpsc::Sender<WatchRequest>) -> Room {
    match requests.reserve().await {
        Ok(_) => Room::Free,
        Err(_) => Room::Closed,
    }
}
