//! Which tasks use the node's capacity: those that run, start or stop. Sleeping and paused ones are *parked* and use none.
//!
//! A parked task that becomes runnable while all slots are used is *queued*: it starts before anything new is claimed, or is released if a peer
//! has room for it.
//!
//! **Invariant**: running tasks and claims in flight never exceed the capacity; so the reply to a claim always finds its slot.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::TaskId;
use crate::record::NodeLoad;
use crate::time::Moment;

use super::WorkerMachine;
use super::event::ReleaseReason;
use super::input::InputTime;
use super::output::WorkerOutput;
use super::timers::Timer;

/// How soon a change of the number of parked tasks is published. Peers compute the worker's room
/// from it. Halved, a fleet of a hundred workers with failing tasks would write two hundred records
/// a second.
const PUBLISH_PARKED_AFTER: Duration = Duration::from_secs(1);

/// How soon a change of the number of running tasks is published. It is for operators: peers see each claim.
const PUBLISH_RUNNING_AFTER: Duration = Duration::from_secs(15);

/// The held tasks that use no slot.
#[derive(Clone, Debug, Default)]
pub(super) struct HandlerSlots {
    /// Sleeping and paused tasks.
    parked: BTreeSet<TaskId>,
    /// Runnable tasks without a slot, with the time since when they wait.
    queued: BTreeMap<TaskId, Moment>,
    /// Queued tasks that are being released to a peer.
    moving: BTreeSet<TaskId>,
    published: NodeLoad,
    published_at: Moment,
}

impl HandlerSlots {
    pub(super) fn parked(&self) -> usize {
        self.parked.len()
    }

    pub(super) fn park(&mut self, task: &TaskId) {
        self.parked.insert(task.clone());
    }

    pub(super) fn queue(&mut self, task: &TaskId, now: Moment) {
        self.queued.insert(task.clone(), now);
    }

    /// The next step of the task is decided again.
    pub(super) fn take(&mut self, task: &TaskId) {
        self.parked.remove(task);
        self.queued.remove(task);
    }

    /// The worker does not hold the task any more.
    pub(super) fn forget(&mut self, task: &TaskId) {
        self.take(task);
        self.moving.remove(task);
    }

    fn oldest(&self) -> Option<TaskId> {
        let waiting = self.queued.iter().filter(|(task, _)| !self.moving.contains(*task));
        waiting.min_by_key(|(task, since)| (**since, *task)).map(|(task, _)| task.clone())
    }
}

impl WorkerMachine {
    /// Whether one more task may start.
    pub(super) fn has_slot(&self) -> bool {
        let running = self.held.len() - self.slots.parked.len() - self.slots.queued.len();
        self.config.capacity.is_none_or(|capacity| running + self.claims.len() < capacity)
    }

    /// Whether one more task may be claimed.
    pub(super) fn has_room(&self) -> bool {
        let is_full_of_parked =
            self.config.capacity.is_some() && self.slots.parked.len() >= self.config.parked_max;
        self.has_slot() && !is_full_of_parked
    }

    /// Starts queued tasks while there are slots. Of the others one is released if a peer has room for it.
    pub(super) fn start_queued(&mut self, now: InputTime) {
        while self.has_slot()
            && let Some(task) = self.slots.oldest()
        {
            self.advance(&task, now);
        }
        if !self.takes_tasks() || !self.board.is_fresh() {
            return;
        }
        let Some(task) = self.slots.oldest() else { return };
        let Some(class) = self.board.get(&task).map(|card| card.class) else { return };
        let waiting = self.board.demand().within(class).tasks + self.slots.moving.len() as u64;
        let room = self.peers.workers().room_of_others(&self.config.node, class);
        if room.is_none_or(|room| room > waiting) {
            self.slots.moving.insert(task.clone());
            self.release(&task, ReleaseReason::Balance, now);
        }
    }

    /// Publishes how busy the node is, if that has changed and was not published a moment ago.
    pub(super) fn publish_load(&mut self, now: InputTime) {
        if self.incarnation.is_none() || !self.is_working() {
            return;
        }
        let parked = self.slots.parked.len();
        let load = NodeLoad { running: (self.held.len() - parked) as u64, parked: parked as u64 };
        let wait = match self.slots.published {
            published if published == load => return self.timers.clear(&Timer::Publish),
            published if published.parked == load.parked => PUBLISH_RUNNING_AFTER,
            _ => PUBLISH_PARKED_AFTER,
        };
        let at = self.slots.published_at + wait;
        if at > now.at {
            return self.timers.set(Timer::Publish, at);
        }
        (self.slots.published, self.slots.published_at) = (load, now.at);
        self.timers.clear(&Timer::Publish);
        self.outputs.push_back(WorkerOutput::Publish(load));
    }
}
