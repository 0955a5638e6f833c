//! When the holds of this process began, written into their queue keys.
//!
//! A queue key is put before it is known whether its owner has to wait, so its record cannot contain when the hold began. The time is written
//! once a hold has lasted for [`RECORD_AFTER`]. A shorter hold costs no request for it: most locks are released within a millisecond, and a
//! hand-off is not delayed.

use std::time::Duration;

use bytes::Bytes;
use tenure_core::line::Ticket;
use tenure_core::record::{CandidateRecord, HolderRecord, RECORD_BYTES_MAX, Record, WallTime};
use tenure_core::revision::{Revision, Token};
use tenure_core::time::Moment;
use tracing::debug;

use super::ask::{Answer, Regard};
use super::lines::Slot;
use super::post::Answers;
use crate::store::{Condition, Get, KeyValue, LeaseChoice, Op, OpReply, Store, StoreError, Txn, TxnReply};

/// How long a hold lasts before its beginning is written: as long as its key is unwatched. Halved, more short holds cost a third request;
/// doubled, a reader that lists locks does not know for so much longer when the newest hold began.
pub(super) const RECORD_AFTER: Duration = Duration::from_millis(100);

/// How long to wait after the store did not answer. No caller waits for it.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How many transactions travel together, as those of the queue do.
const TOGETHER_MAX: usize = 100;

/// How often a record is read and written again because another client has written it. Each turn means that another write was applied.
const TRIES_MAX: usize = 4;

/// The holds of one queue whose beginning is not written yet.
#[derive(Default)]
pub(super) struct Unrecorded {
    holds: Vec<Hold>,
}

struct Hold {
    ticket: Ticket,
    began: Moment,
    /// When it is written; none while the request is in flight.
    due: Option<Moment>,
}

impl Unrecorded {
    /// A hold began, and is to be recorded at `due` if it lasts that long.
    pub(super) fn add(&mut self, ticket: Ticket, began: Moment, due: Moment) {
        self.remove(ticket);
        self.holds.push(Hold { ticket, began, due: Some(due) });
    }

    /// A hold ended.
    pub(super) fn remove(&mut self, ticket: Ticket) {
        self.holds.retain(|hold| hold.ticket != ticket);
    }

    /// A hold that is to be written now, and when it began.
    pub(super) fn next_due(&mut self, now: Moment) -> Option<(Ticket, Moment)> {
        let is_due = |hold: &&mut Hold| hold.due.is_some_and(|due| due <= now);
        let hold = self.holds.iter_mut().find(is_due)?;
        hold.due = None;
        Some((hold.ticket, hold.began))
    }

    /// The request for a hold was answered.
    pub(super) fn handle(&mut self, ticket: Ticket, outcome: Recorded, now: Moment) {
        match outcome {
            Recorded::Done => self.remove(ticket),
            Recorded::NotDone => {
                if let Some(hold) = self.holds.iter_mut().find(|hold| hold.ticket == ticket) {
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

/// A hold whose beginning is to be written.
pub(super) struct Due {
    pub(super) slot: Slot,
    pub(super) ticket: Ticket,
    /// Its queue key, and the create revision of that.
    pub(super) key: Bytes,
    pub(super) token: Token,
    /// What was put when it entered the queue.
    pub(super) value: Bytes,
    pub(super) acquired: WallTime,
}

impl Due {
    /// Writes the record that stands behind this one, unless it was written since, and reads it then.
    fn txn(&self, regard: Regard, value: &[u8], modified: Revision) -> Option<Txn> {
        let value = with_acquired(regard, value, self.acquired)?;
        let key = &self.key;
        Some(
            Txn::new()
                // A key that was deleted is not put again, and one that was put again is another hold's.
                .when(Condition::created_at(key.clone(), self.token.0))
                .when(Condition::modified_at(key.clone(), modified))
                .then(Op::Put { key: key.clone(), value, lease: LeaseChoice::Keep })
                .otherwise(Op::Get(Get::key(key.clone()))),
        )
    }

    /// Reads the reply; if another client has written the record, changes what that client wrote.
    async fn settle(
        &self,
        store: &Store,
        regard: Regard,
        mut reply: Result<TxnReply, StoreError>,
    ) -> Recorded {
        for _ in 0..TRIES_MAX {
            let pair = match reply {
                Ok(reply) if reply.succeeded => return Recorded::Done,
                Ok(reply) => found(reply),
                Err(error) => {
                    debug!(%error, "beginning of a hold was not recorded");
                    let is_refused =
                        error.is_fatal() || matches!(error, StoreError::Invalid(_) | StoreError::Denied(_));
                    return if is_refused { Recorded::Done } else { Recorded::NotDone };
                }
            };
            let Some(pair) = pair.filter(|pair| pair.created == self.token.0) else { return Recorded::Done };
            let Some(txn) = self.txn(regard, &pair.value, pair.modified) else { return Recorded::Done };
            reply = store.txn(txn).await;
        }
        Recorded::NotDone
    }
}

/// Writes when these holds began.
pub(super) async fn record(store: Store, regard: Regard, dues: Vec<Due>) -> Answers {
    let mut answers = Answers::with_capacity(dues.len());
    for dues in dues.chunks(TOGETHER_MAX) {
        let (mut asked, mut txns) = (Vec::new(), Vec::new());
        for due in dues {
            match due.txn(regard, &due.value, due.token.0) {
                Some(txn) => {
                    asked.push(due);
                    txns.push(txn);
                }
                None => answers.push((due.slot, Answer::Recorded(due.ticket, Recorded::Done))),
            }
        }
        let replies = store.batch(txns).await;
        for (due, reply) in asked.into_iter().zip(replies) {
            let recorded = due.settle(&store, regard, reply).await;
            answers.push((due.slot, Answer::Recorded(due.ticket, recorded)));
        }
    }
    answers
}

/// The record with the time; none if it has one, cannot be read, or would be too long to be read.
fn with_acquired(regard: Regard, value: &[u8], at: WallTime) -> Option<Bytes> {
    let value = match regard {
        Regard::Before => {
            let record = HolderRecord::decode(value).ok().filter(|record| record.acquired.is_none())?;
            HolderRecord { acquired: Some(at), ..record }.encode()
        }
        // The mark that it leads saves the next candidate from reading a long queue.
        Regard::Preferred => {
            let record = CandidateRecord::decode(value).ok().filter(|record| record.acquired.is_none())?;
            CandidateRecord { acquired: Some(at), leads: true, ..record }.encode()
        }
    };
    Some(value).filter(|value| value.len() <= RECORD_BYTES_MAX)
}

fn found(reply: TxnReply) -> Option<KeyValue> {
    match reply.results.into_iter().next() {
        Some(OpReply::Get(mut page)) => page.pairs.pop(),
        Some(OpReply::Put | OpReply::Delete { .. }) | None => None,
    }
}
