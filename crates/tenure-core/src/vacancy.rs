//! How long an election had no leader, as far as an observer can know: bounds and a reason, never a
//! guess.
//!
//! An observer sees keys, not processes. The key of a leader that was killed stays until its lease
//! expires, and the next key in the queue may belong to a process that is dead too. So the observer
//! also reads the lease of the first key from time to time: a lease that had time left when its key
//! went was not expired by the store, and a lease that is renewed has a living process behind it.
//!
//! ```text
//!   last renewal ───── the next one was due ─────────── key gone ──── next leader confirmed
//!        │◄────── ttl / 3 ──────►│                          │                  │
//!        │◄── it stopped here ──►│◄───────── min ───────────────────────────►│
//!        │◄────────────────────────────── max ───────────────────────────────►│
//! ```
//!
//! **Invariant**: a candidate that waited in the queue is shown as leader only after it marked its
//! key, or renewed its lease while its key was the first.
//!
//! **Invariant**: `min` and `max` contain the time without a leader, if the leader resigned or was
//! killed. A leader that was alive and cut off from the store could rely on its term until the
//! margin before its lease ended: then [`Gap::min_if_cut_off`] is the lower bound.

use std::time::Duration;

use crate::keepalive::Timing;
use crate::revision::Token;
use crate::time::Moment;

/// How often a lease is read, as a part of its TTL. Halved, a resignation is taken for an expiry on
/// a store that counts leases in whole seconds; doubled, it costs twice the requests for nothing.
const READS_PER_TTL: u32 = 8;

/// The shortest time between two reads of a lease.
const READ_EVERY_MIN: Duration = Duration::from_millis(250);

/// The longest time between two reads of a lease, and the time until the next one after a failure.
const READ_EVERY_MAX: Duration = Duration::from_secs(5);

/// How long a first candidate may stay unconfirmed before "no leader" is shown. A live one confirms
/// within two round trips.
const UNCONFIRMED_MAX: Duration = Duration::from_secs(1);

/// The first key of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Front {
    /// Its create revision.
    pub token: Token,
    /// Whether it was seen behind another key.
    pub waited: bool,
    /// Whether it marks itself as the leader.
    pub leads: bool,
}

/// How a term ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TermEnd {
    /// The key was deleted although its lease had time left: the leader resigned or handed over, or
    /// an operator removed it.
    Resigned,
    /// The lease expired: the leader was killed, stopped or cut off.
    Lapsed,
    /// The observer was disconnected, or did not know the lease.
    Unseen,
}

impl TermEnd {
    /// The stable name for output.
    pub const fn as_str(self) -> &'static str {
        match self {
            TermEnd::Resigned => "resigned",
            TermEnd::Lapsed => "lapsed",
            TermEnd::Unseen => "unseen",
        }
    }
}

/// A time without a leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// How the term before it ended.
    pub end: TermEnd,
    /// At least this long.
    pub min: Duration,
    /// At most this long; none if that is not known.
    pub max: Option<Duration>,
    /// The lower bound if the former leader was not dead but cut off from the store. Below `min`
    /// for a lapsed term only.
    pub min_if_cut_off: Duration,
    /// How long the observer was disconnected during the gap.
    pub blind: Duration,
}

/// What an observer shows now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaderView {
    /// The first candidate leads, after this gap if one was seen.
    Leader(Option<Gap>),
    /// There is no leader.
    Leaderless,
    /// The former leader's key is deleted and the next one is not confirmed yet.
    Unsettled,
}

/// A key that is or was the first.
#[derive(Clone, Copy, Debug)]
struct Tracked {
    token: Token,
    /// When it became the first: between these.
    first: (Moment, Moment),
    /// Its lease's TTL and the earliest instant at which the lease could expire, from the newest
    /// read.
    lease: Option<(Duration, Moment)>,
    read_at: Option<Moment>,
}

/// The end of a term that no confirmed leader has followed yet.
#[derive(Clone, Copy, Debug)]
struct Ended {
    end: TermEnd,
    /// The term ended after this, if known, and before `latest`.
    earliest: Option<Moment>,
    latest: Moment,
    latest_if_cut_off: Moment,
    /// When the delete of the key was observed.
    seen_at: Moment,
    blind: Duration,
}

/// The machine; see the module.
#[derive(Clone, Debug, Default)]
pub struct Vacancy {
    front: Option<Front>,
    leader: Option<Tracked>,
    next: Option<Tracked>,
    ended: Option<Ended>,
    blind_since: Option<Moment>,
    /// The gap before the leader.
    gap: Option<Gap>,
}

impl Vacancy {
    /// Handles a broken connection to the store, or the start: nothing is observed until the queue
    /// is read.
    pub fn handle_break(&mut self, now: Moment) {
        self.blind_since.get_or_insert(now);
    }

    /// Whether the queue was not read since the last break.
    pub fn is_blind(&self) -> bool {
        self.blind_since.is_some()
    }

