//! Work that only the leader does: start it several times, kill the leader, and watch the next one begin.
//!
//! `cargo run -p tenure --example leader_only -- etcd://127.0.0.1:2379 web-1` is the candidate `web-1`; a file shared by processes works as
//! well. Without an address, and without `TENURE_STORE`, it runs on a store in memory and leads alone. A third argument is the
//! number of ticks after which its work has ended; without it, it works until Ctrl-C.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use tenure::{Tenure, Term};

/// How long the next candidate waits for a leader that was killed.
const TTL: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().or_else(|| std::env::var("TENURE_STORE").ok());
    let address = address.unwrap_or_else(|| "memory:".to_owned());
    let candidate = arguments.next().unwrap_or_else(|| format!("process {}", std::process::id()));
    let ticks = arguments.next().map(|ticks| ticks.parse()).transpose()?.unwrap_or(u64::MAX);

    let builder = Tenure::builder().store(address).namespace("example").identity(candidate.as_str()).ttl(TTL);
    let tenure = builder.connect().await?;
    let campaign = tenure.election("leader_only").campaign().value(candidate.clone());
    print(format_args!("{candidate} is a candidate"))?;

    // It campaigns, works while leadership is valid, and campaigns again after a loss. The future is dropped at its next `.await` when
    // leadership is not valid any more.
    let leading = campaign.lead(|term| work(candidate.clone(), term, ticks));
    tokio::select! {
        worked = leading => worked??,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            print(format_args!("{candidate} stops"))?;
        }
    }

    // The candidate's key is deleted before the lease is revoked: the next candidate leads without waiting for a TTL.
    Ok(tenure.close().await?)
}

async fn work(candidate: String, term: Term, ticks: u64) -> std::io::Result<()> {
    // Each write elsewhere carries the token: should this process be paused here and continue too late, the resource refuses the write.
    print(format_args!("{candidate} leads, token {}", term.token()))?;
    for tick in 1..=ticks {
        tokio::time::sleep(Duration::from_millis(200)).await;
        print(format_args!("{candidate} works, tick {tick}, token {}", term.token()))?;
    }
    Ok(())
}

fn print(line: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{line}")
}
