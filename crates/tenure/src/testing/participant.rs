//! One participant: its way to the store, and its clock.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::Moment;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::dial::{Dial, Skew};
use super::time::WorldTime;
use crate::clock::{Clock, Sleep};

/// What a participant's way to the store lets through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Link {
    /// Everything.
    Open,
    /// Nothing, in silence.
    Cut,
    /// Requests only.
    AnswersLost,
    /// Nothing, and it says so.
    Refused,
}

/// Which way something goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    There,
    Back,
}

/// Why something did not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lost {
    /// Whoever waited for it has given up.
    Patience,
    /// The connection was refused or broken off.
    Refused,
}

pub(super) struct Participant {
    name: String,
    pub(super) time: WorldTime,
    state: Mutex<State>,
    /// Rung when anything in `state` has changed.
    changed: Notify,
    /// Rung when the store can be reached again.
    returned: Notify,
}

struct State {
    link: Link,
    latency: Duration,
    dial: Dial,
    is_stalled: bool,
    /// Writes that were given up on their way arrive nevertheless.
    arrives_late: bool,
}

impl Participant {
    pub(super) fn new(name: &str, time: WorldTime) -> Participant {
        let state = State {
            link: Link::Open,
            latency: Duration::ZERO,
            dial: Dial::new(),
            is_stalled: false,
            arrives_late: false,
        };
        Participant {
            name: name.to_owned(),
            time,
            state: Mutex::new(state),
            changed: Notify::new(),
            returned: Notify::new(),
        }
    }

    pub(super) fn set_link(&self, link: Link) {
        let before = std::mem::replace(&mut self.lock().link, link);
        self.changed.notify_waiters();
        if link == Link::Open && before != Link::Open {
            self.returned.notify_waiters();
        }
    }

    pub(super) fn set_latency(&self, one_way: Duration) {
        self.lock().latency = one_way;
        self.changed.notify_waiters();
    }

    pub(super) fn set_arrives_late(&self, arrives_late: bool) {
        self.lock().arrives_late = arrives_late;
    }

    pub(super) fn arrives_late(&self) -> bool {
        self.lock().arrives_late
    }

    pub(super) fn stall(&self) {
        let mut state = self.lock();
        state.is_stalled = true;
        state.dial.stop(self.time.elapsed());
        drop(state);
        self.changed.notify_waiters();
    }

    pub(super) fn resume(&self) {
        let mut state = self.lock();
        state.is_stalled = false;
        state.dial.go_on();
        drop(state);
        self.changed.notify_waiters();
    }

    pub(super) fn skew(&self, skew: Skew) {
        self.lock().dial.skew(skew, self.time.elapsed());
        self.changed.notify_waiters();
    }

    /// What its clock shows.
    pub(super) fn now(&self) -> Moment {
        self.lock().dial.now(self.time.elapsed())
    }

    /// Waits until its clock shows `deadline`, however often the clock is adjusted meanwhile.
    pub(super) async fn sleep_until(&self, deadline: Moment) {
        loop {
            let changed = self.changed();
            if self.now() >= deadline {
                return;
            }
            let when = self.lock().dial.when(deadline);
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

    /// How long a message takes.
    pub(super) fn latency(&self) -> Duration {
        self.lock().latency
    }

    /// Whether a message may pass; `Err` if it never will.
    pub(super) fn passes(&self, way: Way) -> Result<bool, Lost> {
        let state = self.lock();
        if state.is_stalled {
            return Ok(false);
        }
        match (state.link, way) {
            (Link::Open, _) | (Link::AnswersLost, Way::There) => Ok(true),
            (Link::Cut, _) | (Link::AnswersLost, Way::Back) => Ok(false),
            (Link::Refused, _) => Err(Lost::Refused),
        }
    }

    /// Brings a message over, or says why it did not arrive. Nobody waits for it beyond `patience_until` on the participant's clock.
    pub(super) async fn cross(&self, way: Way, patience_until: Moment) -> Result<(), Lost> {
        let patience = std::pin::pin!(self.sleep_until(patience_until));
        tokio::select! {
            biased;
            arrived = self.arrive(way) => arrived,
            () = patience => Err(Lost::Patience),
        }
    }

    async fn arrive(&self, way: Way) -> Result<(), Lost> {
        // A request to a closed port is refused before it has gone anywhere.
        self.passes(way)?;
        self.time.sleep_until(self.time.elapsed() + self.latency()).await;
        loop {
            let changed = self.changed();
            if self.passes(way)? {
                return Ok(());
            }
            changed.await;
        }
    }

    /// Waits until a request has got through that nobody waits for any more: what is on the wire does not mind that its sender stands
    /// still. False if it did not within `within`.
    pub(super) async fn arrive_late(&self, within: Duration) -> bool {
        let until = self.time.elapsed() + within;
        self.time.sleep_until(self.time.elapsed() + self.latency()).await;
        loop {
            let changed = self.changed();
            match self.lock().link {
                Link::Open | Link::AnswersLost => return true,
                Link::Refused => return false,
                Link::Cut => {}
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = self.time.sleep_until(until) => return false,
            }
        }
    }

    /// Done at the next change; one that comes between this call and the `.await` counts.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Waits until the store can be reached again.
    pub(super) async fn reachable(&self) {
        self.returned.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What a panic left behind is still whole: nothing that is guarded here panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let stalled = if state.is_stalled { ", stalled" } else { "" };
        write!(f, "{} at {:?}, {:?}{stalled}", self.name, state.dial.now(self.time.elapsed()), state.link)
    }
}

/// The clock of one participant, which may be skewed and stalled.
#[derive(Clone, Debug)]
pub struct ParticipantClock {
    participant: Arc<Participant>,
}

impl ParticipantClock {
    pub(super) fn new(participant: Arc<Participant>) -> ParticipantClock {
        ParticipantClock { participant }
    }
}

impl Clock for ParticipantClock {
    fn now(&self) -> Moment {
        self.participant.now()
    }

    fn sleep_until(&self, deadline: Moment) -> Sleep {
        let participant = self.participant.clone();
        Box::pin(async move { participant.sleep_until(deadline).await })
    }
}
