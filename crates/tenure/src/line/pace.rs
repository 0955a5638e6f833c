//! How much is asked at once, and when.
//!
//! Requests travel in two flows: while the store works on one, the answers to the other are told and the next is made. With one flow the store
//! waits for us and we for it. With more, what there is to ask is spread over many small requests, and each costs both sides as much as
//! a dozen locks; and a large one next to a small one is one flow again. So what is waiting is cut in halves, and whoever comes when
//! less than half is waiting travels with those who come next.
//!
//! That is for a store that answers in a moment. Whoever has waited for [`PATIENCE`] is sent, whatever is under way.

use std::time::Duration;

use tenure_core::time::Moment;

/// How long a request is given to be answered before whoever waits for company goes without. Several round trips to a store nearby. Doubled, a request
/// that hangs holds up the others for so much longer; halved, a busy server would be asked more and smaller questions.
const PATIENCE: Duration = Duration::from_millis(5);

/// Requests that somebody waits for, at most; reached only when the store is slow. More would not be answered sooner.
const IN_FLIGHT_MAX: usize = 4;

/// Requests under way together while they are answered within [`PATIENCE`].
const FLOWS: usize = 2;

/// So few are not worth waiting for, nor worth cutting in two.
const FEW: usize = 8;

/// One request under way: since when, and for how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Flight {
    pub(super) since: Moment,
    /// How many wait for its answer. What nobody waits for is in nobody's way.
    pub(super) len: usize,
}

impl Flight {
    fn is_young(&self, now: Moment) -> bool {
        now.since(self.since) < PATIENCE
    }
}

/// Which of the requests under way it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FlightId(u64);

/// All requests under way.
#[derive(Default)]
pub(super) struct Flights {
    under_way: Vec<(FlightId, Flight)>,
    counter: u64,
}

impl Flights {
    /// A request is on its way from now on.
    pub(super) fn begin(&mut self, flight: Flight) -> FlightId {
        self.counter += 1;
        let id = FlightId(self.counter);
        self.under_way.push((id, flight));
        id
    }

    /// A request was answered.
    pub(super) fn end(&mut self, id: FlightId) {
        self.under_way.retain(|(under_way, _)| *under_way != id);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// How many of those who are waiting are sent now.
    pub(super) fn allowance(&self, waiting: usize, now: Moment) -> usize {
        allowance(waiting, self.flights(), now)
    }

    /// When those who were not sent have waited long enough.
    pub(super) fn patience_ends(&self, now: Moment) -> Option<Moment> {
        patience_ends(self.flights(), now)
    }

    fn flights(&self) -> impl Iterator<Item = Flight> {
        self.under_way.iter().map(|(_, flight)| *flight)
    }
}

fn allowance(waiting: usize, under_way: impl Iterator<Item = Flight>, now: Moment) -> usize {
    let (mut all, mut flows, mut young) = (0, 0, 0);
    for flight in under_way.filter(|flight| flight.len > 0) {
        all += 1;
        if flight.is_young(now) {
            flows += 1;
            young += flight.len;
        }
    }
    // A little less than the other flow is enough, or the two would soon be one.
    let is_as_large = flows < FLOWS && waiting * 5 >= young * 4;
    if all >= IN_FLIGHT_MAX || !(young < FEW || is_as_large) {
        return 0;
    }
    let half = (young + waiting).div_ceil(2);
    if half < FEW { waiting } else { half.min(waiting) }
}

fn patience_ends(under_way: impl Iterator<Item = Flight>, now: Moment) -> Option<Moment> {
    under_way.filter(|flight| flight.is_young(now)).map(|flight| flight.since + PATIENCE).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment::from_ms(100);

    fn sent(waiting: usize, under_way: &[(u64, usize)]) -> usize {
        let flight = |&(ms, len): &(u64, usize)| Flight { since: NOW - Duration::from_millis(ms), len };
        allowance(waiting, under_way.iter().map(flight), NOW)
    }

    #[test]
    fn an_idle_desk_sends_at_once() {
        assert_eq!((sent(0, &[]), sent(1, &[])), (0, 1));
        assert_eq!(sent(14, &[]), 14, "nothing is gained by halves of seven");
    }

    #[test]
    fn many_go_in_halves() {
        assert_eq!(sent(64, &[]), 32);
        assert_eq!(sent(32, &[(0, 32)]), 32);
        assert_eq!(sent(0, &[(0, 32), (0, 32)]), 0);
    }

    #[test]
    fn the_few_who_come_late_travel_with_the_next() {
        assert_eq!(sent(3, &[(1, 32)]), 0);
        assert_eq!(sent(26, &[(1, 32)]), 26, "enough for a flow of their own");
        assert_eq!(sent(40, &[(1, 32), (1, 30)]), 0, "two are under way");
    }

    #[test]
    fn nobody_waits_for_a_few() {
        assert_eq!(sent(1, &[(0, 1), (0, 2)]), 1);
        assert_eq!(sent(1, &[(0, 7)]), 1);
    }

    #[test]
    fn whoever_has_been_patient_goes_without_company_until_too_much_hangs() {
        assert_eq!(sent(3, &[(5, 32)]), 3);
        assert_eq!(sent(3, &[(6, 32), (7, 30)]), 3);
        assert_eq!(sent(3, &[(9, 1), (8, 1), (7, 1), (6, 1)]), 0);
    }

    #[test]
    fn what_nobody_waits_for_is_in_nobodys_way() {
        assert_eq!(sent(64, &[(0, 0), (0, 0), (0, 0), (0, 0)]), 32);
    }

    #[test]
    fn patience_ends_with_the_oldest_that_is_not_late_yet() {
        let flights = [6, 4, 1].map(|ms| Flight { since: NOW - Duration::from_millis(ms), len: 9 });
        assert_eq!(patience_ends(flights.into_iter(), NOW), Some(NOW + Duration::from_millis(1)));
        assert_eq!(patience_ends(flights.into_iter().take(1), NOW), None);
    }
}
