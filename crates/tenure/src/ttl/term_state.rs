//! The state of one term, shared by its owner, the elections and its driver.
//!
//! **Invariant** (G1): its [`Validity`] is extended only after an acknowledged renewal, to the deadline of the machine, and every call compares that
//! with the clock. So a driver that was not scheduled cannot make a term valid for longer.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tenure_core::ttl::{
    StorageReply, StorageRequest, TtlConfig, TtlElection, TtlEnd, TtlReleaseOutcome, TtlStatus,
};

use super::driver::StorageResponse;
use super::elections::confirm_within;
use crate::clock::Clock;
use crate::driver::requests::Inbox;
use crate::hold::{LeaseCell, LossReason, Lost, ReleaseError, Subject, Validity};
use crate::ordered_watch;

pub(super) struct TtlTermState {
    config: TtlConfig,
    clock: Arc<dyn Clock>,
    machine: Mutex<TtlElection>,
    /// Notified when the machine has changed.
    pub(super) inbox: Inbox<StorageResponse>,
    token: OnceLock<Token>,
    subject: Subject,
    /// None before the term begins.
    validity: OnceLock<Validity>,
    /// How it ended, once nothing is left to do. The inner none: the driver was dropped before that.
    ended: ordered_watch::OrderedSender<Option<Option<TtlEnd>>>,
}

/// What the driver does next.
pub(super) struct TtlStep {
    pub(super) requests: Vec<(StorageRequest, Moment)>,
    pub(super) status: TtlStatus,
    pub(super) wake: Option<Moment>,
    pub(super) failures: u32,
}

impl TtlTermState {
    pub(super) fn new(config: TtlConfig, clock: Arc<dyn Clock>, subject: Subject) -> TtlTermState {
        let machine = TtlElection::new(config, clock.now());
        TtlTermState {
            config,
            clock,
            machine: Mutex::new(machine),
            inbox: Inbox::default(),
            token: OnceLock::new(),
            subject,
            validity: OnceLock::new(),
            ended: ordered_watch::OrderedSender::new(None),
        }
    }

    /// Shows the time to the machine, and takes its requests.
    pub(super) fn step(&self) -> TtlStep {
        let mut machine = self.lock();
        // Inside the lock: the machine must never see time go back.
        let now = self.clock.now();
        // The machine deletes the key only after the work has stopped, so that the next leader does not overlap with it.
        if !self.validity.get().is_some_and(Validity::is_working) {
            machine.handle_stopped(now);
        }
        let requests =
            std::iter::from_fn(|| machine.poll_request(now)).map(|request| (request, now)).collect();
        let status = machine.status(now);
        // Still under the lock: no reader may see an older validity after a newer one.
        self.publish(&machine, status, now);
        TtlStep { requests, status, wake: machine.next_wake(), failures: machine.failures() }
    }

    pub(super) fn handle_reply(
        &self,
        request: StorageRequest,
        sent_at: Moment,
        reply: StorageReply,
        jitter: f64,
    ) {
        let mut machine = self.lock();
        let now = self.clock.now();
        machine.handle_reply(request, sent_at, reply, jitter, now);
    }

    pub(super) fn note_token(&self, token: Token) {
        // A token stays the same through all renewals, so later ones are equal.
        let _ = self.token.set(token);
    }

    /// Ends its validity now. The driver stops the work and deletes the key.
    pub(super) fn leave(&self, reason: LossReason) {
        let mut machine = self.lock();
        let now = self.clock.now();
        machine.release(now);
        let status = machine.status(now);
        // Before `publish`, which knows only that the term was released and not why.
        if let (TtlStatus::Stopping, Some(validity)) = (status, self.validity.get()) {
            validity.end(reason);
        }
        self.publish(&machine, status, now);
        // Unlocked first: the woken driver takes the same lock.
        drop(machine);
        self.inbox.notify();
    }

