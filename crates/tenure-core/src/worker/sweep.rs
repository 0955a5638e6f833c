//! Deletes commands and results that have expired: their senders may be killed, and no lease ends them.
//!
//! The worker with the duty of retention does this for all, one bounded round at a time. Which commands wait, and when they expire, it
//! knows from its feeds. Results are in no feed, so it reads them in pages, and only those that can have expired: ids begin with the time
//! at which the command was sent, and a result is kept for a day from when it was handled, so every id of the last day is skipped. Ids of
//! another form are read sooner or later, because those a day ahead of now are not skipped.
//!
//! Two workers that disagree on the duty harm nothing: each delete requires that the key was not put again since it was read.
//!
//! **Invariant** (G9): a command is deleted only in the transaction that stores its result, if its sender left an id.
//!
//! **Invariant**: at most one round is in flight, of [`COMMANDS_PER_ROUND`] commands and one page of [`RESULTS_PER_ROUND`] results.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use crate::id::CommandId;
use crate::kv::{KeyValue, Selection};
use crate::layout::{Key, Layout, RESULT_EXPIRES_AFTER};
use crate::record::{CommandOutcome, CommandRecord, Record, ResultRecord, Timestamp};
use crate::revision::{RequestId, Revision};
use crate::snapshot::FeedItem;

use super::WorkerMachine;
use super::input::{InputTime, ResultsPage, RetentionReply};
use super::output::{ExpiredKey, RetentionRequest, RetentionStep};
use super::request::behind;
use super::timers::Timer;

/// How many commands expire in one round. Doubled, a round delays the worker's other writes twice as long.
const COMMANDS_PER_ROUND: usize = 64;

/// How many results are read, and at most deleted, in one round.
const RESULTS_PER_ROUND: u32 = 128;

/// The pause between two rounds while there is more to do: about a thousand results a second at most.
const ROUND_EVERY: Duration = Duration::from_millis(100);

/// The time between two passes. One without anything to delete reads two short ranges. Nothing waits for the end of a key that has expired, so
/// this decides only by how much more than a day and a week they stay.
const PASS_EVERY: Duration = Duration::from_secs(60);

/// What is known of the commands and results that expire.
#[derive(Clone, Debug)]
pub(super) struct Sweep {
    layout: Layout,
    /// The commands that expire, to tasks and to nodes.
    commands: BTreeMap<Bytes, ExpiringCommand>,
    /// Those of them that no deletion was requested for, by the time at which they expire.
    due: BTreeSet<(Timestamp, Bytes)>,
    /// Where reading the results continues. `None` between two passes.
    cursor: Option<SweepCursor>,
    /// Requests without a reply.
    in_flight: BTreeSet<RequestId>,
    /// Whether a request of this round failed: the rest of the pass waits for the next.
    has_failed: bool,
}

/// A command that expires.
#[derive(Clone, Debug)]
struct ExpiringCommand {
    expires_at: Timestamp,
    modified: Revision,
    id: Option<CommandId>,
}

/// How far results were read.
#[derive(Clone, Debug)]
struct SweepCursor {
    part: ResultRange,
    /// The last key that was read.
    after: Option<Bytes>,
}

/// The range of results that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ResultRange {
    /// Of commands that were sent more than a day ago.
    Old,
    /// Results with ids that sort after every id of the present: they are not times.
    Foreign,
}

impl Sweep {
    pub(super) fn new(layout: Layout) -> Sweep {
        Sweep {
            layout,
            commands: BTreeMap::new(),
            due: BTreeSet::new(),
            cursor: None,
            in_flight: BTreeSet::new(),
            has_failed: false,
        }
    }

    /// A feed shows a command, or its deletion.
    pub(super) fn see(&mut self, item: &FeedItem) {
        match item {
            FeedItem::Put(pair) => {
                self.forget(&pair.key);
                if let Some(expiring) = self.read(pair) {
                    self.due.insert((expiring.expires_at, pair.key.clone()));
                    self.commands.insert(pair.key.clone(), expiring);
                }
            }
            FeedItem::Delete { key, .. } => self.forget(key),
            FeedItem::SnapshotBegin | FeedItem::Synced(_) => {}
        }
    }

    fn forget(&mut self, key: &Bytes) {
        if let Some(expiring) = self.commands.remove(key) {
            self.due.remove(&(expiring.expires_at, key.clone()));
        }
    }

    fn read(&self, pair: &KeyValue) -> Option<ExpiringCommand> {
        // Most keys under `nodes/` are no commands: what cannot be one is not decoded.
        let key_id = match self.layout.parse(&pair.key)? {
            Key::TaskCommand(_) => None,
            Key::NodeCommand(_, id) => Some(id),
            _ => return None,
        };
        let record = CommandRecord::decode(&pair.value).ok()?;
        let id = key_id.or(record.id);
        Some(ExpiringCommand { expires_at: record.expires_at?, modified: pair.modified, id })
    }

    /// The next command that has expired, which is no longer due.
    fn next_expired(&mut self, now: Timestamp) -> Option<(ExpiredKey, Option<CommandId>)> {
        let (expires_at, key) = self.due.pop_first()?;
        if expires_at > now {
            self.due.insert((expires_at, key));
            return None;
        }
        let expiring = self.commands.get(&key)?;
        Some((ExpiredKey { key, modified: expiring.modified }, expiring.id.clone()))
    }

