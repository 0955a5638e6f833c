//! The task that owns the watch stream: it connects the server, the machine and the consumers.
//!
//! The task decides when and where to open a stream, when to close it, and when to abandon a silent
//! server. Everything else is decided by the machine. Each event becomes one `WatchDriverEvent`; the
//! work is done after the `select!`.

mod link;
mod reads;

use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use super::WatchError;
use super::hub::{WatchCommand, WatchInbox};
use super::queue::QueueSender;
use super::router::{Router, RouterAction};
use super::start_checks::{StartCheck, StartChecks};
use super::version::VersionQuirks;
use super::watchdog::{WatchdogAction, WatchdogTimeouts};
use crate::connection::Connection;
use crate::endpoints::{ConnectionReport, Endpoints};
use crate::error::Error;
use crate::message::watch::WatchResponse;
use crate::stream::{Incoming, Reconnect, StreamError, is_fatal, maybe};
use link::{SendWindow, WatchLink};
use reads::ReadReply;

/// How long a stream without watchers is kept. A process that waits for a lock repeatedly would
/// otherwise open a stream each time.
const LINGER: Duration = Duration::from_secs(1);
/// A stream that lived this long was healthy: the next one is opened without delay.
const HEALTHY_AFTER: Duration = Duration::from_secs(2);
/// Probes in flight. With one, a probe that hangs would delay all others; a third would only read
/// what the next one covers.
const PROBES_MAX: usize = 2;

/// The task's state.
pub(super) struct WatchDriver {
    endpoints: Arc<Endpoints>,
    inbox: Arc<WatchInbox>,
    router: Router<QueueSender>,
    link: Option<WatchLink>,
    reconnect: Reconnect,
    /// A stream broke before: when the next one opens, a linearizable read checks that this is still
    /// the same store.
    has_lost: bool,
    /// When the stream lost its last watcher.
    idle_since: Option<Instant>,
    reads: FuturesUnordered<BoxFuture<'static, ReadReply>>,
    checks: StartChecks,
    probes: usize,
    /// A failure was logged and no response has arrived since.
    is_troubled: bool,
    /// Counts the streams, so that a reply about an earlier one is recognised.
    serial: u64,
}

enum WatchDriverEvent {
    Stop,
    Commands,
    Connected(Result<Arc<Connection>, Error>),
    ConnectionAbandoned,
    Reachable,
    Timer,
    Replied(ReadReply),
    SendWindow(SendWindow),
    Received(Result<WatchResponse, Status>),
}

impl WatchDriver {
    pub(super) fn new(endpoints: Arc<Endpoints>, inbox: Arc<WatchInbox>) -> Self {
        Self {
            endpoints,
            inbox,
            router: Router::new(),
            link: None,
            reconnect: Reconnect::default(),
            has_lost: false,
            idle_since: None,
            reads: FuturesUnordered::new(),
            checks: StartChecks::default(),
            probes: 0,
            is_troubled: false,
            serial: 0,
        }
    }

    /// Runs until the client closes.
    pub(super) async fn run(mut self) {
        let mut reachable = self.endpoints.changed();
        loop {
            self.settle();
            let due_at = self.due_at();
            let is_pausing = self.reconnect.retry_at().is_some();
            let has_requests = self.router.has_requests();
            let WatchDriver { endpoints, inbox, link, reconnect, reads, .. } = &mut self;
            let (abandoned, requests, incoming) = match link {
                Some(link) => (Some(&mut link.abandoned), Some(&link.requests), Some(&mut link.incoming)),
                None => (None, None, None),
            };
            let event = tokio::select! {
                biased;
                () = endpoints.stop().cancelled() => WatchDriverEvent::Stop,
                () = inbox.wait() => WatchDriverEvent::Commands,
                connected = reconnect.connected() => WatchDriverEvent::Connected(connected),
                () = maybe(abandoned) => WatchDriverEvent::ConnectionAbandoned,
                // The sender lives as long as the endpoints, which this task holds: it cannot fail.
                _ = reachable.changed(), if is_pausing => WatchDriverEvent::Reachable,
                () = maybe(due_at.map(sleep_until)) => WatchDriverEvent::Timer,
                answer = reads.next(), if !reads.is_empty() => match answer {
                    Some(answer) => WatchDriverEvent::Replied(answer),
                    None => continue,
                },
                window = maybe(requests.filter(|_| has_requests).map(link::window)) => WatchDriverEvent::SendWindow(window),
                received = maybe(incoming.map(Incoming::next)) => WatchDriverEvent::Received(received),
            };
            match event {
                WatchDriverEvent::Stop => break,
                WatchDriverEvent::Commands => self.on_commands(),
                WatchDriverEvent::Connected(connected) => self.on_connected(connected),
                WatchDriverEvent::ConnectionAbandoned => self.lose(),
                WatchDriverEvent::Reachable => self.reconnect.hurry(),
                WatchDriverEvent::Timer => self.on_timer(),
                WatchDriverEvent::Replied(answer) => self.on_read(answer),
                WatchDriverEvent::SendWindow(window) => self.on_window(window),
                WatchDriverEvent::Received(received) => self.on_received(received),
            }
        }
        self.router.end_all(&Error::Closed);
    }

