//! The claimable tasks of a worker, and when it may claim each of them.
//!
//! A task is *claimable* if this worker accepts it and no worker owns it. It becomes ready when it
//! is this worker's turn. The balancer decides about it only when the next request is built: only
//! then are the owned and requested tasks known.
//!
//! **Invariant**: a task is claimable, requested or held; never two of them.
//!
//! **Invariant**: a claimable task is ready, or has a timer, or waits behind a peer with one timer
//! for all such tasks. So it is considered again, whatever the balancer decided.
//!
//! Tasks that wait behind a peer have no timers of their own. While eight workers claim a hundred
//! thousand tasks, seven of them would consider each task four times a second, only to see that it
//! is still the turn of a peer.

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

/// The shortest wait that a balancer can request. Without it, a balancer that returns zero would be
/// called in a busy loop.
const WAIT_MIN: Duration = Duration::from_millis(50);

/// The claimable tasks.
#[derive(Clone, Debug, Default)]
pub(super) struct ClaimQueue {
    all: BTreeMap<TaskId, ClaimWait>,
    /// Those that it may be this worker's turn for, longest unowned first.
    ready: BTreeSet<(Moment, TaskId)>,
    /// Those that a peer should claim first, longest unowned first. Tasks that were claimed
    /// meanwhile stay here and are skipped when their time has come. They are the majority, and
    /// looking up each of them to remove it would cost more.
    delayed: BTreeMap<RankDelay, BTreeSet<(Moment, TaskId)>>,
    /// Those that the balancer does not want at present, longest unowned first. Each has a timer as
    /// well.
    refused: BTreeSet<(Moment, TaskId)>,
    /// How much room this worker had below its share when it was last computed.
    room: u64,
    /// The highest number of unowned tasks, and whether they become fewer.
    pub(super) peak: UnownedPeak,
    /// Tasks that are not claimed before this time; or, without a time, before they are written
    /// again.
    postponed: BTreeMap<TaskId, Option<Moment>>,
}

/// A claimable task.
#[derive(Clone, Copy, Debug)]
struct ClaimWait {
    /// Since when no worker has owned it.
    seen: Moment,
    place: ClaimPosition,
}

/// Where a claimable task waits.
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
    /// Does not claim a task before this time; or, without a time, before it is written again.
    pub(super) fn postpone(&mut self, task: &TaskId, until: Option<Moment>) {
        self.postponed.insert(task.clone(), until);
    }

    /// Whether a task that has been unowned since then still waits behind that peer.
    fn is_delayed(&self, task: &TaskId, since: Moment, expected: RankDelay) -> bool {
        let waiting = self.all.get(task).filter(|waiting| waiting.seen == since);
        matches!(waiting, Some(ClaimWait { place: ClaimPosition::Delayed(delay), .. }) if *delay == expected)
    }
}

/// Whether it is this worker's turn to claim a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClaimOrder {
    InTurn,
    /// A peer with room should have claimed it, or this worker owns its share already.
    OutOfTurn,
}

