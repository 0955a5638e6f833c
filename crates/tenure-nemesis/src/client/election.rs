//! An election and a register: the leader writes it with a fenced transaction, and all clients read
//! it.

use tenure::election::{Election, Elections, Term};
use tenure::store::{Op, StoreError, Txn};

use super::holder::{HolderContext, RecordedHold};
use super::{NAMESPACE, namespace};
use crate::history::{HoldEnd, OperationKind, OperationOutcome};
use crate::rng::NemesisRng;

const NAME: &str = "boss";

/// What the history calls it.
const LINE: &str = "election:boss";

/// Where the register is.
fn register() -> String {
    format!("/{NAMESPACE}-register")
}

/// All clients campaign, and read what leaders write.
pub(super) fn begin(context: &HolderContext) {
    let elections = Elections::new(&context.session, &namespace()).identity(context.name.as_str());
    let election = elections.election(NAME);
    let own_context = context.clone();
    context.act(async move { run_for_office(own_context, election).await });
    let own_context = context.clone();
    context.act(async move { read(own_context).await });
}

async fn run_for_office(context: HolderContext, election: Election) {
    let mut rng = context.rng();
    while context.rest(rng.ms(5, 300)).await {
        let op = context.history.begin(OperationKind::Campaign, LINE, None);
        match election.campaign().value(context.name.clone()).timeout(rng.ms(500, 8_000)).await {
            Ok(term) => {
                context.history.end(op, OperationOutcome::Ok, Some(term.token().0.0), None);
                reign(&context, term, &mut rng).await;
            }
            Err(error) => context.history.end(op, OperationOutcome::No, None, Some(error.to_string())),
        }
    }
}

async fn reign(context: &HolderContext, term: Term, rng: &mut NemesisRng) {
    let token = term.token().0.0;
    let belief = RecordedHold::new(&context.history, LINE, token);
    let mut is_held = belief.look(&term);
    for number in 0..rng.below(12) {
        if !is_held || !context.rest(rng.ms(5, 120)).await {
            break;
        }
        write(context, &term, format!("{token}:{number}")).await;
        is_held = belief.look(&term);
    }
    if is_held {
        belief.ended(HoldEnd::GivenUp);
    }
    let op = context.history.begin(OperationKind::Resign, LINE, None);
    match term.resign().await {
        Ok(()) => context.history.end(op, OperationOutcome::Ok, None, None),
        Err(error) => context.history.end(op, OperationOutcome::No, None, Some(error.to_string())),
    }
}

async fn write(context: &HolderContext, term: &Term, value: String) {
    let op = context.history.begin(OperationKind::Write, LINE, Some(value.clone()));
    let txn = Txn::new().then(Op::put(register(), value));
    match context.store.txn(term.fence().guard(txn)).await {
        Ok(reply) if reply.succeeded => {
            context.history.end(op, OperationOutcome::Ok, Some(reply.revision.0), None);
        }
        Ok(_) => context.history.end(op, OperationOutcome::No, None, Some("not leading".to_owned())),
        Err(error @ StoreError::Ambiguous(_)) => {
            context.history.end(op, OperationOutcome::Unknown, None, Some(error.to_string()));
        }
        // Every other error means that nothing happened, and the checker relies on that.
        Err(error) => context.history.end(op, OperationOutcome::No, None, Some(error.to_string())),
    }
}

async fn read(context: HolderContext) {
    let mut rng = context.rng();
    while context.rest(rng.ms(10, 90)).await {
        let op = context.history.begin(OperationKind::Read, LINE, None);
        match context.store.get_key(register()).await {
            Ok(pair) => {
                let value = pair.map(|pair| String::from_utf8_lossy(&pair.value).into_owned());
                context.history.end(op, OperationOutcome::Ok, None, value);
            }
            Err(error) => context.history.end(op, OperationOutcome::No, None, Some(error.to_string())),
        }
    }
}
