//! The reports of `tenure register`: one when the keys are registered, then one for every change.
//!
//! Without a command they go to stdout, the changes only with `--json`. With a command stdout belongs to it, and notes go to stderr.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tenure::session::{KeyEvent, RegisteredKey, Session, SessionState};
use tenure::store::{Revision, StoreError};
use tenure_core::id::Namespace;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use crate::failure::Failure;
use crate::kv::KvKey;
use crate::output::{Output, escape};

const SCHEMA: &str = "tenure.register/v1";

/// The reported registrations, by key.
pub(super) type ReportedKeys = BTreeMap<Bytes, Revision>;

fn is_known(known: &ReportedKeys, registration: &RegisteredKey) -> bool {
    known.get(&registration.key) == Some(&registration.revision)
}

/// Reports the changes of a session.
pub(super) struct RegisterOutput<'a> {
    pub(super) output: &'a Output,
    pub(super) namespace: &'a Namespace,
    /// Whether stdout belongs to a command.
    pub(super) has_command: bool,
}

#[derive(Serialize)]
struct Registered {
    #[serde(flatten)]
    key: KvKey,
    lease: String,
    revision: String,
}

impl Registered {
    fn new(registration: &RegisteredKey) -> Registered {
        Registered {
            key: KvKey::new(&registration.key),
            lease: registration.lease.to_string(),
            revision: registration.revision.to_string(),
        }
    }
}

