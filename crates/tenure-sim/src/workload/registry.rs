//! Registrations: keys that are wanted, changed and not wanted any more, whatever the store does.

use std::time::Duration;

use tenure::session::RegisterError;

use super::Stage;
use crate::cast::Player;
use crate::dice::Dice;
use crate::history::Fact;

/// Where they lie; outside of the namespace, as users' own keys do.
pub const ROOT: &str = "/registered/";

/// How many keys somebody may have.
const KEYS: u64 = 6;

/// Somebody registers and unregisters all day.
pub fn begin(stage: &Stage, player: &Player, dice: &mut Dice) {
    let (stage_of_one, player, dice) = (stage.clone(), player.clone(), dice.split());
    stage.act(async move { keep(stage_of_one, player, dice).await });
}

async fn keep(stage: Stage, player: Player, mut dice: Dice) {
    let mut count = 0;
    let tell = |key: &str, value: Option<String>| {
        let (who, key) = (player.name.clone(), key.to_owned());
        stage.cast.history.note(Fact::Wanted { who, key, value });
    };
    loop {
        player.rest(dice.ms(1, 2_500)).await;
        let key = format!("{ROOT}{}/{}", player.name, dice.below(KEYS));
        if dice.percent(30) {
            tell(&key, None);
            player.session.unregister(key);
            continue;
        }
        count += 1;
        let value = format!("{count}");
        tell(&key, Some(value.clone()));
        let register = player.session.register_raw(key.clone(), value).timeout(dice.ms(100, 8_000));
        match tokio::time::timeout(Duration::from_secs(10), register.into_future()).await {
            Ok(Ok(_) | Err(RegisterError::Timeout { .. } | RegisterError::Superseded)) | Err(_) => {}
            // Not wanted any more, by the store's will.
            Ok(Err(error)) => {
                stage.cast.history.remark(format!("{key} cannot be registered: {error}"));
                tell(&key, None);
            }
        }
    }
}
