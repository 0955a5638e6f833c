//! The leases of claims: one handle for each claim, and one watch of each lease.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_core::layout::Layout;
use tenure_core::revision::RequestId;
use tenure_core::worker::request::{ClaimBatch, ClaimModeHistory};
use tenure_core::worker::{ClaimReply, ClaimRequest};
use tracing::debug;

use crate::hold::LossReason;
use crate::session::{LeaseHandle, Session};
use crate::store::{LeaseId, Store};

/// The replies to a request with claims, and the leases that the claims were sent under.
pub(super) struct ClaimReplies {
    pub(super) epoch: RequestId,
    pub(super) replies: Vec<ClaimReply>,
    loans: Vec<(String, LeaseHandle)>,
}

/// Sends claims, each under a lease handle of its own.
///
/// The handles come first: a session that has a lease with room gives them without a request, so this waits only when a lease is full or lost.
pub(super) async fn send(
    store: Store,
    session: Session,
    layout: Layout,
    epoch: RequestId,
    claims: Vec<(ClaimRequest, Option<LeaseHandle>)>,
    habit: Arc<Mutex<ClaimModeHistory>>,
) -> ClaimReplies {
    let mut loans = Vec::with_capacity(claims.len());
    let mut asked = Vec::with_capacity(claims.len());
    let mut has_lease = Vec::with_capacity(claims.len());
    for (ask, loan) in claims {
        let loan = match loan {
            Some(loan) => Ok(loan),
            None => session.lease().await,
        };
        has_lease.push(loan.is_ok());
        match loan {
            Ok(loan) => {
                loans.push((ask.nonce.clone(), loan.clone()));
                asked.push((ask, loan.lease()));
            }
            Err(error) => debug!(task = %ask.task, %error, "no lease for a claim"),
        }
    }
    let mut request = ClaimBatch::new(asked, lock(&habit).next_reading());
    while !request.has_reply() {
        let replies = store.batch(request.txns(&layout)).await;
        request.handle(replies);
    }
    lock(&habit).learn(&request);
    let mut replies = request.into_replies().into_iter();
    let reply = |has_lease| if has_lease { replies.next() } else { None };
    let replies = has_lease.into_iter().map(reply).map(|reply| reply.unwrap_or(ClaimReply::NotDone));
    ClaimReplies { epoch, replies: replies.collect(), loans }
}

fn lock(habit: &Mutex<ClaimModeHistory>) -> MutexGuard<'_, ClaimModeHistory> {
    habit.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a lease.
type ClaimLeaseEnd = Pin<Box<dyn Future<Output = (LeaseId, LossReason)> + Send>>;

/// The leases of all claims.
#[derive(Default)]
pub(super) struct ClaimLeases {
    /// By the nonce of the claim.
    by_claim: BTreeMap<String, LeaseHandle>,
    /// Claims with a request in flight.
    in_flight: BTreeSet<String>,
    /// For each lease one handle, and how many claims use it.
    leases: BTreeMap<LeaseId, (LeaseHandle, usize)>,
    endings: FuturesUnordered<ClaimLeaseEnd>,
}

impl ClaimLeases {
    /// Claims are about to be sent, each with its lease if it was sent before: a claim that was applied must be sent again under the same one.
    pub(super) fn begin(&mut self, claims: Vec<ClaimRequest>) -> Vec<(ClaimRequest, Option<LeaseHandle>)> {
        claims
            .into_iter()
            .map(|ask| {
                self.in_flight.insert(ask.nonce.clone());
                let loan = self.by_claim.get(&ask.nonce).cloned();
                (ask, loan)
            })
            .collect()
    }

    /// The request has its reply. The lease of a claim that was released meanwhile is dropped with it.
    pub(super) fn end(&mut self, claimed: &mut ClaimReplies) {
        for (nonce, loan) in claimed.loans.drain(..) {
            if !self.in_flight.remove(&nonce) || self.by_claim.contains_key(&nonce) {
                continue;
            }
            let endings = &self.endings;
            let (_, count) = self.leases.entry(loan.lease()).or_insert_with(|| {
                let watched = loan.clone();
                endings.push(Box::pin(async move {
                    let lost = watched.lost().await;
                    (watched.lease(), lost.reason)
                }));
                (loan.clone(), 0)
            });
            *count += 1;
            self.by_claim.insert(nonce, loan);
        }
    }

    /// A claim has ended.
    pub(super) fn release(&mut self, nonce: &str) {
        self.in_flight.remove(nonce);
        let Some(loan) = self.by_claim.remove(nonce) else { return };
        if let Some((_, count)) = self.leases.get_mut(&loan.lease()) {
            *count -= 1;
            if *count == 0 {
                self.leases.remove(&loan.lease());
            }
        }
    }

    /// A handle of this lease, as long as a claim uses it.
    pub(super) fn of(&self, lease: LeaseId) -> Option<LeaseHandle> {
        self.leases.get(&lease).map(|(loan, _)| loan.clone())
    }

    /// Waits for the end of a lease that claims use.
    pub(super) async fn next_end(&mut self) -> (LeaseId, LossReason) {
        loop {
            match self.endings.next().await {
                Some((lease, why)) if self.leases.contains_key(&lease) => return (lease, why),
                // No claim uses it any more.
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }
}
