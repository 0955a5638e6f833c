//! The peers of a worker: which workers take tasks, in which order they may claim a task, and which
//! of them are busy claiming.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::balance::{Class, Demand, Level, Load, LoadMetric, WorkerLoads, WorkerTerms};
use crate::id::{NodeId, TaskId};
use crate::layout::{Key, Layout};
use crate::presence::{NodePresence, PresenceEvent, PresenceSet};
use crate::record::MemberState;
use crate::rendezvous::Scores;
use crate::snapshot::FeedItem;
use crate::time::Moment;

use super::config::{PATIENCE, PATIENCE_PER_TASK, RANK_STEP, RANK_STEPS_MAX};

/// The members, the frozen workers, and the workers that take tasks.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    own_id: NodeId,
    layout: Layout,
    members: PresenceSet<NodePresence>,
    frozen: BTreeSet<NodeId>,
    /// What the feed has delivered since its last complete snapshot.
    frozen_pending: BTreeMap<NodeId, bool>,
    is_frozen_known: bool,
    /// The workers that take tasks, including this one if it does.
    workers: WorkerLoads,
    /// The peers among them.
    peers: BTreeMap<NodeId, PeerRank>,
    /// How many peers there have been so far.
    peers_seen: u32,
}

/// A peer that takes tasks.
#[derive(Clone, Copy, Debug)]
struct PeerRank {
    /// Identifies the peer. Shorter than its id, and never reused.
    number: u32,
    /// When it was last seen to claim a task.
    claimed_at: Option<Moment>,
}

/// When this worker may claim a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ClaimTurn {
    /// How many peers rank before it.
    pub(super) rank: usize,
    /// The time from which on it may claim.
    pub(super) at: Moment,
    /// The peer that it waits for until then. `None` if it waits for no peer.
    pub(super) delay: Option<RankDelay>,
    /// Since when no peer was seen working through its share.
    pub(super) idle_since: Moment,
    /// Since when no worker has owned the task, as far as this worker and all its peers could see.
    pub(super) unowned_since: Moment,
}

/// The peer that a worker waits for. Tasks that wait for the same peer are considered together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RankDelay {
    /// Of the peers that rank before this worker, the one that was last seen to claim.
    peer: u32,
    /// For how many rank steps that peer must not have claimed.
    steps: u32,
    /// The class of the tasks: a peer may own its share of one class and not of another.
    class: Class,
}

/// The unowned tasks, and how long a worker waits for its peers to claim them.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnownedBacklog<'a> {
    /// The unowned tasks by class, as the board shows them.
    pub(super) unowned: &'a Demand,
    /// Those of them that this worker is claiming.
    pub(super) claiming: &'a Demand,
    /// How much longer each rank waits.
    pub(super) step: Duration,
    /// After this long a worker waits for no peer that ranks before it.
    pub(super) patience: Duration,
}

/// The highest number of unowned tasks, for as long as they become fewer.
///
/// Patience is derived from this and not from the number that is left. Otherwise it would run out
/// while all workers are busy, and the first one to finish would take tasks that its peers are
/// about to claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct UnownedPeak {
    high: u32,
    low: u32,
    low_at: Moment,
}

impl UnownedPeak {
    /// The board shows this many unowned tasks now.
    pub(super) fn see(&mut self, unowned: u64, now: Moment) {
        let unowned = u32::try_from(unowned).unwrap_or(u32::MAX);
        if unowned >= self.high || self.low == 0 || self.is_still(now) {
            *self = UnownedPeak { high: unowned, low: unowned, low_at: now };
        } else if unowned < self.low {
            (self.low, self.low_at) = (unowned, now);
        }
    }

    /// How long the last of them may have to wait.
    pub(super) fn patience(&self, now: Moment) -> Duration {
        let height = if self.is_still(now) { self.low } else { self.high };
        PATIENCE + PATIENCE_PER_TASK.saturating_mul(height)
    }

    /// The number does not shrink: the rest is not wanted, or as many tasks are submitted as are
    /// claimed.
    fn is_still(&self, now: Moment) -> bool {
        now.since(self.low_at) > PATIENCE
    }
}