    /// Executes what the last event made necessary: actions of the machine, probes that are due, and
    /// a new stream.
    fn settle(&mut self) {
        while let Some(action) = self.router.poll_action() {
            self.act(action);
        }
        // Checks gather while the probes in flight are at their limit, and share the next probe.
        while self.probes < PROBES_MAX
            && let Some(query) = self.checks.next_query(Instant::now())
        {
            self.probes += 1;
            self.reads.push(reads::probe(&self.endpoints, query));
        }
        let is_idle = self.router.is_empty() && self.link.is_some();
        self.idle_since = is_idle.then(|| self.idle_since.unwrap_or_else(Instant::now));
        if self.wants_link() {
            self.reconnect.begin(&self.endpoints);
        }
    }

    fn wants_link(&self) -> bool {
        self.link.is_none() && !self.reconnect.is_connecting() && self.router.wants_stream()
    }

    fn act(&mut self, action: RouterAction) {
        match action {
            RouterAction::Read { name, key } => self.reads.push(reads::point(&self.endpoints, name, key)),
            RouterAction::Probe { name, epoch, after, key } => {
                self.checks.add(StartCheck { name, epoch, after, key });
            }
            RouterAction::Verify { name, key, range_end } => {
                self.reads.push(reads::verify(&self.endpoints, name, self.serial, key, range_end));
            }
            RouterAction::Fail(reason) => {
                if let Some(link) = &self.link {
                    tracing::warn!(endpoint = %link.connection.address, reason, "watch stream abandoned");
                    self.endpoints.report(&link.connection, ConnectionReport::Failed(reason));
                    self.lose();
                }
            }
        }
    }

    fn due_at(&self) -> Option<Instant> {
        let watchdog = self.link.as_ref().map(|link| link.watchdog.due_at());
        // An idle stream is closed late, a pause before a retry matters only while a stream is wanted.
        let linger = self.idle_since.map(|since| since + LINGER);
        let retry = self.reconnect.retry_at().filter(|_| self.wants_link());
        let checks = self.checks.due_at(Instant::now()).filter(|_| self.probes < PROBES_MAX);
        [watchdog, linger, retry, checks].into_iter().flatten().min()
    }

    fn on_commands(&mut self) {
        for command in self.inbox.take() {
            match command {
                WatchCommand::Subscribe { name, spec, sender } => self.router.subscribe(name, spec, sender),
                WatchCommand::Drained(name) => self.router.drained(name),
                WatchCommand::Dropped(name) => self.router.unsubscribe(name),
            }
        }
    }

    fn on_connected(&mut self, connected: Result<Arc<Connection>, Error>) {
        match connected {
            Ok(connection) => self.open(connection),
            Err(error) => self.fail(error),
        }
    }

    fn open(&mut self, connection: Arc<Connection>) {
        // The machine queues its creations first: etcd replies to a stream only after a first request,
        // so an empty one would hang in opening.
        self.router.connected();
        if !self.router.has_requests() {
            // Its watcher has been dropped meanwhile.
            self.router.lost();
            return;
        }
        self.serial += 1;
        let ask_after = self.endpoints.config.watch_ask_after;
        let answer_within = self.endpoints.config.watch_answer_within;
        let timeouts = WatchdogTimeouts { ask_after, answer_within };
        match WatchLink::open(&self.endpoints, connection, &mut self.router, timeouts) {
            Ok(link) => {
                // Old servers report progress too early and may lose history, so nothing is trusted
                // until the version of this stream's server is known.
                self.reads.push(reads::version(&self.endpoints, &link.connection, self.serial));
                // Responses of a stream carry no proof that the store was not restored from a backup;
                // a linearizable read does.
                if let (true, Some(key)) = (std::mem::take(&mut self.has_lost), self.router.some_key()) {
                    self.reads.push(reads::identity(&self.endpoints, key));
                }
                self.link = Some(link);
            }
            Err(error) => {
                self.router.lost();
                self.fail(error);
            }
        }
    }

    fn on_timer(&mut self) {
        let now = Instant::now();
        if self.idle_since.is_some_and(|since| since + LINGER <= now) {
            self.link = None;
            self.router.lost();
            return;
        }
        let Some(link) = &mut self.link else { return };
        match link.watchdog.decide(now) {
            WatchdogAction::Quiet => {}
            WatchdogAction::Ask => {
                // Only after a silence: each of these requests is work for the server.
                self.router.request_sign_of_life();
                link.watchdog.requested(now);
            }
            WatchdogAction::Leave => {
                tracing::warn!(endpoint = %link.connection.address, "watch stream silent, abandoned");
                let reason = "the watch stream was silent".to_owned();
                self.endpoints.report(&link.connection, ConnectionReport::Failed(reason));
                self.lose();
            }
        }
    }

