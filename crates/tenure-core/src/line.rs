//! Standing in line: the queue by create revision that locks and elections share.
//!
//! Whoever wants something puts a key of its own, its *place*, under the name's prefix. The place with the lowest create revision holds;
//! that revision is its token. Everybody else watches only the place before its own, so that whoever leaves wakes one and not all.
//! This machine is one name as one process stands in it, with any number of places.
//!
//! Intuition: who is before me can only become fewer. So any look at the line, however old, errs on the safe side: it may make me
//! wait a little longer, it never makes me hold too early. The only thing that must not be old is my own place, and every look reads it too.
//!
//! ```text
//!   stand          stands, somebody is before it          nobody is before it
//!  ───────► Entering ────────────────────────► Waiting ────────────────────────► Holding
//!               └──────────────── nobody is ─────────────────────────────────────►  │ leave
//!                                                                  Leaving ◄────────┘
//! ```
//!
//! The places of one process help each other: the request by which one leaves also reads what the next of ours has to know, and if that is the
//! first now it holds at once, without a watch and without a second look. Nobody can come between two places that were seen beside each
//! other, so a line that was seen once says for many hand-offs who is next, and of whoever is next only its own place has to be read.
//!
//! Between processes a holder may say in its place that it holds. Whoever stands behind it then knows that nobody can be before it when that
//! place is gone, and reads its own and not a line of a thousand.
//!
//! **Invariant**: a place is told to hold only after an answer that showed it in the store, at its token, with nobody before it; or with only
//! one before it that held, and that is gone.
//!
//! **Invariant**: a place that nobody wants any more is asked to leave until the store has said that it is gone, or its lease is over.
//!
//! **Invariant**: an enter whose reply was lost cannot be applied after its place was left. Every enter requires that the *enter guard* of this
//! driver and lease, a key outside the queue, is as the driver last saw it. Leaving a place with such an enter changes the guard in the same transaction. No
//! bound on the age of a request could do this: a paused member of etcd applies it whenever it continues.
//!
//! **Invariant**: the key of a place is used again only when every request that named it was answered for certain, so a request that arrives
//! late can only ever touch its own place.

mod barrier;
mod index;
mod standing;
mod steps;
mod words;

use std::collections::{BTreeMap, VecDeque};

use crate::layout::{Place, Rank};
use crate::lease::LeaseId;
use crate::revision::{Epoch, Revision, Token};
use crate::sabotage::{Rule, is_broken};
use crate::time::Moment;

use index::Index;
use standing::{Look, Next, Stage, Standing};

pub use barrier::Round;
pub use words::{
    Action, Asks, Before, EnterGuard, Entered, Left, Looked, LossReason, Mode, Notice, RollCall, Then,
};

/// How many keys a line uses again. Whoever enters looks past those of ours that were before its own, but has to look at those after it, and a
/// store walks over every key that was ever there until its history is compacted.
const USED_AGAIN_MAX: u64 = 8;

/// One wish to hold, from `stand` to the notice that it is over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(u64);

/// One name, as one process stands in it.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// In boxes: a map makes room for eleven at once, and most lines have one.
    tickets: BTreeMap<Ticket, Box<Standing>>,
    /// Which ticket a place belongs to.
    places: BTreeMap<Place, Ticket>,
    index: Index,
    counter: u64,
    /// Of the newest place.
    nonce: u64,
    /// A place with this nonce or a smaller one may still be touched by a request that was taken for lost.
    nonce_floor: u64,
    /// The enter guard of each lease, as far as it is known to exist.
    guards: BTreeMap<LeaseId, EnterGuard>,
    /// The newest snapshot of the queue. Kept because it can arrive before the reply to the enter that it shows.
    picture: BTreeMap<Token, Mode>,
    actions: VecDeque<Action>,
    notices: VecDeque<Notice>,
}

impl Line {
    /// A line in which nobody of ours stands. `nonce` is a throw of the dice: it tells our places from those of whoever else uses our lease.
    pub fn new(nonce: u64) -> Line {
        Line { nonce, nonce_floor: nonce, ..Line::default() }
    }

    /// A line in which nobody of ours stands any more is another one from now on, whose tickets and epochs are counted on from `counter`. What memory
    /// it has it keeps.
    ///
    /// A request of a former line with its name may still be answered. Were both counted from the same number, its answer would be taken for one to
    /// this line, and somebody would hold with the token of a place that is gone.
    ///
    /// `guards` are the enter guards that other queues of this process have seen. Without them the first enter would be refused as stale.
    pub fn begin(&mut self, nonce: u64, counter: u64, guards: &BTreeMap<LeaseId, EnterGuard>) {
        assert!(self.is_empty() && self.actions.is_empty() && self.notices.is_empty(), "nobody stands here");
        (self.nonce, self.nonce_floor, self.counter) = (nonce, nonce, counter);
        self.picture.clear();
        self.guards.clone_from(guards);
    }