impl Peers {
    /// How many peers take tasks.
    pub(super) fn peers(&self) -> usize {
        self.peers.len()
    }

    pub(super) fn new(own_id: NodeId, layout: Layout) -> Peers {
        Peers {
            own_id,
            members: PresenceSet::new(NodePresence(layout.clone())),
            layout,
            frozen: BTreeSet::new(),
            frozen_pending: BTreeMap::new(),
            is_frozen_known: false,
            workers: WorkerLoads::new(),
            peers: BTreeMap::new(),
            peers_seen: 0,
        }
    }

    /// Whether both feeds have delivered a complete snapshot.
    pub(super) fn is_known(&self) -> bool {
        self.is_frozen_known && self.members.synced_at().is_some()
    }

    /// Whether this node is frozen.
    pub(super) fn is_self_frozen(&self) -> bool {
        self.frozen.contains(&self.own_id)
    }

    /// The workers that take tasks.
    pub(super) fn workers(&self) -> &WorkerLoads {
        &self.workers
    }

    /// Sets the load of a peer.
    pub(super) fn set_load(&mut self, node: &NodeId, load: Load, now: Moment) {
        if *node != self.own_id && self.workers.contains(node) {
            self.workers.set(node, load, now);
        }
    }

    /// Sets the load and the terms of this worker; `None` if it takes no tasks. Returns whether the
    /// set of workers that take tasks has changed.
    pub(super) fn set_own_load(&mut self, load: Option<Load>, terms: &WorkerTerms, now: Moment) -> bool {
        let took_tasks = self.workers.contains(&self.own_id);
        match load {
            Some(load) => {
                self.workers.set(&self.own_id, load, now);
                self.workers.set_terms(&self.own_id, terms);
            }
            None => self.workers.remove(&self.own_id),
        }
        took_tasks != load.is_some()
    }

    /// Handles an item of the nodes feed. Returns whether the set of workers that take tasks, or
    /// what they accept, has changed.
    pub(super) fn handle_node(&mut self, item: FeedItem, now: Moment) -> bool {
        let mut events = Vec::new();
        self.members.handle_item(item, now, &mut events);
        let mut is_changed = false;
        for one in events {
            match one {
                PresenceEvent::Snapshot(snapshot) => {
                    for member in snapshot.members() {
                        is_changed |= self.update_peer(&member.id, now);
                    }
                }
                PresenceEvent::Joined(member)
                | PresenceEvent::Updated { now: member, .. }
                | PresenceEvent::Left { member, .. } => {
                    is_changed |= self.update_peer(&member.id, now);
                }
                PresenceEvent::Unreadable(key) => is_changed |= self.update_peer(&key.id, now),
                PresenceEvent::Cleared { id, .. } => is_changed |= self.update_peer(&id, now),
                PresenceEvent::Stale { .. } | PresenceEvent::Fresh { .. } => {}
            }
        }
        is_changed
    }

    /// Handles an item of the frozen feed. Returns whether the set of workers that take tasks has
    /// changed.
    pub(super) fn handle_frozen(&mut self, item: FeedItem, now: Moment) -> bool {
        match item {
            FeedItem::SnapshotBegin => false,
            FeedItem::Put(pair) => {
                if let Some(Key::Frozen(node)) = self.layout.parse(&pair.key) {
                    self.frozen_pending.insert(node, true);
                }
                false
            }
            FeedItem::Delete { key, .. } => {
                if let Some(Key::Frozen(node)) = self.layout.parse(&key) {
                    self.frozen_pending.insert(node, false);
                }
                false
            }
            FeedItem::Synced(_) => {
                self.is_frozen_known = true;
                let pending = std::mem::take(&mut self.frozen_pending);
                pending.into_iter().fold(false, |is_changed, (node, is_frozen)| {
                    let is_new =
                        if is_frozen { self.frozen.insert(node.clone()) } else { self.frozen.remove(&node) };
                    (is_new && self.update_peer(&node, now)) || is_changed
                })
            }
        }
    }