/// What to do about a claimable task.
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
                // The task was written: whatever was wrong with the former record may be corrected,
                // so it is considered from the start.
                self.claim_queue.postponed.remove(&task);
                self.withdraw(&task);
                self.reconsider(task, now.at, now.at);
            }
            BoardChange::Owned { task, node, token } => {
                // The board shows the owner, so the demand that it counts does not include this
                // task any more.
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

    /// Adds a task to the queue if it is claimable. It is not considered before `at`.
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

    /// A task is not claimable any more.
    fn withdraw(&mut self, task: &TaskId) {
        let Some(ClaimWait { seen, place }) = self.claim_queue.all.remove(task) else { return };
        match place {
            ClaimPosition::Ready => drop(self.claim_queue.ready.remove(&(seen, task.clone()))),
            ClaimPosition::Timed => self.timers.clear(&Timer::Claimable(task.clone())),
            ClaimPosition::Refused => {
                self.timers.clear(&Timer::Claimable(task.clone()));
                self.claim_queue.refused.remove(&(seen, task.clone()));
            }
            // It stays in the queue of its peer, and is skipped there when its time has come.
            ClaimPosition::Delayed(_) => {}
        }
    }

    /// The time of a claimable task has come.
    pub(super) fn claim_due(&mut self, task: TaskId) {
        let Some(waiting) = self.claim_queue.all.get_mut(&task) else { return };
        let (seen, place) = (waiting.seen, std::mem::replace(&mut waiting.place, ClaimPosition::Ready));
        if matches!(place, ClaimPosition::Refused) {
            self.claim_queue.refused.remove(&(seen, task.clone()));
        }
        self.claim_queue.ready.insert((seen, task));
    }

    /// Considers as many refused tasks again as this worker has gained room: peers have reached
    /// their share, a claim was lost, or there is more to share. Tasks that the balancer refuses
    /// for other reasons are considered no more often than that.
    pub(super) fn make_room(&mut self, now: InputTime) {
        // Room depends on the class, and only that of the oldest refused task is tracked. Refused
        // tasks of other classes have their timers.
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

    /// The peers that rank before this worker have had their time for some tasks, or more time is
    /// due.
    pub(super) fn rank_delay_due(&mut self, delay: RankDelay, now: InputTime) {
        let Some(mut queue) = self.claim_queue.delayed.remove(&delay) else { return };
        let mut probes = self.claims.probes.room();
        while let Some((seen, task)) = queue.pop_first() {
            // It was claimed, or it waits elsewhere now.
            if !self.claim_queue.is_delayed(&task, seen, delay) {
                continue;
            }
            let mut at = self.peers.due(delay, seen, self.backlog(now));
            // The peer still has room, although it did not claim. Only as many tasks as there are
            // probes go out; the others wait for the replies.
            if at > Moment::ORIGIN && at <= now.at {
                match probes.checked_sub(1) {
                    Some(left) => probes = left,
                    None => at = now.at + self.backlog(now).step,
                }
            }
            // The queue is ordered by age, so no later task is due either.
            if at > now.at {
                queue.insert((seen, task));
                self.timers.set(Timer::RankDelay(delay), at);
                self.claim_queue.delayed.insert(delay, queue);
                return;
            }
            self.claim_due(task);
        }
    }

    /// The loads have changed: peers that own their share now are not waited for any more.
    pub(super) fn recheck_rank_delays(&mut self, now: InputTime) {
        let backlog = self.backlog(now);
        let (peers, claim_queue) = (&self.peers, &self.claim_queue);
        let is_free = |delay: &RankDelay| peers.due(*delay, now.at, backlog) <= now.at;
        let free: Vec<RankDelay> = claim_queue.delayed.keys().copied().filter(is_free).collect();
        for delay in free {
            self.timers.clear(&Timer::RankDelay(delay));
            self.rank_delay_due(delay, now);
        }
    }

    /// The set of workers that take tasks has changed: every rank may be another one now.
    pub(super) fn rank_again(&mut self) {
        for delay in std::mem::take(&mut self.claim_queue.delayed).into_keys() {
            self.timers.clear(&Timer::RankDelay(delay));
        }
        self.claim_queue.refused.clear();
        // Everything becomes ready, and gets its new place when the next request is built.
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
        // Peers are assumed to be as fast as this worker: a claim takes this long, and its watch
        // event as long again.
        let step = RANK_STEP.max(self.claims.slowness(now.at) * 2);
        let step = self.claims.probes.stretch(step);
        let patience = self.claim_queue.peak.patience(now.at) + (step - RANK_STEP) * RANK_STEPS_MAX;
        UnownedBacklog { unowned: self.board.demand(), claiming: self.balance.claiming(), step, patience }
    }

    /// The board shows a claim with this worker's id.
    fn see_own_claim(&mut self, task: &TaskId, token: Token, now: InputTime) {
        let held = self.held.get(task).map(|held| held.token);
        if held != Some(token) {
            // Its reply may still be on its way, or the board may still show a claim that was just
            // released. But it may also be an ambiguous claim that was applied after all, so it is
            // checked later.
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
        // A smaller token is an old event: this worker has claimed the task since.
        if self.held.get(task).is_some_and(|held| held.token < token) {
            self.lose(task, LossReason::Replaced, now);
        }
        // After the release above: this event may be the first sign that this worker's own release
        // was applied, and starts the cooldown.
        if let Some(node) = node {
            self.balance.cooldowns.note_taken(task, node);
        }
    }

    /// Moves the tasks to claim next from the queue to a request.
    pub(super) fn take_claimable(&mut self, batch: &mut Vec<ClaimRequest>, now: InputTime) {
        while batch.len() < CLAIMS_PER_REQUEST
            && self.has_room()
            && let Some((seen, task)) = self.claim_queue.ready.pop_first()
        {
            self.stats.considered += 1;
            match self.decide_claim(&task, seen, now) {
                // Out of turn the claim is a probe: its reply shows whether the peer in question is
                // idle.
                QueueDecision::Claim(created, order) => {
                    if order == ClaimOrder::OutOfTurn {
                        self.claims.probes.send(&task);
                    }
                    self.claim_queue.all.remove(&task);
                    batch.push(self.request_claim(task, seen, created, now));
                }
                QueueDecision::Delay(delay, at) => self.wait_for_rank(delay, task, seen, at),
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

    fn wait_for_rank(&mut self, delay: RankDelay, task: TaskId, seen: Moment, at: Moment) {
        if let Some(waiting) = self.claim_queue.all.get_mut(&task) {
            waiting.place = ClaimPosition::Delayed(delay);
        }
        self.claim_queue.delayed.entry(delay).or_default().insert((seen, task));
        // One timer for all tasks behind this peer, at the earliest of their times.
        if self.timers.at(&Timer::RankDelay(delay)).is_none_or(|before| at < before) {
            self.timers.set(Timer::RankDelay(delay), at);
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
        // Ranks first, then shares, then the balancer: the first two are cheap, and they keep most
        // of the tasks away from the balancer.
        let turn = self.peers.turn(task, class, seen, self.backlog(now));
        if let Some(delay) = turn.delay.filter(|_| turn.at > now.at) {
            return QueueDecision::Delay(delay, turn.at);
        }
        let has_share = || self.peers.room(class, self.backlog(now)) == 0;
        let is_out_of_turn = turn.delay.is_some() || has_share();
        // Without a free probe the task waits for the replies to the probes in flight.
        if is_out_of_turn && self.claims.probes.room() == 0 {
            let at = now.at + self.backlog(now).step;
            return turn.delay.map_or(QueueDecision::Refused(at), |delay| QueueDecision::Delay(delay, at));
        }
        let order = if is_out_of_turn { ClaimOrder::OutOfTurn } else { ClaimOrder::InTurn };
        match self.consult_balancer(task, turn, now.at) {
            ClaimDecision::Claim => QueueDecision::Claim(created, order),
            ClaimDecision::Wait { retry_after, .. } => {
                QueueDecision::Refused(now.at + retry_after.max(WAIT_MIN))
            }
        }
    }
}