    /// The enter guards that this queue has seen.
    pub fn guards(&self) -> &BTreeMap<LeaseId, EnterGuard> {
        &self.guards
    }

    /// The number of its newest ticket or epoch.
    pub fn counter(&self) -> u64 {
        self.counter
    }

    /// Wants to hold, with a place under this lease.
    pub fn stand(&mut self, lease: LeaseId, mode: Mode) -> Ticket {
        self.stand_ranked(lease, mode, Rank::Ordinary)
    }

    /// The same with a place whose key tells its rank. Who is before whom is the same for all ranks.
    pub fn stand_ranked(&mut self, lease: LeaseId, mode: Mode, rank: Rank) -> Ticket {
        let ticket = Ticket(self.count());
        let place = self.new_place(lease, rank);
        let epoch = Epoch(self.count());
        let guard = self.guard(lease);
        let standing = Standing::new(place, mode, Stage::Entering { epoch, guard });
        self.tickets.insert(ticket, Box::new(standing));
        self.places.insert(place, ticket);
        let (asks, may_be_there) = (self.asks(mode, false), false);
        self.actions.push_back(Action::Enter { ticket, epoch, place, mode, asks, may_be_there, guard });
        ticket
    }

    /// Does not want to hold or to wait any more. [`Notice::Left`] tells when the place is gone.
    pub fn leave(&mut self, ticket: Ticket, now: Moment) {
        let Some(standing) = self.tickets.get_mut(&ticket) else { return };
        standing.is_wanted = false;
        match standing.stage {
            // The answer to what was asked decides what has to be undone.
            Stage::Entering { .. } | Stage::Leaving { .. } => {}
            Stage::Resting { .. } if standing.may_be_there() => self.ask_to_leave(ticket, None),
            Stage::Resting { .. } => self.end(ticket),
            Stage::Waiting { token, .. } | Stage::Holding { token, .. } => {
                self.ask_to_leave(ticket, Some(token));
            }
        }
        self.look(now);
    }

    /// The answer to [`Action::Enter`].
    pub fn handle_entered(
        &mut self,
        ticket: Ticket,
        epoch: Epoch,
        answer: Entered,
        jitter: f64,
        now: Moment,
    ) {
        let Some(standing) = self.tickets.get_mut(&ticket) else { return };
        let Stage::Entering { epoch: asked, guard } = standing.stage else { return };
        if asked != epoch {
            return;
        }
        if matches!(answer, Entered::Unknown) && !is_broken(Rule::UnknownMayBeThere) {
            // Guards only grow, so the newest that was sent stands for all earlier enters of this place.
            standing.unsettled = standing.unsettled.max(Some(guard));
            self.nonce_floor = self.nonce;
        }
        let (is_wanted, may_be_there) = (standing.is_wanted, standing.may_be_there());
        match answer {
            Entered::Stands { token, .. } | Entered::Joined { token } if !is_wanted => {
                self.ask_to_leave(ticket, Some(token));
            }
            Entered::Stands { token, before: None } => self.hold(ticket, token),
            Entered::Stands { token, before } => {
                standing.went_well();
                let is_exclusive = standing.mode == Mode::Exclusive;
                self.change(ticket, Stage::Waiting { token, before, look: Look::Idle });
                if is_exclusive {
                    self.notices.push_back(Notice::Waits { ticket });
                } else {
                    // A predecessor alone decides nothing for a mode that several hold: only the modes of all predecessors do.
                    self.admit();
                }
                // One of ours that has left since the store answered: no watch has to tell us.
                if let Some(before) = before
                    && self.lease_of(ticket) == Some(before.lease)
                    && !self.places.contains_key(&before)
                {
                    self.wake(ticket, now);
                }
            }
            // Whoever of ours was before it then has left since, or passes on.
            Entered::Joined { token } => {
                debug_assert!(standing.mode == Mode::Exclusive, "shareable modes read their predecessors");
                standing.went_well();
                self.change(ticket, Stage::Waiting { token, before: None, look: Look::Idle });
                self.notices.push_back(Notice::Waits { ticket });
            }
            Entered::LeaseGone => self.lose(ticket, LossReason::Lease),
            Entered::Refused(why) => {
                let (place, unsettled) = (standing.place, standing.unsettled);
                self.abandon(ticket);
                self.settle_place(place, unsettled, now);
                self.notices.push_back(Notice::Refused { ticket, why });
            }
            Entered::Stale { guard } => {
                let lease = standing.place.lease;
                self.see_guard(lease, guard);
                match (is_wanted, may_be_there) {
                    (true, _) => self.ask_to_enter(ticket),
                    (false, true) => self.ask_to_leave(ticket, None),
                    (false, false) => self.end(ticket),
                }
            }
            Entered::NotDone | Entered::Unknown if is_wanted => {
                let until = standing.rest(jitter, now);
                self.change(ticket, Stage::Resting { until });
            }
            Entered::NotDone | Entered::Unknown if may_be_there => self.ask_to_leave(ticket, None),
            Entered::NotDone | Entered::Unknown => self.end(ticket),
        }
        self.look(now);
    }

