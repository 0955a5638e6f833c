//! Opening one connection: knock, sign in, and ask who is there before anything else is sent.
//!
//! It runs in a task of its own, one for each member at a time. However many callers wait, there is one
//! connect and one sign-in; a caller that gives up does not undo the work for the others.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::choice::EndpointId;
use crate::classify::{Asked, Class, NO_GRPC, classify};
use crate::config::{DefectLog, User};
use crate::connection::{Connection, RequireLeader, Token};
use crate::dial::DialError;
use crate::endpoints::{Diagnosis, Endpoints, Slot};
use crate::error::{Cause, Error, TlsFailure};
use crate::message::auth::{AuthenticateRequest, AuthenticateResponse};
use crate::message::cluster::{StatusRequest, StatusResponse};
use crate::version::{Version, known_defects};
use crate::wire::Wire;

/// Why a learner is passed over.
pub(super) const LEARNER: &str = "the member is a learner and serves no linearizable reads yet";

pub(super) type Outcome = Result<Arc<Connection>, OpenError>;

/// Why a connection could not be opened.
#[derive(Clone, Debug)]
pub(super) enum OpenError {
    /// The member is in quarantine now; another may serve.
    Unreachable(Cause),
    /// The same, by TLS.
    Tls { endpoint: String, failure: TlsFailure },
    /// No member would do better: wrong password, another cluster, closed.
    Fatal(Error),
}

