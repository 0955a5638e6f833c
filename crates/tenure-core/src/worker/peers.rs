//! The nodes: who takes tasks, who comes first for which, and who is busy claiming.

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

/// Who is there, who is frozen, and who takes tasks.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    me: NodeId,
    layout: Layout,
    roster: PresenceSet<NodePresence>,
    frozen: BTreeSet<NodeId>,
    /// What was seen of the frozen since their picture was whole.
    frozen_pending: BTreeMap<NodeId, bool>,
    is_frozen_known: bool,
    /// Those who take tasks; this node among them if it does.
    workers: WorkerLoads,
    /// The others among them.
    peers: BTreeMap<NodeId, PeerRank>,
    /// How many peers there ever were.
    numbers: u32,
}

/// One of the others who take tasks.
#[derive(Clone, Copy, Debug)]
struct PeerRank {
    /// Short for its name, and never used again.
    number: u32,
    /// When it was last seen to claim something.
    claimed_at: Option<Moment>,
}

/// When a node may claim a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ClaimTurn {
    /// How many come before it.
    pub(super) rank: usize,
    /// From when on.
    pub(super) at: Moment,
    /// Behind whom it is until then; none if nobody is waited for.
    pub(super) behind: Option<RankDelay>,
    /// Since when nobody was seen working through its share.
    pub(super) idle_since: Moment,
    /// Since when no node has owned it, as far as this node and all its peers could see.
    pub(super) unowned_since: Moment,
}

/// For whom a node waits before it claims: all tasks that wait for the same can be looked at together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RankDelay {
    /// Of those who come first, the one that was last seen to claim.
    peer: u32,
    /// For how many steps it must have been still.
    steps: u32,
    /// Of which class the tasks are: a peer may have its share of one and not of another.
    class: Class,
}

/// What no node owns, and how long a node waits for its peers to take it.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnownedBacklog<'a> {
    /// What no node owns, by class, as the board shows it.
    pub(super) unowned: &'a Demand,
    /// What of that this node is claiming.
    pub(super) claiming: &'a Demand,
    /// How much longer each rank waits.
    pub(super) step: Duration,
    /// After this long nobody waits any more for those who rank before it.
    pub(super) patience: Duration,
}

/// How many tasks nobody owned when there were most of them, for as long as they become fewer.
///
/// Patience goes by that and not by what is left: it would run out while everybody is seen to work, and whoever is done first would take
/// from the others what is still theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct UnownedPeak {
    high: u32,
    low: u32,
    low_at: Moment,
}

impl UnownedPeak {
    /// So many are there now.
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

    /// Nobody works through it: what is left is not wanted, or as much comes as goes.
    fn is_still(&self, now: Moment) -> bool {
        now.since(self.low_at) > PATIENCE
    }
}

impl Peers {
    /// How many others take tasks.
    pub(super) fn peers(&self) -> usize {
        self.peers.len()
    }

    pub(super) fn new(me: NodeId, layout: Layout) -> Peers {
        Peers {
            me,
            roster: PresenceSet::new(NodePresence(layout.clone())),
            layout,
            frozen: BTreeSet::new(),
            frozen_pending: BTreeMap::new(),
            is_frozen_known: false,
            workers: WorkerLoads::new(),
            peers: BTreeMap::new(),
            numbers: 0,
        }
    }

    /// Whether there was ever a whole picture of the nodes and of the frozen.
    pub(super) fn is_known(&self) -> bool {
        self.is_frozen_known && self.roster.synced_at().is_some()
    }

    /// Whether this node is frozen.
    pub(super) fn is_self_frozen(&self) -> bool {
        self.frozen.contains(&self.me)
    }

    /// Those who take tasks.
    pub(super) fn workers(&self) -> &WorkerLoads {
        &self.workers
    }

    /// What another node has.
    pub(super) fn set_load(&mut self, node: &NodeId, load: Load, now: Moment) {
        if *node != self.me && self.workers.contains(node) {
            self.workers.set(node, load, now);
        }
    }

