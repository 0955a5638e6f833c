//! Hands a hold to a waiter further behind, with no moment without a holder.
//!
//! A key cannot be moved forward: its create revision is its token, and tokens only grow. So one
//! transaction deletes every key before the heir: the holder's, and those between. The waiters
//! between held nothing; they enter the queue again, with larger tokens.
//!
//! A key that enters after the read is behind the heir, so the list of keys between can only be too
//! long, never too short.
//!
//! **Invariant** (G4): each transaction requires the create revisions of both the holder and the
//! heir. Neither ever returns, so a request with a lost reply that is applied after a later one
//! changes nothing.

use std::collections::VecDeque;

use bytes::Bytes;

use super::reply::queue_key_of;
use super::request::{QueueKind, QueueRequests};
use crate::error::StoreError;
use crate::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use crate::kv::Get;
use crate::layout::QueueKey;
use crate::record::{ResignationRecord, Timestamp};
use crate::revision::Token;
use crate::txn::{Condition, Op, Txn};

/// How many keys one transaction deletes. An etcd request takes 128 operations; the rest is for the
/// holder's own key and the record of its resignation.
const TOGETHER_MAX: usize = 120;

/// One hold on its way from its holder to an heir.
#[derive(Clone, Debug)]
pub struct Transfer {
    requests: QueueRequests,
    /// The prefix of the queue.
    queue: Bytes,
    holder: (QueueKey, Token),
    heir: (QueueKey, Token),
    at: Timestamp,
    /// The keys that are still to be deleted, those of the last transaction at the end; none before
    /// the queue was read.
    chunks: Option<VecDeque<Vec<Bytes>>>,
    /// Whether a request with a lost reply may have deleted the holder's key.
    may_be_applied: bool,
}

/// The result of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transferred {
    /// The heir is the first of the queue, since the very revision at which the holder's key was
    /// deleted.
    Done,
    /// The holder's key was already deleted. Nothing changed.
    HolderGone,
    /// The heir's key was deleted, so no request changes anything, now or later. The holder still
    /// holds.
    HeirGone,
}

impl Transfer {
    /// A transfer in the queue with this prefix, requested at this time.
    pub fn new(
        requests: QueueRequests,
        queue: Bytes,
        holder: (QueueKey, Token),
        heir: (QueueKey, Token),
        at: Timestamp,
    ) -> Transfer {
        Transfer { requests, queue, holder, heir, at, chunks: None, may_be_applied: false }
    }

    /// Splits the keys between the holder and the heir into transactions.
    fn plan(&self, page: &crate::kv::Page) -> VecDeque<Vec<Bytes>> {
        let is_between = |key: &Bytes| {
            queue_key_of(&self.queue, key)
                .is_some_and(|queue_key| queue_key != self.holder.0 && queue_key != self.heir.0)
        };
        let mut between: Vec<Bytes> =
            page.pairs.iter().map(|pair| pair.key.clone()).filter(is_between).collect();
        // The holder's own key goes last, so that no key between is ever the first.
        let last = between.split_off(between.len().saturating_sub(TOGETHER_MAX));
        between.chunks(TOGETHER_MAX).map(<[Bytes]>::to_vec).chain([last]).collect()
    }

    fn txn(&self, keys: &[Bytes], is_last: bool) -> Txn {
        let (holder, heir) = (self.holder.0.key_in(&self.queue), self.heir.0.key_in(&self.queue));
        let txn = Txn::new()
            .when(Condition::created_at(holder.clone(), self.holder.1.0))
            .when(Condition::created_at(heir, self.heir.1.0))
            .otherwise(Op::Get(Get::key(holder.clone()).keys_only()));
        let txn = keys.iter().fold(txn, |txn, key| txn.then(Op::delete(key.clone())));
        if !is_last {
            return txn;
        }
        let txn = txn.then(Op::delete(holder));
        match self.requests.kind() {
            QueueKind::Lock => txn,
            QueueKind::Election => {
                let (token, heir) = (Some(self.holder.1), Some(self.heir.1));
                let record = ResignationRecord { token, heir, at: self.at, ..ResignationRecord::default() };
                txn.then(self.requests.resignation(&self.queue, self.holder.0.lease, &record))
            }
        }
    }

    /// Decides which of the two keys was missing.
    fn refused(&self, reply: StoreReply) -> Result<Transferred, StoreError> {
        let page = reply.into_page()?;
        let holds = page.pairs.first().is_some_and(|pair| pair.created == self.holder.1.0);
        Ok(match (holds, self.may_be_applied) {
            (true, _) => Transferred::HeirGone,
            // An earlier request of this transfer deleted it; its reply was lost.
            (false, true) => Transferred::Done,
            (false, false) => Transferred::HolderGone,
        })
    }

    fn fail(&mut self, error: StoreError) -> ExchangeStep<Result<Transferred, StoreError>> {
        if error.is_fatal() || matches!(error, StoreError::Invalid(_)) {
            return ExchangeStep::Done(Err(error));
        }
        self.may_be_applied |= error.is_ambiguous();
        self.chunks = None;
        ExchangeStep::Retry(error)
    }
}

impl Exchange for Transfer {
    /// An error is one that no retry can mend: it is then unknown whether an earlier request will
    /// still be applied.
    type Output = Result<Transferred, StoreError>;

    fn request(&self) -> StoreRequest {
        match &self.chunks {
            None => {
                let before_heir = self.heir.1.0.previous();
                StoreRequest::Get(Get::prefix(self.queue.clone()).created_max(before_heir).keys_only())
            }
            Some(chunks) => {
                let keys = chunks.front().map(Vec::as_slice).unwrap_or_default();
                StoreRequest::Txn(self.txn(keys, chunks.len() <= 1))
            }
        }
    }

    fn handle(&mut self, reply: Result<StoreReply, StoreError>) -> ExchangeStep<Self::Output> {
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => return self.fail(error),
        };
        let is_applied = matches!(&reply, StoreReply::Txn(reply) if reply.succeeded);
        match (&mut self.chunks, is_applied) {
            (None, _) => match reply.into_page() {
                Ok(page) => {
                    self.chunks = Some(self.plan(&page));
                    ExchangeStep::Send
                }
                Err(error) => self.fail(error),
            },
            (Some(chunks), true) => {
                chunks.pop_front();
                if chunks.is_empty() { ExchangeStep::Done(Ok(Transferred::Done)) } else { ExchangeStep::Send }
            }
            (Some(_), false) => match self.refused(reply) {
                Ok(refused) => ExchangeStep::Done(Ok(refused)),
                Err(error) => self.fail(error),
            },
        }
    }
}

#[cfg(test)]
mod tests;
