//! Opening one connection: dial, sign in, and read the cluster id before any other request.
//!
//! It runs in a task of its own, one for each member at a time. However many callers wait, there is
//! one connect and one sign-in, and a cancelled caller does not undo the work for the others.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::classify::{Class, NO_GRPC, RequestSize, classify};
use crate::config::{DefectLog, User};
use crate::connection::{AuthToken, Connection, RequireLeader};
use crate::dial::DialError;
use crate::endpoint_selector::EndpointId;
use crate::endpoints::{Diagnosis, Endpoint, Endpoints};
use crate::error::{Cause, Error, TlsFailure};
use crate::http2::Http2Channel;
use crate::message::auth::{AuthenticateRequest, AuthenticateResponse};
use crate::message::cluster::{StatusRequest, StatusResponse};
use crate::version::{ServerVersion, known_defects};

/// Why a learner is passed over.
pub(super) const LEARNER: &str = "the member is a learner and serves no linearizable reads yet";

pub(super) type ConnectResult = Result<Arc<Connection>, ConnectFailure>;

/// Why a connection could not be opened.
#[derive(Clone, Debug)]
pub(super) enum ConnectFailure {
    /// The member is in quarantine now; another may serve.
    Unreachable(Cause),
    /// The same, by TLS.
    Tls { endpoint: String, failure: TlsFailure },
    /// No member would do better: wrong password, another cluster, closed.
    Fatal(Error),
}

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(cause) => cause.fmt(f),
            Self::Tls { endpoint, failure } => write!(f, "{endpoint}: {failure}"),
            Self::Fatal(error) => error.fmt(f),
        }
    }
}

impl Endpoints {
    /// The member's connection, if it is open and signed in.
    pub(super) fn held(&self, id: EndpointId) -> Option<Arc<Connection>> {
        self.slots[id.0].state().connection.clone()
    }