    /// What this node has and can take; none if it takes no tasks. Returns whether that changes which nodes take tasks.
    pub(super) fn set_own_load(&mut self, load: Option<Load>, terms: &WorkerTerms, now: Moment) -> bool {
        let was_willing = self.workers.contains(&self.me);
        match load {
            Some(load) => {
                self.workers.set(&self.me, load, now);
                self.workers.set_terms(&self.me, terms);
            }
            None => self.workers.remove(&self.me),
        }
        was_willing != load.is_some()
    }

    /// Something came from the feed of the nodes; says whether others take tasks than before.
    pub(super) fn handle_node(&mut self, item: FeedItem, now: Moment) -> bool {
        let mut news = Vec::new();
        self.roster.handle_item(item, now, &mut news);
        let mut is_changed = false;
        for one in news {
            match one {
                PresenceEvent::Snapshot(snapshot) => {
                    for member in snapshot.members() {
                        is_changed |= self.judge(&member.id, now);
                    }
                }
                PresenceEvent::Joined(member)
                | PresenceEvent::Updated { now: member, .. }
                | PresenceEvent::Left { member, .. } => {
                    is_changed |= self.judge(&member.id, now);
                }
                PresenceEvent::Unreadable(postponed) => is_changed |= self.judge(&postponed.id, now),
                PresenceEvent::Cleared { id, .. } => is_changed |= self.judge(&id, now),
                PresenceEvent::Stale { .. } | PresenceEvent::Fresh { .. } => {}
            }
        }
        is_changed
    }

