//! Publishes the events of a session's machine: to waiting callers, event receivers, metrics and the log.

use std::sync::Weak;

use tenure_core::session::SessionEvent;
use tracing::{debug, info, warn};

use super::shared::{SessionInner, SessionShared};
use super::{KeyEvent, RegisterError, RegisteredKey, SessionState, metrics};
use crate::error::CloseError;
use crate::hold::LossReason;

impl SessionShared {
    pub(super) fn publish(&self, inner: &mut SessionInner, notice: SessionEvent) {
        let event = match notice {
            SessionEvent::Registered { key, registration: id, lease, revision, ttl } => {
                let registration = RegisteredKey { key, lease, revision, ttl };
                if let Some(waiter) = inner.waiters.remove(&id) {
                    // A caller that waits no longer has dropped the receiver.
                    let _ = waiter.send(Ok(registration.clone()));
                }
                KeyEvent::Registered(registration)
            }
            SessionEvent::Refused { key, registration, why } => {
                let error = why.map_or(RegisterError::Held { by: None }, RegisterError::Store);
                // The owner of the registration gets the error; a warning would report it twice.
                info!(?key, %error, "registration refused");
                if let Some(waiter) = inner.waiters.remove(&registration) {
                    let _ = waiter.send(Err(error));
                }
                inner.unwatched.insert(key.clone());
                KeyEvent::Refused(key)
            }
            SessionEvent::Taken { key } => KeyEvent::Taken(key),
            SessionEvent::Missing { key } => KeyEvent::Missing(key),
            SessionEvent::Unregistered { key } => KeyEvent::Unregistered(key),
            SessionEvent::LeaseReady(info) => {
                if let Some(waiter) = inner.lease_waiters.remove(&info.user) {
                    let cell = inner.add_lease_user(&info);
                    // A caller that waits no longer releases the lease when it drops its request.
                    let _ = waiter.send(Ok((info, cell)));
                }
                return;
            }
            SessionEvent::ReleaseRequested { user } => {
                if let Some((_, cell)) = inner.lease_users.get(&user) {
                    cell.end(LossReason::Closed);
                }
                return;
            }
            SessionEvent::Lost { lease, why, users } => {
                metrics::lost(why);
                warn!(%lease, %why, keys = inner.machine.keys().len(), lease_handles = users.len(), "lease lost");
                for user in users {
                    if let Some((_, cell)) = inner.lease_users.get(&user) {
                        cell.end(why);
                    }
                }
                return;
            }
            SessionEvent::Granted { lease, incarnation } => {
                info!(%lease, incarnation, keys = inner.machine.keys().len(), "lease granted");
                return;
            }
            SessionEvent::Renewed { lease, remained } => {
                metrics::remained(remained);
                if let Some(until) = inner.machine.valid_until(lease)
                    && let Some(cell) = inner.cells.get(&lease).and_then(Weak::upgrade)
                {
                    cell.extend(until);
                }
                return;
            }
            SessionEvent::Failing { what, lease, attempt, next, is_worth_logging } => {
                metrics::retried();
                let keys = inner.machine.keys().len();
                let error = inner.last_error.as_ref().map(|(_, error)| tracing::field::display(error));
                let lease = lease.as_ref().map(tracing::field::display);
                if is_worth_logging {
                    warn!(lease, keys, attempt, ?next, ?what, error, "store request failed");
                } else {
                    debug!(lease, keys, attempt, ?next, ?what, error, "store request failed");
                }
                return;
            }
            SessionEvent::Recovered { attempts, after } => {
                metrics::recovered();
                let lease = inner.machine.leases().next();
                let lease = lease.as_ref().map(tracing::field::display);
                let (keys, incarnation) = (inner.machine.keys().len(), inner.machine.incarnation());
                info!(lease, keys, incarnation, attempts, ?after, "session recovered");
                return;
            }
            SessionEvent::Closed => return,
        };
        // There may be no receiver.
        let _ = self.events.send(event);
    }

    /// Ends the validity of all lease users, and logs why leases remain in the store.
    pub(super) fn end_lease_users(&self, inner: &mut SessionInner, report: &Result<(), CloseError>) {
        for (_, cell) in std::mem::take(&mut inner.lease_users).into_values() {
            cell.end(LossReason::Closed);
        }
        inner.gauge.set(0);
        if let Some(why) = &inner.fatal {
            warn!(error = %why, "session closed by its store");
        }
        if let Err(error) = report {
            warn!(%error, "session leases not revoked");
        }
    }
}

impl SessionState {
    /// Whether a receiver of states must be notified.
    pub(super) fn is_other(&self, next: &SessionState) -> bool {
        match (self, next) {
            (SessionState::Idle, SessionState::Idle) => false,
            (SessionState::Live { incarnation: a }, SessionState::Live { incarnation: b })
            | (SessionState::Suspect { incarnation: a, .. }, SessionState::Suspect { incarnation: b, .. }) => {
                a != b
            }
            (SessionState::Lost { why: a }, SessionState::Lost { why: b }) => a != b,
            (SessionState::Closed { .. }, SessionState::Closed { .. }) => false,
            _ => true,
        }
    }
}
