//! One line as a desk sees it: its machine, and whoever of this process stands in it.

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_core::layout::Place;
use tenure_core::line::{EnterGuard, Left, Line, LossReason, Notice, Ticket};
use tenure_core::record::{CandidateRecord, WallTime};
use tenure_core::revision::Token;
use tenure_core::time::Moment;

use super::acquired::{Due, RECORD_AFTER, Unrecorded};
use super::ask::{self, Answer, Others, Regard};
use super::lines::Slot;
use super::outbox::{Outbox, Wish};
use super::own::Own;
use super::watches::{Seen, Watches};
use super::{SeatEnd, SeatState};
use crate::clock::wall_time;
use crate::dice;
use crate::news;
use crate::session::{Loan, LoanEnd};
use crate::store::{KeyValue, LeaseId};

/// One line, and who stands in it.
#[derive(Default)]
pub(super) struct Lined {
    /// Under which prefix its places are; none if it was left.
    name: Option<Bytes>,
    pub(super) machine: Line,
    /// In boxes, as the places of a line are.
    pub(super) sitters: BTreeMap<Ticket, Box<Sitter>>,
    own: Own,
    unrecorded: Unrecorded,
    /// The place of somebody else that is watched.
    before: Option<Place>,
    /// Whether everything is watched.
    is_crowded: bool,
    /// When it looks at the clock; never later than it wants to. Belongs to the slot, and stays when the line is left.
    pub(super) wake: Option<Moment>,
    /// Whether it is among those that have something to say.
    pub(super) is_noted: bool,
}

pub(super) struct Sitter {
    state: news::Sender<SeatState>,
    pub(super) value: Bytes,
    loan: Loan,
    /// The preferred of the line when the place was seen to be its first.
    others: Others,
    /// The last that somebody has put in its place; kept while it waits, for what is asked of it then counts when it holds.
    touched: Option<KeyValue>,
}

/// What those who stand in line are told, once nothing is locked: whoever is woken wants the same lock at once.
#[derive(Default)]
pub(super) struct Words(Vec<Word>);

enum Word {
    Changed(news::Bell<SeatState>),
    /// It hears of it when its sender goes.
    Ended(Box<Sitter>),
}

impl Words {
    /// Wakes everybody who was told something.
    pub(super) fn say(&mut self) {
        for word in self.0.drain(..) {
            match word {
                Word::Changed(bell) => bell.ring(),
                Word::Ended(sitter) => drop(sitter),
            }
        }
    }
}

impl Lined {
    /// Nobody stands here, and whoever comes next counts from there: the line is another one from now on.
    pub(super) fn begin(
        &mut self,
        name: Bytes,
        (nonce, counter): (u64, u64),
        guards: &BTreeMap<LeaseId, EnterGuard>,
    ) {
        assert!(self.name.is_none() && self.sitters.is_empty(), "a line is left when nobody stands in it");
        self.machine.begin(nonce, counter, guards);
        self.name = Some(name);
        self.is_noted = false;
    }

    /// The line was left; gives its name.
    pub(super) fn end(&mut self) -> Option<Bytes> {
        self.name.take()
    }

    pub(super) fn is_entered(&self) -> bool {
        self.name.is_some()
    }

    /// The prefix under which its places are.
    fn name(&self) -> Bytes {
        self.name.clone().unwrap_or_default()
    }

    /// Watches what is wanted now, instead of what was wanted before.
    pub(super) fn watch(&mut self, watches: &mut Watches, now: Moment) {
        let Lined { name: Some(name), machine, own, before, is_crowded, .. } = self else { return };
        for place in own.want(machine.own_places(), now) {
            watches.end_own(name, place);
        }
        while let Some((place, token)) = own.next_due(now) {
            watches.begin_own(name, place, token);
        }
        let wanted = machine.place_before();
        if *before != wanted {
            *before = wanted;
            watches.change_before(name, wanted);
        }
        let wanted = machine.is_crowded();
        if *is_crowded != wanted {
            *is_crowded = wanted;
            watches.change_crowd(name, wanted);
        }
    }