    /// A command has frozen or unfrozen this worker.
    pub(super) fn set_own_frozen(&mut self, is_frozen: bool) {
        if is_frozen {
            self.frozen.insert(self.own_id.clone());
        } else {
            self.frozen.remove(&self.own_id);
        }
    }

    /// Adds a peer to the workers that take tasks, or removes it. Returns whether anything has
    /// changed.
    fn update_peer(&mut self, node: &NodeId, now: Moment) -> bool {
        if *node == self.own_id {
            return false;
        }
        let record = self.members.get(node).map(|member| &member.record);
        let terms = record.map(WorkerTerms::of).unwrap_or_default();
        let is_ready = record.is_some_and(|record| record.state == MemberState::Ready);
        let took_tasks = self.workers.contains(node);
        let takes_tasks = is_ready && !self.frozen.contains(node);
        match (took_tasks, takes_tasks) {
            (false, true) => {
                self.workers.set(node, Load::default(), now);
                self.peers_seen += 1;
                self.peers.insert(node.clone(), PeerRank { number: self.peers_seen, claimed_at: None });
            }
            (true, false) => {
                self.workers.remove(node);
                self.peers.remove(node);
            }
            (true, true) | (false, false) => {}
        }
        let is_other_kind = self.workers.set_terms(node, &terms);
        is_other_kind || took_tasks != takes_tasks
    }

    /// A peer was seen to claim a task.
    pub(super) fn note_claim(&mut self, node: &NodeId, now: Moment) {
        if let Some(peer) = self.peers.get_mut(node) {
            peer.claimed_at = Some(now);
        }
    }

    /// When this worker may claim a task of a class that no worker has owned since `seen`.
    ///
    /// Peers that accept the task and rank before this worker have a head start. A peer that is
    /// seen to claim other tasks works through its share and is not raced. A peer without room or
    /// with its full share is not waited for, and no peer is waited for without end.
    pub(super) fn turn(
        &self,
        task: &TaskId,
        class: Class,
        seen: Moment,
        backlog: UnownedBacklog<'_>,
    ) -> ClaimTurn {
        let scores = Scores::of_key(task.as_str().as_bytes());
        let scored = |node: &NodeId| scores.of(node.as_str().as_bytes());
        let mine = scored(&self.own_id);
        let seen = self.available_since(seen);
        let level = self.level(class, backlog);
        let (mut rank, mut steps, mut first) = (0, 0, None);
        let mut idle_since = seen;
        for (node, peer) in &self.peers {
            if !self.workers.accepts(node, class) {
                continue;
            }
            let claimed_at = peer.claimed_at.unwrap_or(seen).max(seen);
            idle_since = idle_since.max(claimed_at);
            // Every peer that claims counts for `idle_since`, also one that ranks behind: the
            // backlog is being worked off.
            if (scored(node), node) < (mine, &self.own_id) {
                continue;
            }
            rank += 1;
            // Only a peer that still should take more tasks is worth a delay.
            if self.workers.room(node, class, level) > 0 {
                steps = RANK_STEPS_MAX.min(steps + 1);
                first = first.max(Some((claimed_at, peer.number)));
            }
        }
        let delay = first.map(|(_, peer)| RankDelay { peer, steps, class });
        let latest = seen + backlog.patience;
        // On a slow store peers wait longer for each other. A worker above its share has to wait
        // that much longer as well. Otherwise it takes a task that a peer with room is about to
        // claim, and keeps it as one that no peer wanted.
        let idle_since = idle_since + backlog.step.saturating_sub(RANK_STEP) * RANK_STEPS_MAX;
        let at = first.map_or(seen, |(claimed_at, _)| claimed_at + backlog.step * steps).min(latest);
        ClaimTurn { rank, at, delay, idle_since: idle_since.min(latest), unowned_since: seen }
    }