    /// The answer to [`Action::Look`].
    pub fn handle_looked(&mut self, ticket: Ticket, epoch: Epoch, answer: Looked, jitter: f64, now: Moment) {
        let Some(standing) = self.tickets.get_mut(&ticket) else { return };
        let mut stage = standing.stage;
        let (Stage::Waiting { look, .. } | Stage::Holding { look, .. }) = &mut stage else { return };
        let Look::Asked { epoch: asked, again } = *look else { return };
        if asked != epoch {
            return;
        }
        *look = match answer {
            Looked::NotDone => Look::NeededAt(standing.rest(jitter, now)),
            Looked::Stands { .. } | Looked::Missing => {
                standing.went_well();
                if again { Look::NeededAt(now) } else { Look::Idle }
            }
        };
        match (answer, &mut stage) {
            (Looked::Missing, Stage::Waiting { token, .. }) if is_broken(Rule::OwnPlace) => {
                self.hold(ticket, *token);
            }
            (Looked::Missing, _) => self.vanish(ticket, now),
            (Looked::Stands { before: None }, Stage::Waiting { token, .. }) => self.hold(ticket, *token),
            (Looked::Stands { before: seen }, Stage::Waiting { before, .. }) => {
                *before = seen;
                self.change(ticket, stage);
            }
            (Looked::Stands { .. } | Looked::NotDone, _) => self.change(ticket, stage),
        }
        self.look(now);
    }

    /// The answer to [`Action::Leave`].
    pub fn handle_left(&mut self, ticket: Ticket, epoch: Epoch, answer: Left, jitter: f64, now: Moment) {
        let Some(standing) = self.tickets.get_mut(&ticket) else { return };
        let Stage::Leaving { token, next: Next::Asked { epoch: asked } } = standing.stage else { return };
        if asked != epoch {
            return;
        }
        match answer {
            Left::NotDone | Left::Unknown => {
                if matches!(answer, Left::Unknown) {
                    standing.may_have_left = true;
                    self.nonce_floor = self.nonce;
                }
                let next = Next::At(standing.rest(jitter, now));
                self.change(ticket, Stage::Leaving { token, next });
            }
            Left::Gone { was_there, first, guard } => {
                let place = standing.place;
                let is_news = !std::mem::replace(&mut standing.was_told, true);
                // A place that an earlier request of ours may have taken away was there as far as anybody can say.
                let was_there = was_there || standing.may_have_left;
                // The same transaction has changed the guard if an enter was unsettled: the place cannot come back.
                self.forget(ticket);
                if let Some(guard) = guard {
                    self.see_guard(place.lease, guard);
                }
                if is_news {
                    self.notices.push_back(Notice::Left { ticket, was_there });
                }
                self.pass_on((place, token), &first);
            }
        }
        self.look(now);
    }

    /// A place that [`Line::place_before`] named is watched from now on: whatever happened to it before that has to be looked at.
    pub fn handle_watched(&mut self, place: Place, now: Moment) {
        let behind = self.first_behind(place);
        for ticket in self.places.get(&place).copied().into_iter().chain(behind) {
            self.wake(ticket, now);
        }
        self.look(now);
    }

    /// A place is gone from the store since this revision.
    pub fn handle_gone(&mut self, place: Place, revision: Revision, now: Moment) {
        let behind = self.first_behind(place);
        // A request that was repeated may have put the place again since.
        let token = |ticket| self.tickets.get(ticket).and_then(|standing| standing.token());
        if let Some(&ticket) = self.places.get(&place)
            && token(&ticket).is_none_or(|token| token.0 <= revision)
        {
            self.vanish(ticket, now);
        }
        if let Some(ticket) = behind {
            self.wake(ticket, now);
        }
        self.look(now);
    }

