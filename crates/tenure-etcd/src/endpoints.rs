//! The members of one cluster as one thing that gives out connections.
//!
//! `choice` decides, this file acts: it opens connections (one at a time for each member, however many
//! callers wait), keeps them, throws them away when somebody reports a failure, and lets one watchman for
//! each member knock in the background. Unary calls and streams take their connections from here and
//! report what they saw, so that all of them leave a dead member together.

mod opening;
mod watchman;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::choice::{Choice, EndpointId, Errand};
use crate::config::Config;
use crate::connection::Connection;
use crate::dial::Dialer;
use crate::endpoints::opening::{OpenError, Outcome};
use crate::error::{Cause, Error};
use crate::identity::Identity;
use crate::pulse::Pulse;
use crate::version::Version;
use crate::wire::{Owner, Wire};

/// All members, their connections, and what is known about them.
pub(crate) struct Endpoints {
    pub(crate) config: Config,
    pub(crate) identity: Identity,
    slots: Vec<Slot>,
    choice: Mutex<Choice>,
    /// Grows whenever a member becomes reachable again.
    changed: watch::Sender<u64>,
    started: Instant,
    token_serial: AtomicU64,
    /// The first version with known defects that a member had.
    pub(crate) defective: OnceLock<Version>,
    pub(crate) pulse: Pulse,
    stop: Arc<CancellationToken>,
    tasks: TaskTracker,
}

/// What is kept for one member.
struct Slot {
    dialer: Dialer,
    address: Arc<str>,
    state: Mutex<SlotState>,
    /// Counts the connections; a listener sees when its own one was given up.
    generation: watch::Sender<u64>,
    /// Wakes the watchman.
    wake: Notify,
}

#[derive(Default)]
struct SlotState {
    wire: Option<Wire>,
    /// The wire, signed in. Shared by all calls, because a copy costs each of them atomics and locks.
    ///
    /// **Invariant**: its generation is the slot's; both change under this lock.
    connection: Option<Arc<Connection>>,
    /// Present while a task opens this connection or signs in on it.
    opening: Option<watch::Receiver<Option<Outcome>>>,
    last_error: Option<OpenError>,
    diagnosis: Diagnosis,
}

/// What is known of a connection that breaks before its first answer.
#[derive(Default)]
enum Diagnosis {
    /// Nothing: the first one that breaks is looked into.
    #[default]
    Open,
    /// The reason that was found. Looking again would cost connects.
    Found(OpenError),
    /// A connection was open before, so the address and the certificates are right.
    Needless,
}

/// What the user of a connection saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It answered.
    Healthy,
    /// It did not answer, or not sensibly: quarantine, and a new wire when it is back.
    Failed(String),
    /// The connection was closed, which says nothing about the member: reconnect without quarantine.
    Gone,
    /// The token was refused: sign in again.
    Unauthenticated,
}

/// How long to try when every member is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Ask every member once, then give up.
    EachOnce,
    /// Wait until the deadline for one to come back.
    UntilDeadline,
}

/// The members one call has turned to, also while they are still being connected.
#[derive(Debug, Default)]
pub(crate) struct Tried(Mutex<Vec<EndpointId>>);

impl Tried {
    /// Somebody new if there is one; when all were tried, all but the last are new again.
    fn pick(&self, choice: &mut Choice, now: Duration) -> Option<EndpointId> {
        let mut tried = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let picked = choice.pick(now, &tried)?;
        if tried.contains(&picked) {
            tried.clear();
        }
        tried.push(picked);
        Some(picked)
    }

    /// It was not asked after all.
    fn forget(&self, picked: Option<EndpointId>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|tried| Some(*tried) != picked);
    }
}

impl Endpoints {
    /// Reads the configuration and starts the watchmen. Connects to nobody yet.
    pub(crate) fn start(config: Config) -> Result<Arc<Self>, Error> {
        config.check()?;
        let slots = config
            .endpoints
            .iter()
            .map(|text| Dialer::parse(text, &config).map(Slot::new))
            .collect::<Result<Vec<_>, _>>()?;
        let first = usize::from(random_byte());
        let endpoints = Arc::new(Self {
            choice: Mutex::new(Choice::new(slots.len(), first)),
            slots,
            config,
            identity: Identity::default(),
            changed: watch::Sender::new(0),
            started: Instant::now(),
            token_serial: AtomicU64::new(0),
            defective: OnceLock::new(),
            pulse: Pulse::default(),
            stop: Arc::new(CancellationToken::new()),
            tasks: TaskTracker::new(),
        });
        let beating = Arc::clone(&endpoints);
        endpoints.tasks.spawn(async move { beating.pulse.run(&beating.stop).await });
        for index in 0..endpoints.slots.len() {
            endpoints.tasks.spawn(watchman::watch_over(Arc::clone(&endpoints), EndpointId(index)));
        }
        Ok(endpoints)
    }

    /// A connected and signed-in connection to the member we stay with, or to the next that serves.
    pub(crate) async fn connection(self: &Arc<Self>, deadline: Duration) -> Result<Arc<Connection>, Error> {
        self.acquire(Instant::now() + deadline, None, Patience::UntilDeadline).await
    }

