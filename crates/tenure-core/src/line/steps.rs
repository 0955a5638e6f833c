//! The steps that a line takes for what it was told: asking, holding, passing on, vanishing.

use crate::layout::{Place, Rank};
use crate::lease::LeaseId;
use crate::revision::{Epoch, Token};
use crate::sabotage::{Rule, is_broken};
use crate::time::Moment;

use super::standing::{Look, Next, Stage, Standing};
use super::{Action, Asks, EnterGuard, Line, LossReason, Mode, Notice, RollCall, Then, Ticket};

impl Line {
    pub(super) fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// A key for a place: in a line in which nobody of ours stands one that we had before, if no request for that can still be under way.
    pub(super) fn new_place(&mut self, lease: LeaseId, rank: Rank) -> Place {
        if self.tickets.is_empty() {
            self.nonce_floor = self.nonce_floor();
            self.nonce = self.nonce_floor;
        }
        self.nonce = self.nonce.wrapping_add(1);
        Place::ranked(lease, self.nonce, rank)
    }

    pub(super) fn lease_of(&self, ticket: Ticket) -> Option<LeaseId> {
        self.tickets.get(&ticket).map(|standing| standing.place.lease)
    }

    pub(super) fn ask_to_enter(&mut self, ticket: Ticket) {
        let epoch = Epoch(self.count());
        let Some(lease) = self.lease_of(ticket) else { return };
        let guard = self.guard(lease);
        self.change(ticket, Stage::Entering { epoch, guard });
        if let Some(standing) = self.tickets.get(&ticket) {
            let (place, mode, may_be_there) = (standing.place, standing.mode, standing.may_be_there());
            let asks = self.asks(mode, may_be_there);
            self.actions.push_back(Action::Enter { ticket, epoch, place, mode, asks, may_be_there, guard });
        }
    }

    /// Whom a place has to ask for that enters now and is one of our tickets already. Who can hold beside others must know who those are.
    pub(super) fn asks(&self, mode: Mode, may_be_there: bool) -> Asks {
        let has_company = !(self.index.queue.is_empty() && self.index.holding.is_empty());
        if mode == Mode::Exclusive && has_company {
            Asks::Nobody
        } else if self.tickets.len() == 1 && !may_be_there {
            // A ticket is forgotten only when its place is gone, so none of ours is there.
            Asks::Others
        } else {
            Asks::All
        }
    }

    pub(super) fn ask_to_leave(&mut self, ticket: Ticket, token: Option<Token>) {
        let epoch = Epoch(self.count());
        let then = self.then(ticket);
        self.change(ticket, Stage::Leaving { token, next: Next::Asked { epoch } });
        if let Some(standing) = self.tickets.get(&ticket) {
            let settles = standing.unsettled.filter(|_| !is_broken(Rule::SettledEnter));
            self.actions.push_back(Action::Leave { ticket, epoch, place: standing.place, then, settles });
        }
    }

    /// What others of ours have to know when a place leaves. Any answer is safe; too little costs whoever is next a look of its own.
    fn then(&self, ticket: Ticket) -> Then {
        let Some(standing) = self.tickets.get(&ticket).filter(|_| self.tickets.len() > 1) else {
            return Then::Nothing;
        };
        let is_first = match standing.stage {
            // Nobody is before a place that holds alone.
            Stage::Holding { .. } => standing.mode == Mode::Exclusive,
            // Whoever is behind it is behind somebody else then.
            Stage::Waiting { .. } => return Then::Nothing,
            Stage::Entering { .. } | Stage::Resting { .. } | Stage::Leaving { .. } => false,
        };
        let behind = standing.token().and_then(|token| self.index.queue.range(token..).next());
        let next = behind.and_then(|(token, next)| Some((*token, self.tickets.get(next)?)));
        match next {
            Some((token, next)) if next.before() == Some(standing.place) && is_first => {
                Then::Next(next.place, token)
            }
            // It watches that one.
            Some((_, next)) if next.before().is_some_and(|before| before != standing.place) => Then::Nothing,
            Some(_) | None => Then::Line,
        }
    }

    pub(super) fn hold(&mut self, ticket: Ticket, token: Token) {
        self.change(ticket, Stage::Holding { token, look: Look::Idle });
        self.notices.push_back(Notice::Held { ticket, token });
    }

