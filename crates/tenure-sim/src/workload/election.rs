//! Elections: candidates that campaign, lead, resign and transfer, and observers.

use std::time::Duration;

use futures_util::StreamExt;
use tenure::election::{Election, Elections, Term};
use tenure_core::queue::LockMode;

use super::{TrackedHoldGuard, WorkloadContext, patience};
use crate::audit::election_line;
use crate::history::Fact;
use crate::processes::{SimProcess, namespace};
use crate::rng::SimRng;

/// The only election: the more candidates, the better.
pub const NAME: &str = "boss";

/// The process is a candidate for the whole run, and observes the leader.
pub fn begin(context: &WorkloadContext, process: &SimProcess, rng: &mut SimRng) {
    let elections = Elections::new(&process.session, &namespace()).identity(process.name.as_str());
    let election = elections.election(NAME);
    {
        let (own_context, process, election) = (context.clone(), process.clone(), election.clone());
        context.act(async move { observe(own_context, process, election).await });
    }
    let (own_context, process, rng) = (context.clone(), process.clone(), rng.split());
    context.act(async move { run_for_office(own_context, process, election, rng).await });
}

async fn observe(context: WorkloadContext, process: SimProcess, election: Election) {
    let mut observe = election.observe();
    while let Some(Ok(seen)) = observe.next().await {
        let token = seen.leader.map(|leader| leader.token);
        let (subject, process) = (election_line(NAME), process.name.clone());
        context.processes.history.note(Fact::Observed { subject, process, token });
    }
}

async fn run_for_office(context: WorkloadContext, process: SimProcess, election: Election, mut rng: SimRng) {
    loop {
        process.rest(rng.ms(1, 1_500)).await;
        let mut campaign = election.campaign().value(process.name.clone());
        if rng.percent(20) {
            campaign = campaign.priority(i32::try_from(rng.below(3)).unwrap_or(0));
        }
        if let Some(wait) = patience(&mut rng) {
            campaign = campaign.timeout(wait);
        }
        if rng.percent(40) {
            lead(&context, &process, campaign, &mut rng).await;
            continue;
        }
        let elected = match rng.percent(10) {
            true => tokio::time::timeout(rng.ms(0, 2_000), campaign.into_future()).await,
            false => Ok(campaign.await),
        };
        process.awake().await;
        if let Ok(Ok(term)) = elected {
            reign(&context, &process, &election, term, &mut rng).await;
        }
    }
}

/// Leads through the closure, which must be dropped the moment leadership cannot be proven.
async fn lead(
    context: &WorkloadContext,
    process: &SimProcess,
    campaign: tenure::election::Campaign,
    rng: &mut SimRng,
) {
    let steps = rng.below(5);
    let pace = rng.ms(100, 1_500);
    let leading = campaign.lead(|term| {
        let (context, process) = (context.clone(), process.clone());
        async move {
            let subject = election_line(NAME);
            let _believing = track_hold(&context, &process, &term);
            for _ in 0..steps {
                process.rest(pace).await;
                context.acted(&process, &subject, term.token(), term.is_valid());
                context.write_guarded(&process, &subject, &term.fence()).await;
            }
        }
    });
    // A campaign that is not won in time is cancelled.
    let _ = tokio::time::timeout(Duration::from_secs(25), leading).await;
}

async fn reign(
    context: &WorkloadContext,
    process: &SimProcess,
    election: &Election,
    term: Term,
    rng: &mut SimRng,
) {
    let believing = track_hold(context, process, &term);
    let subject = election_line(NAME);
    for _ in 0..rng.below(4) {
        let pace = rng.ms(100, 1_500);
        let worked = term.run(async {
            process.rest(pace).await;
            context.acted(process, &subject, term.token(), term.is_valid());
            context.write_guarded(process, &subject, &term.fence()).await;
        });
        if worked.await.is_err() {
            break;
        }
        if rng.percent(20) {
            let _ = term.announce(format!("{} still", process.name)).await;
        }
    }
    process.awake().await;
    drop(believing);
    let heir = match rng.percent(30) {
        true => election.snapshot().await.ok().and_then(|snapshot| snapshot.candidates.into_iter().last()),
        false => None,
    };
    let _ = match heir.filter(|heir| heir.token != term.token()) {
        Some(heir) => term.transfer(&heir).await.is_ok(),
        None => term.resign().await.is_ok(),
    };
}

fn track_hold(context: &WorkloadContext, process: &SimProcess, term: &Term) -> TrackedHoldGuard {
    let was_valid = term.validity();
    context.track_hold(process, &election_line(NAME), term.token(), LockMode::Exclusive, move || {
        was_valid.is_valid()
    })
}
