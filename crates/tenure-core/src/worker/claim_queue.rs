//! Tasks that nobody owns, and when it is this node's turn to claim them.
//!
//! A task that can be claimed is an *offer*. It becomes ready when it is this node's turn, and is weighed when a request goes out: only then
//! does the balancer see how much is held and asked for.
//!
//! **Invariant**: a task is an offer, or asked for, or held; never two of them.
//!
//! **Invariant**: an offer is ready, or has a timer, or stands behind another node with a timer for all who do; so it is looked at again,
//! whatever the balancer said.
//!
//! Those behind another node have no timers of their own: while eight nodes work through a hundred thousand tasks, each would be looked at four
//! times a second by seven nodes, only to see that it is still somebody else's turn.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::balance::ClaimDecision;
use crate::board::BoardChange;
use crate::id::{NodeId, TaskId};
use crate::loss::LossReason;
use crate::revision::{Revision, Token};
use crate::time::Moment;

use super::WorkerMachine;
use super::config::{CLAIMS_PER_REQUEST, ORPHAN_AFTER, RANK_STEP, RANK_STEPS_MAX};
use super::event::WorkerEvent;
use super::input::InputTime;
use super::output::ClaimRequest;
use super::peers::{RankDelay, UnownedBacklog, UnownedPeak};
use super::timers::Timer;

/// A balancer that wants to be asked again sooner than this would be asked without end.
const WAIT_MIN: Duration = Duration::from_millis(50);

/// Tasks that can be claimed.
#[derive(Clone, Debug, Default)]
pub(super) struct ClaimQueue {
    all: BTreeMap<TaskId, ClaimWait>,
    /// Those whose turn it may be, longest unowned first.
    ready: BTreeSet<(Moment, TaskId)>,
    /// Those that another node should claim first, longest unowned first. What was claimed meanwhile is still here, and passed over when its
    /// time has come: it is by far the most, and to look each of them up only to take it out costs more.
    behind: BTreeMap<RankDelay, BTreeSet<(Moment, TaskId)>>,
    /// Those that the balancer did not want just now, longest unowned first. Each has a timer, too.
    refused: BTreeSet<(Moment, TaskId)>,
    /// How much room there was for them when they were last thought of.
    room: u64,
    /// How many there were for anybody, and whether they become fewer.
    pub(super) peak: UnownedPeak,
    /// Tasks that are not claimed before then; or, without a time, before they are written again.
    postponed: BTreeMap<TaskId, Option<Moment>>,
}

/// A task that can be claimed.
#[derive(Clone, Copy, Debug)]
struct ClaimWait {
    /// Since when nobody has owned it.
    seen: Moment,
    place: ClaimPosition,
}

/// Where an offer waits.
#[derive(Clone, Copy, Debug)]
enum ClaimPosition {
    Ready,
    /// For its own timer.
    Timed,
    /// For its own timer, or until there is room.
    Refused,
    Delayed(RankDelay),
}

impl ClaimQueue {
    /// Lets a task be until then; without a time, until it is written again.
    pub(super) fn postpone(&mut self, task: &TaskId, until: Option<Moment>) {
        self.postponed.insert(task.clone(), until);
    }

    /// Whether a task that has been unowned since then still stands behind somebody.
    fn is_delayed(&self, task: &TaskId, since: Moment, whom: RankDelay) -> bool {
        let waiting = self.all.get(task).filter(|waiting| waiting.seen == since);
        matches!(waiting, Some(ClaimWait { place: ClaimPosition::Delayed(behind), .. }) if *behind == whom)
    }
}

/// Whether it is this node's turn to claim a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClaimOrder {
    InTurn,
    /// A peer with room should have claimed it, or this node has its share already.
    OutOfTurn,
}

/// What to do about an offer.
enum QueueDecision {
    Claim(Revision, ClaimOrder),
    Delay(RankDelay, Moment),
    Later(Moment),
    Refused(Moment),
    Never,
}

