//! The driver of a session: feeds replies and changes of watched keys to the machine, and sends its requests.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::revision::RequestId;
use tenure_core::session::{DeleteReply, LeaseSlotId, PutReply, SessionEvent, SessionOutput};
use tenure_core::time::Moment;
use tokio::time::Instant;
use tracing::debug;

use super::own_key_watch::{OwnKeyChange, SessionKeyWatches};
use super::shared::{SessionInner, SessionShared};
use super::{SessionState, metrics, requests};
use crate::driver::{self, Drive, DriverEvent, NextStep};
use crate::error::CloseError;
use crate::rng;
use crate::store::{Grant, LeaseId, Renewal, Revision, Store, StoreError};

/// How long closing retries to delete keys and revoke leases. Those that remain then expire.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// How often at most the return of the store ends all backoffs. An engine may report that it is back while requests still fail; without this
/// the session would then send requests as fast as it can.
const BACK_EVERY: Duration = Duration::from_millis(250);

/// How long keys may be unwatched while others are still being put. Watched from the start, ten thousand keys would return as ten thousand
/// events while they are registered. Changes before the watch are in its first listing.
const WATCH_WITHIN: Duration = Duration::from_millis(500);

/// The reply to a request.
pub(super) enum SessionReply {
    Granted {
        slot: LeaseSlotId,
        epoch: RequestId,
        id: LeaseId,
        ttl: Duration,
        answer: Result<Grant, StoreError>,
    },
    Renewed(LeaseSlotId, RequestId, Result<Renewal, StoreError>),
    Put(LeaseSlotId, RequestId, PutReply),
    Deleted(LeaseSlotId, RequestId, DeleteReply),
    Revoked(LeaseId, RequestId, Result<Revision, StoreError>),
}

/// An event outside of the machine.
enum SessionInput {
    CloseIsLate,
    StoreLost(StoreError),
    StoreBack,
    KeysChanged(Vec<OwnKeyChange>),
}

/// The driver's task.
struct SessionTask {
    shared: Arc<SessionShared>,
    own_keys: SessionKeyWatches,
    back: StoreBack,
    /// Completes once at most, and is not polled again: a session ends with its store.
    lost: Pin<Box<dyn Future<Output = StoreError> + Send>>,
    is_lost: bool,
    /// Whether the machine waits for the store to come back.
    is_waiting: bool,
    close_by: Option<Instant>,
    is_late: bool,
}

/// Runs until the session is closed and its leases are revoked, or left to expire.
pub(super) async fn drive(shared: Arc<SessionShared>) {
    let store = shared.store.clone();
    let mut task = SessionTask {
        own_keys: SessionKeyWatches::new(store.clone()),
        back: StoreBack::new(store.clone()),
        lost: Box::pin(async move { store.lost().await }),
        is_lost: false,
        is_waiting: false,
        close_by: None,
        is_late: false,
        shared: shared.clone(),
    };
    driver::run(&mut task, &shared.inbox, &shared.clock).await;
    task.own_keys.close().await;
    shared.end();
}

impl Drive for SessionTask {
    type Input = SessionInput;
    type Reply = SessionReply;

    async fn step(&mut self) -> NextStep {
        if self.is_late {
            return NextStep::End;
        }
        let shared = &self.shared;
        let step = shared.step();
        if step.has_lost {
            // A task that watches the state must be able to see the loss before another lease hides it.
            tokio::task::yield_now().await;
        }
        for action in step.actions {
            shared.inbox.send(perform(shared.clone(), action));
        }
        if step.may_watch {
            shared.update_watches(&mut self.own_keys);
        }
        if step.is_over {
            return NextStep::End;
        }
        if step.is_closing {
            self.close_by.get_or_insert_with(|| Instant::now() + CLOSE_WITHIN);
        }
        self.is_waiting = step.is_waiting;
        NextStep::Wait(step.wake)
    }

    fn inputs(
        &mut self,
    ) -> (impl Future<Output = SessionInput> + Send, impl Future<Output = SessionInput> + Send) {
        let SessionTask { own_keys, back, lost, is_lost, is_waiting, close_by, .. } = self;
        let rare = async move {
            tokio::select! {
                biased;
                () = at(*close_by) => SessionInput::CloseIsLate,
                error = lost, if !*is_lost => SessionInput::StoreLost(error),
                () = back.next(), if *is_waiting => SessionInput::StoreBack,
            }
        };
        (rare, async move { SessionInput::KeysChanged(own_keys.next().await) })
    }