    /// Whether the watch of an own place may have begun, or is about to.
    pub(super) fn may_be_watched(&self, now: Moment) -> bool {
        self.own.may_be_watched(now)
    }

    /// When it wants to look at the clock.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        [self.machine.next_wake(), self.own.next_wake(), self.unrecorded.next_wake()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether it looks at the clock by then anyway.
    pub(super) fn is_woken_by(&self, wake: Moment) -> bool {
        self.wake.is_some_and(|at| at <= wake)
    }

    pub(super) fn answer(&mut self, answer: Answer, now: Moment) {
        let jitter = if answer.is_failure() { dice::throw() } else { 0.0 };
        match answer {
            Answer::Entered(ticket, epoch, answer, others) => {
                self.note(ticket, others);
                self.machine.handle_entered(ticket, epoch, answer, jitter, now);
            }
            Answer::Looked(ticket, epoch, answer, others) => {
                self.note(ticket, others);
                self.machine.handle_looked(ticket, epoch, answer, jitter, now);
            }
            Answer::Left(ticket, epoch, answer, others) => {
                // Whoever is the first now was shown the line at the same revision.
                if let Left::Gone { first, .. } = &answer
                    && let Some(next) = first.first().and_then(|(place, _)| self.machine.ticket(*place))
                {
                    self.note(next, others);
                }
                self.machine.handle_left(ticket, epoch, answer, jitter, now);
            }
            Answer::Recorded(ticket, recorded) => self.unrecorded.handle(ticket, recorded, now),
        }
    }

    /// Something was seen of it.
    pub(super) fn see(&mut self, seen: Seen, regard: Regard, now: Moment) {
        match seen {
            Seen::Watched(place) => self.machine.handle_watched(place, now),
            Seen::Gone(place, revision) => self.machine.handle_gone(place, revision, now),
            Seen::Put(place, pair) => {
                if regard == Regard::Preferred && CandidateRecord::leads_by(&pair.value) {
                    self.machine.handle_holder(place, Token(pair.created), pair.modified);
                }
                self.touch(place, pair);
            }
            Seen::Picture(picture) => self.machine.handle_picture(picture, now),
        }
    }

    /// One of this process leaves the queue.
    pub(super) fn leave(&mut self, ticket: Ticket, now: Moment) {
        self.unrecorded.remove(ticket);
        self.machine.leave(ticket, now);
    }

    /// Writes into the queue key of a holder when its hold began, at `due` if it lasts that long.
    pub(super) fn record_acquired(&mut self, ticket: Ticket, now: Moment, due: Moment) {
        if self.sitters.contains_key(&ticket) {
            self.unrecorded.add(ticket, now, due);
        }
    }

    /// A hold whose beginning is to be written now.
    pub(super) fn next_unrecorded(&mut self, slot: Slot, now: Moment) -> Option<Due> {
        while let Some((ticket, began)) = self.unrecorded.next_due(now) {
            let Some((place, Some(token))) = self.machine.place(ticket) else {
                self.unrecorded.remove(ticket);
                continue;
            };
            let value = self.sitters.get(&ticket)?.value.clone();
            let lasted_ms = u64::try_from(now.since(began).as_millis()).unwrap_or(u64::MAX);
            let acquired = WallTime(wall_time().0.saturating_sub(lasted_ms));
            return Some(Due { slot, ticket, key: ask::key(&self.name(), place), token, value, acquired });
        }
        None
    }

    /// Takes the notices of the line and its wishes.
    pub(super) fn say(
        &mut self,
        slot: Slot,
        (regard, now): (Regard, Moment),
        outbox: &mut Outbox,
        words: &mut Words,
    ) {
        while let Some(notice) = self.machine.poll_notice() {
            // The first candidate of an election may still yield to a higher priority: a campaign decides when its term begins.
            if let (Notice::Held { ticket, .. }, Regard::Before) = (&notice, regard) {
                self.record_acquired(*ticket, now, now + RECORD_AFTER);
            }
            words.0.extend(self.tell(notice));
        }
        while let Some(action) = self.machine.poll_action() {
            outbox.push(Wish { slot, line: self.name(), action });
        }
    }