    /// A place that stands since `token` was seen to say, at `revision`, that it holds.
    ///
    /// That concerns our first place behind it, if it said so when that one stood there already: the key of a place is used again, and what was
    /// said in an earlier turn says nothing of this one.
    pub fn handle_holder(&mut self, place: Place, token: Token, revision: Revision) {
        let Some(standing) = self.first_behind(place).and_then(|ticket| self.tickets.get_mut(&ticket)) else {
            return;
        };
        if standing.token().is_some_and(|own| token < own && own.0 < revision) {
            standing.holder = Some(place);
        }
    }

    /// Whether one of ours is known to be the next behind a place of ours: it is passed on to, and need not be told anything.
    pub fn is_followed_by_ours(&self, place: Place) -> bool {
        self.places.contains_key(&place) && self.first_behind(place).is_some()
    }

    /// A snapshot of the whole queue, with the mode of each key. Decides for the shareable modes (shared and permit).
    pub fn handle_picture(&mut self, picture: BTreeMap<Token, Mode>, now: Moment) {
        self.picture = picture;
        self.admit();
        self.look(now);
    }

    /// A lease is over, and every place under it with it.
    pub fn handle_lease_lost(&mut self, lease: LeaseId, now: Moment) {
        let under = Place { lease, nonce: 0 }..=Place { lease, nonce: u64::MAX };
        let lost: Vec<Ticket> = self.places.range(under).map(|(_, &ticket)| ticket).collect();
        for ticket in lost {
            let token = self.tickets.get(&ticket).and_then(|standing| standing.token());
            self.lose(ticket, LossReason::Lease);
            self.wake_behind(token, now);
        }
        self.guards.remove(&lease);
        self.look(now);
    }

    /// Time has passed.
    pub fn handle_time(&mut self, now: Moment) {
        while let Some(&(at, ticket)) = self.index.due.first()
            && at <= now
        {
            let Some(standing) = self.tickets.get(&ticket) else { return };
            match standing.stage {
                Stage::Resting { .. } => self.ask_to_enter(ticket),
                Stage::Leaving { token, .. } => self.ask_to_leave(ticket, token),
                Stage::Entering { .. } | Stage::Waiting { .. } | Stage::Holding { .. } => {
                    unreachable!("nothing is due for a place that is asked for or stands")
                }
            }
        }
        self.look(now);
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing to tell.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// When to call [`Line::handle_time`] if nothing else happens.
    pub fn next_wake(&self) -> Option<Moment> {
        let looks = self.index.looks.iter().filter(|ticket| self.may_look(**ticket));
        let looks = looks.filter_map(|ticket| self.tickets.get(ticket)?.look_at());
        self.index.due.first().map(|(at, _)| *at).into_iter().chain(looks).min()
    }

    /// Our places that have to be watched, from their tokens on.
    pub fn own_places(&self) -> impl Iterator<Item = (Place, Option<Token>)> + Clone {
        let first = self.index.queue.values().next();
        let tickets = self.index.holding.iter().chain(first);
        let standings = tickets.filter_map(|ticket| self.tickets.get(ticket));
        standings.map(|standing| (standing.place, standing.token()))
    }

    /// The place before our first one that waits, which has to be watched unless it is ours too.
    pub fn place_before(&self) -> Option<Place> {
        let first = self.index.queue.values().next().and_then(|ticket| self.tickets.get(ticket))?;
        first.before().filter(|&before| !self.will_pass_on(before, first.token()))
    }

    /// Whether everything has to be watched: somebody of ours waits who can hold beside others.
    pub fn is_crowded(&self) -> bool {
        !self.index.crowd.is_empty()
    }

    /// Whether nobody of ours stands here.
    pub fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    /// From which nonce whoever stands here next, with another machine, counts on.
    pub fn nonce_floor(&self) -> u64 {
        if self.nonce - self.nonce_floor > USED_AGAIN_MAX { self.nonce } else { self.nonce_floor }
    }

    /// Whose place this is; none if it is not ours.
    pub fn ticket(&self, place: Place) -> Option<Ticket> {
        self.places.get(&place).copied()
    }

    /// The place of a ticket, and its token if it stands there.
    pub fn place(&self, ticket: Ticket) -> Option<(Place, Option<Token>)> {
        self.tickets.get(&ticket).map(|standing| (standing.place, standing.token()))
    }
}

#[cfg(test)]
mod tests;
