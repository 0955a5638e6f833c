//! Registrations: keys that are wanted, changed and not wanted any more, whatever the store does.

use std::time::Duration;

use tenure::session::RegisterError;

use super::WorkloadContext;
use crate::history::Fact;
use crate::processes::SimProcess;
use crate::rng::SimRng;

/// Where they lie; outside of the namespace, as users' own keys do.
pub const ROOT: &str = "/registered/";

/// How many keys a process may register.
const KEYS: u64 = 6;

/// The process registers and unregisters keys for the whole run.
pub fn begin(context: &WorkloadContext, process: &SimProcess, rng: &mut SimRng) {
    let (own_context, process, rng) = (context.clone(), process.clone(), rng.split());
    context.act(async move { keep(own_context, process, rng).await });
}

async fn keep(context: WorkloadContext, process: SimProcess, mut rng: SimRng) {
    let mut count = 0;
    let tell = |key: &str, value: Option<String>| {
        let (process, key) = (process.name.clone(), key.to_owned());
        context.processes.history.note(Fact::Wanted { process, key, value });
    };
    loop {
        process.rest(rng.ms(1, 2_500)).await;
        let key = format!("{ROOT}{}/{}", process.name, rng.below(KEYS));
        if rng.percent(30) {
            tell(&key, None);
            process.session.unregister(key);
            continue;
        }
        count += 1;
        let value = format!("{count}");
        tell(&key, Some(value.clone()));
        let register = process.session.register_raw(key.clone(), value).timeout(rng.ms(100, 8_000));
        match tokio::time::timeout(Duration::from_secs(10), register.into_future()).await {
            Ok(Ok(_) | Err(RegisterError::Timeout { .. } | RegisterError::Superseded)) | Err(_) => {}
            // Not wanted any more, by the store's will.
            Ok(Err(error)) => {
                context.processes.history.remark(format!("{key} cannot be registered: {error}"));
                tell(&key, None);
            }
        }
    }
}
