//! The requests of a queue driver: what its machines want, and when holds of this process began.
//!
//! A queue key is put before it is known whether its waiter has to wait, so its record cannot contain when the hold began. The time is written
//! once a hold has lasted for [`RECORD_AFTER`]. A shorter hold costs no request for it: most locks are released within a millisecond, and a
//! hand-off is not delayed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use tenure_core::queue::{
    AcquiredMark, BatchRequests, QueueOutput, QueueReply, QueueRequests, ReplyProgress, Rewrite,
    RewriteError, RewriteLimit, Rewritten, WaiterId,
};
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tracing::debug;

use super::local_queues::QueueSlot;
use crate::clock::{Clock, wall_time};
use crate::driver::requests::{BATCH_MAX, BatchRules, RequestQueue};
use crate::retry;
use crate::session::Session;
use crate::store::{Store, StoreError, Txn};

/// How long a hold lasts before its beginning is written: as long as its key is unwatched. Halved, more short holds cost a third request;
/// doubled, a reader that lists locks does not know for so much longer when the newest hold began.
pub(super) const RECORD_AFTER: Duration = Duration::from_millis(100);

/// How long to wait after the store did not answer. No caller waits for it.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Each conflict means that the write of another client was applied. A lost reply is retried with the next due time.
const EFFORT: RewriteLimit = RewriteLimit::Bounded { conflicts_max: 4, lost_max: 0 };

/// What a machine wants of the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct QueuedRequest {
    pub(super) slot: QueueSlot,
    /// The prefix of the queue. It may be left before this is sent, and another queue be in its slot.
    pub(super) queue: Bytes,
    pub(super) output: QueueOutput,
}

/// A request with what its enter puts.
pub(super) struct Request {
    pub(super) request: QueuedRequest,
    pub(super) value: Bytes,
}

/// The reply to one request.
pub(super) enum Response {
    Queue(QueueReply),
    /// The beginning of a hold was written, or not.
    Recorded(WaiterId, Recorded),
}

/// The replies to a batch, each with the slot of its queue.
pub(super) type Responses = Vec<(QueueSlot, Response)>;

/// What the machines want and what is in flight.
pub(super) type PendingRequests = RequestQueue<QueueBatches>;

/// Lets requests of different queues travel together, as `core::queue` allows.
#[derive(Default)]
pub(super) struct QueueBatches(BatchRequests<QueueSlot>);

impl BatchRules for QueueBatches {
    type Request = QueuedRequest;

    fn clear(&mut self) {
        self.0.clear();
    }

    fn takes(&mut self, request: &QueuedRequest) -> bool {
        self.0.takes(request.slot, request.output)
    }

    fn is_urgent(request: &QueuedRequest) -> bool {
        request.output.is_urgent()
    }
}

/// Sends a batch. What it contains and what its replies mean is decided in `core::queue`.
pub(super) async fn send(session: Session, requests: Arc<QueueRequests>, batch: Vec<Request>) -> Responses {
    let now = wall_time();
    let txn = |one: &Request| requests.txn(&one.request.queue, one.request.output, &one.value, now);
    let store = session.store();
    let mut txns: Vec<Txn> = batch.iter().map(txn).collect();
    let replies = match (txns.pop(), txns.is_empty()) {
        (Some(only), true) => vec![store.txn(only).await],
        (Some(last), false) => {
            txns.push(last);
            store.batch(txns).await
        }
        (None, _) => Vec::new(),
    };
    let mut responses = Vec::with_capacity(batch.len());
    for (Request { request, .. }, reply) in batch.into_iter().zip(replies) {
        if let Err(error) = &reply {
            session.note_failure(error);
        }
        let reply = match requests.handle(&request.queue, request.output, reply) {
            ReplyProgress::Done(reply) => reply,
            ReplyProgress::Read(read) => {
                let page = store.get(read.get()).await;
                read.handle(page)
            }
        };
        responses.push((request.slot, Response::Queue(reply)));
    }
    responses
}

/// The holds of one queue with a beginning that is not written yet.
#[derive(Default)]
pub(super) struct UnrecordedHolds {
    holds: Vec<UnrecordedHold>,
}

