//! What a session's handles and its task have in common: the machine behind a mutex, and who is to be told what.

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

/// How many key events a listener may be behind before it misses some.
const EVENTS_LEN: usize = 1_024;

/// What the handles and the task have in common.
pub(super) struct SessionShared {
    pub(super) store: Store,
    pub(super) clock: Arc<dyn Clock>,
    /// The TTL of what does not ask for another.
    pub(super) ttl: Duration,
    inner: Mutex<SessionInner>,
    /// Notified when a caller has changed the machine.
    pub(super) inbox: Inbox<SessionReply>,
    pub(super) state: watch::Sender<SessionState>,
    pub(super) events: broadcast::Sender<KeyEvent>,
    /// Whether the store holds what is wanted, and nothing else of ours.
    pub(super) settled: ordered_watch::OrderedSender<bool>,
    /// What came of closing, once it is over.
    pub(super) ended: ordered_watch::OrderedSender<Option<Result<(), CloseError>>>,
}

pub(super) struct SessionInner {
    pub(super) machine: Machine,
    /// Who waits for a wish to come true.
    pub(super) waiters: BTreeMap<RegistrationId, oneshot::Sender<Result<RegisteredKey, RegisterError>>>,
    /// Who waits for a lease.
    pub(super) borrowers: BTreeMap<LeaseUserId, oneshot::Sender<LeaseReply>>,
    /// Who has one.
    pub(super) loans: BTreeMap<LeaseUserId, (LeaseId, Arc<LeaseCell>)>,
    /// What all loans of a lease share, as long as there are any: a renewal tells it to a thousand of them at once.
    pub(super) cells: BTreeMap<LeaseId, Weak<LeaseCell>>,
    /// Keys that are perhaps wanted since, or not wanted any more: their watching has to follow.
    pub(super) follow: BTreeSet<Bytes>,
    /// When it follows at the latest.
    pub(super) follow_by: Option<Moment>,
    pub(super) is_closing: bool,
    /// Holds that lasted when the session was closed: their names, and whether their owners are still alive.
    pub(super) unreleased: Vec<(String, Liveness)>,
    /// Why nothing works any more.
    pub(super) fatal: Option<StoreError>,
    /// What went wrong last, for the log.
    pub(super) last_error: Option<(Moment, StoreError)>,
    /// How many keys are wanted, as far as the metrics know.
    pub(super) gauge: KeyGauge,
}

impl SessionShared {
    pub(super) fn new(store: Store, clock: Arc<dyn Clock>, machine: Machine, ttl: Duration) -> SessionShared {
        let inner = SessionInner {
            machine,
            waiters: BTreeMap::new(),
            borrowers: BTreeMap::new(),
            loans: BTreeMap::new(),
            cells: BTreeMap::new(),
            follow: BTreeSet::new(),
            follow_by: None,
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
            settled: ordered_watch::OrderedSender::new(true),
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

    /// A loan, or the wait for one, is over.
    pub(super) fn give_back(&self, loan: LeaseUserId) {
        let mut inner = self.lock();
        inner.borrowers.remove(&loan);
        inner.loans.remove(&loan);
        inner.machine.release_lease(loan, self.clock.now());
        // Whoever waits from now on waits for what this begins.
        self.settled.send_replace(inner.machine.is_settled());
        drop(inner);
        self.inbox.notify();
    }

    /// Whether a lease may be relied upon at this moment.
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
    /// Whoever waits for a key's last wish waits in vain.
    pub(super) fn forget_waiter(&mut self, key: &Bytes) {
        if let Some(registration) = self.machine.registration(key) {
            self.waiters.remove(&registration);
        }
    }

    /// Notes who has a lease.
    pub(super) fn begin_loan(&mut self, lent: &LeaseInfo) -> Arc<LeaseCell> {
        // One that has an end stays over; whoever borrows now has nothing to do with that.
        let shared = self.cells.get(&lent.lease).and_then(Weak::upgrade).filter(|cell| !cell.has_end());
        if let Some(cell) = &shared {
            cell.extend(lent.valid_until);
        }
        let cell = shared.unwrap_or_else(|| {
            let cell = Arc::new(LeaseCell::new(lent.valid_until));
            self.cells.retain(|_, cell| cell.strong_count() > 0);
            self.cells.insert(lent.lease, Arc::downgrade(&cell));
            cell
        });
        self.loans.insert(lent.user, (lent.lease, cell.clone()));
        cell
    }

    /// Keeps what went wrong, and closes if that can never be mended.
    pub(super) fn note(&mut self, error: Option<&StoreError>, now: Moment) {
        let Some(error) = error else { return };
        self.last_error = Some((now, error.clone()));
        if error.is_fatal() {
            self.fatal.get_or_insert_with(|| error.clone());
            self.close(now);
        }
    }

    /// Wants nothing any more; whoever waits is told why.
    pub(super) fn close(&mut self, now: Moment) {
        if std::mem::replace(&mut self.is_closing, true) {
            return;
        }
        self.machine.close(now);
        for (_, waiter) in std::mem::take(&mut self.waiters) {
            let why = self.fatal.clone().map_or(RegisterError::Closed, RegisterError::Store);
            // One who does not wait any more has dropped the other end.
            let _ = waiter.send(Err(why));
        }
        for (_, borrower) in std::mem::take(&mut self.borrowers) {
            let why = self.fatal.clone().map_or(LeaseError::Closed, LeaseError::Store);
            let _ = borrower.send(Err(why));
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
