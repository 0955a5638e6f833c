//! How long tasks that have ended are kept: by age, and by their number in the namespace.
//!
//! The entries `ended/<time>/<task>` sort by the time of the end, so the oldest are read first and a round never reads more than a page. One
//! node of the namespace does this work, the one that rendezvous hashing names; two nodes that disagree for a moment harm nothing, because
//! each delete requires the entry and its state unchanged.
//!
//! A store does not count keys. The node counts the entries once, page by page, and then knows a bound: each task that its feed shows as
//! gone may be one more. Only when that bound exceeds the limit does it count again, and then it deletes a twentieth more than it must,
//! so that the next count is due only after so many more ends.
//!
//! **Invariant**: at most one page is in flight, and no page is requested before all deletes of the last one are answered.
//!
//! **Invariant**: an entry is deleted only if it is older than the limit, or counted as one of those above the limit of their number.

use std::time::Duration;

use bytes::Bytes;

use crate::rendezvous;
use crate::revision::RequestId;

use super::WorkerMachine;
use super::event::WorkerEvent;
use super::input::{EndedPage, InputTime, RetentionReply};
use super::output::{EndedTask, RetentionRequest, RetentionStep, WorkerOutput};
use super::timers::Timer;

/// How many entries are read and deleted in one round. Doubled, a round delays the node's other writes twice as long.
const ENTRIES_PER_ROUND: u32 = 128;

/// The pause between two rounds while there is more to do: about a thousand entries a second at most.
const ROUND_EVERY: Duration = Duration::from_millis(100);

/// The longest and the shortest time between two passes. A pass without anything to delete is one read of one page.
const PASS_EVERY_MAX: Duration = Duration::from_secs(60);
const PASS_EVERY_MIN: Duration = Duration::from_secs(1);

/// The name by which nodes agree which of them does this, and sweeps commands and results.
const DUTY: &[u8] = b"retention";

/// How long tasks that have ended are kept in a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keep {
    /// For how long after their end; none for ever.
    pub age: Option<Duration>,
    /// How many, the newest; none for no limit.
    pub tasks_max: Option<u64>,
}

impl Default for Keep {
    /// A week, and a hundred thousand tasks: about 100 MB of state in the store.
    fn default() -> Keep {
        Keep { age: Some(Duration::from_secs(7 * 24 * 60 * 60)), tasks_max: Some(100_000) }
    }
}

impl Keep {
    /// Everything, for ever.
    pub const ALL: Keep = Keep { age: None, tasks_max: None };

    fn pass_every(self) -> Option<Duration> {
        match (self.age, self.tasks_max) {
            (None, None) => None,
            // Short limits are for tests and for trying it out.
            (Some(age), _) => Some((age / 10).clamp(PASS_EVERY_MIN, PASS_EVERY_MAX)),
            (None, Some(_)) => Some(PASS_EVERY_MAX),
        }
    }
}

/// What is known of the tasks that have ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Retention {
    /// No more entries than this can be there; none before they were counted.
    bound: Option<u64>,
    /// How many were counted so far in this pass, if it counts.
    counted: Option<u64>,
    /// How many of the oldest are to be deleted because there are too many.
    surplus: u64,
    /// The last key that this pass has read.
    after: Option<Bytes>,
    /// The page that is in flight.
    reading: Option<RequestId>,
    /// How many deletes are in flight.
    deleting: usize,
    /// The newest request; replies to those of an earlier duty are too old.
    since: RequestId,
}

impl WorkerMachine {
    /// The next page is due.
    pub(super) fn retention_due(&mut self, now: InputTime) {
        let Some(every) = self.config.keep.pass_every() else { return };
        if !self.has_retention_duty() {
            self.retention = Retention { since: self.epoch, ..Retention::default() };
            return self.timers.set(Timer::Retention, now.at + every);
        }
        if self.retention.reading.is_some() || self.retention.deleting > 0 {
            // The reply sets the next time.
            return;
        }
        let is_new_pass = self.retention.after.is_none() && self.retention.surplus == 0;
        if is_new_pass && self.retention.counted.is_none() {
            let is_above = |max: u64| self.retention.bound.is_none_or(|bound| bound > max);
            self.retention.counted = self.config.keep.tasks_max.is_some_and(is_above).then_some(0);
        }
        let step = RetentionStep::Read { after: self.retention.after.clone(), limit: ENTRIES_PER_ROUND };
        self.retention.reading = Some(self.request_retention(step));
    }