    /// The member's connection; opened, or signed in again, if it has to be.
    pub(super) async fn open(self: &Arc<Self>, id: EndpointId) -> ConnectResult {
        if let Some(connection) = self.held(id) {
            return Ok(connection);
        }
        let slot = &self.slots[id.0];
        let mut opening = {
            let mut state = slot.state();
            match &state.opening {
                Some(opening) => opening.clone(),
                None => {
                    let (publisher, opening) = watch::channel(None);
                    state.opening = Some(opening.clone());
                    self.tasks.spawn(open_and_publish(Arc::clone(self), id, publisher));
                    opening
                }
            }
        };
        match opening.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().expect("the wait was for an outcome"),
            Err(_) => {
                // The task ended without a result, which happens only when the runtime shuts down.
                slot.state().opening = None;
                Err(ConnectFailure::Fatal(Error::Closed))
            }
        }
    }

    async fn establish(self: &Arc<Self>, id: EndpointId) -> ConnectResult {
        let slot = &self.slots[id.0];
        let held = slot.state().channel.clone();
        let fresh = held.is_none();
        let channel = match held {
            Some(channel) => channel,
            None => {
                self.may_connect().await;
                match slot.dialer.dial(self.config.connect_timeout, self.owner()).await {
                    Ok(channel) => channel,
                    Err(DialError::BrokeOff(text)) => return Err(self.broke_off(slot, &text).await),
                    Err(error) => return Err(not_dialed(slot, error)),
                }
            }
        };
        let token = match &self.config.user {
            Some(user) => Some(self.sign_in(slot, id, &channel, user).await?),
            None => None,
        };
        if fresh {
            self.introduce(&self.connect_to(id, channel.clone(), token.clone())).await?;
        }
        let mut state = slot.state();
        if self.stop.is_cancelled() {
            // `close` has emptied this endpoint, or is about to: a connection stored now would stay
            // open.
            return Err(ConnectFailure::Fatal(Error::Closed));
        }
        // A user may have abandoned an older connection meanwhile, so the generation is read here.
        let connection = Arc::new(self.connect_to(id, channel.clone(), token));
        state.channel = Some(channel);
        state.connection = Some(Arc::clone(&connection));
        state.last_error = None;
        state.diagnosis = Diagnosis::Needless;
        Ok(connection)
    }

    /// Exchanges name and password for a token.
    async fn sign_in(
        &self,
        slot: &Endpoint,
        id: EndpointId,
        channel: &Http2Channel,
        user: &User,
    ) -> Result<AuthToken, ConnectFailure> {
        let message =
            AuthenticateRequest { name: user.name.clone(), password: user.password.reveal().to_owned() };
        let connection = self.connect_to(id, channel.clone(), None);
        let request = connection.request(message, RequireLeader::No).map_err(ConnectFailure::Fatal)?;
        let unreachable = |text: String| ConnectFailure::Unreachable(Cause::at(&slot.address, text));
        let until = Instant::now() + self.config.deadline;
        let mut signing_in = pin!(connection.unary("/etcdserverpb.Auth/Authenticate", request));
        let answer: AuthenticateResponse = loop {
            match timeout(self.config.per_try, &mut signing_in).await {
                // The member hashes the password, which takes seconds when many clients start at once. A second request would only add
                // to that work, so this one is kept while the member replies to others.
                Err(_) if Instant::now() < until && self.is_working(&connection).await => {}
                Err(_) => return Err(unreachable(format!("no sign-in within {:?}", self.config.per_try))),
                Ok(Err(status)) => {
                    return Err(match classify(&status, RequestSize::default()) {
                        Class::Answer(error @ Error::Denied(_)) => ConnectFailure::Fatal(error),
                        Class::Answer(error) => unreachable(format!("sign-in failed: {error}")),
                        Class::Stale(text) | Class::Refused(text) | Class::Overlong(text) => {
                            unreachable(format!("sign-in failed: {text}"))
                        }
                        Class::Unsent(text) | Class::Lost(text) => self.broke_off(slot, &text).await,
                    });
                }
                Ok(Ok(answer)) => break answer,
            }
        };
        if let Some(header) = &answer.header {
            self.identity.observe(header).map_err(ConnectFailure::Fatal)?;
        }
        let mut value = answer
            .token
            .parse::<tonic::metadata::MetadataValue<tonic::metadata::Ascii>>()
            .map_err(|_| unreachable("the token given by the server cannot be sent back".to_owned()))?;
        value.set_sensitive(true);
        Ok(AuthToken { serial: self.token_serial.fetch_add(1, Ordering::Relaxed), value })
    }

    /// Whether the member replies, and does not report that it has no leader: without one it can sign in no client.
    async fn is_working(&self, connection: &Connection) -> bool {
        match self.status_of(connection).await {
            Ok(status) => status.leader != 0,
            // Newer servers keep their status from a client without a token. That is a reply too.
            Err(failure) => matches!(failure, StatusFailure::Refused),
        }
    }

    /// Reads the member's status: nothing may be written to another cluster by mistake.
    async fn introduce(&self, connection: &Connection) -> Result<(), ConnectFailure> {
        let status = match self.status_of(connection).await {
            Ok(status) => status,
            // A server may refuse its status to a client; then the first reply is checked instead.
            Err(StatusFailure::Refused) => return Ok(()),
            Err(StatusFailure::Silent(cause)) => return Err(ConnectFailure::Unreachable(cause)),
            Err(StatusFailure::BrokeOff(text)) => {
                return Err(self.broke_off(&self.slots[connection.endpoint.0], &text).await);
            }
            Err(StatusFailure::Replaced(error)) => return Err(ConnectFailure::Fatal(error)),
        };
        if status.is_learner {
            return Err(ConnectFailure::Unreachable(Cause::at(&connection.address, LEARNER)));
        }
        if let Some(version) = ServerVersion::parse(&status.version)
            && !known_defects(version).is_empty()
            && self.defective.set(version).is_ok()
            && self.config.defect_log == DefectLog::Warn
        {
            let defects = known_defects(version).len();
            tracing::warn!(endpoint = %connection.address, %version, defects, "server has known defects");
        }
        Ok(())
    }

    /// One status request, within the time of one attempt.
    pub(super) async fn status_of(&self, connection: &Connection) -> Result<StatusResponse, StatusFailure> {
        let silent = |text: String| StatusFailure::Silent(Cause::at(&connection.address, text));
        let request = connection
            .request(StatusRequest {}, RequireLeader::No)
            .map_err(|error| silent(error.to_string()))?;
        let call = connection.unary::<_, StatusResponse>("/etcdserverpb.Maintenance/Status", request);
        let status = match timeout(self.config.per_try, call).await {
            Err(_) => return Err(silent(format!("no answer within {:?}", self.config.per_try))),
            Ok(Err(status)) => {
                return Err(match classify(&status, RequestSize::default()) {
                    Class::Answer(_) | Class::Stale(_) => StatusFailure::Refused,
                    Class::Refused(text) if text.contains(NO_GRPC) => {
                        StatusFailure::Silent(Cause::at(&connection.address, text).refused())
                    }
                    Class::Refused(text) | Class::Overlong(text) => silent(text),
                    Class::Unsent(text) | Class::Lost(text) => StatusFailure::BrokeOff(text),
                });
            }
            Ok(Ok(status)) => status,
        };
        if let Some(header) = &status.header {
            self.identity.observe(header).map_err(StatusFailure::Replaced)?;
        }
        Ok(status)
    }

    /// The connection broke before its first reply. The first time, further connections find out
    /// whether TLS is the reason.
    ///
    /// They count as connects, so a cluster in trouble gets no extra load.
    async fn broke_off(&self, slot: &Endpoint, text: &str) -> ConnectFailure {
        match &slot.state().diagnosis {
            Diagnosis::Open => {}
            Diagnosis::Found(error) => return error.clone(),
            Diagnosis::Needless => return ConnectFailure::Unreachable(Cause::at(&slot.address, text)),
        }
        let within = self.config.connect_timeout;
        let found = match slot.dialer.refusal(text) {
            Some(found) => found,
            None => {
                self.may_connect().await;
                match slot.dialer.probe_plain(text, within).await {
                    Some(found) => found,
                    None => {
                        self.may_connect().await;
                        slot.dialer.probe_tls(text, within).await
                    }
                }
            }
        };
        let error = not_dialed(slot, found);
        slot.state().diagnosis = Diagnosis::Found(error.clone());
        error
    }

    /// Waits until one more connect is within the limit.
    async fn may_connect(&self) {
        let at = self.selector().reserve_connect(self.now());
        sleep_until(self.started + at).await;
    }

    fn connect_to(&self, id: EndpointId, channel: Http2Channel, token: Option<AuthToken>) -> Connection {
        let slot = &self.slots[id.0];
        Connection {
            endpoint: id,
            address: Arc::clone(&slot.address),
            generation: *slot.generation.borrow(),
            channel,
            token,
            closed: Arc::clone(&self.stop),
        }
    }
}

