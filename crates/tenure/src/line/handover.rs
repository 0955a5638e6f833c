//! Handing a turn to somebody further behind, without a moment in which nobody has it.
//!
//! Nobody can be moved forward: a place's create revision is its token, and tokens only grow. So everybody before the heir goes, in one
//! transaction: the holder, and those between. Those between held nothing; they stand in line again by themselves, with larger tokens.
//!
//! A place that enters meanwhile is behind the heir, so the list of those between can only be too long, never too short.

use std::time::Duration;

use bytes::Bytes;
use tenure_core::backoff::{Backoff, Growth, Jitter, Retry};
use tenure_core::layout::Place;
use tenure_core::revision::Token;

use super::ask;
use crate::clock::{BootClock, Clock};
use crate::dice;
use crate::store::{Condition, Get, Op, OpReply, Store, StoreError, Txn, TxnReply};

/// How many places one transaction passes over. An etcd request takes 128 operations; the rest is for the holder's own place.
const TOGETHER_MAX: usize = 120;

/// Rests between tries. The holder still holds meanwhile, so there is no hurry; but it does not work any more, so there is some.
const RETRY: Retry = Retry {
    growth: Growth::Exponential,
    initial: Duration::from_millis(50),
    cap: Duration::from_secs(1),
    jitter: Jitter::Full,
    healthy_after: Duration::from_secs(10),
};

/// One turn on its way from its holder to an heir.
pub(crate) struct Handover {
    store: Store,
    line: Bytes,
    holder: (Place, Token),
    heir: (Place, Token),
}

/// What came of a handover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The heir is the first of the line, since the very revision at which the holder's place went.
    Done,
    /// The holder's place was not there any more. Nothing happened.
    HolderGone,
    /// The heir's place is not there any more, so nothing can come of it, also not later. The holder still holds.
    HeirGone,
}

impl Handover {
    pub(super) fn new(store: Store, line: Bytes, holder: (Place, Token), heir: (Place, Token)) -> Handover {
        Handover { store, line, holder, heir }
    }

    /// Asks until the store has said what came of it.
    ///
    /// Asking twice does no harm: the conditions name the lives of both places, and neither ever comes back. So a request that was taken
    /// for lost and is carried out after a later answer finds that its time is over.
    ///
    /// # Errors
    ///
    /// What no asking again can mend. Then nobody knows whether an earlier request will still be carried out.
    ///
    /// # Cancellation
    ///
    /// It may have happened, or happen up to some seconds later.
    pub(crate) async fn settle(&self) -> Result<Outcome, StoreError> {
        let mut backoff = Backoff::new(RETRY);
        let mut may_be_done = false;
        loop {
            match self.ask().await {
                // It was ourselves: a request without an answer.
                Ok(Outcome::HolderGone) if may_be_done => return Ok(Outcome::Done),
                Ok(outcome) => return Ok(outcome),
                Err(error) if error.is_fatal() || matches!(error, StoreError::Invalid(_)) => {
                    return Err(error);
                }
                Err(error) => may_be_done |= error.is_ambiguous(),
            }
            tokio::time::sleep(backoff.after_failure(BootClock.now(), dice::throw(), None)).await;
        }
    }

    async fn ask(&self) -> Result<Outcome, StoreError> {
        let mut between = self.between().await?;
        // The holder's own place goes last, so that nobody else is ever the first.
        let last = between.split_off(between.len().saturating_sub(TOGETHER_MAX));
        for chunk in between.chunks(TOGETHER_MAX) {
            let reply = self.store.txn(self.txn(chunk)).await?;
            if !reply.succeeded {
                return self.refusal(&reply);
            }
        }
        let txn = self.txn(&last).then(Op::delete(self.key(self.holder.0)));
        let reply = self.store.txn(txn).await?;
        if reply.succeeded { Ok(Outcome::Done) } else { self.refusal(&reply) }
    }

    /// The keys of those who stand between the holder and the heir.
    async fn between(&self) -> Result<Vec<Bytes>, StoreError> {
        let before_heir = self.heir.1.0.previous();
        let page =
            self.store.get(Get::prefix(self.line.clone()).created_max(before_heir).keys_only()).await?;
        let is_between = |key: &Bytes| {
            ask::place(&self.line, key).is_some_and(|place| place != self.holder.0 && place != self.heir.0)
        };
        Ok(page.pairs.into_iter().map(|pair| pair.key).filter(is_between).collect())
    }

    /// Deletes places, as long as the holder and the heir both stand where they stood.
    ///
    /// The key of a place is never used by anybody else, so each is only ever the place that was seen.
    fn txn(&self, places: &[Bytes]) -> Txn {
        let (holder, heir) = (self.key(self.holder.0), self.key(self.heir.0));
        let mut txn = Txn::new()
            .when(Condition::created_at(holder.clone(), self.holder.1.0))
            .when(Condition::created_at(heir, self.heir.1.0))
            .otherwise(Op::Get(Get::key(holder).keys_only()));
        for place in places {
            txn = txn.then(Op::delete(place.clone()));
        }
        txn
    }

    /// Which of the two was not there.
    fn refusal(&self, reply: &TxnReply) -> Result<Outcome, StoreError> {
        match reply.results.first() {
            Some(OpReply::Get(page)) => {
                let holds = page.pairs.first().is_some_and(|pair| pair.created == self.holder.1.0);
                Ok(if holds { Outcome::HeirGone } else { Outcome::HolderGone })
            }
            _ => Err(StoreError::Corrupt("a read was not answered as one".into())),
        }
    }

    fn key(&self, place: Place) -> Bytes {
        ask::key(&self.line, place)
    }
}