    /// Sets the first pass, with a scatter: nodes start together.
    pub(super) fn begin_retention(&mut self, now: InputTime) {
        if let Some(every) = self.config.keep.pass_every()
            && self.timers.at(&Timer::Retention).is_none()
        {
            let scattered = every.mul_f64(0.5 + 0.5 * now.jitter.clamp(0.0, 1.0));
            self.timers.set(Timer::Retention, now.at + scattered);
        }
    }

    /// The feed has shown that a task is gone: it may have ended.
    pub(super) fn note_gone(&mut self) {
        if let Some(bound) = &mut self.retention.bound {
            *bound = bound.saturating_add(1);
        }
    }

    pub(super) fn handle_retained(&mut self, ask: &RetentionRequest, reply: RetentionReply, now: InputTime) {
        if matches!(
            ask.step,
            RetentionStep::ReadResults { .. }
                | RetentionStep::DeleteResult(_)
                | RetentionStep::ExpireCommand { .. }
        ) {
            return self.handle_swept(ask, reply, now);
        }
        if ask.epoch <= self.retention.since {
            return;
        }
        if self.retention.reading == Some(ask.epoch) {
            self.retention.reading = None;
            match reply {
                RetentionReply::Page(page) => self.handle_page(page, now),
                // Not now: a later pass begins where this one was.
                _ => self.end_pass(now),
            }
        } else {
            self.retention.deleting = self.retention.deleting.saturating_sub(1);
            match (&ask.step, reply) {
                (RetentionStep::Delete(ended), RetentionReply::Deleted) => {
                    self.retention.bound = self.retention.bound.map(|bound| bound.saturating_sub(1));
                    self.events
                        .push_back(WorkerEvent::Forgotten { task: ended.task.clone(), ended: ended.at });
                }
                (RetentionStep::Delete(ended), RetentionReply::Stale) => {
                    self.delete_ended(RetentionStep::DeleteEntry(ended.clone()));
                }
                _ => {}
            }
        }
        let has_reply = self.retention.reading.is_none() && self.retention.deleting == 0;
        if has_reply && self.timers.at(&Timer::Retention).is_none() {
            self.timers.set(Timer::Retention, now.at + ROUND_EVERY);
        }
    }

    fn handle_page(&mut self, page: EndedPage, now: InputTime) {
        let EndedPage { ended, last, more } = page;
        let read = ended.len();
        let over: Vec<EndedTask> = ended.into_iter().take_while(|ended| self.is_over(ended, now)).collect();
        let is_all_over = over.len() == read;
        if let Some(counted) = &mut self.retention.counted {
            *counted = counted.saturating_add((read - over.len()) as u64);
        }
        for ended in over {
            self.delete_ended(RetentionStep::Delete(ended));
        }
        let goes_on = more && last.is_some() && (self.retention.counted.is_some() || is_all_over);
        if goes_on {
            self.retention.after = last;
            return;
        }
        self.retention.after = None;
        let max = self.config.keep.tasks_max;
        if let Some((counted, max)) = self.retention.counted.take().zip(max) {
            self.retention.bound = Some(counted);
            // A twentieth more than needed, see above.
            self.retention.surplus = if counted > max { counted - (max - max / 20) } else { 0 };
        } else {
            self.retention.surplus = 0;
        }
        if self.retention.surplus == 0 {
            self.end_pass(now);
        }
    }

    /// Whether an entry is not kept any longer. Takes one of the surplus, if that is why.
    fn is_over(&mut self, ended: &EndedTask, now: InputTime) -> bool {
        let is_old = self.config.keep.age.is_some_and(|age| {
            let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            ended.at.0.saturating_add(age) < now.wall.0
        });
        let is_surplus = self.retention.counted.is_none() && self.retention.surplus > 0;
        if is_surplus {
            self.retention.surplus -= 1;
        }
        is_old || is_surplus
    }

    fn end_pass(&mut self, now: InputTime) {
        (self.retention.after, self.retention.counted, self.retention.surplus) = (None, None, 0);
        if let Some(every) = self.config.keep.pass_every() {
            self.timers.set(Timer::Retention, now.at + every);
        }
    }

    fn delete_ended(&mut self, step: RetentionStep) {
        self.retention.deleting += 1;
        self.request_retention(step);
    }

    pub(super) fn request_retention(&mut self, step: RetentionStep) -> RequestId {
        let epoch = self.next_epoch();
        self.outputs.push_back(WorkerOutput::Retain(Box::new(RetentionRequest { epoch, step })));
        epoch
    }

    /// Whether this node is the one that deletes, as far as it knows.
    pub(super) fn has_retention_duty(&self) -> bool {
        let names = self.peers.workers().iter().map(|(node, _)| node.as_str());
        self.takes_tasks() && rendezvous::pick(DUTY, names) == Some(self.config.node.as_str())
    }
}
