//! Locks around counters: take the lock, read, think, write one more, give it back.

use std::time::Duration;

use tenure::Hold;
use tenure::lock::{Guard, Locks};

use super::holder::{HolderContext, RecordedHold};
use super::namespace;
use crate::history::{HoldEnd, OperationKind, OperationOutcome};
use crate::ledger::{LedgerClient, LedgerReply};
use crate::rng::NemesisRng;

/// One is the beginning of the other, and neither may block the other.
const NAMES: [&str; 2] = ["a", "a/b"];

/// Two tasks of one process on one session must exclude each other too.
const TASKS: usize = 2;

/// The client acquires locks for the whole run.
pub(super) fn begin(context: &HolderContext) {
    let locks = Locks::new(&context.session, &namespace());
    for _ in 0..TASKS {
        let (own_context, locks) = (context.clone(), locks.clone());
        context.act(async move { want(own_context, locks).await });
    }
}

async fn want(context: HolderContext, locks: Locks) {
    let mut rng = context.rng();
    let Ok(mut ledger_client) = LedgerClient::to(context.ledger).await else { return };
    while context.rest(rng.ms(2, 40)).await {
        let name = *rng.pick(&NAMES);
        let line = format!("lock:{name}");
        let op = context.history.begin(OperationKind::Lock, &line, None);
        let acquire = match rng.percent(10) {
            true => locks.lock(name).try_now(),
            false => locks.lock(name).timeout(rng.ms(500, 8_000)),
        };
        match acquire.await {
            Ok(guard) => {
                context.history.end(op, OperationOutcome::Ok, Some(guard.token().0.0), None);
                hold(&context, &line, guard, &mut ledger_client, &mut rng).await;
            }
            Err(error) => context.history.end(op, OperationOutcome::No, None, Some(error.to_string())),
        }
    }
}

async fn hold(
    context: &HolderContext,
    line: &str,
    guard: Guard,
    ledger_client: &mut LedgerClient,
    rng: &mut NemesisRng,
) {
    let token = guard.token().0.0;
    let belief = RecordedHold::new(&context.history, line, token);
    if belief.look(&guard)
        && count(context, &belief, &guard, ledger_client, thinking(rng)).await
        && belief.look(&guard)
    {
        belief.ended(HoldEnd::GivenUp);
    }
    // Recorded before another process can hold.
    drop(belief);
    if rng.percent(10) {
        // As people forget to release: dropping must do.
        drop(guard);
        return;
    }
    let op = context.history.begin(OperationKind::Release, line, None);
    let outcome = match guard.release().await {
        Ok(()) => (OperationOutcome::Ok, None),
        // It continues in the background, or ended before: both are correct.
        Err(error) => (OperationOutcome::No, Some(error.to_string())),
    };
    context.history.end(op, outcome.0, None, outcome.1);
}

/// Reads the counter under a hold, waits, and writes one more. Returns `false` once the hold is
/// lost.
pub(super) async fn count(
    context: &HolderContext,
    belief: &RecordedHold<'_>,
    hold: &Hold,
    ledger_client: &mut LedgerClient,
    thinking: Duration,
) -> bool {
    let op = context.history.begin(OperationKind::Count, belief.line, None);
    let token = Some(belief.token);
    let value = match ledger_client.read(belief.line, token).await {
        Ok(LedgerReply::Ok(value)) => value,
        Ok(LedgerReply::Stale) => {
            belief.refused(hold.is_valid());
            context.history.end(op, OperationOutcome::No, None, Some("stale".to_owned()));
            return false;
        }
        Err(error) => {
            context.history.end(op, OperationOutcome::Unknown, None, Some(error.to_string()));
            return false;
        }
    };
    tokio::time::sleep(thinking).await;
    if !belief.look(hold) {
        context.history.end(op, OperationOutcome::No, None, Some("lost".to_owned()));
        return false;
    }
    // A process that is stopped right here wakes up and writes: only the ledger can refuse it.
    match ledger_client.write(belief.line, token, value + 1).await {
        Ok(LedgerReply::Ok(_)) => {
            context.history.end(op, OperationOutcome::Ok, token, Some((value + 1).to_string()));
            true
        }
        Ok(LedgerReply::Stale) => {
            belief.refused(hold.is_valid());
            context.history.end(op, OperationOutcome::No, None, Some("stale".to_owned()));
            false
        }
        Err(error) => {
            context.history.end(op, OperationOutcome::Unknown, None, Some(error.to_string()));
            false
        }
    }
}

/// Mostly short, so that much happens; at times long enough for faults to fall into it.
pub(super) fn thinking(rng: &mut NemesisRng) -> Duration {
    match rng.below(100) {
        0..3 => rng.ms(500, 2_500),
        3..15 => rng.ms(30, 200),
        _ => rng.ms(1, 15),
    }
}
