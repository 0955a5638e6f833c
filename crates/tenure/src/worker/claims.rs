//! The leases that claims hang on: one loan for each claim, and one look-out for each lease.

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

/// What came of a request with claims, and the loans that they were asked under.
pub(super) struct Claimed {
    pub(super) epoch: RequestId,
    pub(super) answers: Vec<ClaimReply>,
    loans: Vec<(String, LeaseHandle)>,
}

/// Asks for tasks, each under a loan of its own.
///
/// The loans come first: a session that has a lease with room lends without asking the store, so this waits only when a lease is full or lost.
pub(super) async fn ask(
    store: Store,
    session: Session,
    layout: Layout,
    epoch: RequestId,
    claims: Vec<(ClaimRequest, Option<LeaseHandle>)>,
    habit: Arc<Mutex<ClaimModeHistory>>,
) -> Claimed {
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
    let mut answers = request.into_replies().into_iter();
    let answer = |has_lease| if has_lease { answers.next() } else { None };
    let answers = has_lease.into_iter().map(answer).map(|answer| answer.unwrap_or(ClaimReply::NotDone));
    Claimed { epoch, answers: answers.collect(), loans }
}

fn lock(habit: &Mutex<ClaimModeHistory>) -> MutexGuard<'_, ClaimModeHistory> {
    habit.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a lease.
type Ending = Pin<Box<dyn Future<Output = (LeaseId, LossReason)> + Send>>;

/// The loans of all claims.
#[derive(Default)]
pub(super) struct Loans {
    /// By the nonce of the claim.
    lent: BTreeMap<String, LeaseHandle>,
    /// Claims whose request is under way.
    asking: BTreeSet<String>,
    /// For each lease one loan, and how many claims hang on it.
    leases: BTreeMap<LeaseId, (LeaseHandle, usize)>,
    endings: FuturesUnordered<Ending>,
}

impl Loans {
    /// Claims are about to be asked for: each with the loan it has, if it was asked for before.
    pub(super) fn begin(&mut self, claims: Vec<ClaimRequest>) -> Vec<(ClaimRequest, Option<LeaseHandle>)> {
        claims
            .into_iter()
            .map(|ask| {
                self.asking.insert(ask.nonce.clone());
                let loan = self.lent.get(&ask.nonce).cloned();
                (ask, loan)
            })
            .collect()
    }

    /// The request is answered. Whoever was let go meanwhile has its loan given back.
    pub(super) fn end(&mut self, claimed: &mut Claimed) {
        for (nonce, loan) in claimed.loans.drain(..) {
            if !self.asking.remove(&nonce) || self.lent.contains_key(&nonce) {
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
            self.lent.insert(nonce, loan);
        }
    }

    /// A claim is over.
    pub(super) fn let_go(&mut self, nonce: &str) {
        self.asking.remove(nonce);
        let Some(loan) = self.lent.remove(nonce) else { return };
        if let Some((_, count)) = self.leases.get_mut(&loan.lease()) {
            *count -= 1;
            if *count == 0 {
                self.leases.remove(&loan.lease());
            }
        }
    }

    /// A loan of this lease, as long as some claim hangs on it.
    pub(super) fn of(&self, lease: LeaseId) -> Option<LeaseHandle> {
        self.leases.get(&lease).map(|(loan, _)| loan.clone())
    }

    /// Waits for the end of a lease that claims hang on.
    pub(super) async fn next_end(&mut self) -> (LeaseId, LossReason) {
        loop {
            match self.endings.next().await {
                Some((lease, why)) if self.leases.contains_key(&lease) => return (lease, why),
                // Nothing hangs on it any more.
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }
}
