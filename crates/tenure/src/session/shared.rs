//! The state that the handles and the task of a session share: the machine under a mutex, and the callers that wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::session::{LeaseInfo, LeaseUserId, RegistrationId, Session as Machine, SessionStatus};
use tenure_core::time::Moment;
use tokio::sync::{broadcast, oneshot, watch};

use super::driver::SessionReply;
use super::lease::LeaseReply;
use super::metrics::KeyGauge;
use super::{Health, KeyEvent, LeaseError, RegisterError, RegisteredKey, SessionState};
use crate::clock::Clock;
use crate::driver::requests::Inbox;
use crate::error::CloseError;
use crate::hold::LeaseCell;
use crate::ordered_watch::{self, Liveness};
use crate::store::{LeaseId, Store, StoreError};

/// How many key events a receiver may be behind before it misses some.
const EVENTS_LEN: usize = 1_024;

/// The state that the handles and the task share.
pub(super) struct SessionShared {
    pub(super) store: Store,
    pub(super) clock: Arc<dyn Clock>,
    /// The TTL of requests that do not choose another.
    pub(super) ttl: Duration,
    inner: Mutex<SessionInner>,
    /// Notified when a caller has changed the machine.
    pub(super) inbox: Inbox<SessionReply>,
    pub(super) state: watch::Sender<SessionState>,
    pub(super) events: broadcast::Sender<KeyEvent>,
    /// Whether the store holds exactly the registered keys of this session.
    pub(super) is_synced: ordered_watch::OrderedSender<bool>,
    /// The result of closing, once the session has ended.
    pub(super) ended: ordered_watch::OrderedSender<Option<Result<(), CloseError>>>,
}

pub(super) struct SessionInner {
    pub(super) machine: Machine,
    /// The callers that wait for a registration.
    pub(super) waiters: BTreeMap<RegistrationId, oneshot::Sender<Result<RegisteredKey, RegisterError>>>,
    /// The callers that wait for a lease.
    pub(super) lease_waiters: BTreeMap<LeaseUserId, oneshot::Sender<LeaseReply>>,
    /// The lease handles, each with its lease.
    pub(super) lease_users: BTreeMap<LeaseUserId, (LeaseId, Arc<LeaseCell>)>,
    /// The validity that all users of a lease share, as long as it has users: a renewal updates a thousand of them with one write.
    pub(super) cells: BTreeMap<LeaseId, Weak<LeaseCell>>,
    /// Keys that were registered or unregistered since their watches were updated last.
    pub(super) unwatched: BTreeSet<Bytes>,
    /// When the watches are updated at the latest.
    pub(super) watch_by: Option<Moment>,
    pub(super) is_closing: bool,
    /// Holds that were not released when the session was closed: their names, and whether their owners are still alive.
    pub(super) unreleased: Vec<(String, Liveness)>,
    /// The error that closed the session for good.
    pub(super) fatal: Option<StoreError>,
    /// The last error of a request, for the log.
    pub(super) last_error: Option<(Moment, StoreError)>,
    /// The number of keys that the metrics report.
    pub(super) gauge: KeyGauge,
}