    fn tell(&mut self, notice: Notice) -> Option<Word> {
        let (ticket, state) = match notice {
            Notice::Waits { ticket } => (ticket, SeatState::Waits),
            Notice::Held { ticket, token } => {
                let (place, _) = self.machine.place(ticket)?;
                let sitter = self.sitters.get_mut(&ticket)?;
                let touched = sitter.touched.take().filter(|pair| pair.created == token.0);
                let others = sitter.others.take();
                (ticket, SeatState::Holds { place, token, others, touched })
            }
            Notice::Lost { ticket, why } => {
                let sitter = self.sitters.get(&ticket)?;
                let ended = sitter.loan.end();
                if why == LossReason::Lease && ended.is_none() {
                    // The store said so to us first.
                    sitter.loan.report_gone();
                }
                (ticket, SeatState::Over(SeatEnd::of(why, ended)))
            }
            Notice::PermitsDiffer { ticket, requested, in_use } => {
                (ticket, SeatState::Over(SeatEnd::PermitsDiffer { requested, in_use }))
            }
            Notice::Refused { ticket, why } => (ticket, SeatState::Over(SeatEnd::Refused(why))),
            Notice::Left { ticket, was_there } => (ticket, SeatState::Over(SeatEnd::Left { was_there })),
        };
        if let SeatState::Over(end) = &state {
            self.unrecorded.remove(ticket);
            let sitter = self.sitters.remove(&ticket)?;
            if matches!(end, SeatEnd::Lease(LoanEnd::Closed)) && sitter.state.is_holding() {
                // Its guard may be alive: `close` of the session names it then.
                sitter.loan.report_unreleased(named(&self.name()), sitter.state.liveness());
            }
            sitter.state.change_quietly(state);
            Some(Word::Ended(sitter))
        } else {
            Some(Word::Changed(self.sitters.get(&ticket)?.state.change_quietly(state)))
        }
    }

    fn note(&mut self, ticket: Ticket, others: Others) {
        if let Some(sitter) = self.sitters.get_mut(&ticket) {
            sitter.others = others;
        }
    }

    /// Somebody put something in a place of ours; its holder may want to know.
    fn touch(&mut self, place: Place, pair: KeyValue) {
        let ticket = self.machine.ticket(place);
        let Some(sitter) = ticket.and_then(|ticket| self.sitters.get_mut(&ticket)) else { return };
        let Sitter { state, touched: kept, .. } = &mut **sitter;
        state.send_if_modified(|state| match state {
            SeatState::Holds { token, touched, .. } => {
                // What is read anew after a break may be older than what was seen.
                let is_news = touched.as_ref().is_none_or(|seen| seen.modified < pair.modified);
                let is_ours = token.0 == pair.created;
                if is_ours && is_news {
                    *touched = Some(pair);
                }
                is_ours && is_news
            }
            SeatState::Entering | SeatState::Waits => {
                *kept = Some(pair);
                false
            }
            SeatState::Over(_) => false,
        });
    }
}

/// `lock 'deploy'` or `election 'boss'`, from the prefix of a queue: `/<namespace>/<kind>/<name>/`.
fn named(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut parts = text.trim_end_matches('/').rsplit('/');
    let (name, kind) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let name = name.replace("%2F", "/").replace("%25", "%");
    format!("{} '{name}'", kind.trim_end_matches('s'))
}

impl news::Sender<SeatState> {
    fn is_holding(&self) -> bool {
        let mut is = false;
        self.send_if_modified(|state| {
            is = matches!(state, SeatState::Holds { .. });
            false
        });
        is
    }
}

impl Sitter {
    pub(super) fn new(state: news::Sender<SeatState>, value: Bytes, loan: Loan) -> Sitter {
        Sitter { state, value, loan, others: None, touched: None }
    }

    /// The lease that its place is under.
    pub(super) fn lease(&self) -> LeaseId {
        self.loan.lease()
    }
}
