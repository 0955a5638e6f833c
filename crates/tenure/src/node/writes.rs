//! What a node writes about its tasks and answers to its commands: in order, many in one request.

use std::collections::VecDeque;
use std::num::NonZeroI64;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::layout::Layout;
use tenure_core::name::{NodeId, TaskId};
use tenure_core::node::{Answer, CommandCheck, Event, Save, request};
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tokio::sync::Mutex;

use crate::clock::Clock;
use crate::dice;
use crate::store::{LeaseId, Store, StoreError, Txn, TxnReply};

/// How long results are kept: a day, and the time for which a lease is used for new ones.
const RESULTS_TTL: Duration = Duration::from_secs(25 * 60 * 60);

/// For how long new results go on one lease. Shorter means more leases, longer means that the last of them live shorter than a day.
const RESULTS_LEASE_FOR: Duration = Duration::from_secs(60 * 60);

/// How many writes travel together. Each has up to nine operations; the engine splits what does not fit in one request.
const TOGETHER_MAX: usize = 64;

/// Stands where a write without a result names the lease for it, and is never looked at.
const UNUSED: LeaseId = LeaseId(NonZeroI64::MIN);

/// One write.
pub(super) enum Write {
    Save(Box<Save>),
    GiveBack(TaskId, Token),
    Answer(Box<Answer>),
}

impl Write {
    /// Whether it stores the result of a command.
    fn has_result(&self) -> bool {
        match self {
            Write::Save(save) => matches!(save.command, CommandCheck::Acknowledge { id: Some(_), .. }),
            Write::GiveBack(..) => false,
            Write::Answer(answer) => answer.result.is_some(),
        }
    }

    fn txn(&self, layout: &Layout, node: &NodeId, results: Option<LeaseId>) -> Option<Txn> {
        let lease = match results {
            None if self.has_result() => return None,
            lease => lease.unwrap_or(UNUSED),
        };
        Some(match self {
            Write::Save(save) => request::save(layout, save, lease),
            Write::GiveBack(task, token) => request::give_back(layout, task, *token),
            Write::Answer(answer) => request::answer(layout, node, answer, lease),
        })
    }

    fn read(self, reply: Result<TxnReply, StoreError>) -> Event {
        match self {
            Write::Save(save) => {
                Event::Saved { answer: request::read_saved(&save, reply), task: save.task, epoch: save.epoch }
            }
            Write::GiveBack(task, token) => {
                Event::GivenBack { task, token, answer: request::read_given_back(&reply) }
            }
            Write::Answer(answer) => {
                Event::Answered { epoch: answer.epoch, answer: request::read_answered(&reply) }
            }
        }
    }
}

/// Writes that wait for their turn.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Write>,
}

