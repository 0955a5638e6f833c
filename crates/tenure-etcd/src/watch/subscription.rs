//! One watcher as the machine sees it: how far it is, what it must still prove, and what it keeps
//! back until then.
//!
//! Two things have to be known before an item may be handed out. A watch from *now* starts wherever the asked member
//! happens to be, so a linearizable read gives the revision it delivers after. A watch that starts in the past may have
//! lost a deletion to compaction without a word (etcd before 3.4.36 and 3.5.18), so a read at its starting point must
//! show that this point is not compacted. Items that arrive earlier are held.
//!
//! **Invariant**: everything up to the point was queued for the consumer or lies before the start; nothing above it was.

use bytes::Bytes;

use super::join::{Join, More, OutOfOrder};
use super::router::{QueueFull, WatchSink};
use super::{RevisionBatch, WatchError, WatchEvent, WatchFrom, WatchItem, WatchSpec};
use crate::message::watch::WatchCreateRequest;

/// Items kept back while a read is in flight, which lasts one round trip as a rule. A watcher that
/// gets more in that time is stopped and continued later.
const HELD_MAX: usize = 4_096;
/// Bytes held back likewise: as much as the consumer's own queue takes.
const HELD_WEIGHT_MAX: usize = 4 << 20;

/// One watcher.
#[derive(Debug)]
pub(super) struct Subscription<S> {
    pub(super) key: Bytes,
    pub(super) range_end: Bytes,
    prev: bool,
    sink: S,
    point: StartPoint,
    phase: SubscriptionPhase,
    unverified: UnverifiedStart,
    /// Counts the creations, so that late replies about an earlier one are recognised.
    epoch: u64,
    is_open: bool,
    join: Join,
    held: Vec<WatchItem>,
    held_weight: usize,
}