    /// Decides for each shareable waiter that the snapshot shows: it holds, waits, or is refused because it counts permits differently.
    ///
    /// A snapshot that shows a waiter's key is at least as new as that key, so it shows every predecessor. Predecessors only become fewer.
    pub(super) fn admit(&mut self) {
        let mut roll_call = RollCall::default();
        let mut decided = Vec::new();
        for (token, mode) in &self.picture {
            let in_use = roll_call.permits();
            let holds = roll_call.holds(*mode);
            if let Some(&ticket) = self.index.crowd.get(token) {
                decided.push((ticket, *token, holds, in_use));
            }
        }
        for (ticket, token, holds, in_use) in decided {
            let Some(standing) = self.tickets.get_mut(&ticket) else { continue };
            match (standing.mode, in_use) {
                (Mode::Permit { of }, Some(in_use)) if of != in_use => {
                    (standing.is_wanted, standing.was_told) = (false, true);
                    self.notices.push_back(Notice::PermitsDiffer { ticket, requested: of, in_use });
                    self.ask_to_leave(ticket, Some(token));
                }
                _ if holds => self.hold(ticket, token),
                _ if !std::mem::replace(&mut standing.was_shown, true) => {
                    self.notices.push_back(Notice::Waits { ticket });
                }
                _ => {}
            }
        }
    }

    /// A place of ours is not in the store any more although nobody asked it to leave.
    pub(super) fn vanish(&mut self, ticket: Ticket, now: Moment) {
        let Some(standing) = self.tickets.get_mut(&ticket) else { return };
        let (place, token) = (standing.place, standing.token());
        let unsettled = standing.unsettled;
        match standing.stage {
            Stage::Holding { .. } => self.lose(ticket, LossReason::Deleted),
            // It held nothing, so nothing is lost but its turn; if its lease is gone, the store will say so.
            Stage::Waiting { .. } => self.move_to_new_place(ticket),
            // What was asked for is answered, and the answer decides.
            Stage::Entering { .. } | Stage::Resting { .. } | Stage::Leaving { .. } => return,
        }
        self.settle_place(place, unsettled, now);
        self.wake_behind(token, now);
    }

    pub(super) fn move_to_new_place(&mut self, ticket: Ticket) {
        let Some(left) = self.tickets.get(&ticket).map(|standing| standing.place) else { return };
        let place = self.new_place(left.lease, left.rank());
        self.nonce_floor = self.nonce;
        self.places.remove(&left);
        self.places.insert(place, ticket);
        if let Some(standing) = self.tickets.get_mut(&ticket) {
            standing.place = place;
            standing.unsettled = None;
            standing.holder = None;
        }
        self.ask_to_enter(ticket);
    }

    /// Makes sure that a lost enter of an abandoned place cannot be applied any more.
    pub(super) fn settle_place(&mut self, place: Place, unsettled: Option<EnterGuard>, now: Moment) {
        let Some(unsettled) = unsettled else { return };
        let ticket = Ticket(self.count());
        let ownerless = Standing::ownerless(place, unsettled, now);
        self.index.insert(ticket, &ownerless);
        self.tickets.insert(ticket, Box::new(ownerless));
        self.places.insert(place, ticket);
        self.ask_to_leave(ticket, None);
    }

    /// The enter guard of a lease, as it was last seen.
    pub(super) fn guard(&self, lease: LeaseId) -> EnterGuard {
        self.guards.get(&lease).copied().unwrap_or_default()
    }

    /// The store has shown the enter guard of a lease.
    pub(super) fn see_guard(&mut self, lease: LeaseId, guard: EnterGuard) {
        self.guards.insert(lease, guard);
    }

    /// The end of a place that held or waited, told as a loss; of one that was on its way out, told as that.
    pub(super) fn lose(&mut self, ticket: Ticket, why: LossReason) {
        let Some(standing) = self.tickets.get(&ticket) else { return };
        let notice = if standing.is_wanted {
            Some(Notice::Lost { ticket, why })
        } else {
            (!standing.was_told).then_some(Notice::Left { ticket, was_there: false })
        };
        self.abandon(ticket);
        self.notices.extend(notice);
    }

    /// A ticket that never had a place.
    pub(super) fn end(&mut self, ticket: Ticket) {
        self.forget(ticket);
        self.notices.push_back(Notice::Left { ticket, was_there: false });
    }

