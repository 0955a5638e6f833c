//! The transactions of a run: its begin, and its end.

use bytes::Bytes;

use super::{OnceDecision, OnceRule};
use crate::error::{Cause, StoreError};
use crate::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use crate::fence::Fence;
use crate::kv::{Get, KeyValue};
use crate::record::{OnceRecord, Record};
use crate::txn::{Condition, Op, OpReply, Txn};

/// How many failed requests are sent again. Each may take as long as a request may, and a process that cannot record its run has to
/// release the lock, so that another one can.
const RETRIES_MAX: u32 = 2;

/// How often the record may change while the lock is held. Only an operator changes it then; more often, and the record is fought over.
const CONFLICTS_MAX: u32 = 3;

/// Records that a run begins, if one is due: reads the last record, decides, and puts the new one under the fence of the lock.
#[derive(Clone, Debug)]
pub struct BeginRun {
    key: Bytes,
    fence: Fence,
    rule: OnceRule,
    record: OnceRecord,
    state: BeginRunPhase,
    retries_left: u32,
    conflicts_left: u32,
    /// The error of an ambiguous put.
    unknown: Option<StoreError>,
}

#[derive(Clone, Debug)]
enum BeginRunPhase {
    Reading,
    /// The put is in flight, on this condition. It ignores a record in the future.
    Writing {
        unchanged: Condition,
        ignored: Option<OnceRecord>,
    },
}

/// The result of [`BeginRun`].
#[derive(Clone, PartialEq, Debug)]
pub enum Begun {
    /// The run is recorded: start the work.
    Begun {
        /// The record that was put.
        record: OnceRecord,
        /// A run that was recorded in the future, by a clock that is wrong, and did not count.
        ignored: Option<OnceRecord>,
    },
    /// This run counts for the period: start nothing.
    Done(OnceRecord),
    /// The lock is not held any more: start nothing.
    HoldLost,
    /// The last record cannot be read, so it is not known whether it counts: start nothing.
    Unreadable {
        /// Why it cannot be read.
        reason: String,
    },
}

impl BeginRun {
    /// Begins the run that `record` describes, at the time in it. `key` is where the last run is recorded.
    pub fn new(key: Bytes, fence: Fence, rule: OnceRule, record: OnceRecord) -> BeginRun {
        let record = OnceRecord { token: Some(fence.token), exit_code: None, ..record };
        BeginRun {
            key,
            fence,
            rule,
            record,
            state: BeginRunPhase::Reading,
            retries_left: RETRIES_MAX,
            conflicts_left: CONFLICTS_MAX,
            unknown: None,
        }
    }

    /// What follows from the record as it is now.
    fn decide(&mut self, last: Option<&KeyValue>) -> ExchangeStep<Result<Begun, StoreError>> {
        let record = match last.map(|pair| OnceRecord::decode(&pair.value)).transpose() {
            Ok(record) => record,
            Err(bad) => return ExchangeStep::Done(Ok(Begun::Unreadable { reason: bad.reason() })),
        };
        // An ambiguous put of this hold was applied.
        if let Some(own) = record.as_ref().filter(|record| record.token == self.record.token) {
            return ExchangeStep::Done(Ok(Begun::Begun { record: own.clone(), ignored: None }));
        }
        match self.rule.decide(record.as_ref(), self.record.started) {
            OnceDecision::Done(record) => ExchangeStep::Done(Ok(Begun::Done(record))),
            OnceDecision::Due { ignored } => {
                let unchanged = match last {
                    Some(last) => Condition::modified_at(self.key.clone(), last.modified),
                    None => Condition::absent(self.key.clone()),
                };
                self.state = BeginRunPhase::Writing { unchanged, ignored };
                ExchangeStep::Send
            }
        }
    }

