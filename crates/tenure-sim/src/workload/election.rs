//! Elections: candidates who campaign, lead, resign and hand over, and others who watch them.

use std::time::Duration;

use futures_util::StreamExt;
use tenure::election::{Election, Elections, Term};
use tenure_core::queue::LockMode;

use super::{Believing, Stage, patience};
use crate::audit::election_line;
use crate::cast::{Player, namespace};
use crate::dice::Dice;
use crate::history::Fact;

/// The only election: the more candidates, the better.
pub const NAME: &str = "boss";

/// Somebody is a candidate all day, and watches who leads.
pub fn begin(stage: &Stage, player: &Player, dice: &mut Dice) {
    let elections = Elections::new(&player.session, &namespace()).identity(player.name.as_str());
    let election = elections.election(NAME);
    {
        let (stage_of_one, player, election) = (stage.clone(), player.clone(), election.clone());
        stage.act(async move { observe(stage_of_one, player, election).await });
    }
    let (stage_of_one, player, dice) = (stage.clone(), player.clone(), dice.split());
    stage.act(async move { run_for_office(stage_of_one, player, election, dice).await });
}

async fn observe(stage: Stage, player: Player, election: Election) {
    let mut observe = election.observe();
    while let Some(Ok(seen)) = observe.next().await {
        let token = seen.leader.map(|leader| leader.token);
        let (line, who) = (election_line(NAME), player.name.clone());
        stage.cast.history.note(Fact::Observed { line, who, token });
    }
}

async fn run_for_office(stage: Stage, player: Player, election: Election, mut dice: Dice) {
    loop {
        player.rest(dice.ms(1, 1_500)).await;
        let mut campaign = election.campaign().value(player.name.clone());
        if dice.percent(20) {
            campaign = campaign.priority(i32::try_from(dice.below(3)).unwrap_or(0));
        }
        if let Some(wait) = patience(&mut dice) {
            campaign = campaign.timeout(wait);
        }
        if dice.percent(40) {
            lead(&stage, &player, campaign, &mut dice).await;
            continue;
        }
        let elected = match dice.percent(10) {
            true => tokio::time::timeout(dice.ms(0, 2_000), campaign.into_future()).await,
            false => Ok(campaign.await),
        };
        player.awake().await;
        if let Ok(Ok(term)) = elected {
            reign(&stage, &player, &election, term, &mut dice).await;
        }
    }
}

/// Leads through the closure, which must be dropped the moment leadership cannot be proven.
async fn lead(stage: &Stage, player: &Player, campaign: tenure::election::Campaign, dice: &mut Dice) {
    let steps = dice.below(5);
    let pace = dice.ms(100, 1_500);
    let leading = campaign.lead(|term| {
        let (stage, player) = (stage.clone(), player.clone());
        async move {
            let line = election_line(NAME);
            let _believing = believe(&stage, &player, &term);
            for _ in 0..steps {
                player.rest(pace).await;
                stage.acted(&player, &line, term.token(), term.is_valid());
                stage.write_guarded(&player, &line, &term.fence()).await;
            }
        }
    });
    // A campaign that nobody wins in time is given up.
    let _ = tokio::time::timeout(Duration::from_secs(25), leading).await;
}

async fn reign(stage: &Stage, player: &Player, election: &Election, term: Term, dice: &mut Dice) {
    let believing = believe(stage, player, &term);
    let line = election_line(NAME);
    for _ in 0..dice.below(4) {
        let pace = dice.ms(100, 1_500);
        let worked = term.run(async {
            player.rest(pace).await;
            stage.acted(player, &line, term.token(), term.is_valid());
            stage.write_guarded(player, &line, &term.fence()).await;
        });
        if worked.await.is_err() {
            break;
        }
        if dice.percent(20) {
            let _ = term.announce(format!("{} still", player.name)).await;
        }
    }
    player.awake().await;
    drop(believing);
    let heir = match dice.percent(30) {
        true => election.snapshot().await.ok().and_then(|snapshot| snapshot.candidates.into_iter().last()),
        false => None,
    };
    let _ = match heir.filter(|heir| heir.token != term.token()) {
        Some(heir) => term.transfer(&heir).await.is_ok(),
        None => term.resign().await.is_ok(),
    };
}

fn believe(stage: &Stage, player: &Player, term: &Term) -> Believing {
    let believed = term.validity();
    stage
        .believe(player, &election_line(NAME), term.token(), LockMode::Exclusive, move || believed.is_valid())
}
