//! Ten jobs of which at most three run at a time, however many processes share the store.
//!
//! `cargo run -p tenure --example limited_exports -- etcd://127.0.0.1:2379`; a file shared by processes works as well. Without an address,
//! `TENURE_STORE` names the store.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::Tenure;
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut builder = Tenure::builder().namespace("example");
    if let Some(address) = std::env::args().nth(1) {
        builder = builder.store(address);
    }
    let tenure = builder.connect().await?;

    let slots = tenure.semaphore("exports", 3);
    let running = Arc::new(AtomicUsize::new(0));
    let mut jobs = JoinSet::new();
    for n in 0..10 {
        let (slots, running) = (slots.clone(), running.clone());
        jobs.spawn(async move {
            let permit = slots.acquire().timeout(Duration::from_secs(60)).await?;
            let beside = permit.run(export(&running)).await?;
            Ok::<_, tenure::Error>((n, beside))
        });
    }
    while let Some(job) = jobs.join_next().await {
        let (n, beside) = job??;
        writeln!(std::io::stdout(), "export {n} was one of {beside}")?;
    }
    Ok(tenure.close().await?)
}

/// Returns how many exports of this process run, with this one.
async fn export(running: &AtomicUsize) -> usize {
    let beside = running.fetch_add(1, Ordering::SeqCst) + 1;
    tokio::time::sleep(Duration::from_millis(20)).await;
    running.fetch_sub(1, Ordering::SeqCst);
    beside
}