    fn handle(&mut self, event: DriverEvent<SessionInput, SessionReply>) {
        let shared = &self.shared;
        let input = match event {
            DriverEvent::Reply(reply) => return shared.handle_reply(reply),
            DriverEvent::Input(input) => input,
            DriverEvent::Wake => return,
        };
        let now = shared.clock.now();
        let mut inner = shared.lock();
        match input {
            SessionInput::CloseIsLate => self.is_late = true,
            SessionInput::StoreLost(error) => {
                self.is_lost = true;
                inner.note(Some(&error), now);
            }
            SessionInput::StoreBack => inner.machine.handle_store_reachable(now),
            SessionInput::KeysChanged(changes) => {
                changes.into_iter().for_each(|change| inner.handle_key_change(change, now));
            }
        }
    }
}

/// Waits for the store to come back, without missing it between two waits.
struct StoreBack {
    store: Store,
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    last: Option<Instant>,
}

impl StoreBack {
    fn new(store: Store) -> StoreBack {
        StoreBack { store, waiting: None, last: None }
    }

    async fn next(&mut self) {
        let (store, not_before) = (self.store.clone(), self.last.map(|last| last + BACK_EVERY));
        let waiting = self.waiting.get_or_insert_with(|| {
            Box::pin(async move {
                store.reachable().await;
                at(Some(not_before.unwrap_or_else(Instant::now))).await;
            })
        });
        waiting.as_mut().await;
        self.waiting = None;
        self.last = Some(Instant::now());
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn perform(shared: Arc<SessionShared>, action: SessionOutput) -> SessionReply {
    let store = &shared.store;
    match action {
        SessionOutput::Grant { slot, epoch, ttl } => {
            // This process chooses the id, so that it can revoke a lease when the reply to the grant is lost.
            let (id, answer) = match random_id() {
                Ok(id) => (id, store.grant(ttl, Some(id)).await),
                Err(error) => (LeaseId::from_random([0; 8]), Err(error)),
            };
            SessionReply::Granted { slot, epoch, id, ttl, answer }
        }
        SessionOutput::Renew { slot, epoch, lease } => {
            SessionReply::Renewed(slot, epoch, store.renew(lease).await)
        }
        SessionOutput::Put { slot, epoch, lease, own_leases, entries } => {
            let is_held = || shared.is_held(lease);
            SessionReply::Put(slot, epoch, requests::put(store, lease, own_leases, entries, &is_held).await)
        }
        SessionOutput::Delete { slot, epoch, own_leases, keys } => {
            SessionReply::Deleted(slot, epoch, requests::delete(store, own_leases, keys).await)
        }
        SessionOutput::Revoke { epoch, lease } => {
            SessionReply::Revoked(lease, epoch, store.revoke(lease).await)
        }
    }
}

fn random_id() -> Result<LeaseId, StoreError> {
    rng::try_bytes().map(LeaseId::from_random)
}

/// The result of one step.
struct SessionStep {
    actions: Vec<SessionOutput>,
    wake: Option<Moment>,
    /// Whether a request waits until the store is reachable.
    is_waiting: bool,
    is_closing: bool,
    /// Whether watches of keys may begin and end.
    may_watch: bool,
    /// Whether a lease was lost.
    has_lost: bool,
    /// Whether all leases are revoked, or the store failed for good.
    is_over: bool,
}

impl SessionShared {
    /// Shows the machine the time, publishes its events, and takes its requests.
    fn step(&self) -> SessionStep {
        let mut inner = self.lock();
        let now = self.clock.now();
        inner.machine.handle_time(now);
        let mut is_over = inner.fatal.is_some();
        let mut has_lost = false;
        while let Some(notice) = inner.machine.poll_event() {
            is_over |= matches!(notice, SessionEvent::Closed);
            has_lost |= matches!(notice, SessionEvent::Lost { .. });
            self.publish(&mut inner, notice);
        }
        let may_watch = inner.may_watch(now);
        let step = SessionStep {
            actions: std::iter::from_fn(|| inner.machine.poll_output()).collect(),
            wake: inner.machine.next_wake().into_iter().chain(inner.watch_by).min(),
            may_watch,
            is_waiting: inner.machine.is_waiting(),
            is_closing: inner.is_closing,
            has_lost,
            is_over,
        };
        let keys = inner.machine.keys().len();
        inner.gauge.set(keys);
        let state = inner.describe(now);
        self.is_synced.send_if_modified(|is_synced| {
            std::mem::replace(is_synced, inner.machine.is_settled()) != *is_synced
        });
        drop(inner);
        self.state.send_if_modified(|before| {
            let is_new = before.is_other(&state);
            if is_new {
                *before = state;
            }
            is_new
        });
        step
    }

    fn handle_reply(&self, reply: SessionReply) {
        let mut inner = self.lock();
        let now = self.clock.now();
        let jitter = rng::jitter();
        match reply {
            SessionReply::Granted { slot, epoch, id, ttl, answer } => {
                metrics::granted(&answer);
                inner.note(answer.as_ref().err(), now);
                inner.machine.handle_granted(slot, epoch, &answer, jitter, now);
                if matches!(answer, Err(StoreError::Ambiguous(_))) {
                    inner.machine.handle_ambiguous_grant(id, ttl, now);
                }
            }
            SessionReply::Renewed(slot, epoch, answer) => {
                metrics::renewed(&answer);
                inner.note(answer.as_ref().err(), now);
                inner.machine.handle_renewed(slot, epoch, &answer, jitter, now);
            }
            SessionReply::Put(slot, epoch, put) => {
                // Access to one key may be denied while others are accepted: such an error is no outage.
                inner.note(put.error.filter(|error| !matches!(error, StoreError::Denied(_))).as_ref(), now);
                inner.machine.handle_put(slot, epoch, put.outcomes, put.lease, jitter, now);
            }
            SessionReply::Deleted(slot, epoch, deleted) => {
                inner.note(
                    deleted.error.filter(|error| !matches!(error, StoreError::Denied(_))).as_ref(),
                    now,
                );
                inner.machine.handle_deleted(slot, epoch, deleted.outcomes, jitter, now);
            }
            SessionReply::Revoked(lease, epoch, answer) => {
                if let Err(error) = &answer {
                    debug!(%lease, %error, "lease not revoked");
                }
                inner.machine.handle_revoked(lease, epoch, &answer, jitter, now);
            }
        }
    }

    /// Begins and ends watches of keys.
    fn update_watches(&self, own_keys: &mut SessionKeyWatches) {
        let mut inner = self.lock();
        for key in std::mem::take(&mut inner.unwatched) {
            match inner.machine.registration(&key) {
                Some(_) => own_keys.add(&key),
                None => own_keys.remove(&key),
            }
        }
    }

    /// The driver has ended: reports which leases remain, and ends the validity of their users.
    fn end(&self) {
        let mut inner = self.lock();
        let unreleased = inner.machine.unreleased(self.clock.now());
        let holds: Vec<String> = std::mem::take(&mut inner.unreleased)
            .into_iter()
            .filter_map(|(name, owner)| owner.is_alive().then_some(name))
            .collect();
        let (leases, keys, ttl) = (unreleased.leases, unreleased.keys, unreleased.within);
        let report = match leases {
            0 => Ok(()),
            _ if unreleased.users == 0 && holds.is_empty() => {
                Err(CloseError::NotConfirmed { leases, keys, ttl })
            }
            _ => Err(CloseError::StillHeld { holds, leases: unreleased.users, ttl }),
        };
        let why = inner.fatal.clone();
        self.end_lease_users(&mut inner, &report);
        drop(inner);
        self.is_synced.send_replace(true);
        self.state.send_replace(SessionState::Closed { why });
        self.ended.send_replace(Some(report));
    }
}

impl SessionInner {
    /// Whether the watches may be updated: once all keys are stored, or that has taken long enough.
    fn may_watch(&mut self, now: Moment) -> bool {
        if self.unwatched.is_empty() {
            return false;
        }
        let by = *self.watch_by.get_or_insert(now + WATCH_WITHIN);
        let may_watch = now >= by || self.machine.is_settled();
        if may_watch {
            self.watch_by = None;
        }
        may_watch
    }

    fn handle_key_change(&mut self, change: OwnKeyChange, now: Moment) {
        match change {
            OwnKeyChange::Put { key, value, lease, revision } => {
                self.machine.handle_key_put(&key, &value, lease, revision, now);
            }
            OwnKeyChange::Deleted { key, revision } => self.machine.handle_key_deleted(&key, revision, now),
            OwnKeyChange::Listed { select, present, revision } => {
                let keys = self.machine.keys();
                let absent: Vec<_> =
                    keys.filter(|key| select.contains(key) && !present.contains(*key)).cloned().collect();
                for key in absent {
                    self.machine.handle_key_deleted(&key, revision, now);
                }
            }
            OwnKeyChange::Failed(error) => self.note(Some(&error), now),
        }
    }
}
