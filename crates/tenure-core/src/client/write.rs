//! What all writes about one task share: read the task, decide, write if it is unchanged, and settle lost replies.
//!
//! **Invariant** (G6): after a lost reply nothing is reported as certain but what was found: a later refusal or failure is *unknown*, because
//! the lost request may still be applied.

use bytes::Bytes;

use super::keys::{TaskFound, TaskKeys};
use super::{LOST_MAX, TRIES_MAX, contended};
use crate::error::StoreError;
use crate::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use crate::kv::{Get, KeyValue};
use crate::txn::{Txn, TxnReply};

/// One kind of write about a task.
pub trait TaskWrite {
    /// What it results in.
    type Output: Clone;
    /// Why it was not done.
    type Error;
    /// What is remembered of a transaction that may lose its reply.
    type Trace;

    /// One more key that must be read to decide.
    fn extra(&self, found: &TaskFound, lost: Option<&Self::Trace>) -> Option<Bytes>;

    /// What follows from what was found. `lost` is what the last transaction without a reply would have done.
    ///
    /// # Errors
    ///
    /// It cannot be done.
    fn decide(
        &mut self,
        found: &TaskFound,
        extra: Option<&KeyValue>,
        lost: Option<&Self::Trace>,
    ) -> Result<Settled<Self>, Self::Error>;

    /// The result of a transaction that was applied.
    fn output(&self, trace: Self::Trace) -> Self::Output;

    /// It is not known whether it was done.
    fn unknown(error: StoreError) -> Self::Error;

    /// The store did not do it.
    fn failed(error: StoreError) -> Self::Error;
}

/// What follows from what was found of a task.
#[derive(Debug)]
pub enum Settled<W: TaskWrite + ?Sized> {
    /// The transaction without a reply was applied.
    Done(W::Output),
    /// This is to be written, if nothing has changed.
    Write(Txn, W::Trace),
}

/// Runs a [`TaskWrite`] to its result.
#[derive(Debug)]
pub struct TaskExchange<W: TaskWrite> {
    keys: TaskKeys,
    write: W,
    state: WritePhase<W::Trace>,
    /// The last request without a reply.
    lost: Option<(StoreError, W::Trace)>,
    lost_count: usize,
    turns: usize,
}

#[derive(Debug)]
enum WritePhase<T> {
    Reading,
    /// One more key is read.
    ReadingExtra(Bytes, Box<TaskFound>),
    Writing(Txn, T),
}

impl<W: TaskWrite> TaskExchange<W> {
    /// Begins by reading the task with these keys.
    pub fn new(keys: TaskKeys, write: W) -> TaskExchange<W> {
        TaskExchange { keys, write, state: WritePhase::Reading, lost: None, lost_count: 0, turns: 0 }
    }

    fn look(&mut self, found: TaskFound) -> ExchangeStep<Result<W::Output, W::Error>> {
        let lost = self.lost.as_ref().map(|(_, trace)| trace);
        match self.write.extra(&found, lost) {
            Some(key) => {
                self.state = WritePhase::ReadingExtra(key, Box::new(found));
                ExchangeStep::Send
            }
            None => self.decide(&found, None),
        }
    }

    fn decide(
        &mut self,
        found: &TaskFound,
        extra: Option<&KeyValue>,
    ) -> ExchangeStep<Result<W::Output, W::Error>> {
        let lost = self.lost.as_ref().map(|(_, trace)| trace);
        match self.write.decide(found, extra, lost) {
            Ok(Settled::Done(output)) => ExchangeStep::Done(Ok(output)),
            Ok(Settled::Write(txn, trace)) => {
                // Each turn after the first means that another client was faster, or a reply was lost.
                self.turns += 1;
                if self.turns > TRIES_MAX {
                    return self.fail(contended());
                }
                self.state = WritePhase::Writing(self.keys.read_otherwise(txn), trace);
                ExchangeStep::Send
            }
            Err(refused) => ExchangeStep::Done(Err(match self.lost.take() {
                Some((lost, _)) => W::unknown(lost),
                None => refused,
            })),
        }
    }

    fn written(
        &mut self,
        reply: Result<TxnReply, StoreError>,
        trace: W::Trace,
    ) -> ExchangeStep<Result<W::Output, W::Error>> {
        match reply {
            Ok(reply) if reply.succeeded => ExchangeStep::Done(Ok(self.write.output(trace))),
            Ok(reply) => match TaskFound::in_reply(&reply) {
                Ok(found) => self.look(found),
                Err(error) => self.fail(error),
            },
            Err(error) if error.is_ambiguous() && self.lost_count < LOST_MAX => {
                self.lost_count += 1;
                self.lost = Some((error.clone(), trace));
                ExchangeStep::Retry(error)
            }
            Err(error) if error.is_ambiguous() => ExchangeStep::Done(Err(W::unknown(error))),
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: StoreError) -> ExchangeStep<Result<W::Output, W::Error>> {
        ExchangeStep::Done(Err(match self.lost.take() {
            Some((lost, _)) => W::unknown(lost),
            None => W::failed(error),
        }))
    }
}

impl<W: TaskWrite> Exchange for TaskExchange<W> {
    type Output = Result<W::Output, W::Error>;

    fn request(&self) -> StoreRequest {
        match &self.state {
            WritePhase::Reading => StoreRequest::Txn(self.keys.read()),
            WritePhase::ReadingExtra(key, _) => StoreRequest::Get(Get::key(key.clone())),
            WritePhase::Writing(txn, _) => StoreRequest::Txn(txn.clone()),
        }
    }

    fn handle(&mut self, reply: Result<StoreReply, StoreError>) -> ExchangeStep<Self::Output> {
        match std::mem::replace(&mut self.state, WritePhase::Reading) {
            WritePhase::Reading => {
                match reply.and_then(StoreReply::into_txn).and_then(|reply| TaskFound::in_reply(&reply)) {
                    Ok(found) => self.look(found),
                    Err(error) => self.fail(error),
                }
            }
            WritePhase::ReadingExtra(_, found) => match reply.and_then(StoreReply::into_page) {
                Ok(page) => self.decide(&found, page.pairs.first()),
                Err(error) => self.fail(error),
            },
            WritePhase::Writing(_, trace) => self.written(reply.and_then(StoreReply::into_txn), trace),
        }
    }
}
