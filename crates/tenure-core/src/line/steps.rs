//! The steps that a line takes for what it was told: asking, holding, passing on, vanishing.

use crate::layout::Place;
use crate::lease::LeaseId;
use crate::revision::{Epoch, Token};
use crate::time::Moment;

use super::standing::{Look, Next, Stage, Standing};
use super::{Action, Line, LossReason, Notice, Ticket};

impl Line {
    pub(super) fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    pub(super) fn new_place(&mut self, lease: LeaseId) -> Place {
        self.nonce = self.nonce.wrapping_add(1);
        Place { lease, nonce: self.nonce }
    }

    pub(super) fn lease_of(&self, ticket: Ticket) -> Option<LeaseId> {
        self.tickets.get(&ticket).map(|standing| standing.place.lease)
    }

    pub(super) fn ask_to_enter(&mut self, ticket: Ticket) {
        let epoch = Epoch(self.count());
        self.change(ticket, Stage::Entering { epoch });
        if let Some(standing) = self.tickets.get(&ticket) {
            let Standing { place, mode, .. } = *standing;
            self.actions.push_back(Action::Enter { ticket, epoch, place, mode });
        }
    }

    pub(super) fn ask_to_leave(&mut self, ticket: Ticket, token: Option<Token>, now: Moment) {
        let epoch = Epoch(self.count());
        self.change(ticket, Stage::Leaving { token, next: Next::Asked { epoch, at: now } });
        if let Some(standing) = self.tickets.get(&ticket) {
            self.actions.push_back(Action::Leave { ticket, epoch, place: standing.place });
        }
    }

    pub(super) fn hold(&mut self, ticket: Ticket, token: Token) {
        self.change(ticket, Stage::Holding { token, look: Look::Idle });
        self.notices.push_back(Notice::Held { ticket, token });
    }

    /// A place of ours is not in the store any more although nobody asked it to leave.
    pub(super) fn vanish(&mut self, ticket: Ticket, now: Moment) {
        let Some(standing) = self.tickets.get_mut(&ticket) else { return };
        let (place, token) = (standing.place, standing.token());
        let haunted_until = standing.haunted_until.filter(|&until| now < until);
        match standing.stage {
            Stage::Holding { .. } => self.lose(ticket, LossReason::Deleted),
            // It held nothing, so nothing is lost but its turn; if its lease is gone, the store will say so.
            Stage::Waiting { .. } => self.move_to_new_place(ticket),
            // What was asked for is answered, and the answer decides.
            Stage::Entering { .. }
            | Stage::Resting { .. }
            | Stage::Leaving { .. }
            | Stage::Haunting { .. } => {
                return;
            }
        }
        if let Some(until) = haunted_until {
            self.haunt(place, until);
        }
        self.wake_behind(token, now);
    }

    pub(super) fn move_to_new_place(&mut self, ticket: Ticket) {
        let Some(left) = self.tickets.get(&ticket).map(|standing| standing.place) else { return };
        let place = self.new_place(left.lease);
        self.places.remove(&left);
        self.places.insert(place, ticket);
        if let Some(standing) = self.tickets.get_mut(&ticket) {
            standing.place = place;
            standing.haunted_until = None;
        }
        self.ask_to_enter(ticket);
    }

    /// Looks after a place that was given up, for as long as a request that was taken for lost may put it again.
    pub(super) fn haunt(&mut self, place: Place, until: Moment) {
        let ticket = Ticket(self.count());
        let ghost = Standing::ghost(place, until);
        self.index.insert(ticket, &ghost);
        self.tickets.insert(ticket, ghost);
        self.places.insert(place, ticket);
    }

    /// The end of a place that held or waited, told as a loss; of one that was on its way out, told as that.
    pub(super) fn lose(&mut self, ticket: Ticket, why: LossReason) {
        let Some(standing) = self.tickets.get(&ticket) else { return };
        let notice = if standing.is_wanted {
            Some(Notice::Lost { ticket, why })
        } else {
            (!standing.was_told).then_some(Notice::Left { ticket, was_there: false })
        };
        self.forget(ticket);
        self.notices.extend(notice);
    }

