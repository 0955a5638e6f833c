//! Requests of a driver: those that wait, those in flight, and the policy that decides how many are sent together, and when.
//!
//! At most two batches are in flight. The driver builds the next batch while the store processes the other. With one, the store and the
//! driver wait for each other; with more, the waiting requests are spread over many small batches, and each batch costs both sides as
//! much as a dozen locks. A large batch beside a small one is one flow again, so a long queue is cut in halves, and a few late requests
//! wait for the next batch.
//!
//! That is for a store that replies within [`PATIENCE`]. A request that has waited longer is sent, whatever is in flight. A request that
//! comes when nothing is in flight is always sent at once.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::time::Moment;
use tokio::sync::Notify;

/// How many transactions one batch carries. An etcd request takes 128 operations along one path, and each transaction of a queue has two.
pub(crate) const BATCH_MAX: usize = 100;

/// How long a batch may take before requests stop waiting for it. Several round trips to a store nearby. Doubled, a request that hangs
/// delays the others for so much longer; halved, a busy server gets more and smaller batches.
const PATIENCE: Duration = Duration::from_millis(5);

/// Batches in flight that a caller waits for, at most; reached only when the store is slow. More would not be answered sooner.
const IN_FLIGHT_MAX: usize = 4;

/// Batches in flight together while they are answered within [`PATIENCE`].
const FLOWS: usize = 2;

/// So few requests neither wait for more nor are cut in two.
const FEW: usize = 8;

/// A request in flight, with its reply.
type PendingRequest<R> = Pin<Box<dyn Future<Output = R> + Send>>;

/// What reaches a driver: notifications of callers, and the replies to its requests.
pub(crate) struct Inbox<R> {
    changed: Notify,
    in_flight: Mutex<InFlight<R>>,
}

struct InFlight<R> {
    /// So few that all are polled when one of them wakes the driver. (`FuturesUnordered` wakes it once without need at each poll.)
    pending: Vec<PendingRequest<R>>,
    /// Wakes the driver; none before it has waited for the first time.
    waker: Option<Waker>,
}

/// Ends an inbox with its driver, also when the driver's task is dropped with its runtime.
pub(super) struct EndInbox<'a, R>(&'a Inbox<R>);

impl<R> Drop for EndInbox<'_, R> {
    fn drop(&mut self) {
        // Requests may own what the inbox is in: they are dropped here, and not with the inbox.
        let mut in_flight = self.0.lock();
        in_flight.waker = None;
        let pending = std::mem::take(&mut in_flight.pending);
        drop(in_flight);
        drop(pending);
    }
}

/// The right to send a request in the driver's name, without a switch to its task.
pub(crate) struct DirectSend<'a, R> {
    in_flight: MutexGuard<'a, InFlight<R>>,
}

impl<R> Default for Inbox<R> {
    fn default() -> Inbox<R> {
        let in_flight = InFlight { pending: Vec::new(), waker: None };
        Inbox { changed: Notify::new(), in_flight: Mutex::new(in_flight) }
    }
}

impl<R> Inbox<R> {
    /// Wakes the driver: a caller has changed its machine.
    pub(crate) fn notify(&self) {
        self.changed.notify_one();
    }

    /// Sends a request when the driver waits next.
    pub(crate) fn send(&self, request: impl Future<Output = R> + Send + 'static) {
        self.lock().pending.push(Box::pin(request));
    }

    /// Lets a caller send for a driver that waits; none if the driver is at work.
    pub(crate) fn direct(&self) -> Option<DirectSend<'_, R>> {
        let in_flight = self.in_flight.try_lock().ok()?;
        in_flight.waker.is_some().then_some(DirectSend { in_flight })
    }

    /// Drops all requests when the driver ends.
    pub(super) fn end_on_drop(&self) -> EndInbox<'_, R> {
        EndInbox(self)
    }

    pub(super) async fn notified(&self) {
        self.changed.notified().await;
    }

    pub(super) async fn next_reply(&self) -> R {
        std::future::poll_fn(|context| self.lock().poll(context)).await
    }

    fn lock(&self) -> MutexGuard<'_, InFlight<R>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R> InFlight<R> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<R> {
        if self.waker.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
            self.waker = Some(context.waker().clone());
        }
        // With nothing in flight nothing wakes the driver; a direct send polls with the waker that is kept.
        for (n, request) in self.pending.iter_mut().enumerate() {
            if let Poll::Ready(reply) = request.as_mut().poll(context) {
                drop(self.pending.remove(n));
                return Poll::Ready(reply);
            }
        }
        Poll::Pending
    }
}

impl<R> DirectSend<'_, R> {
    /// Sends a request; its reply wakes the driver. Returns the reply if it is there at once.
    pub(crate) fn send(mut self, request: impl Future<Output = R> + Send + 'static) -> Option<R> {
        self.in_flight.pending.push(Box::pin(request));
        let waker = self.in_flight.waker.clone()?;
        match self.in_flight.poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(reply) => Some(reply),
            Poll::Pending => None,
        }
    }
}

/// Which requests a batch takes.
pub(crate) trait BatchRules: Default {
    /// A request.
    type Request;