/// Up to which revision everything was queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartPoint {
    /// From the current revision of the member, which has not reported it yet.
    Member,
    /// From now; the current revision is not read yet.
    Unread,
    /// From now, and the read returned this revision; whether the watch begins that early is not
    /// known yet.
    Read(i64),
    /// Resume after this one.
    Known(i64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubscriptionPhase {
    /// Waits for a stream.
    Waiting,
    /// Requested, not answered.
    Creating,
    /// Created at the server under this id. The server was at this revision when it replied.
    Live { id: i64, server_at: i64 },
    /// Cancelled because its consumer is slow, until the consumer has emptied its queue.
    Draining,
    /// Cancelled because too much was kept back, until the read that decides is answered.
    Parked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnverifiedStart {
    /// No revision can have been lost.
    None,
    /// Prove it when the first item comes: only then has the server read its history.
    Untested,
    /// The proof is in flight.
    Probing,
}

/// What a watcher needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubscriptionNeed {
    /// A linearizable read; its revision is the point.
    Point,
    /// A read at this revision, to see that it is not compacted. `was_at_end`: the server was not
    /// beyond it just before the watch was created. It may have moved on since, so this is no proof
    /// by itself.
    Probe { after: i64, was_at_end: bool },
    /// To be cancelled at the server.
    Stop { id: i64 },
    /// To be created again.
    Create,
}

impl<S: WatchSink> Subscription<S> {
    pub(super) fn new(spec: WatchSpec, sink: S) -> Self {
        let point = match spec.start {
            WatchFrom::Now => StartPoint::Unread,
            WatchFrom::Recent => StartPoint::Member,
            WatchFrom::After(revision) => StartPoint::Known(revision),
        };
        Self {
            key: spec.key,
            range_end: spec.range_end,
            prev: spec.prev,
            sink,
            point,
            phase: SubscriptionPhase::Waiting,
            unverified: UnverifiedStart::None,
            epoch: 0,
            is_open: false,
            join: Join::default(),
            held: Vec::new(),
            held_weight: 0,
        }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn id(&self) -> Option<i64> {
        match self.phase {
            SubscriptionPhase::Live { id, .. } => Some(id),
            SubscriptionPhase::Waiting
            | SubscriptionPhase::Creating
            | SubscriptionPhase::Draining
            | SubscriptionPhase::Parked => None,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.phase == SubscriptionPhase::Waiting
    }

    /// Whether the point still has to be read.
    pub(super) fn is_unread(&self) -> bool {
        self.point == StartPoint::Unread
    }

    /// The request that creates it on a stream.
    pub(super) fn create(&mut self, watch_id: i64) -> WatchCreateRequest {
        // What was held belongs to an earlier creation, and a late proof of that must not count.
        self.clear();
        self.epoch += 1;
        self.phase = SubscriptionPhase::Creating;
        let start_revision = match self.point {
            // 0 means from the server's current revision: it need not catch up, which would wait for
            // its tick of 100 ms.
            StartPoint::Unread | StartPoint::Member => 0,
            StartPoint::Read(revision) | StartPoint::Known(revision) => {
                self.point = StartPoint::Known(revision);
                revision.saturating_add(1)
            }
        };
        // Nothing can be lost before the first revision, and revision 0 cannot be read.
        self.unverified = if start_revision > 1 { UnverifiedStart::Untested } else { UnverifiedStart::None };
        WatchCreateRequest {
            key: self.key.clone(),
            range_end: self.range_end.clone(),
            start_revision,
            progress_notify: true,
            prev_kv: self.prev,
            watch_id,
            fragment: true,
        }
    }

    /// The server has created the watch and was at `server_at` afterwards.
    pub(super) fn created(&mut self, id: i64, server_at: i64, needs: &mut Vec<SubscriptionNeed>) {
        self.phase = SubscriptionPhase::Live { id, server_at };
        match self.point {
            StartPoint::Unread => {}
            StartPoint::Member => {
                self.point = StartPoint::Known(server_at);
                self.open(server_at);
            }
            StartPoint::Known(point) => self.open(point),
            StartPoint::Read(point) => {
                self.point = StartPoint::Unread;
                self.read(point, needs);
            }
        }
    }

    /// A linearizable read, begun after the watch was requested, found the store at `revision`.
    pub(super) fn read(&mut self, revision: i64, needs: &mut Vec<SubscriptionNeed>) {
        if self.point != StartPoint::Unread {
            return;
        }
        match self.phase {
            // The watch may begin later than the read: what came in between would be missing. Read
            // again.
            SubscriptionPhase::Live { server_at, .. } if server_at > revision => {
                needs.push(SubscriptionNeed::Point);
            }
            // The watch began no later than the read, so it covers everything after `revision`; older
            // items that it delivered are dropped.
            SubscriptionPhase::Live { .. } => {
                self.point = StartPoint::Known(revision);
                self.open(revision);
                self.release(needs);
            }
            // Too much was held meanwhile and the watch was cancelled: create it again, now with a
            // start revision.
            SubscriptionPhase::Parked => {
                self.point = StartPoint::Known(revision);
                self.open(revision);
                self.phase = SubscriptionPhase::Waiting;
                needs.push(SubscriptionNeed::Create);
            }
            SubscriptionPhase::Waiting | SubscriptionPhase::Creating | SubscriptionPhase::Draining => {
                self.point = StartPoint::Read(revision);
            }
        }
    }

    /// The starting point of creation `epoch` is not compacted.
    pub(super) fn proven(&mut self, epoch: u64, needs: &mut Vec<SubscriptionNeed>) {
        if !self.is_probing(epoch) {
            return;
        }
        self.unverified = UnverifiedStart::None;
        if self.phase == SubscriptionPhase::Parked {
            self.phase = SubscriptionPhase::Waiting;
            needs.push(SubscriptionNeed::Create);
        } else {
            self.release(needs);
        }
    }

    /// Whether the proof for creation `epoch` is still wanted.
    pub(super) fn is_probing(&self, epoch: u64) -> bool {
        epoch == self.epoch && self.unverified == UnverifiedStart::Probing
    }

    /// Events from the server.
    pub(super) fn events(
        &mut self,
        events: Vec<WatchEvent>,
        more: More,
        needs: &mut Vec<SubscriptionNeed>,
    ) -> Result<(), OutOfOrder> {
        let mut whole = Vec::new();
        self.join.push(events, more, self.last(), &mut whole)?;
        for RevisionBatch { revision, events } in whole {
            self.take(WatchItem::Batch { revision, events }, needs);
            if self.id().is_none() {
                // Stopped: the remaining batches are sent again after it resumes.
                break;
            }
        }
        Ok(())
    }

    /// The server reports that everything up to `revision` was sent.
    pub(super) fn progress(&mut self, revision: i64, needs: &mut Vec<SubscriptionNeed>) {
        let is_new =
            matches!(self.point, StartPoint::Known(_)) && revision > self.last() && !self.join.is_open();
        if is_new {
            self.take(WatchItem::Progress(revision), needs);
        }
    }

    /// The stream is lost. What was held is dropped: the next stream delivers it again.
    pub(super) fn lose(&mut self) {
        self.clear();
        match self.phase {
            SubscriptionPhase::Creating | SubscriptionPhase::Live { .. } | SubscriptionPhase::Parked => {
                self.phase = SubscriptionPhase::Waiting;
            }
            SubscriptionPhase::Waiting | SubscriptionPhase::Draining => {}
        }
    }

    /// The consumer has emptied its queue.
    pub(super) fn drained(&mut self, needs: &mut Vec<SubscriptionNeed>) {
        if self.phase == SubscriptionPhase::Draining {
            self.phase = SubscriptionPhase::Waiting;
            needs.push(SubscriptionNeed::Create);
        }
    }

    /// Ends the subscription with this reason.
    pub(super) fn end(mut self, end: WatchError) {
        self.sink.end(end);
    }

    fn open(&mut self, point: i64) {
        if !self.is_open {
            self.is_open = true;
            self.sink.opened(point);
        }
    }

    fn last(&self) -> i64 {
        let point = match self.point {
            StartPoint::Unread | StartPoint::Member => 0,
            StartPoint::Read(revision) | StartPoint::Known(revision) => revision,
        };
        self.held.last().map_or(point, |held| held.revision().max(point))
    }

    fn take(&mut self, item: WatchItem, needs: &mut Vec<SubscriptionNeed>) {
        match (self.point, self.unverified) {
            (StartPoint::Known(_), UnverifiedStart::None) => self.deliver(item, needs),
            // Not before the first item: only then has the server read its history, and a compaction
            // between the probe and that moment could remove revisions unseen.
            (StartPoint::Known(after), UnverifiedStart::Untested) => {
                self.unverified = UnverifiedStart::Probing;
                let was_at_end = matches!(self.phase, SubscriptionPhase::Live { server_at, .. } if (1..=after).contains(&server_at));
                needs.push(SubscriptionNeed::Probe { after, was_at_end });
                self.hold(item, needs);
            }
            (StartPoint::Known(_), UnverifiedStart::Probing)
            | (StartPoint::Member | StartPoint::Unread | StartPoint::Read(_), _) => {
                self.hold(item, needs);
            }
        }
    }

    fn hold(&mut self, item: WatchItem, needs: &mut Vec<SubscriptionNeed>) {
        let weight = self.held_weight.saturating_add(item.weight());
        // One item always fits: a single large revision must not stop the watch forever.
        let has_room = self.held.is_empty() || (self.held.len() < HELD_MAX && weight <= HELD_WEIGHT_MAX);
        if has_room {
            self.held_weight = weight;
            self.held.push(item);
        } else {
            self.stop(SubscriptionPhase::Parked, needs);
        }
    }

    fn release(&mut self, needs: &mut Vec<SubscriptionNeed>) {
        self.held_weight = 0;
        let StartPoint::Known(point) = self.point else { return };
        for item in std::mem::take(&mut self.held) {
            // The watch may have begun before the point that was read.
            if item.revision() > point {
                self.deliver(item, needs);
            }
            if self.id().is_none() {
                break;
            }
        }
    }

    fn deliver(&mut self, item: WatchItem, needs: &mut Vec<SubscriptionNeed>) {
        let revision = item.revision();
        match self.sink.offer(item) {
            Ok(()) => self.point = StartPoint::Known(revision),
            Err(QueueFull) => self.stop(SubscriptionPhase::Draining, needs),
        }
    }

    fn stop(&mut self, phase: SubscriptionPhase, needs: &mut Vec<SubscriptionNeed>) {
        needs.extend(self.id().map(|id| SubscriptionNeed::Stop { id }));
        self.join = Join::default();
        self.held.clear();
        self.held_weight = 0;
        self.phase = phase;
    }

    fn clear(&mut self) {
        self.join = Join::default();
        self.held.clear();
        self.held_weight = 0;
        self.unverified = UnverifiedStart::None;
    }
}
