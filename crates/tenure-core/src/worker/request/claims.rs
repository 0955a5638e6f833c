//! Claims that travel together, and how they learn what is stored about their tasks.
//!
//! A handler may begin only when the state of its task is known, and a command that was sent before. Read by each claim for itself that is most
//! of what a server does for a claim; and most tasks that wait to be claimed are new, so there is neither. Therefore the last of the claims asks
//! once whether there is any among the tasks of all. If there is not, everything is known; if there is, a claim is asked again as after a
//! lost answer: it finds itself, and reads everything. One that fails reads who was faster, and needs no second request.
//!
//! Nodes leave each other's tasks alone, so mostly all claims of a request succeed. Then many of them may as well be one transaction, a *bundle* of
//! all or nothing: transactions inside of one cost a server more than the same operations side by side. If somebody was faster after all, nothing
//! has happened, and each of the bundle is asked for itself.
//!
//! **Invariant**: that there is nothing counts only for claims that were in the store when it was read; before that a former owner may have
//! written.

use super::{claim, read_claim};
use crate::error::StoreError;
use crate::id::TaskId;
use crate::kv::{Get, Selection, ValueMode};
use crate::layout::{Key, Layout};
use crate::lease::LeaseId;
use crate::revision::{Revision, Token};
use crate::txn::{Op, OpReply, Txn, TxnReply};
use crate::worker::input::{ClaimReply, WonClaim};
use crate::worker::output::ClaimRequest;

/// How claims learn of states and commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClaimReadMode {
    /// As many as can are one transaction, and ask whether there are any.
    #[default]
    Bundled,
    /// Each is a transaction, and all of them together ask whether there are any.
    Together,
    /// Each of them reads its own.
    Each,
}

/// For how many requests each claim reads for itself after asking together has found something: other tasks with such ids have states, too,
/// perhaps from long ago, and what is asked in vain costs a second request.
const EACH_FOR: u32 = 64;

/// For how many requests each claim is a transaction of its own after one of them has failed a bundle: somebody wants the same tasks, and seldom
/// only once.
const APART_FOR: u32 = 16;

/// How many claims are one transaction. Each has two conditions, or two writes and a read, and etcd takes 128 of them, less one for each
/// transaction that travels in the same request; two more reads ask for all.
const BUNDLE: usize = 40;

/// Which way of reading has paid of late.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClaimModeHistory {
    each_for: u32,
    apart_for: u32,
}

impl ClaimModeHistory {
    /// How the next request reads.
    pub fn next_reading(&mut self) -> ClaimReadMode {
        if let Some(left) = self.each_for.checked_sub(1) {
            self.each_for = left;
            return ClaimReadMode::Each;
        }
        match self.apart_for.checked_sub(1) {
            Some(left) => {
                self.apart_for = left;
                ClaimReadMode::Together
            }
            None => ClaimReadMode::Bundled,
        }
    }

    /// A request is answered.
    pub fn learn(&mut self, request: &ClaimBatch) {
        if request.looked.is_some_and(|looked| !looked.is_blank) {
            self.each_for = EACH_FOR;
        }
        if request.was_refused {
            self.apart_for = APART_FOR;
        }
    }
}

/// Claims in one request, until all of them are answered.
#[derive(Clone, Debug)]
pub struct ClaimBatch {
    claims: Vec<ClaimTxn>,
    /// Which of them asks for all; none if each reads for itself.
    asks_for_all: Option<usize>,
    /// Whether they are asked for in bundles.
    is_bundled: bool,
    /// Whether a bundle was refused.
    was_refused: bool,
    looked: Option<ClaimReadback>,
}

#[derive(Clone, Debug)]
struct ClaimTxn {
    ask: ClaimRequest,
    lease: LeaseId,
    reading: ClaimReadMode,
    /// Whether an answer said too little: then it may be ours already.
    is_second: bool,
    reply: Option<ClaimReply>,
}

/// What came of asking for all.
#[derive(Clone, Copy, Debug)]
struct ClaimReadback {
    at: Revision,
    /// Whether there is nothing.
    is_blank: bool,
}