    /// A ticket that never had a place.
    pub(super) fn end(&mut self, ticket: Ticket) {
        self.forget(ticket);
        self.notices.push_back(Notice::Left { ticket, was_there: false });
    }

    pub(super) fn forget(&mut self, ticket: Ticket) {
        if let Some(standing) = self.tickets.remove(&ticket) {
            self.index.remove(ticket, &standing);
            self.places.remove(&standing.place);
        }
    }

    /// One of ours has left. If the first of the line is ours too, it holds, or will pass on in its turn; else whoever stood behind looks.
    pub(super) fn pass_on(&mut self, left: Option<Token>, head: Option<(Place, Token)>, now: Moment) {
        let ours = head.and_then(|(place, token)| Some((*self.places.get(&place)?, token)));
        let Some((ticket, token)) = ours else { return self.wake_behind(left, now) };
        let Some(standing) = self.tickets.get(&ticket) else { return };
        match standing.stage {
            Stage::Waiting { .. } => self.hold(ticket, token),
            // Its own answer is still on its way, and says nothing that is not known now. If it was asked for twice, one of the requests
            // may be carried out after the place was left, and only the answer tells.
            Stage::Entering { .. } if standing.is_wanted && standing.haunted_until.is_none() => {
                self.hold(ticket, token);
            }
            Stage::Entering { .. }
            | Stage::Resting { .. }
            | Stage::Holding { .. }
            | Stage::Leaving { .. }
            | Stage::Haunting { .. } => {}
        }
    }

    /// Whether a place is one of ours that stands before this token: then whoever is behind it hears of its end without a watch.
    pub(super) fn will_pass_on(&self, place: Place, token: Option<Token>) -> bool {
        let ours = self.places.get(&place).and_then(|ticket| self.tickets.get(ticket));
        ours.and_then(Standing::token).is_some_and(|before| Some(before) < token)
    }

    /// Our first place that waits, if this is the place before it.
    pub(super) fn first_behind(&self, before: Place) -> Option<Ticket> {
        let &ticket = self.index.queue.values().next()?;
        let standing = self.tickets.get(&ticket)?;
        (standing.before() == Some(before)).then_some(ticket)
    }

    /// The next of ours behind a place of ours that is gone has to look.
    pub(super) fn wake_behind(&mut self, token: Option<Token>, now: Moment) {
        let Some(token) = token else { return };
        if let Some((_, &ticket)) = self.index.queue.range(token..).next() {
            self.wake(ticket, now);
        }
    }

    pub(super) fn wake(&mut self, ticket: Ticket, now: Moment) {
        let Some(standing) = self.tickets.get(&ticket) else { return };
        self.change(ticket, standing.looking_again(now));
    }

    /// Whether a look would be of use: only the first that waits can be the next to hold, and who holds looks after its own place.
    pub(super) fn may_look(&self, ticket: Ticket) -> bool {
        self.index.holding.contains(&ticket) || self.index.queue.values().next() == Some(&ticket)
    }

    /// Asks for the looks that are due.
    pub(super) fn look(&mut self, now: Moment) {
        let due = |ticket: &&Ticket| {
            self.may_look(**ticket)
                && self.tickets.get(ticket).and_then(Standing::look_at).is_some_and(|at| at <= now)
        };
        let due: Vec<Ticket> = self.index.looks.iter().filter(due).copied().collect();
        for ticket in due {
            let epoch = Epoch(self.count());
            let Some(standing) = self.tickets.get(&ticket) else { continue };
            let (place, mut stage) = (standing.place, standing.stage);
            if let Stage::Waiting { token, look, .. } | Stage::Holding { token, look } = &mut stage {
                *look = Look::Asked { epoch, again: false };
                self.actions.push_back(Action::Look { ticket, epoch, place, token: *token });
            }
            self.change(ticket, stage);
        }
    }

    /// Moves a ticket on; the only way a stage changes.
    pub(super) fn change(&mut self, ticket: Ticket, stage: Stage) {
        let Some(standing) = self.tickets.get_mut(&ticket) else { return };
        self.index.remove(ticket, standing);
        standing.stage = stage;
        self.index.insert(ticket, standing);
    }
}