impl WorkerMachine {
    pub(super) fn handle_board(&mut self, change: BoardChange, now: InputTime) {
        match change {
            BoardChange::Unowned(task) => self.reconsider(task, now.at, now.at),
            BoardChange::Changed(task) => {
                if let Some(Err(why)) = self.board.get(&task).map(|card| &card.record) {
                    let why = format!("its record cannot be read: {why}");
                    self.events.push_back(WorkerEvent::SetAside { task: task.clone(), why });
                }
                self.claim_queue.postponed.remove(&task);
                self.withdraw(&task);
                self.reconsider(task, now.at, now.at);
            }
            BoardChange::Owned { task, node, token } => {
                self.balance.see(&task);
                self.withdraw(&task);
                if node.as_ref() == Some(&self.config.node) {
                    self.see_own_claim(&task, token, now);
                } else {
                    self.see_claim_of(&task, node.as_ref(), token, now);
                }
            }
            BoardChange::OwnerGone { task, token } => {
                self.claim_vanished(&task, token, now);
            }
            BoardChange::Gone { task, created } => {
                self.note_gone();
                self.balance.see(&task);
                self.balance.cooldowns.forget(&task);
                self.withdraw(&task);
                self.claim_queue.postponed.remove(&task);
                self.task_deleted(&task, created, now);
            }
        }
    }

    /// Makes an offer of a task again, if it is one; it is not looked at before `at`.
    pub(super) fn reconsider(&mut self, task: TaskId, seen: Moment, at: Moment) {
        let is_own = self.held.contains_key(&task) || self.claims.contains(&task);
        if is_own || self.claim_queue.all.contains_key(&task) {
            return;
        }
        let card = self.board.get(&task).filter(|card| card.is_unowned());
        let record = card.and_then(|card| card.record.as_ref().ok());
        if !record.is_some_and(|record| self.config.selector.accepts(record)) {
            return;
        }
        let place = if at <= seen { ClaimPosition::Ready } else { ClaimPosition::Timed };
        self.claim_queue.all.insert(task.clone(), ClaimWait { seen, place });
        if at <= seen {
            self.claim_queue.ready.insert((seen, task));
        } else {
            self.timers.set(Timer::Claimable(task), at);
        }
    }

    /// A task cannot be claimed any more.
    fn withdraw(&mut self, task: &TaskId) {
        let Some(ClaimWait { seen, place }) = self.claim_queue.all.remove(task) else { return };
        match place {
            ClaimPosition::Ready => drop(self.claim_queue.ready.remove(&(seen, task.clone()))),
            ClaimPosition::Timed => self.timers.clear(&Timer::Claimable(task.clone())),
            ClaimPosition::Refused => {
                self.timers.clear(&Timer::Claimable(task.clone()));
                self.claim_queue.refused.remove(&(seen, task.clone()));
            }
            // It is passed over when its time has come.
            ClaimPosition::Delayed(_) => {}
        }
    }

    /// An offer's time has come.
    pub(super) fn claim_due(&mut self, task: TaskId) {
        let Some(waiting) = self.claim_queue.all.get_mut(&task) else { return };
        let (seen, place) = (waiting.seen, std::mem::replace(&mut waiting.place, ClaimPosition::Ready));
        if matches!(place, ClaimPosition::Refused) {
            self.claim_queue.refused.remove(&(seen, task.clone()));
        }
        self.claim_queue.ready.insert((seen, task));
    }

    /// Weighs as many refused tasks again as there is more room than before: peers have come to their share, a claim was lost, or there is more
    /// to share. What the balancer refuses for another reason is weighed no more often than that.
    pub(super) fn make_room(&mut self, now: InputTime) {
        let class = match self.claim_queue.refused.first().and_then(|(_, task)| self.board.get(task)) {
            Some(card) => card.class,
            None => self.own_class(),
        };
        let room = self.peers.room(class, self.backlog(now));
        let more = room.saturating_sub(std::mem::replace(&mut self.claim_queue.room, room));
        for _ in 0..more {
            let Some((_, task)) = self.claim_queue.refused.first().cloned() else { return };
            self.timers.clear(&Timer::Claimable(task.clone()));
            self.claim_due(task);
        }
    }

