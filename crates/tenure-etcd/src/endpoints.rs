//! The members of one cluster, as one source of connections.
//!
//! `EndpointSelector` decides, this file acts. It opens connections, one at a time for each member
//! however many callers wait, keeps them, and discards them when a user reports a failure. One
//! health probe per member runs in the background. Unary calls and streams take their connections
//! from here and report what they saw, so that all of them leave a dead member together.

mod connecting;
mod health_probe;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::connection::Connection;
use crate::dial::Dialer;
use crate::endpoint_selector::{EndpointId, EndpointSelector, ProbeAction};
use crate::endpoints::connecting::{ConnectFailure, ConnectResult};
use crate::error::{Cause, Error};
use crate::http2::{Http2Channel, Owner};
use crate::identity::ClusterIdentity;
use crate::timer_tick::TimerTick;
use crate::version::ServerVersion;

/// All members, their connections, and what is known about them.
pub(crate) struct Endpoints {
    pub(crate) config: Config,
    pub(crate) identity: ClusterIdentity,
    slots: Vec<Endpoint>,
    selector: Mutex<EndpointSelector>,
    /// Grows whenever a member becomes reachable again.
    changed: watch::Sender<u64>,
    started: Instant,
    token_serial: AtomicU64,
    /// The first version with known defects that a member had.
    pub(crate) defective: OnceLock<ServerVersion>,
    pub(crate) timer_tick: TimerTick,
    stop: Arc<CancellationToken>,
    tasks: TaskTracker,
}

/// The connection and state of one member.
struct Endpoint {
    dialer: Dialer,
    address: Arc<str>,
    state: Mutex<EndpointState>,
    /// Counts the connections; a stream sees when its own one was abandoned.
    generation: watch::Sender<u64>,
    /// Wakes the health probe.
    wake: Notify,
}

#[derive(Default)]
struct EndpointState {
    channel: Option<Http2Channel>,
    /// The channel, signed in. Shared by all calls, because a copy costs each of them atomics and
    /// locks.
    ///
    /// **Invariant**: its generation is the endpoint's; both change under this lock.
    connection: Option<Arc<Connection>>,
    /// Present while a task opens this connection or signs in on it.
    opening: Option<watch::Receiver<Option<ConnectResult>>>,
    last_error: Option<ConnectFailure>,
    diagnosis: Diagnosis,
}

/// What is known of a connection that breaks before its first reply.
#[derive(Default)]
enum Diagnosis {
    /// Nothing: the first one that breaks is examined.
    #[default]
    Open,
    /// The reason that was found. Examining it again would cost connects.
    Found(ConnectFailure),
    /// A connection was open before, so the address and the certificates are right.
    Needless,
}

/// What the user of a connection saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionReport {
    /// The member replied.
    Healthy,
    /// The member did not reply, or not sensibly: quarantine, and a new channel when it is back.
    Failed(String),
    /// The connection was closed, which proves nothing about the member: reconnect without
    /// quarantine.
    Gone,
    /// The token was refused: sign in again.
    Unauthenticated,
}

/// How long to try when every member is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectDeadline {
    /// Try every member once, then return the error.
    EachOnce,
    /// Wait until the deadline for one to come back.
    UntilDeadline,
}

/// The members that one call has tried, also while they are still being connected.
#[derive(Debug, Default)]
pub(crate) struct Tried(Mutex<Vec<EndpointId>>);

impl Tried {
    /// A member that was not tried yet, if there is one; when all were tried, all but the last are
    /// new again.
    fn pick(&self, selector: &mut EndpointSelector, now: Duration) -> Option<EndpointId> {
        let mut tried = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let picked = selector.pick(now, &tried)?;
        if tried.contains(&picked) {
            tried.clear();
        }
        tried.push(picked);
        Some(picked)
    }

    /// The member received no request after all.
    fn forget(&self, picked: Option<EndpointId>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|tried| Some(*tried) != picked);
    }
}

