//! Claims in one request, and how each learns the stored state of its task.
//!
//! A handler may start only when the state of its task and any pending command are known. If each
//! claim reads both, these reads are most of the work of the server, and most unowned tasks are new
//! and have neither. Therefore the last claim of the request asks once whether any of the tasks has
//! a state or a command. If none has, everything is known. If one has, each claim is repeated as
//! after a lost reply: it finds its own owner key, and reads everything. A claim that fails reads
//! the owner that was faster, and needs no second request.
//!
//! Workers leave each other's tasks alone, so usually all claims of a request succeed. Then many of
//! them can share one transaction that applies all or none, a *bundle*: nested transactions cost a
//! server more than the same operations in one. If a peer was faster after all, nothing was
//! applied, and each claim of the bundle is sent by itself.
//!
//! **Invariant**: the absence of a state counts only for claims that were stored when it was read.
//! Before that a former owner may still have written one.

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
    /// As many claims as possible share one transaction, which asks once for states and commands.
    #[default]
    Bundled,
    /// Each claim is a transaction, and the last one asks for states and commands of all.
    Together,
    /// Each claim is a transaction that reads its own state and command.
    Each,
}

/// For how many requests each claim reads for itself after the shared read has found something.
/// Other tasks of these ids have states as well, perhaps old ones, and each shared read in vain
/// costs a second request.
const EACH_FOR: u32 = 64;

/// For how many requests each claim is a transaction of its own after a bundle has failed. A peer
/// wants the same tasks, and seldom only once.
const APART_FOR: u32 = 16;

/// How many claims share one transaction. Each has two conditions, or two writes and a read. etcd
/// takes 128 operations, less one for each nested transaction of the request; the shared read has
/// two more.
const BUNDLE: usize = 40;

/// Which read modes have failed recently.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClaimModeHistory {
    each_for: u32,
    apart_for: u32,
}

impl ClaimModeHistory {
    /// The read mode of the next request.
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

    /// Learns from a request that has all its replies.
    pub fn learn(&mut self, request: &ClaimBatch) {
        if request.looked.is_some_and(|looked| !looked.is_blank) {
            self.each_for = EACH_FOR;
        }
        if request.was_refused {
            self.apart_for = APART_FOR;
        }
    }
}

/// The claims of one request, until each has a reply.
#[derive(Clone, Debug)]
pub struct ClaimBatch {
    claims: Vec<ClaimTxn>,
    /// The claim that asks for all. `None` if each reads for itself.
    asks_for_all: Option<usize>,
    /// Whether they are sent in bundles.
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
    /// Whether the first reply was incomplete. The claim may be stored already.
    is_second: bool,
    reply: Option<ClaimReply>,
}

/// The result of the shared read.
#[derive(Clone, Copy, Debug)]
struct ClaimReadback {
    at: Revision,
    /// Whether it found nothing.
    is_blank: bool,
}

