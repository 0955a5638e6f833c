//! The tasks that a worker has released recently, and does not claim for a while.
//!
//! Without this, a worker that releases a task is the first to see it unowned, and claims it again.
//! The cooldown ends early when the peer that took the task has left, when no peer has claimed it
//! although one could, or when none can: then there is no other worker for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Claimable, ClusterLoad};
use crate::id::{NodeId, TaskId};
use crate::time::Moment;

/// How long a worker remembers that it has released a task.
pub const COOLDOWN: Duration = Duration::from_secs(60);

/// How long peers have a head start for a released task that is still unowned. It must be longer
/// than a claim takes in a busy fleet. Doubled, a task that its peers refuse would be idle for more
/// than two seconds.
pub const TAKE_BACK_AFTER: Duration = Duration::from_secs(1);

/// The released tasks, until the worker may claim them again.
#[derive(Clone, Debug, Default)]
pub struct Cooldowns {
    given: BTreeMap<TaskId, CooldownEntry>,
    by_end: BTreeSet<(Moment, TaskId)>,
}

/// What caused the release of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleasedBy {
    /// The balancer or an operator: any worker may run it.
    Node,
    /// The task itself, because its handler or its state refused to run. Claimed again immediately,
    /// it would only be released again, in a loop.
    Task {
        /// Whether other workers took tasks at that time.
        had_peers: bool,
    },
}

/// A released task.
#[derive(Clone, Debug)]
struct CooldownEntry {
    until: Moment,
    release: ReleasedBy,
    /// The last peer that owned it since.
    taker: Option<NodeId>,
}

impl Cooldowns {
    /// No tasks.
    pub fn new() -> Cooldowns {
        Cooldowns::default()
    }

    /// Records a release by this worker, and forgets those with an expired cooldown.
    pub fn note(&mut self, task: &TaskId, cooldown: Duration, release: ReleasedBy, now: Moment) {
        self.forget_until(now);
        self.forget(task);
        let until = now + cooldown;
        self.given.insert(task.clone(), CooldownEntry { until, release, taker: None });
        self.by_end.insert((until, task.clone()));
    }

    /// Ends the cooldown of a task, as if it had just been submitted.
    pub fn forget(&mut self, task: &TaskId) {
        if let Some(given) = self.given.remove(task) {
            self.by_end.remove(&(given.until, task.clone()));
        }
    }

    /// Records that a peer has claimed the task.
    pub fn note_taken(&mut self, task: &TaskId, by: &NodeId) {
        if let Some(given) = self.given.get_mut(task) {
            given.taker = Some(by.clone());
        }
    }

    /// How long this worker must not claim the task. `None` if it may.
    ///
    /// Only while a peer can take it, and only for [`TAKE_BACK_AFTER`] since its last owner: after
    /// that it is idle, because no peer has claimed it. A task that caused its own release waits
    /// for the whole cooldown, unless all peers have left.
    pub fn remaining(
        &self,
        offer: &Claimable<'_>,
        can_others: bool,
        cluster: &ClusterLoad<'_>,
    ) -> Option<Duration> {
        let given = self.given.get(offer.task)?;
        let is_taker_gone = given.taker.as_ref().is_some_and(|taker| !cluster.workers.contains(taker));
        let (is_free, most) = match given.release {
            ReleasedBy::Node => (!can_others, TAKE_BACK_AFTER.saturating_sub(offer.unowned_for)),
            ReleasedBy::Task { had_peers } => (had_peers && cluster.workers.len() <= 1, Duration::MAX),
        };
        if is_free || is_taker_gone {
            return None;
        }
        let rest = given.until.remaining(cluster.now).min(most);
        (!rest.is_zero()).then_some(rest)
    }

    /// How many released tasks are remembered.
    pub fn len(&self) -> usize {
        self.given.len()
    }

