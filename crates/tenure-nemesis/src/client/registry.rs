//! Registrations: keys that are wanted, changed and not wanted any more, whatever the store does.

use tenure::session::RegisterError;

use super::NAMESPACE;
use super::holder::HolderContext;
use crate::history::{HistoryEvent, OperationKind, OperationOutcome};

/// Where they lie; outside of the namespace, as users' own keys do.
pub fn root() -> String {
    format!("/{NAMESPACE}-registered/")
}

/// How many keys a client may register.
const KEYS: u64 = 6;

/// The client registers and unregisters keys for the whole run.
pub(super) fn begin(context: &HolderContext) {
    let own_context = context.clone();
    context.act(async move { keep(own_context).await });
}

async fn keep(context: HolderContext) {
    let mut rng = context.rng();
    let mut count = 0_u64;
    let tell = |key: &str, value: Option<String>| {
        context.history.record(HistoryEvent::Wanted { key: key.to_owned(), value });
    };
    while context.rest(rng.ms(50, 600)).await {
        let key = format!("{}{}/{}", root(), context.name, rng.below(KEYS));
        if rng.percent(30) {
            tell(&key, None);
            context.session.unregister(key);
            continue;
        }
        count += 1;
        let value = format!("{count}-{:x}", rng.number());
        tell(&key, Some(value.clone()));
        let op = context.history.begin(OperationKind::Register, &key, Some(value.clone()));
        match context.session.register_raw(key.clone(), value).timeout(rng.ms(100, 4_000)).await {
            Ok(registration) => {
                context.history.end(op, OperationOutcome::Ok, Some(registration.revision.0), None);
            }
            // It is still wanted, and comes when the store does.
            Err(error @ (RegisterError::Timeout { .. } | RegisterError::Superseded)) => {
                context.history.end(op, OperationOutcome::Unknown, None, Some(error.to_string()));
            }
            Err(error) => {
                tell(&key, None);
                context.history.end(op, OperationOutcome::No, None, Some(error.to_string()));
            }
        }
    }
}