impl ClaimBatch {
    /// These claims, each under its lease.
    pub fn new(claims: Vec<(ClaimRequest, LeaseId)>, reading: ClaimReadMode) -> ClaimBatch {
        let is_new = |(_, (ask, _)): &(usize, &(ClaimRequest, LeaseId))| !ask.is_again;
        let mut new = claims.iter().enumerate().filter(is_new).map(|(n, _)| n);
        // One by itself gains nothing by asking for all.
        let asks_for_all = match reading {
            ClaimReadMode::Bundled | ClaimReadMode::Together => new.next().and(new.next_back()),
            ClaimReadMode::Each => None,
        };
        // What was asked before may be there, and then it must not fail the others.
        let is_bundled = reading == ClaimReadMode::Bundled
            && asks_for_all.is_some()
            && claims.iter().all(|(ask, _)| !ask.is_again);
        let requested = |(ask, lease): (ClaimRequest, LeaseId)| {
            let is_together = asks_for_all.is_some() && !ask.is_again;
            let reading = if is_together { ClaimReadMode::Together } else { ClaimReadMode::Each };
            ClaimTxn { ask, lease, reading, is_second: false, reply: None }
        };
        let claims = claims.into_iter().map(requested).collect();
        ClaimBatch { claims, asks_for_all, is_bundled, was_refused: false, looked: None }
    }

    /// What to send now, in one go: a transaction for each bundle, or for each claim that is not answered.
    pub fn txns(&self, layout: &Layout) -> Vec<Txn> {
        if self.is_bundled {
            return self.claims.chunks(BUNDLE).map(|bundle| bundled(bundle, layout)).collect();
        }
        let open = self.claims.iter().enumerate().filter(|(_, requested)| requested.reply.is_none());
        open.map(|(n, requested)| {
            let mut txn = claim(layout, &requested.ask, requested.lease, requested.reading);
            if self.asks_for_all == Some(n) {
                for get in looks(&self.claims, layout) {
                    txn = txn.then(Op::Get(get.clone())).otherwise(Op::Get(get));
                }
            }
            txn
        })
        .collect()
    }

    /// The transactions are answered, in their order. Whoever is not answered by that has to be asked again.
    pub fn handle(&mut self, replies: Vec<Result<TxnReply, StoreError>>) {
        if std::mem::take(&mut self.is_bundled) {
            return self.handle_bundles(replies);
        }
        let open: Vec<usize> = (0..self.claims.len()).filter(|n| self.claims[*n].reply.is_none()).collect();
        assert!(open.len() == replies.len(), "every claim that is not answered was asked");
        if let Some(n) = self.asks_for_all.take() {
            let place = open.iter().position(|open| *open == n);
            self.looked = place.and_then(|place| look(replies[place].as_ref().ok()?));
        }
        for (n, reply) in open.into_iter().zip(replies) {
            let requested = &mut self.claims[n];
            requested.reply = match reply {
                Ok(reply) if requested.reading == ClaimReadMode::Together => {
                    requested.known(&reply, self.looked)
                }
                reply => Some(match read_claim(&requested.ask, requested.lease, reply) {
                    ClaimReply::NotDone if requested.is_second => ClaimReply::Ambiguous,
                    reply => reply,
                }),
            };
            if requested.reply.is_none() {
                requested.ask_again();
            }
        }
    }

    /// The bundles are answered.
    fn handle_bundles(&mut self, replies: Vec<Result<TxnReply, StoreError>>) {
        self.asks_for_all = None;
        let bundles = self.claims.chunks_mut(BUNDLE);
        assert!(bundles.len() == replies.len(), "every bundle was asked");
        for (bundle, reply) in bundles.zip(replies) {
            match reply {
                Ok(reply) if reply.succeeded => {
                    let looked = look(&reply);
                    if self.looked.is_none_or(|looked| looked.is_blank) {
                        self.looked = looked;
                    }
                    let mut results = reply.results.into_iter();
                    for requested in bundle {
                        let results = results.by_ref().take(results_len(&requested.ask)).collect();
                        let reply = TxnReply { succeeded: true, revision: reply.revision, results };
                        requested.reply = requested.known(&reply, looked);
                        if requested.reply.is_none() {
                            requested.ask_again();
                        }
                    }
                }
                // Nothing has happened, and whose fault that is each has to be asked.
                Ok(_) | Err(StoreError::LeaseNotFound | StoreError::Invalid(_)) => {
                    self.was_refused = true;
                    bundle.iter_mut().for_each(|requested| requested.reading = ClaimReadMode::Each);
                }
                Err(error) => {
                    for requested in bundle {
                        requested.reply =
                            Some(read_claim(&requested.ask, requested.lease, Err(error.clone())));
                    }
                }
            }
        }
    }

