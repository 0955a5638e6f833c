//! Leader election on Redis.
//!
//! Run it with `cargo run -p tenure --example redis_election --features redis -- redis://127.0.0.1:6379`.

use std::time::Duration;

use tenure::Lost;
use tenure::ttl::{RedisStorage, TtlElections};

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example prints its result")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let elections = TtlElections::new(RedisStorage::open(&url)?);
    let campaign = elections.election("reports").campaign("web-1");
    let term = campaign.ttl(Duration::from_secs(15)).timeout(Duration::from_secs(60)).await?;

    // Dropped the moment the term is not valid any more.
    let pages = term.try_run(write_report()).await?;
    println!("{pages} pages, written by the leader");

    term.release().await?;
    elections.close().await?;
    Ok(())
}

async fn write_report() -> Result<u32, Lost> {
    Ok(42)
}
