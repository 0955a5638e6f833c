//! Tasks that nobody owns, and when it is this node's turn to claim them.
//!
//! A task that can be claimed is an *offer*. It becomes ready when it is this node's turn, and is weighed when a request goes out: only then
//! does the balancer see how much is held and asked for.
//!
//! **Invariant**: a task is an offer, or asked for, or held; never two of them.
//!
//! **Invariant**: an offer is ready, or has a timer; so it is looked at again, whatever the balancer said.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::balance::Verdict;
use crate::board::BoardChange;
use crate::name::{NodeId, TaskId};
use crate::revision::{Revision, Token};
use crate::time::Moment;

use super::Node;
use super::action::ClaimAsk;
use super::event::Now;
use super::notice::LossReason;
use super::settings::{CLAIMS_PER_REQUEST, STRAY_AFTER};
use super::timers::Timer;

/// A balancer that wants to be asked again sooner than this would be asked without end.
const WAIT_MIN: Duration = Duration::from_millis(50);

/// Tasks that can be claimed.
#[derive(Clone, Debug, Default)]
pub(super) struct Offers {
    /// Since when nobody has owned each of them.
    seen: BTreeMap<TaskId, Moment>,
    /// Those whose turn it may be, longest unowned first.
    ready: BTreeSet<(Moment, TaskId)>,
    /// Tasks that are not claimed before then; or, without a time, before they are written again.
    aside: BTreeMap<TaskId, Option<Moment>>,
}

impl Offers {
    /// Lets a task be until then; without a time, until it is written again.
    pub(super) fn set_aside(&mut self, task: &TaskId, until: Option<Moment>) {
        self.aside.insert(task.clone(), until);
    }
}

/// What to do about an offer.
enum Weight {
    Take(Revision),
    Later(Moment),
    Never,
}

impl Node {
    pub(super) fn handle_board(&mut self, change: BoardChange, now: Now) {
        match change {
            BoardChange::Unowned(task) => self.reconsider(task, now.at, now.at),
            BoardChange::Changed(task) => {
                self.offers.aside.remove(&task);
                self.withdraw(&task);
                self.reconsider(task, now.at, now.at);
            }
            BoardChange::Owned { task, node, token } => {
                self.scales.see(&task);
                self.withdraw(&task);
                if node.as_ref() == Some(&self.settings.node) {
                    self.see_own_claim(&task, token, now);
                } else {
                    self.see_claim_of(&task, node.as_ref(), token, now);
                }
            }
            BoardChange::OwnerGone { task, token } => {
                if self.strays.get(&task) == Some(&token) {
                    self.strays.remove(&task);
                }
                self.claim_vanished(&task, token, now);
            }
            BoardChange::Gone { task, created } => {
                self.scales.see(&task);
                self.scales.cooling.forget(&task);
                self.withdraw(&task);
                self.offers.aside.remove(&task);
                self.task_deleted(&task, created, now);
            }
        }
    }

    /// Makes an offer of a task again, if it is one; it is not looked at before `at`.
    pub(super) fn reconsider(&mut self, task: TaskId, seen: Moment, at: Moment) {
        let is_ours = self.held.contains_key(&task) || self.claims.contains(&task);
        if is_ours || !self.board.unowned().contains(&task) || self.offers.seen.contains_key(&task) {
            return;
        }
        let record = self.board.get(&task).and_then(|card| card.record.as_ref().ok());
        if !record.is_some_and(|record| self.settings.wanted.accepts(record)) {
            return;
        }
        self.offers.seen.insert(task.clone(), seen);
        if at <= seen {
            self.offers.ready.insert((seen, task));
        } else {
            self.timers.set(Timer::Offer(task), at);
        }
    }

    /// A task cannot be claimed any more.
    fn withdraw(&mut self, task: &TaskId) -> Option<Moment> {
        let (task, seen) = self.offers.seen.remove_entry(task)?;
        let key = (seen, task);
        if !self.offers.ready.remove(&key) {
            self.timers.clear(&Timer::Offer(key.1));
        }
        Some(seen)
    }

    /// An offer's time has come.
    pub(super) fn offer_due(&mut self, task: TaskId) {
        if let Some(seen) = self.offers.seen.get(&task) {
            self.offers.ready.insert((*seen, task));
        }
    }

    /// Others take tasks than before: all turns are different now.
    pub(super) fn rank_again(&mut self) {
        for (task, seen) in &self.offers.seen {
            if self.offers.ready.insert((*seen, task.clone())) {
                self.timers.clear(&Timer::Offer(task.clone()));
            }
        }
    }

    /// The board shows a claim of this node's name.
    fn see_own_claim(&mut self, task: &TaskId, token: Token, now: Now) {
        let held = self.held.get(task).map(|held| held.token);
        if held != Some(token) {
            // It may be answered yet, and what was just given up may still be shown; but a request that was taken for lost may have been carried out.
            self.timers.set(Timer::Stray(task.clone()), now.at + STRAY_AFTER);
        }
        if held.is_some_and(|held| held < token) {
            self.lose(task, LossReason::Owner, now);
        }
    }

    fn see_claim_of(&mut self, task: &TaskId, node: Option<&NodeId>, token: Token, now: Now) {
        if let Some(node) = node {
            self.company.note_claim(node, now.at);
        }
        // An older token is old news: we have claimed since.
        if self.held.get(task).is_some_and(|held| held.token < token) {
            self.lose(task, LossReason::Owner, now);
        }
    }

    /// Takes from the offers what goes out with the next request.
    pub(super) fn take_offers(&mut self, batch: &mut Vec<ClaimAsk>, now: Now) {
        let room = self.settings.capacity.unwrap_or(usize::MAX);
        while batch.len() < CLAIMS_PER_REQUEST
            && self.held.len() + self.claims.len() < room
            && let Some((seen, task)) = self.offers.ready.pop_first()
        {
            self.tally.weighed += 1;
            match self.weigh(&task, seen, now) {
                Weight::Take(created) => {
                    self.offers.seen.remove(&task);
                    batch.push(self.ask_for(task, seen, created, now));
                }
                Weight::Later(at) => self.timers.set(Timer::Offer(task), at),
                Weight::Never => drop(self.offers.seen.remove(&task)),
            }
        }
    }

    fn weigh(&mut self, task: &TaskId, seen: Moment, now: Now) -> Weight {
        match self.offers.aside.get(task) {
            Some(None) => return Weight::Never,
            Some(Some(until)) if *until > now.at => return Weight::Later(*until),
            Some(Some(_)) => drop(self.offers.aside.remove(task)),
            None => {}
        }
        let turn = self.company.turn(task, seen);
        if turn.at > now.at {
            return Weight::Later(turn.at);
        }
        let Some(created) = self.board.get(task).map(|card| card.created) else { return Weight::Never };
        match self.ask_balancer(task, turn, now.at) {
            Verdict::Take => Weight::Take(created),
            Verdict::Wait { again_in, .. } => Weight::Later(now.at + again_in.max(WAIT_MIN)),
        }
    }
}