    /// Handles a complete read of the queue.
    pub fn handle_front(&mut self, now: Moment, front: Option<Front>) -> LeaderView {
        let since = self.blind_since.take().unwrap_or(now);
        self.front = front;
        let token = front.map(|front| front.token);
        if let Some(leader) = self.leader.take_if(|leader| Some(leader.token) != token) {
            self.ended = Some(end_of(&leader, since, now));
        }
        if let Some(ended) = &mut self.ended {
            ended.blind += now.since(since);
        }
        if self.leader.is_none() && self.next.is_none_or(|next| Some(next.token) != token) {
            self.next = token.map(|token| Tracked { token, first: (since, now), lease: None, read_at: None });
        }
        if self.leader.is_none() && self.next.is_none() && self.ended.is_none() {
            // The first read finds no leader: it is unknown since when.
            self.ended = Some(Ended {
                end: TermEnd::Unseen,
                earliest: None,
                latest: now,
                latest_if_cut_off: now,
                seen_at: now,
                blind: Duration::ZERO,
            });
        }
        self.shown(now)
    }

    /// Handles the reply to a read of a lease: its TTL and the remaining time. None if the store
    /// has no such lease, or did not reply.
    pub fn handle_lease(
        &mut self,
        token: Token,
        sent_at: Moment,
        now: Moment,
        lease: Option<(Duration, Duration)>,
    ) -> LeaderView {
        let tracked = [self.leader.as_mut(), self.next.as_mut()];
        if let Some(tracked) = tracked.into_iter().flatten().find(|tracked| tracked.token == token) {
            tracked.read_at = Some(now);
            if let Some((ttl, remaining)) = lease {
                // The store measured the remaining time after the request was sent, so the lease
                // cannot end before this.
                let until = tracked.lease.map_or(Moment::ORIGIN, |(_, until)| until).max(sent_at + remaining);
                tracked.lease = Some((ttl, until));
            }
        }
        self.shown(now)
    }

    /// What to show. Call again at [`Vacancy::leaderless_at`].
    pub fn shown(&mut self, now: Moment) -> LeaderView {
        if self.leader.is_some() {
            return LeaderView::Leader(self.gap);
        }
        let Some((next, front)) = self.next.zip(self.front) else { return LeaderView::Leaderless };
        let is_renewed = next.lease.is_some_and(|(ttl, until)| until - ttl > next.first.1);
        let is_first_leader = self.ended.is_none();
        if front.leads || !front.waited || is_renewed || is_first_leader {
            self.gap = self.ended.take().map(|ended| ended.until(next.first.0, now));
            self.leader = self.next.take();
            return LeaderView::Leader(self.gap);
        }
        match self.leaderless_at() {
            Some(at) if at > now => LeaderView::Unsettled,
            _ => LeaderView::Leaderless,
        }
    }

    /// The next lease to read, and when.
    pub fn read_at(&self) -> Option<(Token, Moment)> {
        let tracked = self.leader.or(self.next)?;
        let at = tracked.read_at.map_or(Moment::ORIGIN, |at| {
            let every = tracked.lease.map_or(READ_EVERY_MAX, |(ttl, _)| ttl / READS_PER_TTL);
            at + every.clamp(READ_EVERY_MIN, READ_EVERY_MAX)
        });
        Some((tracked.token, at))
    }

    /// When the view changes without another read.
    pub fn leaderless_at(&self) -> Option<Moment> {
        self.ended.filter(|_| self.next.is_some()).map(|ended| ended.seen_at + UNCONFIRMED_MAX)
    }

    /// How the last term ended, while no leader has followed.
    pub fn end(&self) -> Option<TermEnd> {
        self.ended.map(|ended| ended.end)
    }
}

impl Ended {
    /// The gap before a leader that began between these instants.
    fn until(&self, began: Moment, confirmed: Moment) -> Gap {
        Gap {
            end: self.end,
            min: began.since(self.latest),
            max: self.earliest.map(|earliest| confirmed.since(earliest)),
            min_if_cut_off: began.since(self.latest_if_cut_off),
            blind: self.blind,
        }
    }
}

