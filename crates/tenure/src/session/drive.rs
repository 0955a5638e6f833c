//! The task behind a session: moves answers and sightings into the machine, and the machine's wishes to the store.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use tenure_core::revision::Epoch;
use tenure_core::session::{Action, KeyOutcome, Notice, SlotId, Standing};
use tenure_core::time::Moment;
use tracing::{info, warn};

use super::own_keys::{OwnKeys, Sighting};
use super::perform::{self, Put};
use super::{Follow, Inner, KeyEvent, RegisterError, Registration, SessionState, Shared};
use crate::store::{Grant, LeaseId, Renewal, Revision, Store, StoreError};

/// What came of an action.
enum Answer {
    Granted(SlotId, Epoch, Result<Grant, StoreError>),
    Renewed(SlotId, Epoch, Result<Renewal, StoreError>),
    Put(SlotId, Epoch, Put),
    Deleted(SlotId, Epoch, Vec<(Bytes, KeyOutcome)>),
    Revoked(SlotId, Epoch, LeaseId, Result<Revision, StoreError>),
    Discarded(LeaseId, Result<Revision, StoreError>),
}

/// A request under way.
type Asking = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// What woke the task.
enum Event {
    Told,
    Answered(Answer),
    Seen(Sighting),
    StoreBack,
    Time,
}

/// Runs until the session is closed and everything is tidied up, or given up.
pub(super) async fn drive(shared: Arc<Shared>) {
    let mut own_keys = OwnKeys::new(shared.store.clone());
    let mut answers: FuturesUnordered<Asking> = FuturesUnordered::new();
    let mut discards: FuturesUnordered<Asking> = FuturesUnordered::new();
    let mut is_over = false;
    loop {
        // First of all the time: whoever slept past the end of a lease must know it before anything else is done.
        let (actions, wake, has_closed) = shared.step();
        is_over |= has_closed;
        for action in actions {
            let is_discard = matches!(action, Action::Discard { .. });
            let answer: Asking = Box::pin(perform(shared.store.clone(), action));
            if is_discard { discards.push(answer) } else { answers.push(answer) }
        }
        shared.follow(&mut own_keys);
        // What else is under way when everything is closed is a renewal that nobody needs.
        if *shared.ended.borrow() || (is_over && discards.is_empty()) {
            break;
        }
        let is_waiting = shared.lock().failing_since.is_some();
        let event = tokio::select! {
            biased;
            () = shared.bell.notified() => Event::Told,
            Some(answer) = answers.next(), if !answers.is_empty() => Event::Answered(answer),
            Some(answer) = discards.next(), if !discards.is_empty() => Event::Answered(answer),
            sighting = own_keys.next() => Event::Seen(sighting),
            () = shared.store.returned(), if is_waiting => Event::StoreBack,
            () = sleep(&shared, wake) => Event::Time,
        };
        shared.handle(event);
    }
    own_keys.close().await;
    shared.settled.send_replace(true);
    shared.state.send_replace(SessionState::Closed { why: shared.lock().fatal.clone() });
    shared.ended.send_replace(true);
}

async fn sleep(shared: &Shared, wake: Option<Moment>) {
    match wake {
        Some(wake) => shared.clock.sleep_until(wake).await,
        None => std::future::pending().await,
    }
}

async fn perform(store: Store, action: Action) -> Answer {
    match action {
        Action::Grant { slot, epoch, ttl } => Answer::Granted(slot, epoch, store.grant(ttl, None).await),
        Action::Renew { slot, epoch, lease } => Answer::Renewed(slot, epoch, store.renew(lease).await),
        Action::Put { slot, epoch, lease, ours, entries } => {
            Answer::Put(slot, epoch, perform::put(&store, lease, &ours, entries).await)
        }
        Action::Delete { slot, epoch, ours, keys } => {
            Answer::Deleted(slot, epoch, perform::delete(&store, &ours, keys).await)
        }
        Action::Revoke { slot, epoch, lease } => {
            Answer::Revoked(slot, epoch, lease, store.revoke(lease).await)
        }
        Action::Discard { lease } => Answer::Discarded(lease, store.revoke(lease).await),
    }
}

impl Shared {
    /// Lets the machine look at the clock, tells its notices, and takes its wishes.
    fn step(&self) -> (Vec<Action>, Option<Moment>, bool) {
        let mut inner = self.lock();
        let now = self.clock.now();
        inner.machine.handle_time(now);
        let mut is_over = false;
        while let Some(notice) = inner.machine.poll_notice() {
            is_over |= matches!(notice, Notice::Closed);
            self.tell(&mut inner, notice);
        }
        let actions = std::iter::from_fn(|| inner.machine.poll_action()).collect();
        let wake = inner.machine.next_wake();
        let state = inner.describe(now);
        self.settled
            .send_if_modified(|settled| std::mem::replace(settled, inner.machine.is_settled()) != *settled);
        drop(inner);
        self.state.send_if_modified(|before| {
            let is_news = before.is_other(&state);
            if is_news {
                *before = state;
            }
            is_news
        });
        (actions, wake, is_over)
    }