    /// Those who come before this node have had their time, or perhaps not.
    pub(super) fn rank_delay_due(&mut self, behind: RankDelay, now: InputTime) {
        let Some(mut queue) = self.claim_queue.behind.remove(&behind) else { return };
        let mut probes = self.claims.probes.room();
        while let Some((seen, task)) = queue.pop_first() {
            if !self.claim_queue.is_delayed(&task, seen, behind) {
                continue;
            }
            let mut at = self.peers.due(behind, seen, self.backlog(now));
            // The peer still has room: the rest waits for what becomes of the first few.
            if at > Moment::ORIGIN && at <= now.at {
                match probes.checked_sub(1) {
                    Some(run_or_park) => probes = run_or_park,
                    None => at = now.at + self.backlog(now).step,
                }
            }
            if at > now.at {
                queue.insert((seen, task));
                self.timers.set(Timer::RankDelay(behind), at);
                self.claim_queue.behind.insert(behind, queue);
                return;
            }
            self.claim_due(task);
        }
    }

    /// Who owns how much has changed: those who have their share now are not waited for any more.
    pub(super) fn recheck_rank_delays(&mut self, now: InputTime) {
        let backlog = self.backlog(now);
        let (peers, claim_queue) = (&self.peers, &self.claim_queue);
        let is_free = |behind: &RankDelay| peers.due(*behind, now.at, backlog) <= now.at;
        let free: Vec<RankDelay> = claim_queue.behind.keys().copied().filter(is_free).collect();
        for behind in free {
            self.timers.clear(&Timer::RankDelay(behind));
            self.rank_delay_due(behind, now);
        }
    }

    /// Others take tasks than before: all turns are different now.
    pub(super) fn rank_again(&mut self) {
        for behind in std::mem::take(&mut self.claim_queue.behind).into_keys() {
            self.timers.clear(&Timer::RankDelay(behind));
        }
        self.claim_queue.refused.clear();
        for (task, waiting) in &mut self.claim_queue.all {
            match std::mem::replace(&mut waiting.place, ClaimPosition::Ready) {
                ClaimPosition::Ready => {}
                ClaimPosition::Timed | ClaimPosition::Refused => {
                    self.timers.clear(&Timer::Claimable(task.clone()));
                    self.claim_queue.ready.insert((waiting.seen, task.clone()));
                }
                ClaimPosition::Delayed(_) => {
                    self.claim_queue.ready.insert((waiting.seen, task.clone()));
                }
            }
        }
    }