    /// Whether no released task is remembered.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    fn forget_until(&mut self, now: Moment) {
        while let Some((until, task)) = self.by_end.first()
            && *until <= now
        {
            self.given.remove(task);
            self.by_end.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::class::{Class, Demand};
    use super::super::owned_tasks::OwnedTasks;
    use super::super::worker_loads::{Load, WorkerLoads};
    use super::*;
    use crate::record::TaskRecord;

    fn task(text: &str) -> TaskId {
        TaskId::parse(text).unwrap()
    }

    /// A cluster of this worker and these peers.
    fn willing(others: &[&str]) -> WorkerLoads {
        let mut workers = WorkerLoads::new();
        for node in others.iter().chain(&["me"]) {
            workers.set(&NodeId::parse(node).unwrap(), Load::default(), Moment::ORIGIN);
        }
        workers
    }

    /// The remaining cooldown of task `a`.
    fn remaining(
        cooldowns: &Cooldowns,
        others: &[&str],
        can_others: bool,
        ms: (u64, u64),
    ) -> Option<Duration> {
        let (now_ms, unowned_ms) = ms;
        let (workers, own, none, task) = (willing(others), OwnedTasks::new(), Demand::default(), task("a"));
        let (me, record) = (NodeId::parse("me").unwrap(), TaskRecord::default());
        let unowned_for = Duration::from_millis(unowned_ms);
        let (class, waited) = (Class::ANY, unowned_for);
        let offer =
            Claimable { task: &task, record: &record, weight: 1, class, rank: 0, unowned_for, waited };
        let cluster = ClusterLoad {
            me: &me,
            workers: &workers,
            unowned: &none,
            claiming: &none,
            own: &own,
            cooldowns,
            resource: None,
            is_releasing: false,
            now: Moment::from_ms(now_ms),
        };
        cooldowns.remaining(&offer, can_others, &cluster)
    }

    #[test]
    fn released_task_is_left_to_peers_first() {
        let mut cooldowns = Cooldowns::new();
        cooldowns.note(&task("a"), COOLDOWN, ReleasedBy::Node, Moment::from_ms(0));
        assert_eq!(remaining(&cooldowns, &["n"], true, (0, 0)), Some(TAKE_BACK_AFTER));
        assert_eq!(remaining(&cooldowns, &["n"], true, (999, 999)), Some(Duration::from_millis(1)));
        assert_eq!(remaining(&cooldowns, &["n"], true, (1_000, 1_000)), None, "no peer has taken it");
        assert_eq!(remaining(&cooldowns, &["n"], true, (59_500, 0)), Some(Duration::from_millis(500)));
        assert_eq!(remaining(&cooldowns, &["n"], true, (60_000, 0)), None);
    }

    #[test]
    fn released_task_without_takers_is_reclaimed() {
        let mut cooldowns = Cooldowns::new();
        cooldowns.note(&task("a"), COOLDOWN, ReleasedBy::Node, Moment::from_ms(0));
        assert_eq!(remaining(&cooldowns, &["n"], false, (0, 0)), None);
    }

    #[test]
    fn self_released_task_cools_down() {
        let mut cooldowns = Cooldowns::new();
        for (had_peers, others, expected) in
            [(false, vec![], Some(COOLDOWN)), (true, vec!["n"], Some(COOLDOWN)), (true, vec![], None)]
        {
            cooldowns.note(&task("a"), COOLDOWN, ReleasedBy::Task { had_peers }, Moment::from_ms(0));
            assert_eq!(remaining(&cooldowns, &others, !others.is_empty(), (0, 5_000)), expected);
        }
    }

    #[test]
    fn taken_task_returns_when_its_taker_is_gone() {
        let mut cooldowns = Cooldowns::new();
        cooldowns.note(&task("a"), COOLDOWN, ReleasedBy::Node, Moment::from_ms(0));
        cooldowns.note_taken(&task("a"), &NodeId::parse("n").unwrap());
        assert_eq!(
            remaining(&cooldowns, &["n"], true, (0, 0)),
            Some(TAKE_BACK_AFTER),
            "it would go back and forth"
        );
        assert_eq!(remaining(&cooldowns, &["other"], true, (0, 0)), None);
        cooldowns.note(&task("a"), COOLDOWN, ReleasedBy::Node, Moment::from_ms(0));
        assert_eq!(remaining(&cooldowns, &["other"], true, (0, 0)), Some(TAKE_BACK_AFTER), "released again");
    }

    #[test]
    fn task_released_twice_counts_from_the_second_time() {
        let mut cooldowns = Cooldowns::new();
        cooldowns.note(&task("a"), COOLDOWN, ReleasedBy::Node, Moment::from_ms(0));
        cooldowns.note(&task("a"), COOLDOWN, ReleasedBy::Node, Moment::from_ms(30_000));
        assert!(remaining(&cooldowns, &["n"], true, (60_000, 0)).is_some());
        cooldowns.forget(&task("a"));
        assert_eq!(remaining(&cooldowns, &["n"], true, (30_000, 0)), None);
        assert!(cooldowns.is_empty() && cooldowns.by_end.is_empty());
    }

    #[test]
    fn expired_entries_are_forgotten() {
        let mut cooldowns = Cooldowns::new();
        for n in 0..10_000_u64 {
            cooldowns.note(&task(&format!("t{n}")), COOLDOWN, ReleasedBy::Node, Moment::from_ms(n * 1_000));
        }
        assert_eq!((cooldowns.len(), cooldowns.by_end.len()), (60, 60));
    }
}