impl Endpoints {
    /// Reads the configuration and starts the health probes. Does not connect yet.
    pub(crate) fn start(config: Config) -> Result<Arc<Self>, Error> {
        config.check()?;
        let slots = config
            .endpoints
            .iter()
            .map(|text| Dialer::parse(text, &config).map(Endpoint::new))
            .collect::<Result<Vec<_>, _>>()?;
        let first = usize::from(random_byte());
        let endpoints = Arc::new(Self {
            selector: Mutex::new(EndpointSelector::new(slots.len(), first)),
            slots,
            config,
            identity: ClusterIdentity::default(),
            changed: watch::Sender::new(0),
            started: Instant::now(),
            token_serial: AtomicU64::new(0),
            defective: OnceLock::new(),
            timer_tick: TimerTick::default(),
            stop: Arc::new(CancellationToken::new()),
            tasks: TaskTracker::new(),
        });
        let beating = Arc::clone(&endpoints);
        endpoints.tasks.spawn(async move { beating.timer_tick.run(&beating.stop).await });
        for index in 0..endpoints.slots.len() {
            endpoints.tasks.spawn(health_probe::watch_over(Arc::clone(&endpoints), EndpointId(index)));
        }
        Ok(endpoints)
    }

    /// A connected and signed-in connection to the selected member, or to the next that serves.
    pub(crate) async fn connection(self: &Arc<Self>, deadline: Duration) -> Result<Arc<Connection>, Error> {
        self.acquire(Instant::now() + deadline, None, ConnectDeadline::UntilDeadline).await
    }