impl ClaimBatch {
    /// These claims, each under its lease.
    pub fn new(claims: Vec<(ClaimRequest, LeaseId)>, reading: ClaimReadMode) -> ClaimBatch {
        let is_new = |(_, (ask, _)): &(usize, &(ClaimRequest, LeaseId))| !ask.is_again;
        let mut new = claims.iter().enumerate().filter(is_new).map(|(n, _)| n);
        // For a single claim the shared read is no cheaper than its own.
        let asks_for_all = match reading {
            ClaimReadMode::Bundled | ClaimReadMode::Together => new.next().and(new.next_back()),
            ClaimReadMode::Each => None,
        };
        // A repeated claim may be stored already, so its condition fails. It must not fail a
        // bundle.
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

    /// The transactions to send now: one for each bundle, or for each claim without a reply.
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

    /// Takes the replies to the transactions, in their order. A claim that still has no reply has
    /// to be sent again.
    pub fn handle(&mut self, replies: Vec<Result<TxnReply, StoreError>>) {
        if std::mem::take(&mut self.is_bundled) {
            return self.handle_bundles(replies);
        }
        let open: Vec<usize> = (0..self.claims.len()).filter(|n| self.claims[*n].reply.is_none()).collect();
        assert!(open.len() == replies.len(), "every claim that is not answered was asked");
        if let Some(n) = self.asks_for_all.take() {
            let place = open.iter().position(|open| *open == n);
            // The shared read is in one reply only, and counts for all claims of the request.
            self.looked = place.and_then(|place| look(replies[place].as_ref().ok()?));
        }
        for (n, reply) in open.into_iter().zip(replies) {
            let requested = &mut self.claims[n];
            requested.reply = match reply {
                Ok(reply) if requested.reading == ClaimReadMode::Together => {
                    requested.known(&reply, self.looked)
                }
                reply => Some(match read_claim(&requested.ask, requested.lease, reply) {
                    // The first transaction may have been applied, although this repetition was
                    // not.
                    ClaimReply::NotDone if requested.is_second => ClaimReply::Ambiguous,
                    reply => reply,
                }),
            };
            if requested.reply.is_none() {
                requested.repeat();
            }
        }
    }

    /// Takes the replies to the bundles.
    fn handle_bundles(&mut self, replies: Vec<Result<TxnReply, StoreError>>) {
        self.asks_for_all = None;
        let bundles = self.claims.chunks_mut(BUNDLE);
        assert!(bundles.len() == replies.len(), "every bundle was asked");
        for (bundle, reply) in bundles.zip(replies) {
            match reply {
                Ok(reply) if reply.succeeded => {
                    let looked = look(&reply);
                    // One found state or command is enough to change the read mode.
                    if self.looked.is_none_or(|looked| looked.is_blank) {
                        self.looked = looked;
                    }
                    let mut results = reply.results.into_iter();
                    for requested in bundle {
                        let results = results.by_ref().take(results_len(&requested.ask)).collect();
                        let reply = TxnReply { succeeded: true, revision: reply.revision, results };
                        requested.reply = requested.known(&reply, looked);
                        if requested.reply.is_none() {
                            requested.repeat();
                        }
                    }
                }
                // Nothing was applied, and which claim is the cause is unknown. Each of them is
                // sent by itself.
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

    /// Whether every claim has a reply.
    pub fn has_reply(&self) -> bool {
        self.claims.iter().all(|requested| requested.reply.is_some())
    }

    /// The replies, in the order of the claims.
    pub fn into_replies(self) -> Vec<ClaimReply> {
        self.claims.into_iter().map(|requested| requested.reply.unwrap_or(ClaimReply::Ambiguous)).collect()
    }
}

/// Several claims as one transaction.
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

/// The shared read: whether any task of the claims that do not read for themselves has a state, and
/// whether any has a command.
fn looks(claims: &[ClaimTxn], layout: &Layout) -> Vec<Get> {
    let together = || claims.iter().filter(|requested| requested.reading == ClaimReadMode::Together);
    let look = |key: fn(TaskId) -> Key| {
        let keys = || together().map(|requested| layout.encode(&key(requested.ask.task.clone())));
        let (first, last) = keys().min().zip(keys().max())?;
        let end = Selection::Key(last).end()?;
        // One key without its value is enough: only its presence matters.
        Some(Get { values: ValueMode::Omitted, ..Get::new(Selection::Range(first, end)).limit(1) })
    };
    [look(Key::TaskState), look(Key::TaskCommand)].into_iter().flatten().collect()
}

/// The number of reads of the shared read: one for states, one for commands.
const LOOKS: usize = 2;

/// How many operations a claim has that reads neither state nor command: it puts the owner and the
/// attempt record.
fn results_len(ask: &ClaimRequest) -> usize {
    2 + usize::from(ask.has_props)
}

impl ClaimTxn {
    /// The claim is stored already, or was meant to be. The reply to its repetition contains
    /// everything.
    fn repeat(&mut self) {
        (self.reading, self.is_second, self.ask.is_again) = (ClaimReadMode::Each, true, true);
    }

    /// The result of a claim that read nothing itself. `None` if it has to be repeated.
    fn known(&self, reply: &TxnReply, looked: Option<ClaimReadback>) -> Option<ClaimReply> {
        if !reply.succeeded {
            return match read_claim(&self.ask, self.lease, Ok(reply.clone())) {
                // It finds its own owner key when it is repeated.
                ClaimReply::Ambiguous => None,
                reply => Some(reply),
            };
        }
        // A shared read that is older than the claim proves nothing about it.
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

/// The result of the shared read, from the last two operations of a reply.
fn look(reply: &TxnReply) -> Option<ClaimReadback> {
    let reads = reply.results.get(reply.results.len().checked_sub(LOOKS)?..)?;
    let is_blank = |read: &OpReply| matches!(read, OpReply::Get(page) if page.pairs.is_empty());
    Some(ClaimReadback { at: reply.revision, is_blank: reads.iter().all(is_blank) })
}

#[cfg(test)]
mod tests;