    /// Forgets a ticket for whose place a request may still be under way.
    pub(super) fn abandon(&mut self, ticket: Ticket) {
        self.nonce_floor = self.nonce;
        self.forget(ticket);
    }

    /// Forgets a ticket whose place is certainly gone.
    pub(super) fn forget(&mut self, ticket: Ticket) {
        if let Some(standing) = self.tickets.remove(&ticket) {
            self.index.remove(ticket, &standing);
            self.places.remove(&standing.place);
        }
    }

    /// One of ours has left. If the first of the line is ours too, it holds, or will pass on in its turn; else whoever stood behind looks, or
    /// watches whoever is before it now.
    pub(super) fn pass_on(&mut self, (place, token): (Place, Option<Token>), first: &[(Place, Token)]) {
        let behind = token.and_then(|token| self.index.queue.range(token..).next());
        if let Some((_, &behind)) = behind {
            self.see_before(behind, |before| before.filter(|&before| before != place));
        }
        for (earlier, later) in first.iter().zip(first.iter().skip(1)) {
            if let Some(&ticket) = self.places.get(&later.0) {
                self.see_before(ticket, |_| Some(earlier.0));
            }
        }
        let ours = first.first().and_then(|(place, token)| Some((*self.places.get(place)?, *token)));
        let Some((ticket, token)) = ours else { return };
        let Some(standing) = self.tickets.get(&ticket) else { return };
        match standing.stage {
            Stage::Waiting { .. } => self.hold(ticket, token),
            // Its own answer is still on its way, and says nothing that is not known now. If it was asked for twice, one of the requests
            // may be carried out after the place was left, and only the answer tells.
            Stage::Entering { .. } if standing.is_wanted && standing.unsettled.is_none() => {
                self.hold(ticket, token);
            }
            Stage::Entering { .. }
            | Stage::Resting { .. }
            | Stage::Holding { .. }
            | Stage::Leaving { .. } => {}
        }
    }

    /// Something is known of who is before a place that waits, or is not known any more.
    fn see_before(&mut self, ticket: Ticket, change: impl FnOnce(Option<Place>) -> Option<Place>) {
        if let Some(standing) = self.tickets.get_mut(&ticket)
            && let Stage::Waiting { before, .. } = &mut standing.stage
        {
            *before = change(*before);
        }
    }

    /// The first of ours that waits has to know who is before it, unless that is one of ours: that one passes on.
    fn mind_first(&mut self, now: Moment) {
        let Some((&token, &ticket)) = self.index.queue.first_key_value() else { return };
        let Some(standing) = self.tickets.get(&ticket) else { return };
        let Stage::Waiting { before: None, look: Look::Idle, .. } = standing.stage else { return };
        let is_before = |own: Option<Token>| own.is_some_and(|own| own < token);
        let mut holding = self.index.holding.iter().filter_map(|ticket| self.tickets.get(ticket));
        if !holding.any(|standing| is_before(standing.token()))
            && !self.tickets.values().any(|standing| is_before(standing.token()))
        {
            self.wake(ticket, now);
        }
    }

    /// Whether a place is one of ours that stands before this token: then whoever is behind it hears of its end without a watch.
    pub(super) fn will_pass_on(&self, place: Place, token: Option<Token>) -> bool {
        let ours = self.places.get(&place).and_then(|ticket| self.tickets.get(ticket));
        ours.and_then(|standing| standing.token()).is_some_and(|before| Some(before) < token)
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
        self.mind_first(now);
        let due = |ticket: &&Ticket| {
            self.may_look(**ticket)
                && self
                    .tickets
                    .get(ticket)
                    .and_then(|standing| standing.look_at())
                    .is_some_and(|at| at <= now)
        };
        let due: Vec<Ticket> = self.index.looks.iter().filter(due).copied().collect();
        for ticket in due {
            let epoch = Epoch(self.count());
            let Some(standing) = self.tickets.get(&ticket) else { continue };
            let (place, before, mut stage) = (standing.place, standing.known_before(), standing.stage);
            if let Stage::Waiting { token, look, .. } | Stage::Holding { token, look } = &mut stage {
                *look = Look::Asked { epoch, again: false };
                self.actions.push_back(Action::Look { ticket, epoch, place, token: *token, before });
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
