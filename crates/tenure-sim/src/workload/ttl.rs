//! TTL elections over the same store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure::store::Revision;
use tenure::ttl::{Elections, StoreStorage};
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
    let elections: Elections<String, Bytes, StoreStorage> = Elections::new(storage, player.clock.clone());
    let (stage_of_one, player, dice) = (stage.clone(), player.clone(), dice.split());
    stage.act(async move { want(stage_of_one, player, elections, dice).await });
}

async fn want(
    stage: Stage,
    player: Player,
    elections: Elections<String, Bytes, StoreStorage>,
    mut dice: Dice,
) {
    let line = ttl_line(NAME);
    loop {
        player.rest(dice.ms(1, 1_500)).await;
        let acquire = elections.acquire_wait(NAME.to_owned(), player.name.clone().into(), stage.cast.ttl);
        let acquired = tokio::time::timeout(dice.ms(1, 20_000), acquire).await;
        player.awake().await;
        let Ok(Ok(leadership)) = acquired else { continue };
        let token = leadership.token().unwrap_or(Token(Revision::ZERO));
        let leadership = Arc::new(leadership);
        let believed = leadership.clone();
        let believing =
            stage.believe(&player, &line, token, LockMode::Exclusive, move || believed.is_valid());
        for _ in 0..dice.below(4) {
            let pace = dice.ms(1, 1_500);
            let worked = leadership.run(async {
                player.rest(pace).await;
                stage.acted(&player, &line, token, leadership.is_valid());
            });
            if worked.await.is_err() {
                break;
            }
        }
        if dice.percent(20) {
            let _ = tokio::time::timeout(Duration::from_secs(10), leadership.lost()).await;
        }
        player.awake().await;
        drop(believing);
        let Some(leadership) = Arc::into_inner(leadership) else { continue };
        if dice.percent(80) {
            let _ = leadership.release().await;
        }
    }
}
