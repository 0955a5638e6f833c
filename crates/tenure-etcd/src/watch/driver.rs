//! The task that owns the watch stream: it moves things between the server, the machine and the consumers.
//!
//! What it decides itself is only when: when to open a stream and where, when to close it, when to leave a server that
//! is silent. Everything that happened becomes one `WatchDriverEvent`; the work is done after the `select!`.

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

/// How long a stream without watchers is kept: one that waits for a lock again and again need not open one each time.
const LINGER: Duration = Duration::from_secs(1);
/// A stream that lived so long was healthy: the next one is opened without delay.
const HEALTHY_AFTER: Duration = Duration::from_secs(2);
/// Proofs on their way at once: a second one keeps a proof that hangs from holding up the others, more would only send
/// what the next one covers.
const PROBES_MAX: usize = 2;

/// The task's state.
pub(super) struct WatchDriver {
    endpoints: Arc<Endpoints>,
    inbox: Arc<WatchInbox>,
    router: Router<QueueSender>,
    link: Option<WatchLink>,
    reconnect: Reconnect,
    /// A stream broke before: ask whether this is still the same store when the next one opens.
    has_lost: bool,
    /// When the stream lost its last watcher.
    idle_since: Option<Instant>,
    answers: FuturesUnordered<BoxFuture<'static, ReadReply>>,
    checks: StartChecks,
    probes: usize,
    /// Something went wrong and nothing has come since.
    is_troubled: bool,
    /// Counts the streams, so that an answer about an earlier one is recognised.
    serial: u64,
}