    /// Whether all of them are answered.
    pub fn has_reply(&self) -> bool {
        self.claims.iter().all(|requested| requested.reply.is_some())
    }

    /// The answers, in the order of the claims.
    pub fn into_replies(self) -> Vec<ClaimReply> {
        self.claims.into_iter().map(|requested| requested.reply.unwrap_or(ClaimReply::Ambiguous)).collect()
    }
}

/// Claims as one transaction.
fn bundled(bundle: &[ClaimTxn], layout: &Layout) -> Txn {
    let mut txn = Txn::new();
    for ClaimTxn { ask, lease, .. } in bundle {
        let Txn { when, then, .. } = claim(layout, ask, *lease, ClaimReadMode::Bundled);
        txn.when.extend(when);
        txn.then.extend(then);
    }
    txn.then.extend(looks(bundle, layout).into_iter().map(Op::Get));
    txn
}

/// Whether there is any state and any command among the tasks of claims that do not read for themselves: one of each says so.
fn looks(claims: &[ClaimTxn], layout: &Layout) -> Vec<Get> {
    let together = || claims.iter().filter(|requested| requested.reading == ClaimReadMode::Together);
    let look = |key: fn(TaskId) -> Key| {
        let keys = || together().map(|requested| layout.encode(&key(requested.ask.task.clone())));
        let (first, last) = keys().min().zip(keys().max())?;
        let end = Selection::Key(last).end()?;
        Some(Get { values: ValueMode::Omitted, ..Get::new(Selection::Range(first, end)).limit(1) })
    };
    [look(Key::TaskState), look(Key::TaskCommand)].into_iter().flatten().collect()
}

/// How many reads ask for all: one for states, one for commands.
const LOOKS: usize = 2;

/// How many operations a claim has that reads neither state nor command: it puts the owner and the attempt.
fn results_len(ask: &ClaimRequest) -> usize {
    2 + usize::from(ask.has_props)
}

impl ClaimTxn {
    /// It is ours already, or was meant to be; the next answer says everything.
    fn ask_again(&mut self) {
        (self.reading, self.is_second, self.ask.is_again) = (ClaimReadMode::Each, true, true);
    }

    /// What came of a claim that read nothing itself; none if that has to be asked.
    fn known(&self, reply: &TxnReply, looked: Option<ClaimReadback>) -> Option<ClaimReply> {
        if !reply.succeeded {
            return match read_claim(&self.ask, self.lease, Ok(reply.clone())) {
                // It finds itself.
                ClaimReply::Ambiguous => None,
                reply => Some(reply),
            };
        }
        let looked = looked.filter(|looked| looked.is_blank && looked.at >= reply.revision)?;
        let props = match reply.results.get(1) {
            Some(OpReply::Get(page)) if self.ask.has_props => {
                page.pairs.first().map(|pair| pair.value.clone())
            }
            Some(_) | None => None,
        };
        let (token, lease, revision) = (Token(reply.revision), self.lease, looked.at);
        Some(ClaimReply::Won(Box::new(WonClaim {
            token,
            lease,
            revision,
            props,
            state: None,
            command: None,
        })))
    }
}

/// What the last two reads of a reply say.
fn look(reply: &TxnReply) -> Option<ClaimReadback> {
    let reads = reply.results.get(reply.results.len().checked_sub(LOOKS)?..)?;
    let is_blank = |read: &OpReply| matches!(read, OpReply::Get(page) if page.pairs.is_empty());
    Some(ClaimReadback { at: reply.revision, is_blank: reads.iter().all(is_blank) })
}

#[cfg(test)]
mod tests;