    /// The same, also for a call with several tries that prefers members it has not asked yet.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        until: Instant,
        tried: Option<&Tried>,
        patience: Patience,
    ) -> Result<Arc<Connection>, Error> {
        if self.stop.is_cancelled() {
            return Err(Error::Closed);
        }
        // Nearly always there is a connection, and then nobody has to listen for a member that comes back.
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
                    Ok(Err(OpenError::Fatal(error))) => return Err(error),
                    // The member is in quarantine now: pick again.
                    Ok(Err(OpenError::Unreachable(_) | OpenError::Tls { .. })) => {}
                    Err(_) => return Err(self.nobody()),
                },
                None if patience == Patience::EachOnce => return Err(self.nobody()),
                None => {
                    let waited = tokio::select! {
                        biased;
                        () = self.stop.cancelled() => return Err(Error::Closed),
                        waited = timeout_at(until, changed.changed()) => waited,
                    };
                    if waited.is_err() {
                        return Err(self.nobody());
                    }
                }
            }
        }
    }

    /// Takes note of what the user of a connection saw. Late reports about old connections do no harm.
    pub(crate) fn report(&self, connection: &Connection, verdict: Verdict) {
        let id = connection.endpoint;
        match verdict {
            Verdict::Healthy => {
                let mut choice = self.choice();
                // Of a good member this is no news, and then nobody needs to know the time.
                if choice.errand(id) != Errand::Rest {
                    choice.healthy(id, self.now());
                }
            }
            Verdict::Failed(why) => {
                if self.is_current(connection) {
                    self.fail(id, OpenError::Unreachable(Cause::at(&connection.address, why)));
                }
            }
            Verdict::Gone => {
                if self.is_current(connection) {
                    self.drop_wire(id);
                }
            }
            Verdict::Unauthenticated => {
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

    /// The connection is slow: stay usable, but have the watchman look at once.
    pub(crate) fn suspect(&self, connection: &Connection) {
        if self.is_current(connection) && self.choice().suspect(connection.endpoint) {
            self.slots[connection.endpoint.0].wake.notify_one();
        }
    }

    /// Stay with this member from now on.
    pub(crate) fn prefer(&self, connection: &Connection) {
        self.choice().prefer(connection.endpoint);
    }

    /// Ends when the connection was given up by anybody.
    pub(crate) async fn given_up(&self, connection: &Connection) {
        let mut generation = self.slots[connection.endpoint.0].generation.subscribe();
        // The sender lives as long as `self`, so the wait cannot fail while we are borrowed.
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

    /// Tasks that `close` waits for; streams spawn theirs here.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Who ends the tasks of connections.
    fn owner(&self) -> Owner<'_> {
        Owner { tasks: &self.tasks, stop: &self.stop }
    }

    /// Stops everything and waits for it; calls under way get a moment to end.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        for index in 0..self.slots.len() {
            self.drop_wire(EndpointId(index));
        }
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Puts a member into quarantine and gives up its connection.
    fn fail(&self, id: EndpointId, error: OpenError) {
        let slot = &self.slots[id.0];
        tracing::debug!(endpoint = %slot.address, %error, "member left");
        self.choice().failed(id, self.now(), f64::from(random_byte()) / 256.0);
        slot.state().last_error = Some(error);
        self.drop_wire(id);
        slot.wake.notify_one();
    }

    fn drop_wire(&self, id: EndpointId) {
        let slot = &self.slots[id.0];
        let mut state = slot.state();
        state.wire = None;
        state.connection = None;
        slot.generation.send_modify(|generation| *generation += 1);
    }

    /// Nobody could be reached: the most telling of what every member said.
    fn nobody(&self) -> Error {
        let errors: Vec<OpenError> =
            self.slots.iter().filter_map(|slot| slot.state().last_error.clone()).collect();
        let tls = errors.iter().find_map(|error| match error {
            OpenError::Tls { endpoint, failure } => Some((endpoint, failure)),
            OpenError::Unreachable(_) | OpenError::Fatal(_) => None,
        });
        if let Some((endpoint, failure)) = tls {
            return Error::Tls { endpoint: endpoint.clone(), failure: failure.clone() };
        }
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        if texts.is_empty() {
            return Error::Unavailable(Cause::new("no connection within the deadline"));
        }
        let cause = Cause::new(texts.join("; "));
        let is_refused =
            |error: &OpenError| matches!(error, OpenError::Unreachable(cause) if cause.is_refused());
        let all_refused = errors.len() == self.slots.len() && errors.iter().all(is_refused);
        Error::Unavailable(if all_refused { cause.refused() } else { cause })
    }

    fn pick(&self, tried: Option<&Tried>) -> Option<EndpointId> {
        let now = self.now();
        match tried {
            Some(tried) => tried.pick(&mut self.choice(), now),
            None => self.choice().pick(now, &[]),
        }
    }

    fn is_current(&self, connection: &Connection) -> bool {
        *self.slots[connection.endpoint.0].generation.borrow() == connection.generation
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn choice(&self) -> MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn new(dialer: Dialer) -> Self {
        Self {
            address: dialer.address.as_str().into(),
            dialer,
            state: Mutex::default(),
            generation: watch::Sender::new(0),
            wake: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses: Vec<_> = self.slots.iter().map(|slot| &slot.address).collect();
        f.debug_struct("Endpoints").field("addresses", &addresses).finish_non_exhaustive()
    }
}

/// A throw of the dice for spreading clients out; without entropy everybody throws the middle.
fn random_byte() -> u8 {
    let mut byte = [128_u8];
    match getrandom::fill(&mut byte) {
        Ok(()) => byte[0],
        Err(_) => 128,
    }
}