    /// The put was not applied: the lock was lost, or the record was changed.
    fn refused(&mut self, results: Vec<OpReply>) -> ExchangeStep<Result<Begun, StoreError>> {
        let mut pages = results.into_iter().filter_map(|result| match result {
            OpReply::Get(page) => Some(page),
            OpReply::Put | OpReply::Delete { .. } => None,
        });
        let (Some(hold), Some(record)) = (pages.next(), pages.next()) else {
            return ExchangeStep::Done(Err(StoreError::Corrupt("a read has no reply".into())));
        };
        let is_held = hold.pairs.first().is_some_and(|pair| pair.created == self.fence.token.0);
        let last = record.pairs.first();
        let token = last.and_then(|pair| OnceRecord::decode(&pair.value).ok()).and_then(|last| last.token);
        // A record of this hold is the run that has begun, also if the lock was lost since: the caller learns that from its hold.
        if !is_held && token != self.record.token {
            return ExchangeStep::Done(Ok(Begun::HoldLost));
        }
        if self.conflicts_left == 0 {
            let why = "other clients change the record of the last run";
            return ExchangeStep::Done(Err(StoreError::Busy(Cause::new(why))));
        }
        self.conflicts_left -= 1;
        self.decide(last)
    }

    fn failed(&mut self, error: StoreError) -> ExchangeStep<Result<Begun, StoreError>> {
        if matches!(self.state, BeginRunPhase::Writing { .. }) && error.is_ambiguous() {
            self.unknown = Some(error.clone());
        }
        self.state = BeginRunPhase::Reading;
        if self.retries_left > 0 && (error.is_retryable() || error.is_ambiguous()) {
            self.retries_left -= 1;
            return ExchangeStep::Retry(error);
        }
        // While the outcome of a put is unknown, no later error may report that nothing was
        // applied.
        ExchangeStep::Done(Err(self.unknown.take().unwrap_or(error)))
    }
}

impl Exchange for BeginRun {
    type Output = Result<Begun, StoreError>;

    fn request(&self) -> StoreRequest {
        match &self.state {
            BeginRunPhase::Reading => StoreRequest::Get(Get::key(self.key.clone())),
            BeginRunPhase::Writing { unchanged, .. } => {
                let put = Txn::new()
                    .when(unchanged.clone())
                    .then(Op::put(self.key.clone(), self.record.encode()))
                    .otherwise(Op::get(self.fence.key.clone()))
                    .otherwise(Op::get(self.key.clone()));
                StoreRequest::Txn(self.fence.guard(put))
            }
        }
    }

    fn handle(&mut self, reply: Result<StoreReply, StoreError>) -> ExchangeStep<Self::Output> {
        match reply {
            Err(error) => self.failed(error),
            Ok(StoreReply::Page(page)) => self.decide(page.pairs.first()),
            Ok(StoreReply::Txn(reply)) if reply.succeeded => {
                let ignored = match &mut self.state {
                    BeginRunPhase::Writing { ignored, .. } => ignored.take(),
                    BeginRunPhase::Reading => None,
                };
                ExchangeStep::Done(Ok(Begun::Begun { record: self.record.clone(), ignored }))
            }
            Ok(StoreReply::Txn(reply)) => self.refused(reply.results),
        }
    }
}

/// Records how a run ended, or that it never started. Applied only while the lock is held. Results in whether it was.
///
/// It retries until the store has replied: the caller bounds that.
#[derive(Clone, Debug)]
pub struct EndRun {
    txn: Txn,
}

impl EndRun {
    /// Records how the run ended.
    pub fn finished(key: Bytes, fence: &Fence, record: &OnceRecord) -> EndRun {
        EndRun { txn: fence.guard(Txn::new().then(Op::put(key, record.encode()))) }
    }

    /// Deletes the record: the work did not start after all.
    pub fn withdrawn(key: Bytes, fence: &Fence) -> EndRun {
        EndRun { txn: fence.guard(Txn::new().then(Op::delete(key))) }
    }
}

impl Exchange for EndRun {
    type Output = Result<bool, StoreError>;

    fn request(&self) -> StoreRequest {
        StoreRequest::Txn(self.txn.clone())
    }

    fn handle(&mut self, reply: Result<StoreReply, StoreError>) -> ExchangeStep<Self::Output> {
        match reply {
            Ok(StoreReply::Txn(reply)) => ExchangeStep::Done(Ok(reply.succeeded)),
            Ok(StoreReply::Page(_)) => {
                ExchangeStep::Done(Err(StoreError::Corrupt("a transaction has the reply of a read".into())))
            }
            // Applying it twice is applying it once: no other process writes the record while this one holds the lock.
            Err(error) if error.is_retryable() || error.is_ambiguous() => ExchangeStep::Retry(error),
            Err(error) => ExchangeStep::Done(Err(error)),
        }
    }
}