    fn handle(&self, event: Event) {
        let mut inner = self.lock();
        let now = self.clock.now();
        let jitter = jitter();
        match event {
            Event::Told | Event::Time => {}
            Event::StoreBack => inner.machine.handle_store_back(now),
            Event::Answered(Answer::Granted(slot, epoch, answer)) => {
                inner.note(answer.as_ref().err(), now);
                inner.machine.handle_granted(slot, epoch, &answer, jitter, now);
            }
            Event::Answered(Answer::Renewed(slot, epoch, answer)) => {
                inner.note(answer.as_ref().err(), now);
                inner.machine.handle_renewed(slot, epoch, &answer, jitter, now);
            }
            Event::Answered(Answer::Put(slot, epoch, put)) => {
                inner.machine.handle_put(slot, epoch, put.outcomes, put.lease, jitter, now);
            }
            Event::Answered(Answer::Deleted(slot, epoch, outcomes)) => {
                inner.machine.handle_deleted(slot, epoch, outcomes, jitter, now);
            }
            Event::Answered(Answer::Revoked(slot, epoch, lease, answer)) => {
                not_revoked(lease, answer);
                inner.machine.handle_revoked(slot, epoch, now);
            }
            Event::Answered(Answer::Discarded(lease, answer)) => not_revoked(lease, answer),
            Event::Seen(Sighting::Put { key, lease, revision }) => {
                inner.machine.handle_key_put(&key, lease, revision);
            }
            Event::Seen(Sighting::Deleted { key, revision }) => {
                inner.machine.handle_key_deleted(&key, revision, now);
            }
            Event::Seen(Sighting::Listed { select, present, revision }) => {
                let absent: Vec<Bytes> = inner
                    .machine
                    .keys()
                    .filter(|key| select.contains(key) && !present.contains(*key))
                    .cloned()
                    .collect();
                for key in absent {
                    inner.machine.handle_key_deleted(&key, revision, now);
                }
            }
        }
    }

    /// Begins and ends the watching of keys.
    fn follow(&self, own_keys: &mut OwnKeys) {
        let changes = std::mem::take(&mut self.lock().follow);
        for change in changes {
            match change {
                Follow::Begin(key) => own_keys.add(&key),
                Follow::End(key) => own_keys.remove(&key),
            }
        }
    }

    fn tell(&self, inner: &mut Inner, notice: Notice) {
        let event = match notice {
            Notice::Registered { key, wish, lease, revision } => {
                let registration = Registration { key, lease, revision };
                if let Some(waiter) = inner.waiters.remove(&wish) {
                    // One who does not wait any more has dropped the other end.
                    let _ = waiter.send(Ok(registration.clone()));
                }
                KeyEvent::Registered(registration)
            }
            Notice::Refused { key, wish, why } => {
                let error = why.map_or(RegisterError::Taken, RegisterError::Refused);
                warn!(?key, %error, "registration refused");
                if let Some(waiter) = inner.waiters.remove(&wish) {
                    let _ = waiter.send(Err(error));
                }
                inner.follow.push(Follow::End(key));
                return;
            }
            Notice::Taken { key } => KeyEvent::Taken(key),
            Notice::Missing { key } => KeyEvent::Missing(key),
            Notice::Unregistered { key } => KeyEvent::Unregistered(key),
            Notice::Lost { lease, why } => {
                warn!(%lease, %why, keys = inner.machine.keys().count(), "lease lost");
                inner.last_loss = Some(why);
                return;
            }
            Notice::Granted { lease, incarnation } => {
                info!(%lease, incarnation, keys = inner.machine.keys().count(), "lease granted");
                return;
            }
            Notice::Failing { failures, next } => {
                if failures.is_power_of_two() {
                    warn!(failures, ?next, "the store does not answer, trying again");
                }
                return;
            }
            Notice::Closed => return,
        };
        // Nobody has to listen.
        let _ = self.events.send(event);
    }
}

impl Inner {
    /// Keeps track of since when the store fails us, and of what can never be mended.
    fn note(&mut self, error: Option<&StoreError>, now: Moment) {
        match error {
            None => self.failing_since = None,
            Some(error) => {
                self.failing_since.get_or_insert(now);
                if error.is_fatal() {
                    self.fatal.get_or_insert_with(|| error.clone());
                    self.close(&RegisterError::Refused(error.clone()), now);
                }
            }
        }
    }

    fn describe(&self, now: Moment) -> SessionState {
        let incarnation = self.machine.incarnation();
        match self.machine.standing(now) {
            Standing::Idle => SessionState::Idle,
            Standing::Live => SessionState::Live { incarnation },
            Standing::Suspect { since } => {
                SessionState::Suspect { incarnation, failing_for: now.since(since) }
            }
            Standing::Lost => SessionState::Lost { why: self.last_loss },
        }
    }
}

fn not_revoked(lease: LeaseId, answer: Result<Revision, StoreError>) {
    match answer {
        Ok(_) | Err(StoreError::LeaseNotFound) => {}
        Err(error) => warn!(%lease, %error, "lease not revoked, it ends by itself"),
    }
}

/// A throw of the dice; without entropy everybody throws the middle.
fn jitter() -> f64 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}

impl SessionState {
    /// Whether somebody who waits for changes has to be told.
    fn is_other(&self, next: &SessionState) -> bool {
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
