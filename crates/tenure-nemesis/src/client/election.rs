//! An election and a register: the leader writes it with a guarded transaction, and everybody reads it.

use tenure::election::{Election, Elections, Term};
use tenure::store::{Op, StoreError, Txn};

use super::stage::{Belief, Stage};
use super::{NAMESPACE, namespace};
use crate::dice::Dice;
use crate::history::{End, Outcome, Work};

const NAME: &str = "boss";

/// What the history calls it.
const LINE: &str = "election:boss";

/// Where the register is.
fn register() -> String {
    format!("/{NAMESPACE}-register")
}

/// Everybody runs for office, and reads what leaders write.
pub(super) fn begin(stage: &Stage) {
    let elections = Elections::new(&stage.session, &namespace()).identity(stage.name.as_str());
    let election = elections.election(NAME);
    let stage_of_one = stage.clone();
    stage.act(async move { run_for_office(stage_of_one, election).await });
    let stage_of_one = stage.clone();
    stage.act(async move { read(stage_of_one).await });
}

async fn run_for_office(stage: Stage, election: Election) {
    let mut dice = stage.dice();
    while stage.rest(dice.ms(5, 300)).await {
        let op = stage.history.ask(Work::Campaign, LINE, None);
        match election.campaign().value(stage.name.clone()).timeout(dice.ms(500, 8_000)).await {
            Ok(term) => {
                stage.history.answer(op, Outcome::Ok, Some(term.token().0.0), None);
                reign(&stage, term, &mut dice).await;
            }
            Err(error) => stage.history.answer(op, Outcome::No, None, Some(error.to_string())),
        }
    }
}

async fn reign(stage: &Stage, term: Term, dice: &mut Dice) {
    let token = term.token().0.0;
    let belief = Belief::new(&stage.history, LINE, token);
    let mut is_held = belief.look(&term);
    for number in 0..dice.below(12) {
        if !is_held || !stage.rest(dice.ms(5, 120)).await {
            break;
        }
        write(stage, &term, format!("{token}:{number}")).await;
        is_held = belief.look(&term);
    }
    if is_held {
        belief.ended(End::GivenUp);
    }
    let op = stage.history.ask(Work::Resign, LINE, None);
    match term.resign().await {
        Ok(()) => stage.history.answer(op, Outcome::Ok, None, None),
        Err(error) => stage.history.answer(op, Outcome::No, None, Some(error.to_string())),
    }
}

async fn write(stage: &Stage, term: &Term, value: String) {
    let op = stage.history.ask(Work::Write, LINE, Some(value.clone()));
    let txn = Txn::new().then(Op::put(register(), value));
    match stage.store.txn(term.fence().guard(txn)).await {
        Ok(reply) if reply.succeeded => {
            stage.history.answer(op, Outcome::Ok, Some(reply.revision.0), None);
        }
        Ok(_) => stage.history.answer(op, Outcome::No, None, Some("not leading".to_owned())),
        Err(error @ StoreError::Ambiguous(_)) => {
            stage.history.answer(op, Outcome::Unknown, None, Some(error.to_string()));
        }
        // Every other error says that nothing happened, and is held to it.
        Err(error) => stage.history.answer(op, Outcome::No, None, Some(error.to_string())),
    }
}

async fn read(stage: Stage) {
    let mut dice = stage.dice();
    while stage.rest(dice.ms(10, 90)).await {
        let op = stage.history.ask(Work::Read, LINE, None);
        match stage.store.get_key(register()).await {
            Ok(pair) => {
                let value = pair.map(|pair| String::from_utf8_lossy(&pair.value).into_owned());
                stage.history.answer(op, Outcome::Ok, None, value);
            }
            Err(error) => stage.history.answer(op, Outcome::No, None, Some(error.to_string())),
        }
    }
}