    /// The same, also for a call with several attempts that prefers members it has not tried yet.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        until: Instant,
        tried: Option<&Tried>,
        patience: ConnectDeadline,
    ) -> Result<Arc<Connection>, Error> {
        if self.stop.is_cancelled() {
            return Err(Error::Closed);
        }
        // Nearly always there is a connection, and then the call need not listen for a member that
        // recovers.
        let picked = self.pick(tried);
        if let Some(connection) = picked.and_then(|id| self.held(id)) {
            return Ok(connection);
        }
        if let Some(tried) = tried {
            tried.forget(picked);
        }
        let mut changed = self.changed.subscribe();
        loop {
            if self.stop.is_cancelled() {
                return Err(Error::Closed);
            }
            self.identity.mark()?;
            changed.borrow_and_update();
            match self.pick(tried) {
                Some(id) => match timeout_at(until, self.open(id)).await {
                    Ok(Ok(connection)) => return Ok(connection),
                    Ok(Err(ConnectFailure::Fatal(error))) => return Err(error),
                    // The member is in quarantine now: pick again.
                    Ok(Err(ConnectFailure::Unreachable(_) | ConnectFailure::Tls { .. })) => {}
                    Err(_) => return Err(self.unreachable_error()),
                },
                None if patience == ConnectDeadline::EachOnce => return Err(self.unreachable_error()),
                None => {
                    let waited = tokio::select! {
                        biased;
                        () = self.stop.cancelled() => return Err(Error::Closed),
                        waited = timeout_at(until, changed.changed()) => waited,
                    };
                    if waited.is_err() {
                        return Err(self.unreachable_error());
                    }
                }
            }
        }
    }

    /// Records what the user of a connection saw. Late reports about old connections have no
    /// effect.
    pub(crate) fn report(&self, connection: &Connection, seen: ConnectionReport) {
        let id = connection.endpoint;
        match seen {
            ConnectionReport::Healthy => {
                let mut selector = self.selector();
                // A healthy member stays healthy, and then the time is not needed.
                if selector.probe_action(id) != ProbeAction::Idle {
                    selector.healthy(id, self.now());
                }
            }
            ConnectionReport::Failed(why) => {
                if self.is_current(connection) {
                    self.fail(id, ConnectFailure::Unreachable(Cause::at(&connection.address, why)));
                }
            }
            ConnectionReport::Gone => {
                if self.is_current(connection) {
                    self.drop_wire(id);
                }
            }
            ConnectionReport::Unauthenticated => {
                let mut state = self.slots[id.0].state();
                let held = state.connection.as_ref().and_then(|held| held.token.as_ref());
                if let (Some(held), Some(refused)) = (held, &connection.token)
                    && held.serial == refused.serial
                {
                    state.connection = None;
                }
            }
        }
    }

    /// The connection is slow: it stays usable, and the health probe tests it immediately.
    pub(crate) fn suspect(&self, connection: &Connection) {
        if self.is_current(connection) && self.selector().suspect(connection.endpoint) {
            self.slots[connection.endpoint.0].wake.notify_one();
        }
    }

    /// Stay with this member from now on.
    pub(crate) fn prefer(&self, connection: &Connection) {
        self.selector().prefer(connection.endpoint);
    }

    /// Returns when the connection was abandoned by any of its users.
    pub(crate) async fn abandoned(&self, connection: &Connection) {
        let mut generation = self.slots[connection.endpoint.0].generation.subscribe();
        // The sender lives as long as `self`, so the wait cannot fail while `self` is borrowed.
        let _ = generation.wait_for(|now| *now != connection.generation).await;
    }

    /// Wakes when a member becomes reachable again.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// How many members the configuration names.
    pub(crate) fn endpoint_count(&self) -> usize {
        self.slots.len()
    }

    /// Cancelled when the client closes; streams stop with it.
    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Tasks that `close` waits for. Streams spawn their tasks here.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// What ends the tasks of connections.
    fn owner(&self) -> Owner<'_> {
        Owner { tasks: &self.tasks, stop: &self.stop }
    }

    /// Stops everything and waits for it; calls in flight have one second to end.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        for index in 0..self.slots.len() {
            self.drop_wire(EndpointId(index));
        }
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Quarantines a member and abandons its connection.
    fn fail(&self, id: EndpointId, error: ConnectFailure) {
        let slot = &self.slots[id.0];
        tracing::debug!(endpoint = %slot.address, %error, "member left");
        self.selector().failed(id, self.now(), f64::from(random_byte()) / 256.0);
        slot.state().last_error = Some(error);
        self.drop_wire(id);
        slot.wake.notify_one();
    }

    fn drop_wire(&self, id: EndpointId) {
        let slot = &self.slots[id.0];
        let mut state = slot.state();
        state.channel = None;
        state.connection = None;
        slot.generation.send_modify(|generation| *generation += 1);
    }

    /// No member could be reached: the most specific of the members' errors.
    fn unreachable_error(&self) -> Error {
        let errors: Vec<ConnectFailure> =
            self.slots.iter().filter_map(|slot| slot.state().last_error.clone()).collect();
        let tls = errors.iter().find_map(|error| match error {
            ConnectFailure::Tls { endpoint, failure } => Some((endpoint, failure)),
            ConnectFailure::Unreachable(_) | ConnectFailure::Fatal(_) => None,
        });
        if let Some((endpoint, failure)) = tls {
            return Error::Tls { endpoint: endpoint.clone(), failure: failure.clone() };
        }
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        if texts.is_empty() {
            return Error::Unavailable(Cause::new("no connection within the deadline"));
        }
        let cause = Cause::new(texts.join("; "));
        let is_refused = |error: &ConnectFailure| matches!(error, ConnectFailure::Unreachable(cause) if cause.is_refused());
        let all_refused = errors.len() == self.slots.len() && errors.iter().all(is_refused);
        Error::Unavailable(if all_refused { cause.refused() } else { cause })
    }

    fn pick(&self, tried: Option<&Tried>) -> Option<EndpointId> {
        let now = self.now();
        match tried {
            Some(tried) => tried.pick(&mut self.selector(), now),
            None => self.selector().pick(now, &[]),
        }
    }

    fn is_current(&self, connection: &Connection) -> bool {
        *self.slots[connection.endpoint.0].generation.borrow() == connection.generation
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn selector(&self) -> MutexGuard<'_, EndpointSelector> {
        self.selector.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Endpoint {
    fn new(dialer: Dialer) -> Self {
        Self {
            address: dialer.address.as_str().into(),
            dialer,
            state: Mutex::default(),
            generation: watch::Sender::new(0),
            wake: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, EndpointState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses: Vec<_> = self.slots.iter().map(|slot| &slot.address).collect();
        f.debug_struct("Endpoints").field("addresses", &addresses).finish_non_exhaustive()
    }
}

/// A random number that spreads clients out; without entropy every client gets the middle.
fn random_byte() -> u8 {
    let mut byte = [128_u8];
    match getrandom::fill(&mut byte) {
        Ok(()) => byte[0],
        Err(_) => 128,
    }
}
