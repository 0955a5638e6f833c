//! Registrations: keys that are wanted, changed and not wanted any more, whatever the store does.

use tenure::session::RegisterError;

use super::NAMESPACE;
use super::stage::Stage;
use crate::history::{Event, Outcome, Work};

/// Where they lie; outside of the namespace, as users' own keys do.
pub fn root() -> String {
    format!("/{NAMESPACE}-registered/")
}

/// How many keys somebody may have.
const KEYS: u64 = 6;

/// Everybody registers and unregisters all day.
pub(super) fn begin(stage: &Stage) {
    let stage_of_one = stage.clone();
    stage.act(async move { keep(stage_of_one).await });
}

async fn keep(stage: Stage) {
    let mut dice = stage.dice();
    let mut count = 0_u64;
    let tell = |key: &str, value: Option<String>| {
        stage.history.tell(Event::Wanted { key: key.to_owned(), value });
    };
    while stage.rest(dice.ms(50, 600)).await {
        let key = format!("{}{}/{}", root(), stage.name, dice.below(KEYS));
        if dice.percent(30) {
            tell(&key, None);
            stage.session.unregister(key);
            continue;
        }
        count += 1;
        let value = format!("{count}-{:x}", dice.number());
        tell(&key, Some(value.clone()));
        let op = stage.history.ask(Work::Register, &key, Some(value.clone()));
        match stage.session.register_raw(key.clone(), value).timeout(dice.ms(100, 4_000)).await {
            Ok(registration) => {
                stage.history.answer(op, Outcome::Ok, Some(registration.revision.0), None);
            }
            // It is still wanted, and comes when the store does.
            Err(error @ (RegisterError::Timeout { .. } | RegisterError::Superseded)) => {
                stage.history.answer(op, Outcome::Unknown, None, Some(error.to_string()));
            }
            Err(error) => {
                tell(&key, None);
                stage.history.answer(op, Outcome::No, None, Some(error.to_string()));
            }
        }
    }
}
