//! The order of events, and the timer.

use std::time::Duration;

use futures_util::FutureExt;

use super::*;
use crate::clock::VirtualClock;

/// Notes its events. All sources are ready at first.
struct Recorder {
    rare: Option<&'static str>,
    frequent: Option<&'static str>,
    events: Vec<&'static str>,
    steps_max: usize,
}

async fn once(input: &mut Option<&'static str>) -> &'static str {
    match input.take() {
        Some(input) => input,
        None => std::future::pending().await,
    }
}

impl Drive for Recorder {
    type Input = &'static str;
    type Reply = &'static str;

    async fn step(&mut self) -> NextStep {
        self.events.push("step");
        if self.events.len() > self.steps_max { NextStep::End } else { NextStep::Wait(Some(Moment::ORIGIN)) }
    }

    fn inputs(
        &mut self,
    ) -> (impl Future<Output = &'static str> + Send, impl Future<Output = &'static str> + Send) {
        (once(&mut self.rare), once(&mut self.frequent))
    }

    fn handle(&mut self, event: DriverEvent<&'static str, &'static str>) {
        self.events.push(match event {
            DriverEvent::Input(input) => input,
            DriverEvent::Reply(reply) => reply,
            DriverEvent::Wake => "wake",
        });
    }
}

/// A busy watch must not delay replies or the timer, and nothing may delay a stop.
#[tokio::test]
async fn rare_inputs_come_first_and_frequent_last() {
    let inbox = Inbox::default();
    inbox.send(async { "reply" });
    inbox.notify();
    let mut recorder =
        Recorder { rare: Some("rare"), frequent: Some("frequent"), events: Vec::new(), steps_max: 8 };
    let clock: Arc<dyn Clock> = Arc::new(VirtualClock::new());
    run(&mut recorder, &inbox, &clock).await;
    let (rare, reply, caller, timer) = ("rare", "reply", "wake", "wake");
    assert_eq!(recorder.events, ["step", rare, "step", reply, "step", caller, "step", timer, "step"]);
    assert_eq!(recorder.frequent, Some("frequent"), "the timer is due and comes before it");
}

#[test]
fn timer_expires_once_at_the_earliest_moment() {
    let clock = VirtualClock::new();
    let mut timer = Timer::new(Arc::new(clock.clone()));
    let begin = clock.now();
    for seconds in [3, 2, 5] {
        timer.set(Some(begin + Duration::from_secs(seconds)));
    }
    timer.set(None);
    clock.advance(Duration::from_secs(1));
    assert_eq!(timer.expired().now_or_never(), None);
    clock.advance(Duration::from_secs(1));
    assert_eq!(timer.expired().now_or_never(), Some(()));
    clock.advance(Duration::from_secs(9));
    assert_eq!(timer.expired().now_or_never(), None, "it was not set since");
}