    /// Begins an empty batch.
    fn clear(&mut self);

    /// Takes a request into the batch, if it may travel with those that are in it.
    fn takes(&mut self, request: &Self::Request) -> bool;

    /// Whether a caller waits for the reply. Other requests travel with urgent ones, or when nothing is in flight.
    fn is_urgent(request: &Self::Request) -> bool;
}

/// Requests that wait, in their order, and the batches in flight.
pub(crate) struct RequestQueue<B: BatchRules> {
    waiting: VecDeque<B::Request>,
    /// How many of them are urgent.
    urgent: usize,
    rules: B,
    flow: FlowControl,
}

impl<B: BatchRules> Default for RequestQueue<B> {
    fn default() -> RequestQueue<B> {
        RequestQueue {
            waiting: VecDeque::new(),
            urgent: 0,
            rules: B::default(),
            flow: FlowControl::default(),
        }
    }
}

impl<B: BatchRules> RequestQueue<B> {
    pub(crate) fn push(&mut self, request: B::Request) {
        self.urgent += usize::from(B::is_urgent(&request));
        self.waiting.push_back(request);
    }

    /// Whether nothing waits and nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.flow.in_flight.is_empty()
    }

    /// How many of the waiting requests may be sent now.
    pub(crate) fn allowance(&self, now: Moment) -> usize {
        let is_due = self.flow.in_flight.is_empty() || self.urgent > 0;
        if is_due { self.flow.allowance(self.waiting.len(), now) } else { 0 }
    }

    /// Whether so many more requests would have to wait.
    pub(crate) fn would_wait(&self, more: usize, now: Moment) -> bool {
        self.flow.allowance(self.waiting.len() + more, now) == 0
    }

    /// When a batch that requests wait for has taken too long.
    pub(crate) fn next_wake(&self, now: Moment) -> Option<Moment> {
        patience_ends(self.flow.batches(), now)
    }

    /// The requests of the next batch; none if no request may be sent now.
    pub(crate) fn next_batch(&mut self, now: Moment) -> Vec<B::Request> {
        let most = self.allowance(now);
        self.take(most)
    }

    /// A batch was sent, with this many requests that callers wait for.
    pub(crate) fn begin(&mut self, len: usize, now: Moment) -> BatchId {
        self.flow.begin(RequestBatch { since: now, len })
    }

    /// A batch was answered.
    pub(crate) fn end(&mut self, id: BatchId) {
        self.flow.in_flight.retain(|(in_flight, _)| *in_flight != id);
    }

    /// Takes up to `most` requests that may travel together. The others keep their order.
    fn take(&mut self, most: usize) -> Vec<B::Request> {
        let most = most.min(BATCH_MAX);
        self.rules.clear();
        let mut batch = Vec::with_capacity(most.min(self.waiting.len()));
        let mut later = VecDeque::new();
        while batch.len() < most
            && let Some(request) = self.waiting.pop_front()
        {
            if self.rules.takes(&request) {
                self.urgent -= usize::from(B::is_urgent(&request));
                batch.push(request);
            } else {
                later.push_back(request);
            }
        }
        while let Some(request) = later.pop_back() {
            self.waiting.push_front(request);
        }
        batch
    }
}

/// A batch in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BatchId(u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RequestBatch {
    since: Moment,
    /// How many callers wait for its reply. A batch without any delays no request.
    len: usize,
}

impl RequestBatch {
    fn is_young(&self, now: Moment) -> bool {
        now.since(self.since) < PATIENCE
    }
}

/// All batches in flight.
#[derive(Default)]
struct FlowControl {
    in_flight: Vec<(BatchId, RequestBatch)>,
    counter: u64,
}

impl FlowControl {
    fn begin(&mut self, batch: RequestBatch) -> BatchId {
        self.counter += 1;
        let id = BatchId(self.counter);
        self.in_flight.push((id, batch));
        id
    }

    fn allowance(&self, waiting: usize, now: Moment) -> usize {
        allowance(waiting, self.batches(), now)
    }

    fn batches(&self) -> impl Iterator<Item = RequestBatch> {
        self.in_flight.iter().map(|(_, batch)| *batch)
    }
}

fn allowance(waiting: usize, in_flight: impl Iterator<Item = RequestBatch>, now: Moment) -> usize {
    let (mut all, mut flows, mut young) = (0, 0, 0);
    for batch in in_flight.filter(|batch| batch.len > 0) {
        all += 1;
        if batch.is_young(now) {
            flows += 1;
            young += batch.len;
        }
    }
    // A little less than the other flow is enough, or the two would soon be one.
    let is_as_large = flows < FLOWS && waiting * 5 >= young * 4;
    if all >= IN_FLIGHT_MAX || !(young < FEW || is_as_large) {
        return 0;
    }
    let half = (young + waiting).div_ceil(2);
    if half < FEW { waiting } else { half.min(waiting) }
}

fn patience_ends(in_flight: impl Iterator<Item = RequestBatch>, now: Moment) -> Option<Moment> {
    in_flight.filter(|batch| batch.is_young(now)).map(|batch| batch.since + PATIENCE).min()
}

#[cfg(test)]
mod tests;
