//! One line as a desk sees it: its machine, and whoever of this process stands in it.

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_core::layout::Place;
use tenure_core::line::{Left, Line, LossReason, Notice, Ticket, Watching};
use tenure_core::time::Moment;

use super::ask::{Answer, Others};
use super::post::Post;
use super::watches::OWN_AFTER;
use super::{SeatEnd, SeatState};
use crate::dice;
use crate::news;
use crate::session::Loan;
use crate::store::KeyValue;

/// One line, and who stands in it.
#[derive(Default)]
pub(super) struct Lined {
    pub(super) machine: Line,
    /// In boxes, as the places of a line are.
    pub(super) sitters: BTreeMap<Ticket, Box<Sitter>>,
    pub(super) wake: Option<Moment>,
    pub(super) watching: Watching,
    /// Since when the same own places are to be watched.
    own_since: Moment,
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

impl Lined {
    /// Nobody stands here, and whoever comes next counts from there: the line may be another one from now on.
    pub(super) fn begin(&mut self, nonce: u64, counter: u64) {
        assert!(self.sitters.is_empty(), "a line is left when nobody of ours stands in it");
        self.machine.begin(nonce, counter);
        self.wake = None;
        self.watching = Watching::default();
        self.is_noted = false;
    }

    /// It has something to say.
    pub(super) fn note_in(&mut self, dirty: &mut Vec<Bytes>, line: &Bytes) {
        if !std::mem::replace(&mut self.is_noted, true) {
            dirty.push(line.clone());
        }
    }

    /// Notes what is watched from now on.
    pub(super) fn watch(&mut self, wanted: Watching, now: Moment) {
        if wanted.own != self.watching.own {
            self.own_since = now;
        }
        self.watching = wanted;
    }

    /// Whether the watch of an own place may have begun, or is about to.
    pub(super) fn may_be_watched(&self, now: Moment) -> bool {
        !self.watching.own.is_empty() && now.since(self.own_since) >= OWN_AFTER / 2
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
        }
    }

    /// Tells the notices of the line, and takes its wishes.
    pub(super) fn say(&mut self, line: &Bytes, post: &mut Post) {
        while let Some(notice) = self.machine.poll_notice() {
            self.tell(notice);
        }
        while let Some(action) = self.machine.poll_action() {
            post.push(line.clone(), action);
        }
    }

    fn tell(&mut self, notice: Notice) {
        let (ticket, state) = match notice {
            Notice::Waits { ticket } => (ticket, SeatState::Waits),
            Notice::Held { ticket, token } => {
                let Some((place, _)) = self.machine.place(ticket) else { return };
                let Some(sitter) = self.sitters.get_mut(&ticket) else { return };
                let touched = sitter.touched.take().filter(|pair| pair.created == token.0);
                let others = sitter.others.take();
                (ticket, SeatState::Holds { place, token, others, touched })
            }
            Notice::Lost { ticket, why } => {
                let Some(sitter) = self.sitters.get(&ticket) else { return };
                let ended = sitter.loan.end();
                if why == LossReason::Lease && ended.is_none() {
                    // The store said so to us first.
                    sitter.loan.report_gone();
                }
                (ticket, SeatState::Over(SeatEnd::of(why, ended)))
            }
            Notice::Refused { ticket, why } => (ticket, SeatState::Over(SeatEnd::Refused(why))),
            Notice::Left { ticket, was_there } => (ticket, SeatState::Over(SeatEnd::Left { was_there })),
        };
        let is_over = matches!(state, SeatState::Over(_));
        if let Some(sitter) = self.sitters.get(&ticket) {
            sitter.state.send_replace(state);
        }
        if is_over {
            self.sitters.remove(&ticket);
        }
    }

    fn note(&mut self, ticket: Ticket, others: Others) {
        if let Some(sitter) = self.sitters.get_mut(&ticket) {
            sitter.others = others;
        }
    }

    /// Somebody put something in a place of ours; its holder may want to know.
    pub(super) fn touch(&mut self, place: Place, pair: KeyValue) {
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

impl Sitter {
    pub(super) fn new(state: news::Sender<SeatState>, value: Bytes, loan: Loan) -> Sitter {
        Sitter { state, value, loan, others: None, touched: None }
    }
}
