//! A lock as it is often written, to see that the rig finds what is wrong with it: a key with a lease, whoever has put it believes in it
//! until it deletes it, and the counter is written without a token.

use std::time::Duration;

use bytes::Bytes;
use tenure::store::{Condition, LeaseId, Op, Txn};

use super::NAMESPACE;
use super::stage::{Belief, Stage};
use crate::dice::Dice;
use crate::history::{End, Outcome, Work, now};
use crate::ledger::{Answer, Link};
use crate::options::Against;

const TASKS: usize = 2;

/// Everybody wants the lock all day.
pub(super) fn begin(stage: &Stage) {
    for _ in 0..TASKS {
        let stage_of_one = stage.clone();
        stage.act(async move { want(stage_of_one).await });
    }
}

async fn want(stage: Stage) {
    let mut dice = stage.dice();
    let Ok(mut link) = Link::to(stage.ledger).await else { return };
    let key = Bytes::from(format!("/{NAMESPACE}-plain"));
    while stage.rest(dice.ms(5, 60)).await {
        let Ok(grant) = stage.store.grant(Against::Plain.ttl(), None).await else { continue };
        let op = stage.history.ask(Work::Lock, "lock:plain", None);
        let put =
            Txn::new().when(Condition::absent(key.clone())).then(Op::put_leased(key.clone(), "x", grant.id));
        match stage.store.txn(put).await {
            Ok(reply) if reply.succeeded => {
                let token = reply.revision.0;
                stage.history.answer(op, Outcome::Ok, Some(token), None);
                hold(&stage, token, grant.id, &key, &mut link, &mut dice).await;
            }
            Ok(_) => stage.history.answer(op, Outcome::No, None, Some("held".to_owned())),
            Err(error) => stage.history.answer(op, Outcome::Unknown, None, Some(error.to_string())),
        }
        // What is not revoked here ends by itself.
        let _ = stage.store.revoke(grant.id).await;
    }
}

async fn hold(stage: &Stage, token: i64, lease: LeaseId, key: &Bytes, link: &mut Link, dice: &mut Dice) {
    let belief = Belief::new(&stage.history, "lock:plain", token);
    let look = || {
        let at = now();
        belief.believed(at, at, at, None);
    };
    look();
    let op = stage.history.ask(Work::Count, belief.line, None);
    let working = async {
        let Ok(Answer::Ok(value)) = link.read(belief.line, None).await else { return false };
        tokio::time::sleep(dice.ms(5, 300)).await;
        look();
        matches!(link.write(belief.line, None, value + 1).await, Ok(Answer::Ok(_)))
    };
    let renewing = async {
        loop {
            tokio::time::sleep(Against::Plain.ttl() / 3).await;
            // That it failed changes nothing: this is what is wrong with it.
            let _ = tokio::time::timeout(Duration::from_secs(1), stage.store.renew(lease)).await;
        }
    };
    let is_done = tokio::select! {
        is_done = working => is_done,
        () = renewing => false,
    };
    look();
    belief.ended(End::GivenUp);
    let outcome = if is_done { Outcome::Ok } else { Outcome::Unknown };
    stage.history.answer(op, outcome, Some(token), None);
    // By name, whoever's it is by now.
    let _ = stage.store.txn(Txn::new().then(Op::delete(key.clone()))).await;
}
