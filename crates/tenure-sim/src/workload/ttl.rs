//! TTL elections over the same store.

use std::time::Duration;

use tenure::store::Revision;
use tenure::ttl::{StoreStorage, TtlElections};
use tenure_core::queue::LockMode;
use tenure_core::revision::Token;

use super::WorkloadContext;
use crate::audit::ttl_line;
use crate::processes::{SimProcess, namespace};
use crate::rng::SimRng;

/// What is led.
pub const NAME: &str = "shift";

/// The process campaigns for the whole run.
pub fn begin(context: &WorkloadContext, process: &SimProcess, rng: &mut SimRng) {
    let storage = StoreStorage::new(process.store.clone(), &namespace());
    let builder = TtlElections::builder(storage).clock(process.clock.clone()).ttl(context.processes.ttl);
    let elections = builder.build().expect("the TTL of a run is long enough");
    let (own_context, process, rng) = (context.clone(), process.clone(), rng.split());
    context.act(async move { want(own_context, process, elections, rng).await });
}

async fn want(
    context: WorkloadContext,
    process: SimProcess,
    elections: TtlElections<StoreStorage>,
    mut rng: SimRng,
) {
    let subject = ttl_line(NAME);
    loop {
        process.rest(rng.ms(1, 1_500)).await;
        let campaign = elections.election(NAME).campaign(process.name.clone());
        let acquired = tokio::time::timeout(rng.ms(1, 20_000), campaign.into_future()).await;
        process.awake().await;
        let Ok(Ok(term)) = acquired else { continue };
        let token = term.token().unwrap_or(Token(Revision::ZERO));
        let was_valid = term.validity();
        let believing =
            context.track_hold(&process, &subject, token, LockMode::Exclusive, move || was_valid.is_valid());
        for _ in 0..rng.below(4) {
            let pace = rng.ms(1, 1_500);
            let worked = term.run(async {
                process.rest(pace).await;
                context.acted(&process, &subject, token, term.is_valid());
            });
            if worked.await.is_err() {
                break;
            }
        }
        if rng.percent(20) {
            let _ = tokio::time::timeout(Duration::from_secs(10), term.lost()).await;
        }
        process.awake().await;
        drop(believing);
        if rng.percent(80) {
            let _ = term.release().await;
        }
    }
}