    fn backlog(&self, now: InputTime) -> UnownedBacklog<'_> {
        // Others are no faster than we are: what we ask for takes this long, and the news of it as long again.
        let step = RANK_STEP.max(self.claims.slowness(now.at) * 2);
        let step = self.claims.probes.stretch(step);
        let patience = self.claim_queue.peak.patience(now.at) + (step - RANK_STEP) * RANK_STEPS_MAX;
        UnownedBacklog { unowned: self.board.demand(), claiming: self.balance.claiming(), step, patience }
    }

    /// The board shows a claim of this node's name.
    fn see_own_claim(&mut self, task: &TaskId, token: Token, now: InputTime) {
        let held = self.held.get(task).map(|held| held.token);
        if held != Some(token) {
            // It may be answered yet, and what was just given up may still be shown; but a request that was taken for lost may have been carried out.
            self.timers.set(Timer::Orphan(task.clone()), now.at + ORPHAN_AFTER);
        }
        if held.is_some_and(|held| held < token) {
            self.lose(task, LossReason::Replaced, now);
        }
    }

    fn see_claim_of(&mut self, task: &TaskId, node: Option<&NodeId>, token: Token, now: InputTime) {
        if let Some(node) = node {
            self.peers.note_claim(node, now.at);
        }
        // An older token is old news: we have claimed since.
        if self.held.get(task).is_some_and(|held| held.token < token) {
            self.lose(task, LossReason::Replaced, now);
        }
        // Only now: that may have been the first news of our own release.
        if let Some(node) = node {
            self.balance.cooldowns.note_taken(task, node);
        }
    }

    /// Takes from the offers what goes out with the next request.
    pub(super) fn take_claimable(&mut self, batch: &mut Vec<ClaimRequest>, now: InputTime) {
        while batch.len() < CLAIMS_PER_REQUEST
            && self.has_room()
            && let Some((seen, task)) = self.claim_queue.ready.pop_first()
        {
            self.stats.considered += 1;
            match self.decide_claim(&task, seen, now) {
                QueueDecision::Claim(created, order) => {
                    if order == ClaimOrder::OutOfTurn {
                        self.claims.probes.send(&task);
                    }
                    self.claim_queue.all.remove(&task);
                    batch.push(self.request_claim(task, seen, created, now));
                }
                QueueDecision::Delay(behind, at) => self.wait_for_rank(behind, task, seen, at),
                QueueDecision::Later(at) => {
                    if let Some(waiting) = self.claim_queue.all.get_mut(&task) {
                        waiting.place = ClaimPosition::Timed;
                    }
                    self.timers.set(Timer::Claimable(task), at);
                }
                QueueDecision::Refused(at) => {
                    if let Some(waiting) = self.claim_queue.all.get_mut(&task) {
                        waiting.place = ClaimPosition::Refused;
                    }
                    self.claim_queue.refused.insert((seen, task.clone()));
                    self.timers.set(Timer::Claimable(task), at);
                }
                QueueDecision::Never => drop(self.claim_queue.all.remove(&task)),
            }
        }
    }

    fn wait_for_rank(&mut self, behind: RankDelay, task: TaskId, seen: Moment, at: Moment) {
        if let Some(waiting) = self.claim_queue.all.get_mut(&task) {
            waiting.place = ClaimPosition::Delayed(behind);
        }
        self.claim_queue.behind.entry(behind).or_default().insert((seen, task));
        if self.timers.at(&Timer::RankDelay(behind)).is_none_or(|before| at < before) {
            self.timers.set(Timer::RankDelay(behind), at);
        }
    }

    fn decide_claim(&mut self, task: &TaskId, seen: Moment, now: InputTime) -> QueueDecision {
        match self.claim_queue.postponed.get(task) {
            Some(None) => return QueueDecision::Never,
            Some(Some(until)) if *until > now.at => return QueueDecision::Later(*until),
            Some(Some(_)) => drop(self.claim_queue.postponed.remove(task)),
            None => {}
        }
        let Some((created, class)) = self.board.get(task).map(|card| (card.created, card.class)) else {
            return QueueDecision::Never;
        };
        let turn = self.peers.turn(task, class, seen, self.backlog(now));
        if let Some(behind) = turn.behind.filter(|_| turn.at > now.at) {
            return QueueDecision::Delay(behind, turn.at);
        }
        let has_share = || self.peers.room(class, self.backlog(now)) == 0;
        let is_out_of_turn = turn.behind.is_some() || has_share();
        if is_out_of_turn && self.claims.probes.room() == 0 {
            let at = now.at + self.backlog(now).step;
            return turn.behind.map_or(QueueDecision::Refused(at), |behind| QueueDecision::Delay(behind, at));
        }
        let order = if is_out_of_turn { ClaimOrder::OutOfTurn } else { ClaimOrder::InTurn };
        match self.ask_balancer(task, turn, now.at) {
            ClaimDecision::Claim => QueueDecision::Claim(created, order),
            ClaimDecision::Wait { retry_after, .. } => {
                QueueDecision::Refused(now.at + retry_after.max(WAIT_MIN))
            }
        }
    }
}