impl fmt::Display for OpenError {
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
    pub(super) async fn open(self: &Arc<Self>, id: EndpointId) -> Outcome {
        if let Some(connection) = self.held(id) {
            return Ok(connection);
        }
        let slot = &self.slots[id.0];
        let mut opening = {
            let mut state = slot.state();
            match &state.opening {
                Some(opening) => opening.clone(),
                None => {
                    let (tell, opening) = watch::channel(None);
                    state.opening = Some(opening.clone());
                    self.tasks.spawn(open_and_tell(Arc::clone(self), id, tell));
                    opening
                }
            }
        };
        match opening.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().expect("the wait was for an outcome"),
            Err(_) => {
                // The task ended without a word, which only a runtime that shuts down can do.
                slot.state().opening = None;
                Err(OpenError::Fatal(Error::Closed))
            }
        }
    }

    async fn establish(self: &Arc<Self>, id: EndpointId) -> Outcome {
        let slot = &self.slots[id.0];
        let held = slot.state().wire.clone();
        let fresh = held.is_none();
        let wire = match held {
            Some(wire) => wire,
            None => {
                self.may_connect().await;
                match slot.dialer.dial(self.config.connect_timeout, self.owner()).await {
                    Ok(wire) => wire,
                    Err(DialError::BrokeOff(text)) => return Err(self.broke_off(slot, &text).await),
                    Err(error) => return Err(not_dialed(slot, error)),
                }
            }
        };
        let token = match &self.config.user {
            Some(user) => Some(self.sign_in(slot, id, &wire, user).await?),
            None => None,
        };
        if fresh {
            self.introduce(&self.connect_to(id, wire.clone(), token.clone())).await?;
        }
        let mut state = slot.state();
        if self.stop.is_cancelled() {
            // Whoever closes has emptied this slot, or will: what is put in now would stay.
            return Err(OpenError::Fatal(Error::Closed));
        }
        // Somebody may have given up an older connection meanwhile, so the generation is read here.
        let connection = Arc::new(self.connect_to(id, wire.clone(), token));
        state.wire = Some(wire);
        state.connection = Some(Arc::clone(&connection));
        state.last_error = None;
        state.diagnosis = Diagnosis::Needless;
        Ok(connection)
    }

    /// Trades name and password for a token.
    async fn sign_in(
        &self,
        slot: &Slot,
        id: EndpointId,
        wire: &Wire,
        user: &User,
    ) -> Result<Token, OpenError> {
        let message =
            AuthenticateRequest { name: user.name.clone(), password: user.password.reveal().to_owned() };
        let connection = self.connect_to(id, wire.clone(), None);
        let request = connection.request(message, RequireLeader::No).map_err(OpenError::Fatal)?;
        let unreachable = |text: String| OpenError::Unreachable(Cause::at(&slot.address, text));
        let until = Instant::now() + self.config.deadline;
        let mut signing_in = pin!(connection.unary("/etcdserverpb.Auth/Authenticate", request));
        let answer: AuthenticateResponse = loop {
            match timeout(self.config.per_try, &mut signing_in).await {
                // The member hashes the password, which takes seconds when many clients start at once. A second request would only add
                // to that work, so this one is kept while the member replies to others.
                Err(_) if Instant::now() < until && self.is_working(&connection).await => {}
                Err(_) => return Err(unreachable(format!("no sign-in within {:?}", self.config.per_try))),
                Ok(Err(status)) => {
                    return Err(match classify(&status, Asked::default()) {
                        Class::Answer(error @ Error::Denied(_)) => OpenError::Fatal(error),
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
            self.identity.observe(header).map_err(OpenError::Fatal)?;
        }
        let mut value = answer
            .token
            .parse::<tonic::metadata::MetadataValue<tonic::metadata::Ascii>>()
            .map_err(|_| unreachable("the token given by the server cannot be sent back".to_owned()))?;
        value.set_sensitive(true);
        Ok(Token { serial: self.token_serial.fetch_add(1, Ordering::Relaxed), value })
    }

    /// Whether the member replies, and does not report that it has no leader: without one it can sign in no client.
    async fn is_working(&self, connection: &Connection) -> bool {
        match self.status_of(connection).await {
            Ok(status) => status.leader != 0,
            // Newer servers keep their status from a client without a token. That is a reply too.
            Err(knocked) => matches!(knocked, Knocked::Refused),
        }
    }

    /// Asks the member who it is: nothing may be written to another cluster by mistake.
    async fn introduce(&self, connection: &Connection) -> Result<(), OpenError> {
        let status = match self.status_of(connection).await {
            Ok(status) => status,
            // A server may keep its status from us; then the first answer is checked instead.
            Err(Knocked::Refused) => return Ok(()),
            Err(Knocked::Silent(cause)) => return Err(OpenError::Unreachable(cause)),
            Err(Knocked::BrokeOff(text)) => {
                return Err(self.broke_off(&self.slots[connection.endpoint.0], &text).await);
            }
            Err(Knocked::Replaced(error)) => return Err(OpenError::Fatal(error)),
        };
        if status.is_learner {
            return Err(OpenError::Unreachable(Cause::at(&connection.address, LEARNER)));
        }
        if let Some(version) = Version::parse(&status.version)
            && !known_defects(version).is_empty()
            && self.defective.set(version).is_ok()
            && self.config.defect_log == DefectLog::Warn
        {
            let defects = known_defects(version).len();
            tracing::warn!(endpoint = %connection.address, %version, defects, "server has known defects");
        }
        Ok(())
    }

    /// One status request, within the time of one try.
    pub(super) async fn status_of(&self, connection: &Connection) -> Result<StatusResponse, Knocked> {
        let silent = |text: String| Knocked::Silent(Cause::at(&connection.address, text));
        let request = connection
            .request(StatusRequest {}, RequireLeader::No)
            .map_err(|error| silent(error.to_string()))?;
        let call = connection.unary::<_, StatusResponse>("/etcdserverpb.Maintenance/Status", request);
        let status = match timeout(self.config.per_try, call).await {
            Err(_) => return Err(silent(format!("no answer within {:?}", self.config.per_try))),
            Ok(Err(status)) => {
                return Err(match classify(&status, Asked::default()) {
                    Class::Answer(_) | Class::Stale(_) => Knocked::Refused,
                    Class::Refused(text) if text.contains(NO_GRPC) => {
                        Knocked::Silent(Cause::at(&connection.address, text).refused())
                    }
                    Class::Refused(text) | Class::Overlong(text) => silent(text),
                    Class::Unsent(text) | Class::Lost(text) => Knocked::BrokeOff(text),
                });
            }
            Ok(Ok(status)) => status,
        };
        if let Some(header) = &status.header {
            self.identity.observe(header).map_err(Knocked::Replaced)?;
        }
        Ok(status)
    }

    /// The connection broke before its first answer: the first time, further connections find out whether TLS is the reason.
    ///
    /// They count as connects, so a cluster in trouble is not asked more often for it.
    async fn broke_off(&self, slot: &Slot, text: &str) -> OpenError {
        match &slot.state().diagnosis {
            Diagnosis::Open => {}
            Diagnosis::Found(error) => return error.clone(),
            Diagnosis::Needless => return OpenError::Unreachable(Cause::at(&slot.address, text)),
        }
        let within = self.config.connect_timeout;
        let found = match slot.dialer.refusal(text) {
            Some(found) => found,
            None => {
                self.may_connect().await;
                match slot.dialer.ask_plain(text, within).await {
                    Some(found) => found,
                    None => {
                        self.may_connect().await;
                        slot.dialer.ask_tls(text, within).await
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
        let at = self.choice().reserve_connect(self.now());
        sleep_until(self.started + at).await;
    }

    fn connect_to(&self, id: EndpointId, wire: Wire, token: Option<Token>) -> Connection {
        let slot = &self.slots[id.0];
        Connection {
            endpoint: id,
            address: Arc::clone(&slot.address),
            generation: *slot.generation.borrow(),
            wire,
            token,
            closed: Arc::clone(&self.stop),
        }
    }
}

/// Why a status request gave no status.
pub(super) enum Knocked {
    /// The member lives but will not tell.
    Refused,
    /// No answer.
    Silent(Cause),
    /// The connection broke.
    BrokeOff(String),
    /// Somebody else lives there now.
    Replaced(Error),
}

fn not_dialed(slot: &Slot, error: DialError) -> OpenError {
    match error {
        DialError::Unreachable(cause) => OpenError::Unreachable(cause),
        DialError::Tls(failure) => OpenError::Tls { endpoint: slot.address.to_string(), failure },
        DialError::BrokeOff(text) => OpenError::Unreachable(Cause::at(&slot.address, text)),
    }
}

async fn open_and_tell(endpoints: Arc<Endpoints>, id: EndpointId, tell: watch::Sender<Option<Outcome>>) {
    let outcome = tokio::select! {
        biased;
        () = endpoints.stop.cancelled() => Err(OpenError::Fatal(Error::Closed)),
        outcome = endpoints.establish(id) => outcome,
    };
    match &outcome {
        Ok(_) | Err(OpenError::Fatal(_)) => {}
        Err(error @ (OpenError::Unreachable(_) | OpenError::Tls { .. })) => {
            endpoints.fail(id, error.clone());
        }
    }
    endpoints.slots[id.0].state().opening = None;
    tell.send_replace(Some(outcome));
}
