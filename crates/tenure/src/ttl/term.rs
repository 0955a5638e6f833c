//! One term of leadership, as the leader, the elections and the task behind it share it.
//!
//! **Invariant**: whoever asks whether it is valid asks the machine and the clock, never the task: a task that was not scheduled,
//! in a process that was stopped, cannot make anybody believe longer.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure_core::leadership::{Answer, Ask, End, Leadership as Machine, Left, Plan, Standing};
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use thiserror::Error;
use tokio::sync::Notify;

use super::elections::{ReleaseError, confirm_within};
use crate::clock::Clock;
use crate::news;

/// Why a leadership is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Loss {
    /// It was not renewed in time: the storage may still agree, but that can no longer be known.
    #[error("the leadership was not renewed in time")]
    Lapsed,
    /// The storage holds another value, or none.
    #[error("the leadership was taken away")]
    Taken,
    /// It was released, dropped or closed.
    #[error("the leadership was given up")]
    Released,
}

pub(super) struct Term {
    plan: Plan,
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
    /// Rung when the task has something to look at.
    pub(super) bell: Notify,
    token: OnceLock<Token>,
    /// Why permission ended, once it has.
    loss: news::Sender<Option<Loss>>,
    /// How it ended, once nothing is left to do; the inner none means that it was cut short.
    over: news::Sender<Option<Option<End>>>,
}

struct Inner {
    machine: Machine,
    /// How many futures run under this leadership.
    running: usize,
}

/// What the task must do next.
pub(super) struct Step {
    pub(super) asks: Vec<(Ask, Moment)>,
    pub(super) standing: Standing,
    pub(super) wake: Option<Moment>,
    pub(super) failures: u32,
}

impl Term {
    pub(super) fn new(plan: Plan, clock: Arc<dyn Clock>) -> Term {
        let machine = Machine::new(plan, clock.now());
        Term {
            plan,
            clock,
            inner: Mutex::new(Inner { machine, running: 0 }),
            bell: Notify::new(),
            token: OnceLock::new(),
            loss: news::Sender::new(None),
            over: news::Sender::new(None),
        }
    }

    /// Lets the machine look at the clock and ask what it wants to ask.
    pub(super) fn step(&self) -> Step {
        let mut inner = self.lock();
        let now = self.clock.now();
        if inner.running == 0 {
            inner.machine.handle_stopped(now);
        }
        let asks = std::iter::from_fn(|| inner.machine.poll_ask(now)).map(|ask| (ask, now)).collect();
        let standing = inner.machine.standing(now);
        let step =
            Step { asks, standing, wake: inner.machine.next_wake(), failures: inner.machine.failures() };
        drop(inner);
        self.publish(standing);
        step
    }

    pub(super) fn handle_answer(&self, ask: Ask, asked_at: Moment, answer: Answer, jitter: f64) {
        let mut inner = self.lock();
        let now = self.clock.now();
        inner.machine.handle_answer(ask, asked_at, answer, jitter, now);
    }

    pub(super) fn note_token(&self, token: Token) {
        // A token stays the same through all renewals, so the first one is the one.
        let _ = self.token.set(token);
    }

    /// Withdraws permission, now, and lets the task do the rest.
    pub(super) fn leave(&self) {
        let mut inner = self.lock();
        let now = self.clock.now();
        inner.machine.leave(now);
        let standing = inner.machine.standing(now);
        drop(inner);
        self.publish(standing);
        self.bell.notify_one();
    }

    /// The task is over.
    pub(super) fn end(&self, end: Option<End>) {
        self.leave();
        self.loss.send_if_modified(|loss| {
            let is_new = loss.is_none();
            loss.get_or_insert(Loss::Released);
            is_new
        });
        self.over.send_replace(Some(end));
    }

    /// Gives it up and waits until that is confirmed, or cannot be.
    pub(super) async fn release(&self) -> Result<(), ReleaseError> {
        self.leave();
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
        let inner = self.lock();
        inner.machine.is_valid(self.clock.now())
    }

    pub(super) fn remaining(&self) -> Duration {
        let inner = self.lock();
        inner.machine.remaining(self.clock.now())
    }

    pub(super) fn token(&self) -> Option<Token> {
        self.token.get().copied()
    }

    /// Done when permission has ended.
    pub(super) async fn lost(&self) -> Loss {
        let mut loss = self.loss.subscribe();
        let told = loss.wait_for(Option::is_some).await.map_or(None, |loss| *loss);
        told.unwrap_or(Loss::Released)
    }

    /// Why permission has ended, if it has, by the clock and not by what the task has noticed.
    pub(super) fn loss(&self) -> Option<Loss> {
        let inner = self.lock();
        loss_of(inner.machine.standing(self.clock.now()))
    }

    /// Notes that something runs under this leadership, if it still may.
    pub(super) fn begin_work(&self) -> Result<Work<'_>, Loss> {
        let mut inner = self.lock();
        if let Some(loss) = loss_of(inner.machine.standing(self.clock.now())) {
            return Err(loss);
        }
        inner.running += 1;
        Ok(Work { term: self })
    }

    fn publish(&self, standing: Standing) {
        let Some(ended) = loss_of(standing) else { return };
        self.loss.send_if_modified(|loss| {
            let is_new = loss.is_none();
            loss.get_or_insert(ended);
            is_new
        });
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The machine asserts nothing that a panic could leave half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn loss_of(standing: Standing) -> Option<Loss> {
    match standing {
        Standing::Acquiring | Standing::Leading => None,
        Standing::Stopping => Some(Loss::Released),
        Standing::Leaving(end) | Standing::Over(end) => Some(match end {
            End::Lapsed => Loss::Lapsed,
            End::Taken | End::Held => Loss::Taken,
            End::NotTaken | End::Left(_) => Loss::Released,
        }),
    }
}

/// Something that runs under a leadership; a release waits until it is dropped.
pub(super) struct Work<'a> {
    term: &'a Term,
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.term.lock().running -= 1;
        self.term.bell.notify_one();
    }
}
