//! A lock as it is often written, which the rig must find to be broken: a key with a lease. The
//! process that created the key relies on it until it deletes it, and writes the counter without a
//! token.

use std::time::Duration;

use bytes::Bytes;
use tenure::store::{Condition, LeaseId, Op, Txn};

use super::NAMESPACE;
use super::holder::{HolderContext, RecordedHold};
use crate::history::{HoldEnd, OperationKind, OperationOutcome, now};
use crate::ledger::{LedgerClient, LedgerReply};
use crate::options::LockUnderTest;
use crate::rng::NemesisRng;

const TASKS: usize = 2;

/// The client acquires the lock for the whole run.
pub(super) fn begin(context: &HolderContext) {
    for _ in 0..TASKS {
        let own_context = context.clone();
        context.act(async move { want(own_context).await });
    }
}

async fn want(context: HolderContext) {
    let mut rng = context.rng();
    let Ok(mut ledger_client) = LedgerClient::to(context.ledger).await else { return };
    let key = Bytes::from(format!("/{NAMESPACE}-plain"));
    while context.rest(rng.ms(5, 60)).await {
        let Ok(grant) = context.store.grant(LockUnderTest::Plain.ttl(), None).await else { continue };
        let op = context.history.begin(OperationKind::Lock, "lock:plain", None);
        let put =
            Txn::new().when(Condition::absent(key.clone())).then(Op::put_leased(key.clone(), "x", grant.id));
        match context.store.txn(put).await {
            Ok(reply) if reply.succeeded => {
                let token = reply.revision.0;
                context.history.end(op, OperationOutcome::Ok, Some(token), None);
                hold(&context, token, grant.id, &key, &mut ledger_client, &mut rng).await;
            }
            Ok(_) => context.history.end(op, OperationOutcome::No, None, Some("held".to_owned())),
            Err(error) => context.history.end(op, OperationOutcome::Unknown, None, Some(error.to_string())),
=======
            Ok(_) => context.history.end(op, OperationOutcome::No, None, Some("held".to_owned())),
            Err(error) => {
                context.history.end(op, OperationOutcome::Unknown, None, Some(error.to_string()));
            }
>>>>>>> .merge_file_VLW2yc
        }
        // What is not revoked here ends by itself.
        let _ = context.store.revoke(grant.id).await;
    }
}

async fn hold(
    context: &HolderContext,
    token: i64,
    lease: LeaseId,
    key: &Bytes,
    ledger_client: &mut LedgerClient,
    rng: &mut NemesisRng,
) {
    let belief = RecordedHold::new(&context.history, "lock:plain", token);
    let look = || {
        let at = now();
        belief.believed(at, at, at, None);
    };
    look();
    let op = context.history.begin(OperationKind::Count, belief.line, None);
    let working = async {
        let Ok(LedgerReply::Ok(value)) = ledger_client.read(belief.line, None).await else { return false };
        tokio::time::sleep(rng.ms(5, 300)).await;
        look();
        matches!(ledger_client.write(belief.line, None, value + 1).await, Ok(LedgerReply::Ok(_)))
    };
    let renewing = async {
        loop {
            tokio::time::sleep(LockUnderTest::Plain.ttl() / 3).await;
            // That it failed changes nothing: this is what is wrong with it.
            let _ = tokio::time::timeout(Duration::from_secs(1), context.store.renew(lease)).await;
        }
    };
    let is_done = tokio::select! {
        is_done = working => is_done,
        () = renewing => false,
    };
    look();
    belief.ended(HoldEnd::GivenUp);
    let outcome = if is_done { OperationOutcome::Ok } else { OperationOutcome::Unknown };
    context.history.end(op, outcome, Some(token), None);
    // By name, whichever process created it.
    let _ = context.store.txn(Txn::new().then(Op::delete(key.clone()))).await;
}