    /// When tasks that wait for a peer, and that no worker has owned since `seen`, may be claimed.
    /// It grows with `seen`.
    pub(super) fn due(&self, delay: RankDelay, seen: Moment, backlog: UnownedBacklog<'_>) -> Moment {
        let seen = self.available_since(seen);
        match self.peers.iter().find(|(_, peer)| peer.number == delay.peer) {
            Some((node, peer))
                if self.workers.room(node, delay.class, self.level(delay.class, backlog)) > 0 =>
            {
                let still_since = peer.claimed_at.unwrap_or(seen).max(seen);
                (still_since + backlog.step * delay.steps).min(seen + backlog.patience)
            }
            // The peer has left or has no room any more: the tasks are due immediately.
            Some(_) | None => Moment::ORIGIN,
        }
    }

    /// How many more tasks of a class this worker should own.
    pub(super) fn room(&self, class: Class, backlog: UnownedBacklog<'_>) -> u64 {
        self.workers.room(&self.own_id, class, self.level(class, backlog))
    }

    fn level(&self, class: Class, backlog: UnownedBacklog<'_>) -> Level {
        let unowned = backlog.unowned.within(class) - backlog.claiming.within(class);
        self.workers.level(class, unowned, LoadMetric::Tasks)
    }

    /// Since when all workers that take tasks now could have claimed one: a task waits for no peer
    /// that has only just arrived.
    fn available_since(&self, seen: Moment) -> Moment {
        seen.max(self.workers.arrived_at())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Moment {
        Moment::from_ms(ms)
    }

    fn patience(height: u32) -> Duration {
        PATIENCE + PATIENCE_PER_TASK * height
    }

    /// On a starved host a claim took a second, so a peer with room waited longer than the fixed
    /// patience of the balancer. The worker above its share claimed the task first, as one that no
    /// peer wanted: 4 and 2 tasks instead of 3 and 3, for ever.
    #[test]
    fn worker_above_share_waits_for_slow_claims() {
        let node = |id: &str| NodeId::parse(id).unwrap();
        let namespace = crate::id::Namespace::parse("t").unwrap();
        let mut peers = Peers::new(node("me"), Layout::new(&namespace));
        peers.set_own_load(Some(Load::default()), &WorkerTerms::default(), ms(0));
        peers.workers.set(&node("peer"), Load::default(), ms(0));
        peers.peers.insert(node("peer"), PeerRank { number: 1, claimed_at: Some(ms(500)) });
        let (task, none) = (TaskId::parse("t1").unwrap(), Demand::default());
        for (step, idle_since) in [(RANK_STEP, 500), (RANK_STEP + Duration::from_millis(600), 2_900)] {
            let patience = PATIENCE + (step - RANK_STEP) * RANK_STEPS_MAX;
            let backlog = UnownedBacklog { unowned: &none, claiming: &none, step, patience };
            let turn = peers.turn(&task, Class::ANY, ms(100), backlog);
            assert_eq!(turn.idle_since, ms(idle_since), "{step:?}");
            assert!(turn.at <= turn.unowned_since + patience);
        }
    }

    #[test]
    fn patience_lasts_while_backlog_shrinks() {
        let mut peak = UnownedPeak::default();
        peak.see(900, ms(0));
        peak.see(1_000, ms(10));
        for n in 1..=5 {
            peak.see(1_000 - 100 * n, ms(n * 2_000));
            assert_eq!(peak.patience(ms(n * 2_000 + 1_000)), patience(1_000));
        }
        assert_eq!(peak.patience(ms(13_000)), patience(1_000));
        assert_eq!(peak.patience(ms(13_001)), patience(500), "no claim for longer than the patience");
        peak.see(500, ms(13_001));
        peak.see(499, ms(13_002));
        assert_eq!(peak.patience(ms(13_003)), patience(500));
    }

    #[test]
    fn empty_backlog_resets_patience() {
        let mut peak = UnownedPeak::default();
        peak.see(100_000, ms(0));
        peak.see(0, ms(1));
        peak.see(1, ms(2));
        assert_eq!(peak.patience(ms(2)), patience(1));
    }

    #[test]
    fn growing_backlog_raises_patience() {
        let mut peak = UnownedPeak::default();
        for n in 0..100 {
            peak.see(50 + n % 2, ms(n * 1_000));
        }
        assert_eq!(peak.patience(ms(99_000)), patience(51));
        peak.see(500, ms(99_001));
        assert_eq!(peak.patience(ms(99_002)), patience(500));
    }
}
