//! The link of one process to the store, and the state of its clock.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::Moment;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::clock_skew::{ClockSkew, SkewedClock};
use super::time::WorldTime;

/// Which messages the link delivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkMode {
    /// All.
    Open,
    /// None; the sender gets no error.
    Partitioned,
    /// Requests, but not their responses.
    ResponsesDropped,
    /// None; the sender gets an error immediately.
    Refused,
}

/// The direction of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Request,
    Response,
}

/// Why a message was not delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MessageLoss {
    /// The request timed out.
    TimedOut,
    /// The connection was refused or broken off.
    Refused,
}

pub(super) struct ProcessLink {
    name: String,
    pub(super) time: WorldTime,
    state: Mutex<LinkState>,
    /// Notified after each change of `state`.
    changed: Notify,
    /// Notified when the store can be reached again.
    reconnected: Notify,
}

struct LinkState {
    mode: LinkMode,
    latency: Duration,
    clock: SkewedClock,
    is_paused: bool,
    /// Whether a write still reaches the store after it has timed out.
    delays_writes: bool,
}

impl ProcessLink {
    pub(super) fn new(name: &str, time: WorldTime) -> ProcessLink {
        let state = LinkState {
            mode: LinkMode::Open,
            latency: Duration::ZERO,
            clock: SkewedClock::new(),
            is_paused: false,
            delays_writes: false,
        };
        ProcessLink {
            name: name.to_owned(),
            time,
            state: Mutex::new(state),
            changed: Notify::new(),
            reconnected: Notify::new(),
        }
    }

    pub(super) fn set_mode(&self, mode: LinkMode) {
        let before = std::mem::replace(&mut self.lock().mode, mode);
        self.changed.notify_waiters();
        if mode == LinkMode::Open && before != LinkMode::Open {
            self.reconnected.notify_waiters();
        }
    }

    pub(super) fn set_latency(&self, one_way: Duration) {
        self.lock().latency = one_way;
        self.changed.notify_waiters();
    }

    pub(super) fn set_delays_writes(&self, delays_writes: bool) {
        self.lock().delays_writes = delays_writes;
    }

    pub(super) fn delays_writes(&self) -> bool {
        self.lock().delays_writes
    }

    pub(super) fn pause(&self) {
        let mut state = self.lock();
        state.is_paused = true;
        state.clock.stop(self.time.elapsed());
        drop(state);
        self.changed.notify_waiters();
    }

    pub(super) fn resume(&self) {
        let mut state = self.lock();
        state.is_paused = false;
        state.clock.resume();
        drop(state);
        self.changed.notify_waiters();
    }

    pub(super) fn set_skew(&self, skew: ClockSkew) {
        self.lock().clock.adjust(skew, self.time.elapsed());
        self.changed.notify_waiters();
    }

    /// Returns what the clock of the process shows.
    pub(super) fn now(&self) -> Moment {
        self.lock().clock.now(self.time.elapsed())
    }

    /// Waits until the clock of the process shows `deadline`. Adjusting the clock meanwhile moves the wake-up.
    pub(super) async fn sleep_until(&self, deadline: Moment) {
        loop {
            // Before the clock is read: an adjustment between the two must not be missed.
            let changed = self.changed();
            if self.now() >= deadline {
                return;
            }
            let when = self.lock().clock.when(deadline);
            match when {
                None => changed.await,
                Some(when) => tokio::select! {
                    biased;
                    () = changed => {}
                    () = self.time.sleep_until(when) => {}
                },
            }
        }
    }

    /// The latency of one message.
    pub(super) fn latency(&self) -> Duration {
        self.lock().latency
    }

    /// Whether a message may pass now; an error if it never will.
    pub(super) fn passes(&self, direction: Direction) -> Result<bool, MessageLoss> {
        let state = self.lock();
        if state.is_paused {
            return Ok(false);
        }
        match (state.mode, direction) {
            (LinkMode::Open, _) | (LinkMode::ResponsesDropped, Direction::Request) => Ok(true),
            (LinkMode::Partitioned, _) | (LinkMode::ResponsesDropped, Direction::Response) => Ok(false),
            (LinkMode::Refused, _) => Err(MessageLoss::Refused),
        }
    }

    /// Delivers a message, at the latest at `deadline` on the clock of the process.
    pub(super) async fn cross(&self, direction: Direction, deadline: Moment) -> Result<(), MessageLoss> {
        let timeout = std::pin::pin!(self.sleep_until(deadline));
        tokio::select! {
            biased;
            delivered = self.deliver(direction) => delivered,
            () = timeout => Err(MessageLoss::TimedOut),
        }
    }

    async fn deliver(&self, direction: Direction) -> Result<(), MessageLoss> {
        // A request to a closed port is refused before it has gone anywhere.
        self.passes(direction)?;
        self.time.sleep_until(self.time.elapsed() + self.latency()).await;
        loop {
            let changed = self.changed();
            if self.passes(direction)? {
                return Ok(());
            }
            changed.await;
        }
    }

    /// Delivers a request that may have timed out for its sender. Returns `false` if the link did not let it through within `within`.
    pub(super) async fn deliver_late(&self, within: Duration) -> bool {
        let until = self.time.elapsed() + within;
        // In the world's time: a message in flight arrives although its sender is paused.
        self.time.sleep_until(self.time.elapsed() + self.latency()).await;
        loop {
            let changed = self.changed();
            match self.lock().mode {
                LinkMode::Open | LinkMode::ResponsesDropped => return true,
                LinkMode::Refused => return false,
                LinkMode::Partitioned => {}
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = self.time.sleep_until(until) => return false,
            }
        }
    }

    /// Completes at the next change. A change between this call and the `.await` counts.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Waits until the store can be reached again.
    pub(super) async fn reachable(&self) {
        self.reconnected.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, LinkState> {
        // No change of the state can panic between two of its steps, so a poisoned state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ProcessLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let paused = if state.is_paused { ", paused" } else { "" };
        write!(f, "{} at {:?}, {:?}{paused}", self.name, state.clock.now(self.time.elapsed()), state.mode)
    }
}