struct UnrecordedHold {
    id: WaiterId,
    began: Moment,
    /// When it is written; none while the request is in flight.
    due: Option<Moment>,
}

impl UnrecordedHolds {
    /// A hold began, and is to be recorded at `due` if it lasts that long.
    pub(super) fn add(&mut self, id: WaiterId, began: Moment, due: Moment) {
        self.remove(id);
        self.holds.push(UnrecordedHold { id, began, due: Some(due) });
    }

    /// A hold ended.
    pub(super) fn remove(&mut self, id: WaiterId) {
        self.holds.retain(|hold| hold.id != id);
    }

    /// A hold that is to be written now, and when it began.
    pub(super) fn next_due(&mut self, now: Moment) -> Option<(WaiterId, Moment)> {
        let is_due = |hold: &&mut UnrecordedHold| hold.due.is_some_and(|due| due <= now);
        let hold = self.holds.iter_mut().find(is_due)?;
        hold.due = None;
        Some((hold.id, hold.began))
    }

    /// The request for a hold was answered.
    pub(super) fn handle(&mut self, id: WaiterId, outcome: Recorded, now: Moment) {
        match outcome {
            Recorded::Done => self.remove(id),
            Recorded::NotDone => {
                if let Some(hold) = self.holds.iter_mut().find(|hold| hold.id == id) {
                    hold.due = Some(now + RETRY_AFTER);
                }
            }
        }
    }

    /// When the next hold is to be written.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.holds.iter().filter_map(|hold| hold.due).min()
    }
}

/// What came of writing when a hold began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Recorded {
    /// It is written, or there is nothing to write any more.
    Done,
    /// The store did not answer, or others wrote the record again and again.
    NotDone,
}

/// A hold with a beginning that is to be recorded.
pub(super) struct AcquiredHold {
    pub(super) slot: QueueSlot,
    pub(super) id: WaiterId,
    /// Its queue key, and the create revision of that.
    pub(super) key: Bytes,
    pub(super) token: Token,
    /// What was put when it entered the queue.
    pub(super) value: Bytes,
    pub(super) mark: AcquiredMark,
}

/// Writes when these holds began: the first requests of all travel together.
pub(super) async fn record(store: Store, clock: Arc<dyn Clock>, holds: Vec<AcquiredHold>) -> Responses {
    let mut responses = Responses::with_capacity(holds.len());
    for holds in holds.chunks(BATCH_MAX) {
        let (mut sent, mut txns) = (Vec::new(), Vec::new());
        for hold in holds {
            let rewrite = Rewrite::new(hold.key.clone(), hold.token, hold.mark, EFFORT);
            let rewrite =
                rewrite.known(&hold.value, hold.token.0).map(|rewrite| (rewrite.request(), rewrite));
            match rewrite {
                Ok((StoreRequest::Txn(txn), rewrite)) => {
                    sent.push((hold, rewrite));
                    txns.push(txn);
                }
                // Nothing has to be written.
                Ok((StoreRequest::Get(_), _)) | Err(_) => {
                    responses.push((hold.slot, Response::Recorded(hold.id, Recorded::Done)));
                }
            }
        }
        let replies = store.batch(txns).await;
        for ((hold, mut rewrite), reply) in sent.into_iter().zip(replies) {
            let result = match rewrite.handle(reply.map(StoreReply::Txn)) {
                ExchangeStep::Done(result) => result,
                // Another client has written the record since.
                ExchangeStep::Send | ExchangeStep::Retry(_) => {
                    retry::run("record hold", &store, &clock, &mut rewrite).await
                }
            };
            responses.push((hold.slot, Response::Recorded(hold.id, recorded(result))));
        }
    }
    responses
}

fn recorded(result: Result<Rewritten, RewriteError>) -> Recorded {
    match result {
        Ok(Rewritten::Stored(..) | Rewritten::Gone) | Err(RewriteError::Unreadable(_)) => Recorded::Done,
        Ok(Rewritten::Contended) => Recorded::NotDone,
        Err(RewriteError::Store(error)) => {
            debug!(%error, "hold not recorded");
            let is_refused =
                error.is_fatal() || matches!(error, StoreError::Invalid(_) | StoreError::Denied(_));
            if is_refused { Recorded::Done } else { Recorded::NotDone }
        }
    }
}