    /// A command was not deleted for certain: a later pass tries again.
    fn retry(&mut self, command: &ExpiredKey) {
        if let Some(expiring) = self.commands.get(&command.key)
            && expiring.modified == command.modified
        {
            self.due.insert((expiring.expires_at, command.key.clone()));
        }
    }

    /// The results to read next; none between two passes.
    fn next_page(&self, now: Timestamp) -> Option<Selection> {
        let cursor = self.cursor.as_ref()?;
        let results = self.layout.results();
        let at = |time| self.layout.encode(&Key::CommandResult(CommandId::first_at(time)));
        let part = match cursor.part {
            ResultRange::Old => {
                Selection::Range(results.first().clone(), at(now.before(RESULT_EXPIRES_AFTER)))
            }
            ResultRange::Foreign => Selection::Range(at(now.after(RESULT_EXPIRES_AFTER)), results.end()?),
        };
        // Empty if the clock was set back since the last page: then the pass goes on behind it.
        Some(behind(part, cursor.after.as_ref()))
    }

    fn next_part(&mut self) {
        self.cursor = match self.cursor.take() {
            Some(SweepCursor { part: ResultRange::Old, .. }) => {
                Some(SweepCursor { part: ResultRange::Foreign, after: None })
            }
            Some(SweepCursor { part: ResultRange::Foreign, .. }) | None => None,
        };
    }
}

impl WorkerMachine {
    /// Sets the first pass, with a scatter: workers start together.
    pub(super) fn begin_sweep(&mut self, now: InputTime) {
        if self.timers.at(&Timer::Sweep).is_none() {
            let scattered = PASS_EVERY.mul_f64(0.5 + 0.5 * now.jitter.clamp(0.0, 1.0));
            self.timers.set(Timer::Sweep, now.at + scattered);
        }
    }

    /// The next round is due.
    pub(super) fn sweep_due(&mut self, now: InputTime) {
        if !self.has_retention_duty() {
            self.sweep.cursor = None;
            return self.timers.set(Timer::Sweep, now.at + PASS_EVERY);
        }
        if !self.sweep.in_flight.is_empty() {
            // The last reply sets the next time.
            return;
        }
        self.sweep.has_failed = false;
        for _ in 0..COMMANDS_PER_ROUND {
            let Some((command, id)) = self.sweep.next_expired(now.wall) else { break };
            let result = id.map(|id| (id, self.expired_result(now.wall)));
            self.request_sweep(RetentionStep::ExpireCommand { command, result });
        }
        self.sweep.cursor.get_or_insert(SweepCursor { part: ResultRange::Old, after: None });
        if let Some(among) = self.sweep.next_page(now.wall) {
            self.request_sweep(RetentionStep::ReadResults { among, limit: RESULTS_PER_ROUND });
        }
        self.end_round(now);
    }

    fn expired_result(&self, now: Timestamp) -> Bytes {
        let result = ResultRecord::new(self.config.node.clone(), CommandOutcome::Expired, now);
        result.why("no worker handled it before it expired").encode()
    }

    pub(super) fn handle_swept(&mut self, ask: &RetentionRequest, reply: RetentionReply, now: InputTime) {
        if !self.sweep.in_flight.remove(&ask.epoch) {
            return;
        }
        self.sweep.has_failed |= reply == RetentionReply::NotDone;
        match (&ask.step, reply) {
            (RetentionStep::ReadResults { .. }, RetentionReply::Results(page)) => {
                self.handle_results(page, now);
            }
            (RetentionStep::ExpireCommand { command, .. }, RetentionReply::NotDone) => {
                self.sweep.retry(command);
            }
            _ => {}
        }
        self.end_round(now);
    }

    fn handle_results(&mut self, page: ResultsPage, now: InputTime) {
        let ResultsPage { results, last, more } = page;
        for (result, expires_at) in results {
            if expires_at.is_some_and(|expires_at| expires_at <= now.wall) {
                self.request_sweep(RetentionStep::DeleteResult(result));
            }
        }
        match &mut self.sweep.cursor {
            Some(cursor) if more && last.is_some() => cursor.after = last,
            Some(_) => self.sweep.next_part(),
            // The duty went to another worker meanwhile.
            None => {}
        }
    }

    /// Sets the next round once this one is answered.
    fn end_round(&mut self, now: InputTime) {
        if !self.sweep.in_flight.is_empty() {
            return;
        }
        let is_due = self.sweep.due.first().is_some_and(|(expires_at, _)| *expires_at <= now.wall);
        let goes_on = !self.sweep.has_failed && (is_due || self.sweep.cursor.is_some());
        if !goes_on {
            self.sweep.cursor = None;
        }
        self.timers.set(Timer::Sweep, now.at + if goes_on { ROUND_EVERY } else { PASS_EVERY });
    }

    fn request_sweep(&mut self, step: RetentionStep) {
        let epoch = self.request_retention(step);
        self.sweep.in_flight.insert(epoch);
    }
}
