//! The loop that runs a machine: it sends the machine's requests, feeds replies and events back, and decides nothing.
//!
//! Sessions, queues, TTL elections and nodes each implement [`Drive`]; [`run`] is the only place that waits. Requests belong to the driver's task,
//! whichever task sends them: their futures are in the [`Inbox`] and are polled with the driver's waker.
//!
//! **Invariant**: [`Drive::step`] runs before each wait. So a machine sees the time before anything else, and no notification can be missed
//! between a step and the wait.

pub(crate) mod requests;

use std::future::Future;
use std::sync::Arc;

use tenure_core::time::Moment;

use crate::clock::{Clock, Sleep};
use requests::Inbox;

/// A machine with what its driver needs.
pub(crate) trait Drive: Send {
    /// What happens outside: a stop, a lost lease, a changed key.
    type Input: Send;
    /// The reply to a request.
    type Reply: Send + 'static;

    /// Shows the machine the time, publishes its events and sends its requests.
    fn step(&mut self) -> impl Future<Output = NextStep> + Send;

    /// Waits for the rare inputs, and for the frequent ones. Both futures must be cancel-safe: they are dropped after each event.
    ///
    /// Rare are a stop and a lost lease. They come before replies; changes of watched keys come last, so that a busy watch delays nothing.
    fn inputs(
        &mut self,
    ) -> (impl Future<Output = Self::Input> + Send, impl Future<Output = Self::Input> + Send);

    /// Feeds an event to the machine.
    fn handle(&mut self, event: DriverEvent<Self::Input, Self::Reply>);
}

/// What a driver does after a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextStep {
    /// Another step: there is more to do.
    Step,
    /// Wait for an event, until this moment at most.
    Wait(Option<Moment>),
    /// End: the machine has nothing left to do.
    End,
}

/// Why a driver stopped waiting.
pub(crate) enum DriverEvent<I, R> {
    /// Something happened outside.
    Input(I),
    /// A request was answered.
    Reply(R),
    /// A caller changed the machine, or its time has come. The next step does the rest.
    Wake,
}

/// Runs a machine to its end.
pub(crate) async fn run<D: Drive>(drive: &mut D, inbox: &Inbox<D::Reply>, clock: &Arc<dyn Clock>) {
    let _end = inbox.end_on_drop();
    let mut timer = Timer::new(clock.clone());
    loop {
        match drive.step().await {
            NextStep::Step => continue,
            NextStep::Wait(until) => timer.set(until),
            NextStep::End => return,
        }
        let event = {
            let (rare, frequent) = drive.inputs();
            tokio::select! {
                biased;
                input = rare => DriverEvent::Input(input),
                reply = inbox.next_reply() => DriverEvent::Reply(reply),
                () = inbox.notified() => DriverEvent::Wake,
                () = timer.expired() => DriverEvent::Wake,
                input = frequent => DriverEvent::Input(input),
            }
        };
        drive.handle(event);
    }
}

/// The timer of a driver. It is only set again for an earlier moment: so it expires without need at times, which costs less than a new
/// timer for each lock.
struct Timer {
    clock: Arc<dyn Clock>,
    set: Option<(Moment, Sleep)>,
}

impl Timer {
    fn new(clock: Arc<dyn Clock>) -> Timer {
        Timer { clock, set: None }
    }

    /// Expires at this moment, or earlier.
    fn set(&mut self, wake: Option<Moment>) {
        if let Some(wake) = wake
            && self.set.as_ref().is_none_or(|(at, _)| wake < *at)
        {
            self.set = Some((wake, self.clock.sleep_until(wake)));
        }
    }

    /// Waits until it expires, which may be never.
    async fn expired(&mut self) {
        match &mut self.set {
            Some((_, sleep)) => sleep.await,
            None => std::future::pending().await,
        }
        self.set = None;
    }
}

#[cfg(test)]
mod tests;