impl SessionShared {
    pub(super) fn new(store: Store, clock: Arc<dyn Clock>, machine: Machine, ttl: Duration) -> SessionShared {
        let inner = SessionInner {
            machine,
            waiters: BTreeMap::new(),
            lease_waiters: BTreeMap::new(),
            lease_users: BTreeMap::new(),
            cells: BTreeMap::new(),
            unwatched: BTreeSet::new(),
            watch_by: None,
            is_closing: false,
            unreleased: Vec::new(),
            fatal: None,
            last_error: None,
            gauge: KeyGauge::default(),
        };
        SessionShared {
            store,
            clock,
            ttl,
            inner: Mutex::new(inner),
            inbox: Inbox::default(),
            state: watch::Sender::new(SessionState::Idle),
            events: broadcast::Sender::new(EVENTS_LEN),
            is_synced: ordered_watch::OrderedSender::new(true),
            ended: ordered_watch::OrderedSender::new(None),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SessionInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin_close(&self) {
        let mut inner = self.lock();
        inner.close(self.clock.now());
        drop(inner);
        self.inbox.notify();
    }

    /// A lease handle was dropped, or a request for one.
    pub(super) fn release_lease(&self, user: LeaseUserId) {
        let mut inner = self.lock();
        inner.lease_waiters.remove(&user);
        inner.lease_users.remove(&user);
        inner.machine.release_lease(user, self.clock.now());
        // A caller of `synced` waits for the revoke that this may begin.
        self.is_synced.send_replace(inner.machine.is_settled());
        drop(inner);
        self.inbox.notify();
    }

    /// Whether a lease is valid at this moment.
    pub(super) fn is_held(&self, lease: LeaseId) -> bool {
        let until = self.lock().machine.valid_until(lease);
        until.is_some_and(|until| self.clock.now() < until)
    }

    pub(super) fn health(&self) -> Health {
        let inner = self.lock();
        let now = self.clock.now();
        let state = match *self.state.borrow() {
            SessionState::Closed { ref why } => SessionState::Closed { why: why.clone() },
            _ => inner.describe(now),
        };
        Health {
            state,
            failing_for: inner.machine.failing_since().map(|since| now.since(since)),
            remaining: inner.machine.remaining(now),
            leases: inner.machine.leases().count(),
            keys: inner.machine.keys().len(),
            incarnation: inner.machine.incarnation(),
        }
    }
}

impl SessionInner {
    /// The last registration of a key is superseded: its caller learns that from the dropped sender.
    pub(super) fn forget_waiter(&mut self, key: &Bytes) {
        if let Some(registration) = self.machine.registration(key) {
            self.waiters.remove(&registration);
        }
    }

    /// Records the user of a lease.
    pub(super) fn add_lease_user(&mut self, info: &LeaseInfo) -> Arc<LeaseCell> {
        // A cell that has ended stays invalid for its holds. A new user of the same lease id needs a new cell.
        let shared = self.cells.get(&info.lease).and_then(Weak::upgrade).filter(|cell| !cell.has_end());
        if let Some(cell) = &shared {
            cell.extend(info.valid_until);
        }
        let cell = shared.unwrap_or_else(|| {
            let cell = Arc::new(LeaseCell::new(info.valid_until));
            self.cells.retain(|_, cell| cell.strong_count() > 0);
            self.cells.insert(info.lease, Arc::downgrade(&cell));
            cell
        });
        self.lease_users.insert(info.user, (info.lease, cell.clone()));
        cell
    }

    /// Records an error, and closes the session if no retry can mend it.
    pub(super) fn note(&mut self, error: Option<&StoreError>, now: Moment) {
        let Some(error) = error else { return };
        self.last_error = Some((now, error.clone()));
        if error.is_fatal() {
            self.fatal.get_or_insert_with(|| error.clone());
            self.close(now);
        }
    }

    /// Closes the machine, and fails all waiting callers with the reason.
    pub(super) fn close(&mut self, now: Moment) {
        if std::mem::replace(&mut self.is_closing, true) {
            return;
        }
        self.machine.close(now);
        for (_, waiter) in std::mem::take(&mut self.waiters) {
            let why = self.fatal.clone().map_or(RegisterError::Closed, RegisterError::Store);
            // A caller that waits no longer has dropped the receiver.
            let _ = waiter.send(Err(why));
        }
        for (_, waiter) in std::mem::take(&mut self.lease_waiters) {
            let why = self.fatal.clone().map_or(LeaseError::Closed, LeaseError::Store);
            let _ = waiter.send(Err(why));
        }
    }

    pub(super) fn describe(&self, now: Moment) -> SessionState {
        let incarnation = self.machine.incarnation();
        match self.machine.status(now) {
            SessionStatus::Idle => SessionState::Idle,
            SessionStatus::Live => SessionState::Live { incarnation },
            SessionStatus::Suspect { since } => {
                SessionState::Suspect { incarnation, failing_for: now.since(since) }
            }
            SessionStatus::Lost { why } => SessionState::Lost { why },
        }
    }
}
