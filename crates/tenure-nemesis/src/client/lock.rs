//! Locks around counters: take the lock, read, think, write one more, give it back.

use std::time::Duration;

use tenure::Hold;
use tenure::lock::{Guard, Locks};

use super::namespace;
use super::stage::{Belief, Stage};
use crate::dice::Dice;
use crate::history::{End, Outcome, Work};
use crate::ledger::{Answer, Link};

/// One is the beginning of the other, and neither may block the other.
const NAMES: [&str; 2] = ["a", "a/b"];

/// Two tasks of one process on one session must exclude each other too.
const TASKS: usize = 2;

/// Everybody wants locks all day.
pub(super) fn begin(stage: &Stage) {
    let locks = Locks::new(&stage.session, &namespace());
    for _ in 0..TASKS {
        let (stage_of_one, locks) = (stage.clone(), locks.clone());
        stage.act(async move { want(stage_of_one, locks).await });
    }
}

async fn want(stage: Stage, locks: Locks) {
    let mut dice = stage.dice();
    let Ok(mut link) = Link::to(stage.ledger).await else { return };
    while stage.rest(dice.ms(2, 40)).await {
        let name = *dice.pick(&NAMES);
        let line = format!("lock:{name}");
        let op = stage.history.ask(Work::Lock, &line, None);
        let acquire = match dice.percent(10) {
            true => locks.lock(name).try_now(),
            false => locks.lock(name).timeout(dice.ms(500, 8_000)),
        };
        match acquire.await {
            Ok(guard) => {
                stage.history.answer(op, Outcome::Ok, Some(guard.token().0.0), None);
                hold(&stage, &line, guard, &mut link, &mut dice).await;
            }
            Err(error) => stage.history.answer(op, Outcome::No, None, Some(error.to_string())),
        }
    }
}

async fn hold(stage: &Stage, line: &str, guard: Guard, link: &mut Link, dice: &mut Dice) {
    let token = guard.token().0.0;
    let belief = Belief::new(&stage.history, line, token);
    if belief.look(&guard) && count(stage, &belief, &guard, link, thinking(dice)).await && belief.look(&guard)
    {
        belief.ended(End::GivenUp);
    }
    // Told before anybody else can hold.
    drop(belief);
    if dice.percent(10) {
        // As people forget to release: dropping must do.
        drop(guard);
        return;
    }
    let op = stage.history.ask(Work::Release, line, None);
    let outcome = match guard.release().await {
        Ok(()) => (Outcome::Ok, None),
        // It goes on in the background, or was over before: both are right answers.
        Err(error) => (Outcome::No, Some(error.to_string())),
    };
    stage.history.answer(op, outcome.0, None, outcome.1);
}

/// Reads the counter under a hold, thinks, and writes one more. False once the hold is lost.
pub(super) async fn count(
    stage: &Stage,
    belief: &Belief<'_>,
    hold: &Hold,
    link: &mut Link,
    thinking: Duration,
) -> bool {
    let op = stage.history.ask(Work::Count, belief.line, None);
    let token = Some(belief.token);
    let value = match link.read(belief.line, token).await {
        Ok(Answer::Ok(value)) => value,
        Ok(Answer::Stale) => {
            belief.refused(hold.is_valid());
            stage.history.answer(op, Outcome::No, None, Some("stale".to_owned()));
            return false;
        }
        Err(error) => {
            stage.history.answer(op, Outcome::Unknown, None, Some(error.to_string()));
            return false;
        }
    };
    tokio::time::sleep(thinking).await;
    if !belief.look(hold) {
        stage.history.answer(op, Outcome::No, None, Some("lost".to_owned()));
        return false;
    }
    // A process that is stopped right here wakes up and writes: only the ledger can refuse it.
    match link.write(belief.line, token, value + 1).await {
        Ok(Answer::Ok(_)) => {
            stage.history.answer(op, Outcome::Ok, token, Some((value + 1).to_string()));
            true
        }
        Ok(Answer::Stale) => {
            belief.refused(hold.is_valid());
            stage.history.answer(op, Outcome::No, None, Some("stale".to_owned()));
            false
        }
        Err(error) => {
            stage.history.answer(op, Outcome::Unknown, None, Some(error.to_string()));
            false
        }
    }
}

/// Mostly short, so that much happens; at times long enough for faults to fall into it.
pub(super) fn thinking(dice: &mut Dice) -> Duration {
    match dice.below(100) {
        0..3 => dice.ms(500, 2_500),
        3..15 => dice.ms(30, 200),
        _ => dice.ms(1, 15),
    }
}