/// Why a status request gave no status.
pub(super) enum StatusFailure {
    /// The member is alive but refuses its status.
    Refused,
    /// No reply.
    Silent(Cause),
    /// The connection broke.
    BrokeOff(String),
    /// Another cluster answers at this address.
    Replaced(Error),
}

fn not_dialed(slot: &Endpoint, error: DialError) -> ConnectFailure {
    match error {
        DialError::Unreachable(cause) => ConnectFailure::Unreachable(cause),
        DialError::Tls(failure) => ConnectFailure::Tls { endpoint: slot.address.to_string(), failure },
        DialError::BrokeOff(text) => ConnectFailure::Unreachable(Cause::at(&slot.address, text)),
    }
}

async fn open_and_publish(
    endpoints: Arc<Endpoints>,
    id: EndpointId,
    publisher: watch::Sender<Option<ConnectResult>>,
) {
    let outcome = tokio::select! {
        biased;
        () = endpoints.stop.cancelled() => Err(ConnectFailure::Fatal(Error::Closed)),
        outcome = endpoints.establish(id) => outcome,
    };
    match &outcome {
        Ok(_) | Err(ConnectFailure::Fatal(_)) => {}
        Err(error @ (ConnectFailure::Unreachable(_) | ConnectFailure::Tls { .. })) => {
            endpoints.fail(id, error.clone());
        }
    }
    endpoints.slots[id.0].state().opening = None;
    publisher.send_replace(Some(outcome));
}
