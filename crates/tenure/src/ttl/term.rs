//! One term of leadership, as the leader, the elections and the task behind it share it.
//!
//! **Invariant**: its [`Validity`] is extended only after an acknowledged renewal, to the deadline of the machine, and every call compares that with the
//! clock. So a task that was not scheduled, in a process that was stopped, cannot make a leader valid for longer.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tenure_core::leadership::{Answer, Ask, End, Leadership as Machine, Left, Plan, Standing};
use tenure_core::revision::Token;
use tenure_core::time::Moment;

use super::driver::Reply;
use super::elections::{ReleaseError, confirm_within};
use crate::clock::Clock;
use crate::driver::requests::Inbox;
use crate::hold::{LeaseCell, LossReason, Subject, Validity};
use crate::news;

pub(super) struct Term {
    plan: Plan,
    clock: Arc<dyn Clock>,
    machine: Mutex<Machine>,
    /// Notified when the machine has changed.
    pub(super) inbox: Inbox<Reply>,
    token: OnceLock<Token>,
    subject: Subject,
    /// None before it leads.
    validity: OnceLock<Validity>,
    /// How it ended, once nothing is left to do; the inner none means that it was cut short.
    over: news::Sender<Option<Option<End>>>,
}

/// What the task must do next.
pub(super) struct Step {
    pub(super) asks: Vec<(Ask, Moment)>,
    pub(super) standing: Standing,
    pub(super) wake: Option<Moment>,
    pub(super) failures: u32,
}

impl Term {
    pub(super) fn new(plan: Plan, clock: Arc<dyn Clock>, subject: Subject) -> Term {
        let machine = Machine::new(plan, clock.now());
        Term {
            plan,
            clock,
            machine: Mutex::new(machine),
            inbox: Inbox::default(),
            token: OnceLock::new(),
            subject,
            validity: OnceLock::new(),
            over: news::Sender::new(None),
        }
    }

    /// Shows the time to the machine, and takes its requests.
    pub(super) fn step(&self) -> Step {
        let mut machine = self.lock();
        let now = self.clock.now();
        if !self.validity.get().is_some_and(Validity::is_working) {
            machine.handle_stopped(now);
        }
        let asks = std::iter::from_fn(|| machine.poll_ask(now)).map(|ask| (ask, now)).collect();
        let standing = machine.standing(now);
        self.publish(&machine, standing, now);
        Step { asks, standing, wake: machine.next_wake(), failures: machine.failures() }
    }

    pub(super) fn handle_answer(&self, ask: Ask, asked_at: Moment, answer: Answer, jitter: f64) {
        let mut machine = self.lock();
        let now = self.clock.now();
        machine.handle_answer(ask, asked_at, answer, jitter, now);
    }

    pub(super) fn note_token(&self, token: Token) {
        // A token stays the same through all renewals, so the first one is the one.
        let _ = self.token.set(token);
    }

    /// Ends its validity, now; the task does the rest.
    pub(super) fn leave(&self, reason: LossReason) {
        let mut machine = self.lock();
        let now = self.clock.now();
        machine.leave(now);
        let standing = machine.standing(now);
        if let (Standing::Stopping, Some(validity)) = (standing, self.validity.get()) {
            validity.end(reason);
        }
        self.publish(&machine, standing, now);
        drop(machine);
        self.inbox.notify();
    }

    /// The task is over.
    pub(super) fn end(&self, end: Option<End>) {
        self.leave(LossReason::Closed);
        if let Some(validity) = self.validity.get() {
            validity.end(LossReason::Closed);
        }
        self.over.send_replace(Some(end));
    }

    /// Gives it up and waits until that is confirmed, or cannot be.
    pub(super) async fn release(&self) -> Result<(), ReleaseError> {
        self.leave(LossReason::Released);
        let deadline = self.clock.sleep_until(self.clock.now() + confirm_within(&self.plan));
        let mut over = self.over.subscribe();
        let end = tokio::select! {
            biased;
            over = over.wait_for(Option::is_some) => over.map_or(None, |over| *over),
            () = deadline => None,
        };
        match end.flatten() {
            Some(End::Left(Left::Nothing)) => Ok(()),
            Some(End::Left(Left::StillRunning)) => Err(ReleaseError::StillRunning),
            Some(End::Left(Left::Unconfirmed)) | None => Err(ReleaseError::Unconfirmed),
            Some(End::Left(Left::Gone) | End::Held | End::NotTaken | End::Lapsed | End::Taken) => {
                Err(ReleaseError::NotLeading)
            }
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        self.validity.get().is_some_and(Validity::is_valid)
    }

    /// Its validity; none before it leads.
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
    fn publish(&self, machine: &Machine, standing: Standing, now: Moment) {
        if standing == Standing::Leading {
            let valid_until = now + machine.remaining(now);
            let validity = self.validity.get_or_init(|| {
                let cell = Arc::new(LeaseCell::new(valid_until));
                Validity::new(self.subject.clone(), cell, self.clock.clone(), self.plan.terms.ttl())
            });
            validity.cell().extend(valid_until);
        } else if let (Some(reason), Some(validity)) = (loss_of(standing), self.validity.get()) {
            validity.end(reason);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        // The machine asserts nothing that a panic could leave half done.
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn loss_of(standing: Standing) -> Option<LossReason> {
    match standing {
        Standing::Acquiring | Standing::Leading => None,
        Standing::Stopping => Some(LossReason::Released),
        Standing::Leaving(end) | Standing::Over(end) => Some(match end {
            End::Lapsed => LossReason::Lapsed,
            End::Taken | End::Held => LossReason::Replaced,
            End::NotTaken | End::Left(_) => LossReason::Released,
        }),
    }
}