/// One line of the stream.
#[derive(Serialize)]
struct RegisterLine {
    schema: &'static str,
    #[serde(flatten)]
    event: RegisterEvent,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum RegisterEvent {
    Ready {
        namespace: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        lease: Option<String>,
        ttl_seconds: f64,
        revision: String,
        keys: Vec<Registered>,
    },
    Live {
        incarnation: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        lease: Option<String>,
    },
    Suspect {
        failing_seconds: f64,
        remaining_seconds: f64,
    },
    Lost {
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    Registered(Registered),
    Missing(KvKey),
    Taken(KvKey),
    Refused(KvKey),
    Unregistered(KvKey),
}

impl RegisterOutput<'_> {
    /// Reports that the keys are registered.
    pub(super) fn ready(&self, registrations: &[RegisteredKey], ttl: Duration) -> Result<(), Failure> {
        let lease = registrations.first().map(|first| first.lease.to_string());
        let revision = registrations.iter().map(|one| one.revision).max().unwrap_or(Revision::ZERO);
        if self.has_command {
            let count = registrations.len();
            let (keys, lease) = (if count == 1 { "key" } else { "keys" }, lease.unwrap_or_default());
            self.output.note(&format!("registered {count} {keys} under lease {lease} ({ttl:?})"));
            return Ok(());
        }
        if self.output.is_json {
            return self.line(RegisterEvent::Ready {
                namespace: self.namespace.to_string(),
                lease,
                ttl_seconds: ttl.as_secs_f64(),
                revision: revision.to_string(),
                keys: registrations.iter().map(Registered::new).collect(),
            });
        }
        registrations.iter().try_for_each(|one| {
            let (lease, revision) = (one.lease.to_string(), one.revision.to_string());
            self.output.record([&one.key[..], lease.as_bytes(), revision.as_bytes()])
        })
    }

    /// Reports every change, except the registrations in `known`. Ends when the output fails or the session is closed.
    ///
    /// With a command it never ends: the command runs on without its keys.
    pub(super) async fn follow(
        &self,
        session: &Session,
        state: &mut watch::Receiver<SessionState>,
        events: &mut broadcast::Receiver<KeyEvent>,
        known: &ReportedKeys,
    ) -> Failure {
        let failure = self.follow_to_end(session, state, events, known).await;
        if self.has_command {
            self.output.note(&format!("the keys are no longer registered: {}", failure.message));
            std::future::pending::<()>().await;
        }
        failure
    }

    async fn follow_to_end(
        &self,
        session: &Session,
        state: &mut watch::Receiver<SessionState>,
        events: &mut broadcast::Receiver<KeyEvent>,
        known: &ReportedKeys,
    ) -> Failure {
        let mut incarnation = session.incarnation();
        let (mut is_lost, mut is_recovering) = (false, false);
        loop {
            let reported = tokio::select! {
                biased;
                changed = state.changed() => match changed {
                    Ok(()) => {
                        let now = state.borrow_and_update().clone();
                        let is_newer = session.incarnation() > std::mem::replace(&mut incarnation, session.incarnation());
                        let was_missed = is_newer && !is_lost && !is_recovering;
                        is_recovering |= is_lost || was_missed;
                        is_lost = matches!(now, SessionState::Lost { .. });
                        // The watch channel keeps the newest state only, so a loss and the recovery after it may arrive as one change. Both are reported.
                        let lost = if was_missed && !is_lost {
                            self.state(session, SessionState::Lost { why: None }, false)
                        } else {
                            Ok(())
                        };
                        lost.and_then(|()| self.state(session, now, is_recovering))
                    }
                    Err(_) => return Failure::from(StoreError::Closed),
                },
                // The session is live with a new lease before the keys are registered under it.
                () = session.synced(), if is_recovering && !is_lost => {
                    is_recovering = false;
                    self.output.note("recovered: the keys are registered again");
                    Ok(())
                }
                event = events.recv() => match event {
                    Ok(KeyEvent::Registered(registration)) if is_known(known, &registration) => Ok(()),
                    Ok(event) => self.event(event),
                    Err(RecvError::Lagged(count)) => {
                        self.output.note(&format!("{count} changes of keys were not reported: they came too fast"));
                        Ok(())
                    }
                    Err(RecvError::Closed) => return Failure::from(StoreError::Closed),
                },
            };
            if let Err(failure) = reported {
                return failure;
            }
        }
    }

    /// Reports the remaining key events.
    pub(super) fn report_remaining(
        &self,
        events: &mut broadcast::Receiver<KeyEvent>,
        known: &ReportedKeys,
    ) -> Result<(), Failure> {
        while let Ok(event) = events.try_recv() {
            match event {
                KeyEvent::Registered(registration) if is_known(known, &registration) => {}
                event => self.event(event)?,
            }
        }
        Ok(())
    }

    fn state(&self, session: &Session, now: SessionState, was_lost: bool) -> Result<(), Failure> {
        let event = match now {
            SessionState::Idle => return Ok(()),
            SessionState::Live { incarnation } => {
                let lease = session.lease_id().map(|lease| lease.to_string());
                RegisterEvent::Live { incarnation: incarnation.to_string(), lease }
            }
            SessionState::Suspect { failing_for, .. } => RegisterEvent::Suspect {
                failing_seconds: failing_for.as_secs_f64(),
                remaining_seconds: session.remaining().as_secs_f64(),
            },
            SessionState::Lost { why } => {
                let reason = why.map(|why| why.to_string());
                if !was_lost {
                    let because = reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                    self.output.note(&format!(
                        "lost{because}; the keys may be gone and are registered again as soon as possible"
                    ));
                }
                RegisterEvent::Lost { reason }
            }
            SessionState::Closed { why } => {
                return Err(why.map_or_else(|| StoreError::Closed.into(), Failure::from));
            }
        };
        self.streamed(event)
    }

    fn event(&self, event: KeyEvent) -> Result<(), Failure> {
        let event = match event {
            KeyEvent::Registered(registration) => RegisterEvent::Registered(Registered::new(&registration)),
            KeyEvent::Missing(key) => {
                self.output
                    .note(&format!("{} was deleted by another client and is registered again", escape(&key)));
                RegisterEvent::Missing(KvKey::new(&key))
            }
            KeyEvent::Taken(key) => {
                self.output
                    .note(&format!("{} was put by another client and is not overwritten", escape(&key)));
                RegisterEvent::Taken(KvKey::new(&key))
            }
            KeyEvent::Refused(key) => {
                self.output
                    .note(&format!("{} was refused by the store and is no longer registered", escape(&key)));
                RegisterEvent::Refused(KvKey::new(&key))
            }
            KeyEvent::Unregistered(key) => RegisterEvent::Unregistered(KvKey::new(&key)),
        };
        self.streamed(event)
    }

    fn streamed(&self, event: RegisterEvent) -> Result<(), Failure> {
        if self.has_command || !self.output.is_json { Ok(()) } else { self.line(event) }
    }

    fn line(&self, event: RegisterEvent) -> Result<(), Failure> {
        self.output.object(&RegisterLine { schema: SCHEMA, event })
    }
}