/// Decides how and when a leader's term ended, from the two instants between which its key was
/// deleted.
fn end_of(leader: &Tracked, since: Moment, now: Moment) -> Ended {
    let ended = |end, earliest, latest, latest_if_cut_off| Ended {
        end,
        earliest,
        latest,
        latest_if_cut_off,
        seen_at: now,
        blind: Duration::ZERO,
    };
    match leader.lease {
        Some((_, until)) if now < until => ended(TermEnd::Resigned, Some(since), now, now),
        // The key was seen after its lease could have expired, so the lease was renewed since the
        // last read, and the observer was disconnected.
        Some((ttl, until)) if since < now => ended(TermEnd::Unseen, Some((until - ttl).min(since)), now, now),
        Some((ttl, until)) => {
            // The lease expired at `now`, a TTL after its last renewal. The next renewal was due a
            // third of the TTL after that.
            let (last_at_earliest, last_at_latest) = (until - ttl, now - ttl);
            let stopped = (last_at_latest + ttl / 3).max(last_at_earliest);
            ended(TermEnd::Lapsed, Some(last_at_earliest), stopped, now - Timing::margin_of(ttl))
        }
        None => ended(TermEnd::Unseen, None, now, now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::Revision;

    const TTL: Duration = Duration::from_secs(5);

    fn at(ms: u64) -> Moment {
        Moment::from_ms(100_000 + ms)
    }

    fn front(token: i64, waited: bool, leads: bool) -> Option<Front> {
        Some(Front { token: Token(Revision(token)), waited, leads })
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A leader with token 1. Its lease was read at 1,000 with this much left.
    fn led(remaining_ms: u64) -> Vacancy {
        let mut vacancy = Vacancy::default();
        assert_eq!(vacancy.handle_front(at(0), front(1, false, false)), LeaderView::Leader(None));
        vacancy.handle_lease(Token(Revision(1)), at(1_000), at(1_000), Some((TTL, ms(remaining_ms))));
        vacancy
    }

    fn gap(shown: LeaderView) -> Gap {
        match shown {
            LeaderView::Leader(Some(gap)) => gap,
            other => panic!("{other:?}"),
        }
    }

    /// `kill -9` right after a renewal, with a candidate that takes over at once.
    #[test]
    fn killed_leader_leaves_gap_of_about_the_ttl() {
        let mut vacancy = led(5_000);
        let gap = gap(vacancy.handle_front(at(6_000), front(2, true, true)));
        assert_eq!((gap.end, gap.max, gap.blind), (TermEnd::Lapsed, Some(ms(5_000)), ms(0)));
        assert_eq!((gap.min.as_millis(), gap.min_if_cut_off), (3_333, ms(500)));
    }

    #[test]
    fn resigned_leader_leaves_no_gap() {
        let mut vacancy = led(5_000);
        let gap = gap(vacancy.handle_front(at(2_000), front(2, true, true)));
        assert_eq!((gap.end, gap.min, gap.max), (TermEnd::Resigned, ms(0), Some(ms(0))));
    }

    #[test]
    fn unconfirmed_candidate_is_never_shown() {
        let mut vacancy = led(5_000);
        assert_eq!(vacancy.handle_front(at(6_000), front(2, true, false)), LeaderView::Unsettled);
        assert_eq!(vacancy.shown(at(7_000)), LeaderView::Leaderless);
        // Its lease was renewed before it was the first: its process may be gone too.
        let dead = vacancy.handle_lease(Token(Revision(2)), at(7_000), at(7_000), Some((TTL, ms(2_000))));
        assert_eq!(dead, LeaderView::Leaderless);
        let gap = gap(vacancy.handle_front(at(9_000), front(3, true, true)));
        assert_eq!((gap.end, gap.max), (TermEnd::Lapsed, Some(ms(8_000))));
        assert_eq!(gap.min.as_millis(), 6_333, "the one between did not lead");
    }

    #[test]
    fn renewed_candidate_is_confirmed_without_a_mark() {
        let mut vacancy = led(5_000);
        vacancy.handle_front(at(6_000), front(2, true, false));
        let shown = vacancy.handle_lease(Token(Revision(2)), at(6_600), at(6_600), Some((TTL, ms(4_900))));
        assert_eq!(gap(shown).max, Some(ms(5_600)));
    }

    #[test]
    fn blind_observer_reports_no_lower_bound() {
        let mut vacancy = led(5_000);
        vacancy.handle_break(at(2_000));
        let gap = gap(vacancy.handle_front(at(9_000), front(7, false, false)));
        assert_eq!((gap.end, gap.min, gap.max), (TermEnd::Unseen, ms(0), Some(ms(8_000))));
        assert_eq!(gap.blind, ms(7_000));
    }

    #[test]
    fn blind_time_inside_a_gap_widens_its_bounds() {
        let mut vacancy = led(5_000);
        assert_eq!(vacancy.handle_front(at(2_000), None), LeaderView::Leaderless);
        vacancy.handle_break(at(3_000));
        let gap = gap(vacancy.handle_front(at(9_000), front(7, false, false)));
        assert_eq!((gap.end, gap.min, gap.max), (TermEnd::Resigned, ms(1_000), Some(ms(7_000))));
        assert_eq!(gap.blind, ms(6_000));
    }

    #[test]
    fn initial_gap_has_no_upper_bound() {
        let mut vacancy = Vacancy::default();
        assert_eq!(vacancy.handle_front(at(0), None), LeaderView::Leaderless);
        let gap = gap(vacancy.handle_front(at(700), front(1, false, false)));
        assert_eq!((gap.end, gap.min, gap.max), (TermEnd::Unseen, ms(700), None));
    }
}
