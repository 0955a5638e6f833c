//! TTL elections over the same store.

use std::time::Duration;

use tenure::store::Revision;
use tenure::ttl::{StoreStorage, TtlElections};
use tenure_core::queue::LockMode;
use tenure_core::revision::Token;

use super::Stage;
use crate::audit::ttl_line;
use crate::cast::{Player, namespace};
use crate::dice::Dice;

/// What is led.
pub const NAME: &str = "shift";

/// Somebody wants to lead all day.
pub fn begin(stage: &Stage, player: &Player, dice: &mut Dice) {
    let storage = StoreStorage::new(player.store.clone(), &namespace());
    let builder = TtlElections::builder(storage).clock(player.clock.clone()).ttl(stage.cast.ttl);
    let elections = builder.build().expect("the TTL of a run is long enough");
    let (stage_of_one, player, dice) = (stage.clone(), player.clone(), dice.split());
    stage.act(async move { want(stage_of_one, player, elections, dice).await });
}

async fn want(stage: Stage, player: Player, elections: TtlElections<StoreStorage>, mut dice: Dice) {
    let line = ttl_line(NAME);
    loop {
        player.rest(dice.ms(1, 1_500)).await;
        let campaign = elections.election(NAME).campaign(player.name.clone());
        let acquired = tokio::time::timeout(dice.ms(1, 20_000), campaign.into_future()).await;
        player.awake().await;
        let Ok(Ok(term)) = acquired else { continue };
        let token = term.token().unwrap_or(Token(Revision::ZERO));
        let believed = term.validity();
        let believing =
            stage.believe(&player, &line, token, LockMode::Exclusive, move || believed.is_valid());
        for _ in 0..dice.below(4) {
            let pace = dice.ms(1, 1_500);
            let worked = term.run(async {
                player.rest(pace).await;
                stage.acted(&player, &line, token, term.is_valid());
            });
            if worked.await.is_err() {
                break;
            }
        }
        if dice.percent(20) {
            let _ = tokio::time::timeout(Duration::from_secs(10), term.lost()).await;
        }
        player.awake().await;
        drop(believing);
        if dice.percent(80) {
            let _ = term.release().await;
        }
    }
}
