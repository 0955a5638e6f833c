//! The requests of a queue, applied by a store with the current fault.

use super::{LATE_MAX, NONCES, QueueFault, QueueWorld, UnsentRequest};
use crate::error::{Cause, StoreError};
use crate::kv::Get;
use crate::queue::{AfterLeave, Predecessor, PredecessorLookup, QueueOutput, ReplyProgress, SecondRead};
use crate::record::Timestamp;
use crate::txn::{Op, Txn, TxnReply};

impl QueueWorld {
    /// Applies a request and queues its reply.
    pub(super) fn perform(&mut self, process: usize, pending: UnsentRequest) {
        match pending {
            UnsentRequest::QueueOutput(action) => self.perform_action(process, action),
            UnsentRequest::Read(read) => self.perform_read(process, read),
        }
    }

    fn perform_action(&mut self, process: usize, action: QueueOutput) {
        self.requests.push(name_of(&action));
        self.check_action(process, &action);
        let txn = self.builders[process].txn(&self.queue(), action, &bytes::Bytes::new(), Timestamp(1));
        let is_read = matches!(action, QueueOutput::ReadPredecessor { .. });
        let reply = self.apply(txn, is_read);
        match self.builders[process].handle(&self.queue(), action, reply) {
            ReplyProgress::Done(reply) => self.replies.push((process, reply)),
            // Other requests may be applied between the two.
            ReplyProgress::Read(read) => self.unsent.push((process, UnsentRequest::Read(read))),
        }
    }

    fn perform_read(&mut self, process: usize, read: SecondRead) {
        self.requests.push("second read");
        let page = match self.fault {
            QueueFault::Works => self.store.get(&read.get(), self.now),
            QueueFault::NotDone | QueueFault::LosesReply | QueueFault::Late => Err(unavailable()),
        };
        self.replies.push((process, read.handle(page)));
    }

    fn apply(&mut self, txn: Txn, is_read: bool) -> Result<TxnReply, StoreError> {
        match self.fault {
            QueueFault::Works => self.store.apply(&txn, self.now),
            QueueFault::NotDone => Err(unavailable()),
            QueueFault::LosesReply | QueueFault::Late if is_read => Err(unavailable()),
            QueueFault::LosesReply => {
                // Its lease may have ended.
                let _ = self.store.apply(&txn, self.now);
                Err(ambiguous())
            }
            QueueFault::Late => {
                self.late.push((self.now + LATE_MAX, txn));
                Err(ambiguous())
            }
        }
    }

    /// Asserts the invariants of a request.
    fn check_action(&mut self, process: usize, action: &QueueOutput) {
        match *action {
            QueueOutput::Enter { queue_key, mode, lookup, may_be_stored, .. } => {
                self.modes.insert(queue_key, mode);
                let there = self.store.get(&Get::key(self.key(queue_key)), self.now).unwrap();
                assert!(may_be_stored || there.pairs.is_empty(), "no other client puts this key");
                if lookup == PredecessorLookup::Others && self.fault == QueueFault::Works {
                    // The read passes over the keys of this process before the own one.
                    let passed = NONCES * process as u64..queue_key.nonce;
                    let queue = self.queue_now();
                    let left = queue
                        .values()
                        .find(|there| there.lease == queue_key.lease && passed.contains(&there.nonce));
                    assert_eq!(left, None, "the read would pass over a local key");
                }
            }
            QueueOutput::ReadPredecessor {
                queue_key,
                token,
                predecessor: Predecessor::Nearest(predecessor) | Predecessor::Holder(predecessor),
                ..
            } => {
                let queue = self.queue_now();
                if queue.get(&token) == Some(&queue_key)
                    && queue.range(..token).any(|(_, there)| *there == predecessor)
                {
                    let nearest = queue.range(..token).next_back().map(|(_, queue_key)| *queue_key);
                    assert_eq!(nearest, Some(predecessor), "a key came between");
                }
            }
            QueueOutput::ReadPredecessor { .. } | QueueOutput::Leave { .. } => {}
        }
    }

    /// Puts or deletes a foreign key under the queue's prefix.
    pub(super) fn toggle_foreign(&mut self) {
        let key = [&self.queue()[..], b"foreign"].concat();
        let there = self.store.get(&Get::key(key.clone()), self.now).unwrap();
        let op = if there.pairs.is_empty() { Op::put(key, "") } else { Op::delete(key) };
        self.store.apply(&Txn::new().then(op), self.now).unwrap();
    }
}

fn name_of(action: &QueueOutput) -> &'static str {
    match action {
        QueueOutput::Enter { lookup: PredecessorLookup::Skip, .. } => "join",
        QueueOutput::Enter { .. } => "enter",
        QueueOutput::ReadPredecessor {
            predecessor: Predecessor::Unknown | Predecessor::Nearest(_), ..
        } => "read",
        QueueOutput::ReadPredecessor { predecessor: Predecessor::Holder(_) | Predecessor::None, .. } => {
            "read own key"
        }
        QueueOutput::Leave { after: AfterLeave::Nothing, .. } => "leave",
        QueueOutput::Leave { after: AfterLeave::Successor(..), .. } => "leave to the next",
        QueueOutput::Leave { after: AfterLeave::Queue, .. } => "leave and read",
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable(Cause::new("the request did not arrive"))
}

fn ambiguous() -> StoreError {
    StoreError::Ambiguous(Cause::new("the reply was lost"))
}