    /// The driver has ended.
    pub(super) fn end(&self, end: Option<TtlEnd>) {
        self.leave(LossReason::Closed);
        if let Some(validity) = self.validity.get() {
            validity.end(LossReason::Closed);
        }
        self.ended.send_replace(Some(end));
    }

    /// Releases it, and waits until the storage has confirmed that.
    pub(super) async fn release(&self) -> Result<(), ReleaseError> {
        self.leave(LossReason::Released);
        // On the term's own clock: under virtual time the bound must be virtual too.
        let within = confirm_within(&self.config);
        let deadline = self.clock.sleep_until(self.clock.now() + within);
        let mut ended = self.ended.subscribe();
        let end = tokio::select! {
            biased;
            ended = ended.wait_for(Option::is_some) => ended.map_or(None, |ended| *ended),
            () = deadline => None,
        };
        let subject = || self.subject.to_string().into();
        match end.flatten() {
            Some(TtlEnd::Released(TtlReleaseOutcome::Nothing)) => Ok(()),
            Some(TtlEnd::Released(TtlReleaseOutcome::StillRunning)) => {
                Err(ReleaseError::StillRunning { subject: subject(), after: self.config.stop_within })
            }
            // The deletion may still be applied; the key expires otherwise.
            Some(TtlEnd::Released(TtlReleaseOutcome::Unconfirmed)) | None => {
                Err(ReleaseError::NotConfirmed { ttl: self.ttl() })
            }
            Some(TtlEnd::Lapsed) => Err(Lost { subject: subject(), reason: LossReason::Lapsed }.into()),
            // The key was lost before it was deleted, and other candidates may have led since.
            Some(TtlEnd::Released(TtlReleaseOutcome::Gone))
            | Some(TtlEnd::Held | TtlEnd::NotAcquired | TtlEnd::Replaced) => {
                Err(Lost { subject: subject(), reason: LossReason::Replaced }.into())
            }
        }
    }

    /// What is led, for messages.
    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    pub(super) fn ttl(&self) -> Duration {
        self.config.timing.ttl()
    }

    pub(super) fn is_valid(&self) -> bool {
        self.validity.get().is_some_and(Validity::is_valid)
    }

    /// Its validity; none before the term begins.
    pub(super) fn validity(&self) -> Option<&Validity> {
        self.validity.get()
    }

    /// Waits until a future that runs under it has ended.
    pub(super) async fn work_ended(&self) {
        match self.validity.get() {
            Some(validity) => validity.work_ended().await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn token(&self) -> Option<Token> {
        self.token.get().copied()
    }

    /// Makes its validity that of the machine.
    fn publish(&self, machine: &TtlElection, status: TtlStatus, now: Moment) {
        if status == TtlStatus::Leading {
            // Counted from before the acknowledged request was sent, minus the margin: it ends before the storage's TTL does.
            let valid_until = now + machine.remaining(now);
            let validity = self.validity.get_or_init(|| {
                let cell = Arc::new(LeaseCell::new(valid_until));
                Validity::new(self.subject.clone(), cell, self.clock.clone(), self.ttl())
            });
            validity.cell().extend(valid_until);
        } else if let (Some(reason), Some(validity)) = (loss_of(status), self.validity.get()) {
            validity.end(reason);
        }
    }

    fn lock(&self) -> MutexGuard<'_, TtlElection> {
        // The machine asserts nothing that a panic could leave half done.
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn loss_of(status: TtlStatus) -> Option<LossReason> {
    match status {
        TtlStatus::Acquiring | TtlStatus::Leading => None,
        TtlStatus::Stopping => Some(LossReason::Released),
        TtlStatus::Leaving(end) | TtlStatus::Over(end) => Some(match end {
            TtlEnd::Lapsed => LossReason::Lapsed,
            TtlEnd::Replaced | TtlEnd::Held => LossReason::Replaced,
            TtlEnd::NotAcquired | TtlEnd::Released(_) => LossReason::Released,
        }),
    }
}