    fn on_window(&mut self, window: SendWindow) {
        let Some(link) = &mut self.link else { return };
        link.send(window, &mut self.router);
    }

    fn on_received(&mut self, received: Result<WatchResponse, Status>) {
        let Some(link) = &mut self.link else { return };
        match received {
            Ok(response) => {
                // Any response proves that the server lives, whichever watcher it belongs to.
                link.watchdog.received(Instant::now());
                if std::mem::take(&mut self.is_troubled) {
                    self.inbox.set_trouble(None);
                    tracing::info!(endpoint = %link.connection.address, "watch stream resumed");
                }
                if let Some(Err(error)) =
                    response.header.as_ref().map(|header| self.endpoints.identity.observe(header))
                {
                    return self.end_all(&error);
                }
                self.router.handle(response);
            }
            Err(status) => {
                tracing::debug!(endpoint = %link.connection.address, %status, "watch stream broke");
                // The report makes all other users of the connection leave it, too.
                let broken = StreamError::report(&self.endpoints, &link.connection, &status);
                self.lose();
                match broken {
                    StreamError::Retry(error) => self.trouble(error),
                    StreamError::Fatal(error) => self.end_all(&error),
                }
            }
        }
    }

    fn on_read(&mut self, answer: ReadReply) {
        match answer {
            ReadReply::Point { name, result: Ok(revision) } => self.router.read(name, revision),
            ReadReply::Point { name, result: Err(error) } => self.router.end(name, WatchError::Lost(error)),
            ReadReply::Probe { query, result } => {
                self.probes -= 1;
                self.on_probe(query, result);
            }
            ReadReply::Verify { name, result: Err(error), .. } if is_fatal(&error) => {
                self.router.end(name, WatchError::Lost(error));
            }
            ReadReply::Verify { serial, .. } => {
                // The user may read the range, so the refusal came from an expired token or from a
                // store in trouble. A new stream signs in again. A reply about an earlier stream is
                // ignored: that stream is closed already.
                if serial == self.serial
                    && let Some(link) = &self.link
                {
                    self.endpoints.report(&link.connection, ConnectionReport::Unauthenticated);
                    self.lose();
                }
            }
            ReadReply::Version { serial, version } => {
                if serial == self.serial
                    && let Some(version) = version
                {
                    self.router.trust(VersionQuirks::of(version));
                }
            }
            ReadReply::Identity { result } => {
                if let Err(error @ Error::Replaced(_)) = result {
                    self.end_all(&error);
                }
            }
        }
    }

    fn on_probe(&mut self, query: super::start_checks::StartQuery, result: Result<(), Error>) {
        match result {
            Ok(()) => {
                for check in query.proven() {
                    self.router.proven(check.name, check.epoch);
                }
            }
            Err(Error::Compacted { .. }) => {
                // Only the watchers at the oldest point are known to have lost revisions.
                for check in query.compacted(&mut self.checks) {
                    self.router.disproven(check.name, check.epoch, check.after);
                }
            }
            Err(error @ (Error::Replaced(_) | Error::Closed)) => self.end_all(&error),
            // The read used the key of the oldest check, so a refusal proves nothing about the others.
            Err(error) if is_fatal(&error) => {
                let check = query.refused(&mut self.checks);
                self.router.end(check.name, WatchError::Lost(error));
            }
            // The read was retried for its whole deadline: repeat it.
            Err(_) => query.unanswered(&mut self.checks),
        }
    }

    /// The stream is lost; the next one is opened after a pause.
    fn lose(&mut self) {
        let Some(link) = self.link.take() else { return };
        // A stream that breaks soon after it opened points to a server in trouble: the pause grows.
        if link.opened_at.elapsed() >= HEALTHY_AFTER {
            self.reconnect.reset();
        }
        self.has_lost = true;
        self.router.lost();
        self.reconnect.pause();
    }

    /// No connection could be opened.
    fn fail(&mut self, error: Error) {
        if is_fatal(&error) {
            return self.end_all(&error);
        }
        self.has_lost = true;
        self.reconnect.pause();
        self.trouble(error);
    }

    fn trouble(&mut self, error: Error) {
        if !std::mem::replace(&mut self.is_troubled, true) {
            tracing::warn!(%error, "watch stream interrupted");
        }
        self.inbox.set_trouble(Some(error));
    }

    fn end_all(&mut self, error: &Error) {
        tracing::error!(%error, "watches ended");
        self.link = None;
        self.router.end_all(error);
    }
}