enum WatchDriverEvent {
    Stop,
    News,
    Connected(Result<Arc<Connection>, Error>),
    Abandoned,
    Reachable,
    Timer,
    AnsweredRenewal(ReadReply),
    SendWindow(SendWindow),
    Came(Result<WatchResponse, Status>),
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
            answers: FuturesUnordered::new(),
            checks: StartChecks::default(),
            probes: 0,
            is_troubled: false,
            serial: 0,
        }
    }

    /// Until the client closes.
    pub(super) async fn run(mut self) {
        let mut reachable = self.endpoints.changed();
        loop {
            self.settle();
            let due_at = self.due_at();
            let is_pausing = self.reconnect.retry_at().is_some();
            let has_requests = self.router.has_requests();
            let WatchDriver { endpoints, inbox, link, reconnect, answers, .. } = &mut self;
            let (abandoned, requests, incoming) = match link {
                Some(link) => (Some(&mut link.abandoned), Some(&link.requests), Some(&mut link.incoming)),
                None => (None, None, None),
            };
            let event = tokio::select! {
                biased;
                () = endpoints.stop().cancelled() => WatchDriverEvent::Stop,
                () = inbox.wait() => WatchDriverEvent::News,
                connected = reconnect.connected() => WatchDriverEvent::Connected(connected),
                () = maybe(abandoned) => WatchDriverEvent::Abandoned,
                // The sender lives as long as the endpoints, which this task holds: it cannot fail.
                _ = reachable.changed(), if is_pausing => WatchDriverEvent::Reachable,
                () = maybe(due_at.map(sleep_until)) => WatchDriverEvent::Timer,
                answer = answers.next(), if !answers.is_empty() => match answer {
                    Some(answer) => WatchDriverEvent::AnsweredRenewal(answer),
                    None => continue,
                },
                room = maybe(requests.filter(|_| has_requests).map(link::room)) => WatchDriverEvent::SendWindow(room),
                came = maybe(incoming.map(Incoming::next)) => WatchDriverEvent::Came(came),
            };
            match event {
                WatchDriverEvent::Stop => break,
                WatchDriverEvent::News => self.on_news(),
                WatchDriverEvent::Connected(connected) => self.on_connected(connected),
                WatchDriverEvent::Abandoned => self.lose(),
                WatchDriverEvent::Reachable => self.reconnect.hurry(),
                WatchDriverEvent::Timer => self.on_timer(),
                WatchDriverEvent::AnsweredRenewal(answer) => self.on_answer(answer),
                WatchDriverEvent::SendWindow(room) => self.on_room(room),
                WatchDriverEvent::Came(came) => self.on_came(came),
            }
        }
        self.router.end_all(&Error::Closed);
    }

    /// Does what the last event made necessary: questions of the machine, and the wish for a stream.
    fn settle(&mut self) {
        while let Some(action) = self.router.poll_action() {
            self.act(action);
        }
        while self.probes < PROBES_MAX
            && let Some(query) = self.checks.ask(Instant::now())
        {
            self.probes += 1;
            self.answers.push(reads::probe(&self.endpoints, query));
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
            RouterAction::Read { name, key } => self.answers.push(reads::point(&self.endpoints, name, key)),
            RouterAction::Probe { name, epoch, after, key } => {
                self.checks.add(StartCheck { name, epoch, after, key });
            }
            RouterAction::Verify { name, key, range_end } => {
                self.answers.push(reads::verify(&self.endpoints, name, self.serial, key, range_end));
            }
            RouterAction::Fail(reason) => {
                if let Some(link) = &self.link {
                    tracing::warn!(endpoint = %link.connection.address, reason, "watch stream given up");
                    self.endpoints.report(&link.connection, ConnectionReport::Failed(reason));
                    self.lose();
                }
            }
        }
    }

    fn due_at(&self) -> Option<Instant> {
        let watchdog = self.link.as_ref().map(|link| link.watchdog.due_at());
        let linger = self.idle_since.map(|since| since + LINGER);
        let retry = self.reconnect.retry_at().filter(|_| self.wants_link());
        let checks = self.checks.due_at(Instant::now()).filter(|_| self.probes < PROBES_MAX);
        [watchdog, linger, retry, checks].into_iter().flatten().min()
    }

    fn on_news(&mut self) {
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
        self.router.connected();
        if !self.router.has_requests() {
            // Whoever wanted it has left meanwhile.
            self.router.lost();
            return;
        }
        self.serial += 1;
        let ask_after = self.endpoints.config.watch_ask_after;
        let answer_within = self.endpoints.config.watch_answer_within;
        let patience = WatchdogTimeouts { ask_after, answer_within };
        match WatchLink::open(&self.endpoints, connection, &mut self.router, patience) {
            Ok(link) => {
                self.answers.push(reads::version(&self.endpoints, &link.connection, self.serial));
                if let (true, Some(key)) = (std::mem::take(&mut self.has_lost), self.router.some_key()) {
                    self.answers.push(reads::identity(&self.endpoints, key));
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
        match link.watchdog.look(now) {
            WatchdogAction::Quiet => {}
            WatchdogAction::Ask => {
                self.router.ask_for_life();
                link.watchdog.asked(now);
            }
            WatchdogAction::Leave => {
                tracing::warn!(endpoint = %link.connection.address, "watch stream is silent, leaving");
                let reason = "the watch stream was silent".to_owned();
                self.endpoints.report(&link.connection, ConnectionReport::Failed(reason));
                self.lose();
            }
        }
    }

    fn on_room(&mut self, room: SendWindow) {
        let Some(link) = &mut self.link else { return };
        link.send(room, &mut self.router);
    }

    fn on_came(&mut self, came: Result<WatchResponse, Status>) {
        let Some(link) = &mut self.link else { return };
        match came {
            Ok(response) => {
                link.watchdog.heard(Instant::now());
                if std::mem::take(&mut self.is_troubled) {
                    self.inbox.set_trouble(None);
                    tracing::info!(endpoint = %link.connection.address, "watches flow again");
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
                let broken = StreamError::report(&self.endpoints, &link.connection, &status);
                self.lose();
                match broken {
                    StreamError::Retry(error) => self.trouble(error),
                    StreamError::Fatal(error) => self.end_all(&error),
                }
            }
        }
    }

    fn on_answer(&mut self, answer: ReadReply) {
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
                // We may read it: the token of this stream ran out, or the store is in trouble. Begin anew.
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
                for check in query.compacted(&mut self.checks) {
                    self.router.disproven(check.name, check.epoch, check.after);
                }
            }
            Err(error @ (Error::Replaced(_) | Error::Closed)) => self.end_all(&error),
            Err(error) if is_fatal(&error) => {
                let check = query.refused(&mut self.checks);
                self.router.end(check.name, WatchError::Lost(error));
            }
            // The call has waited and tried for its whole deadline: ask again.
            Err(_) => query.unanswered(&mut self.checks),
        }
    }

    /// The stream is gone; the next one after a pause.
    fn lose(&mut self) {
        let Some(link) = self.link.take() else { return };
        if link.opened_at.elapsed() >= HEALTHY_AFTER {
            self.reconnect.reset();
        }
        self.has_lost = true;
        self.router.lost();
        self.reconnect.pause();
    }

    /// There was no connection to be had.
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
            tracing::warn!(%error, "watches are interrupted");
        }
        self.inbox.set_trouble(Some(error));
    }

    fn end_all(&mut self, error: &Error) {
        tracing::error!(%error, "watches ended");
        self.link = None;
        self.router.end_all(error);
    }
}
