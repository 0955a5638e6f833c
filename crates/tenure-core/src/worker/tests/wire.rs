//! The way from a node to the store and back, and what may happen to a request on it.

use std::time::Duration;

use super::world::{WorkerWorld, WorldItem};
use crate::error::{Cause, StoreError};
use crate::layout::{Key, Layout};
use crate::lease::LeaseId;
use crate::revision::RequestId;
use crate::txn::{Op, Txn, TxnReply};
use crate::worker::request::{ClaimBatch, ClaimReadMode, NodeWrite};
use crate::worker::{ClaimRequest, WorkerInput};

/// etcd abandons a request after this long.
const LATE_MAX: u64 = 7_000;
/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WireFault {
    Works,
    NotDone,
    /// It is carried out; the answer is lost.
    LosesReply,
    /// The answer is lost, and it is carried out much later.
    Late,
}

/// What a node asks of the store.
#[derive(Clone, Debug)]
pub(super) enum WireRequest {
    Claim { epoch: RequestId, claims: Vec<(ClaimRequest, LeaseId)> },
    Write(NodeWrite),
    Leave,
}

impl WorkerWorld {
    /// A request reaches the store, or not.
    pub(super) fn arrive(&mut self, n: usize, life: u64, ask: WireRequest) {
        let mut fate = self.fate;
        if self.faults_one_in > 0 && self.rng.one_in(self.faults_one_in) {
            fate = [WireFault::NotDone, WireFault::LosesReply, WireFault::Late][self.rng.index(3)];
        }
        let is_cut = self.processes[n].is_cut && self.processes[n].life == life;
        // What was on its way when the line was cut may have passed; its answer has not.
        if is_cut && !(self.is_stormy && self.rng.one_in(2)) {
            fate = WireFault::NotDone;
        }
        if let WireRequest::Claim { epoch, claims } = ask {
            return self.arrive_claims(n, life, (epoch, claims), fate);
        }
        let txns = self.txns(n, &ask);
        if fate == WireFault::Late {
            let delay = Duration::from_millis(self.rng.below(LATE_MAX));
            self.later(WorldItem::Late(txns.clone()), n, delay);
        }
        let replies = self.replies(&txns, fate);
        if self.processes[n].life != life {
            return;
        }
        let event = read(&self.layout, ask, replies);
        self.reply_to(n, life, event);
    }

    /// Claims are asked as often as they need it, each time with a fate of its own.
    fn arrive_claims(
        &mut self,
        n: usize,
        life: u64,
        claims: (RequestId, Vec<(ClaimRequest, LeaseId)>),
        fate: WireFault,
    ) {
        let (epoch, claims) = claims;
        let reading = if epoch.0.is_multiple_of(4) { ClaimReadMode::Each } else { ClaimReadMode::Together };
        let mut request = ClaimBatch::new(claims, reading);
        let mut fate = fate;
        while !request.has_reply() {
            let txns = request.txns(&self.layout);
            if fate == WireFault::Late {
                let delay = Duration::from_millis(self.rng.below(LATE_MAX));
                self.later(WorldItem::Late(txns.clone()), n, delay);
            }
            let replies = self.replies(&txns, fate);
            request.handle(replies);
            if self.faults_one_in > 0 && self.rng.one_in(self.faults_one_in) {
                fate = [WireFault::NotDone, WireFault::LosesReply, WireFault::Late][self.rng.index(3)];
            }
        }
        if self.processes[n].life == life {
            self.reply_to(n, life, WorkerInput::ClaimReplies { epoch, replies: request.into_replies() });
        }
    }

    fn replies(&mut self, txns: &[Txn], fate: WireFault) -> Vec<Result<TxnReply, StoreError>> {
        let mut replies = Vec::new();
        for txn in txns {
            replies.push(match fate {
                WireFault::Works => self.store.apply(txn, self.now),
                WireFault::NotDone => Err(StoreError::Unavailable(cause())),
                WireFault::LosesReply => {
                    let _ = self.store.apply(txn, self.now);
                    Err(StoreError::Ambiguous(cause()))
                }
                WireFault::Late => Err(StoreError::Ambiguous(cause())),
            });
        }
        replies
    }

    /// The worker gets the reply, now or later.
    fn reply_to(&mut self, n: usize, life: u64, event: WorkerInput) {
        let is_cut = self.processes[n].is_cut && self.processes[n].life == life;
        if self.holds_replies {
            return self.withheld.push((n, life, event));
        }
        if is_cut && self.is_stormy {
            let late = Duration::from_millis(self.rng.below(20_000));
            return self.later(WorldItem::Tell(n, event), n, late);
        }
        self.soon(WorldItem::Tell(n, event), n);
    }

    pub(super) fn release_replies(&mut self) {
        self.holds_replies = false;
        for (n, life, event) in std::mem::take(&mut self.withheld) {
            if self.processes[n].life == life {
                self.deliver(n, event);
            }
        }
    }

    fn txns(&self, n: usize, ask: &WireRequest) -> Vec<Txn> {
        let node = &self.processes[n].config.node;
        match ask {
            WireRequest::Claim { .. } => unreachable!("claims arrive by themselves"),
            WireRequest::Write(write) => vec![write.txn(&self.layout, node)],
            WireRequest::Leave => {
                let key = self.layout.encode(&Key::Node(node.clone()));
                vec![Txn::new().then(Op::delete(key))]
            }
        }
    }
}

fn read(layout: &Layout, ask: WireRequest, replies: Vec<Result<TxnReply, StoreError>>) -> WorkerInput {
    let first = |replies: Vec<Result<TxnReply, StoreError>>| replies.into_iter().next().unwrap();
    match ask {
        WireRequest::Claim { .. } => unreachable!("claims arrive by themselves"),
        WireRequest::Write(write) => write.read(layout, first(replies)),
        WireRequest::Leave => WorkerInput::OwnKeyDeleted,
    }
}

fn cause() -> Cause {
    Cause::new("the world is like that")
}