impl Outbox {
    pub(super) fn push(&mut self, write: Write) {
        self.waiting.push_back(write);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What goes out together now.
    pub(super) fn next_request(&mut self) -> Vec<Write> {
        let len = self.waiting.len().min(TOGETHER_MAX);
        self.waiting.drain(..len).collect()
    }
}

/// Sends writes in one go, and reads what came of each.
pub(super) async fn send(
    store: Store,
    layout: Layout,
    node: NodeId,
    results: Arc<Results>,
    writes: Vec<Write>,
) -> Vec<Event> {
    let lease = if writes.iter().any(Write::has_result) { Some(results.lease(&store).await) } else { None };
    let (lease, no_lease) = match lease {
        Some(Ok(lease)) => (Some(lease), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let txns: Vec<Option<Txn>> = writes.iter().map(|write| write.txn(&layout, &node, lease)).collect();
    let has_txn: Vec<bool> = txns.iter().map(Option::is_some).collect();
    let mut replies = store.batch(txns.into_iter().flatten().collect()).await.into_iter();
    let mut events = Vec::with_capacity(writes.len());
    let mut may_hold = false;
    for (write, has_txn) in writes.into_iter().zip(has_txn) {
        let reply = match (has_txn, &no_lease) {
            (true, _) => replies.next().unwrap_or(Err(StoreError::Closed)),
            // Nothing was sent for it.
            (false, Some(error)) => Err(error.clone()),
            (false, None) => Err(StoreError::LeaseNotFound),
        };
        if matches!(reply, Err(StoreError::LeaseNotFound)) && write.has_result() {
            results.forget(lease).await;
        }
        may_hold |= write.has_result()
            && reply.as_ref().map_or_else(StoreError::is_ambiguous, |reply| reply.succeeded);
        events.push(write.read(reply));
    }
    if may_hold {
        results.note_put(lease).await;
    }
    events
}

/// The lease on which results of commands are kept.
pub(super) struct Results {
    clock: Arc<dyn Clock>,
    granted: Mutex<Granted>,
}

#[derive(Default)]
struct Granted {
    lease: Option<(LeaseId, Moment)>,
    /// One of which it is not known whether it was granted: asked for again, it is not granted twice.
    doubtful: Option<(LeaseId, Moment)>,
    /// Whether something lies under the lease, or may.
    may_hold: bool,
}

impl Results {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Results {
        Results { clock, granted: Mutex::default() }
    }

    async fn lease(&self, store: &Store) -> Result<LeaseId, StoreError> {
        let mut granted = self.granted.lock().await;
        let now = self.clock.now();
        if let Some((lease, since)) = granted.lease
            && now.since(since) < RESULTS_LEASE_FOR
        {
            return Ok(lease);
        }
        let (lease, since) =
            *granted.doubtful.get_or_insert_with(|| (LeaseId::from_random(dice::bytes()), now));
        match store.grant(RESULTS_TTL, Some(lease)).await {
            // An earlier request was carried out, and its answer lost.
            Ok(_) | Err(StoreError::LeaseExists) => {}
            Err(error) => return Err(unsent(error)),
        }
        *granted = Granted { lease: Some((lease, since)), doubtful: None, may_hold: false };
        Ok(lease)
    }

    /// Something was put under this lease, or may have been.
    async fn note_put(&self, lease: Option<LeaseId>) {
        let mut granted = self.granted.lock().await;
        granted.may_hold |= granted.lease.map(|(granted, _)| granted) == lease;
    }

    /// The lease under which nothing lies, because no result could be written after it was granted.
    pub(super) async fn unused(&self) -> Option<LeaseId> {
        let granted = self.granted.lock().await;
        let unused = granted.lease.filter(|_| !granted.may_hold).or(granted.doubtful);
        unused.map(|(lease, _)| lease)
    }

    /// The store does not know this lease any more.
    async fn forget(&self, lease: Option<LeaseId>) {
        let mut granted = self.granted.lock().await;
        granted.lease.take_if(|(granted, _)| Some(*granted) == lease);
    }
}

/// Whatever became of the lease, the write that needed it was not sent.
fn unsent(error: StoreError) -> StoreError {
    match error {
        StoreError::Ambiguous(cause) => StoreError::Unavailable(cause),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::layout::Key;
    use tenure_core::name::{CommandId, Namespace};
    use tenure_core::node::Mark;
    use tenure_core::revision::{Epoch, Revision};

    use super::*;
    use crate::clock::BootClock;

    /// Found by the rig: a command was replaced while its answer was on its way, and the lease for it stayed empty for a day.
    #[tokio::test]
    async fn a_lease_for_results_is_unused_until_a_result_lies_under_it() {
        let store = Store::memory();
        let layout = Layout::new(&Namespace::parse("t").unwrap());
        let node = NodeId::parse("n").unwrap();
        let order = CommandId::parse("019a0000-0000-7000-8000-000000000001").unwrap();
        let results = Arc::new(Results::new(Arc::new(BootClock)));
        let answer = async |modified: Revision| {
            let answer = Answer {
                epoch: Epoch(1),
                order: order.clone(),
                modified,
                mark: Mark::Keep,
                result: Some("{}".into()),
            };
            let write = Write::Answer(Box::new(answer));
            send(store.clone(), layout.clone(), node.clone(), results.clone(), vec![write]).await;
        };
        assert_eq!(results.unused().await, None, "none was granted");
        answer(Revision(7)).await;
        let lease = results.unused().await;
        assert!(lease.is_some(), "there is no such command, so nothing was put");
        let key = layout.encode(&Key::NodeCommand(node.clone(), order.clone()));
        let put = store.put(key, "{}").await.unwrap();
        answer(put).await;
        assert_eq!(results.unused().await, None, "a result lies under {lease:?}");
    }
}