    /// Something came from the feed of the frozen; says whether others take tasks than before.
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
                    let is_news =
                        if is_frozen { self.frozen.insert(node.clone()) } else { self.frozen.remove(&node) };
                    (is_news && self.judge(&node, now)) || is_changed
                })
            }
        }
    }

    /// This node was frozen or unfrozen by its own hand.
    pub(super) fn set_own_frozen(&mut self, is_frozen: bool) {
        if is_frozen {
            self.frozen.insert(self.me.clone());
        } else {
            self.frozen.remove(&self.me);
        }
    }

    /// Puts another node among the willing, or out of them; says whether that is news.
    fn judge(&mut self, node: &NodeId, now: Moment) -> bool {
        if *node == self.me {
            return false;
        }
        let record = self.roster.get(node).map(|member| &member.record);
        let terms = record.map(WorkerTerms::of).unwrap_or_default();
        let is_ready = record.is_some_and(|record| record.state == MemberState::Ready);
        let was_willing = self.workers.contains(node);
        let is_willing = is_ready && !self.frozen.contains(node);
        match (was_willing, is_willing) {
            (false, true) => {
                self.workers.set(node, Load::default(), now);
                self.numbers += 1;
                self.peers.insert(node.clone(), PeerRank { number: self.numbers, claimed_at: None });
            }
            (true, false) => {
                self.workers.remove(node);
                self.peers.remove(node);
            }
            (true, true) | (false, false) => {}
        }
        let is_other_kind = self.workers.set_terms(node, &terms);
        is_other_kind || was_willing != is_willing
    }

    /// Another node was seen to claim something.
    pub(super) fn note_claim(&mut self, node: &NodeId, now: Moment) {
        if let Some(peer) = self.peers.get_mut(node) {
            peer.claimed_at = Some(now);
        }
    }

    /// When this node may claim a task of a class that no node has owned since `seen`.
    ///
    /// Peers that accept the task and rank before this node have a head start; and a peer that is seen to claim other tasks is working through its
    /// share, and is not raced. A peer that has its share or no room is not waited for, and no peer is waited for without end.
    pub(super) fn turn(
        &self,
        task: &TaskId,
        class: Class,
        seen: Moment,
        backlog: UnownedBacklog<'_>,
    ) -> ClaimTurn {
        let scores = Scores::of_key(task.as_str().as_bytes());
        let scored = |node: &NodeId| scores.of(node.as_str().as_bytes());
        let mine = scored(&self.me);
        let seen = self.left_since(seen);
        let level = self.level(class, backlog);
        let (mut rank, mut steps, mut first) = (0, 0, None);
        let mut idle_since = seen;
        for (node, peer) in &self.peers {
            if !self.workers.accepts(node, class) {
                continue;
            }
            let claimed_at = peer.claimed_at.unwrap_or(seen).max(seen);
            idle_since = idle_since.max(claimed_at);
            if (scored(node), node) < (mine, &self.me) {
                continue;
            }
            rank += 1;
            if self.workers.room(node, class, level) > 0 {
                steps = RANK_STEPS_MAX.min(steps + 1);
                first = first.max(Some((claimed_at, peer.number)));
            }
        }
        let behind = first.map(|(_, peer)| RankDelay { peer, steps, class });
        let latest = seen + backlog.patience;
        // Where claims are slow, peers wait longer for each other before they claim. A node above its share leaves them that time too: else
        // it takes what a peer with room is about to claim, and keeps it as a task that no peer wanted.
        let idle_since = idle_since + backlog.step.saturating_sub(RANK_STEP) * RANK_STEPS_MAX;
        let at = first.map_or(seen, |(claimed_at, _)| claimed_at + backlog.step * steps).min(latest);
        ClaimTurn { rank, at, behind, idle_since: idle_since.min(latest), unowned_since: seen }
    }

    /// When tasks that wait for a peer, and that no node has owned since `seen`, may be claimed. The later they were seen, the later.
    pub(super) fn due(&self, behind: RankDelay, seen: Moment, backlog: UnownedBacklog<'_>) -> Moment {
        let seen = self.left_since(seen);
        match self.peers.iter().find(|(_, peer)| peer.number == behind.peer) {
            Some((node, peer))
                if self.workers.room(node, behind.class, self.level(behind.class, backlog)) > 0 =>
            {
                let still_since = peer.claimed_at.unwrap_or(seen).max(seen);
                (still_since + backlog.step * behind.steps).min(seen + backlog.patience)
            }
            Some(_) | None => Moment::ORIGIN,
        }
    }

    /// How many more tasks of a class would be this node's share.
    pub(super) fn room(&self, class: Class, backlog: UnownedBacklog<'_>) -> u64 {
        self.workers.room(&self.me, class, self.level(class, backlog))
    }

    fn level(&self, class: Class, backlog: UnownedBacklog<'_>) -> Level {
        let unowned = backlog.unowned.within(class) - backlog.claiming.within(class);
        self.workers.level(class, unowned, LoadMetric::Tasks)
    }

    /// Since when all who take tasks now could have taken one: before the last of them came, nothing waited for it.
    fn left_since(&self, seen: Moment) -> Moment {
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

    /// On a starved host claims took a second, so a peer with room waited for longer than the fixed patience of the balancer. The node
    /// above its share took the task first, as one that no peer wanted: 4 and 2 tasks instead of 3 and 3, for ever.
    #[test]
    fn node_above_its_share_waits_longer_where_claims_are_slow() {
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
    fn patience_lasts_while_the_pile_becomes_smaller_and_not_longer() {
        let mut peak = UnownedPeak::default();
        peak.see(900, ms(0));
        peak.see(1_000, ms(10));
        for n in 1..=5 {
            peak.see(1_000 - 100 * n, ms(n * 2_000));
            assert_eq!(peak.patience(ms(n * 2_000 + 1_000)), patience(1_000));
        }
        assert_eq!(peak.patience(ms(13_000)), patience(1_000));
        assert_eq!(peak.patience(ms(13_001)), patience(500), "nobody has taken one for longer than patience");
        peak.see(500, ms(13_001));
        peak.see(499, ms(13_002));
        assert_eq!(peak.patience(ms(13_003)), patience(500));
    }

    #[test]
    fn a_pile_that_is_gone_makes_nobody_wait_for_the_next() {
        let mut peak = UnownedPeak::default();
        peak.see(100_000, ms(0));
        peak.see(0, ms(1));
        peak.see(1, ms(2));
        assert_eq!(peak.patience(ms(2)), patience(1));
    }

    #[test]
    fn a_pile_on_which_more_comes_is_higher_and_one_that_stays_is_as_high_as_it_is() {
        let mut peak = UnownedPeak::default();
        for n in 0..100 {
            peak.see(50 + n % 2, ms(n * 1_000));
        }
        assert_eq!(peak.patience(ms(99_000)), patience(51));
        peak.see(500, ms(99_001));
        assert_eq!(peak.patience(ms(99_002)), patience(500));
    }
}
