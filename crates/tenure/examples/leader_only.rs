//! Something that only the leader does: start it several times, kill the one that leads, and watch the next one begin.
//!
//! `cargo run -p tenure --example leader_only -- etcd://127.0.0.1:2379 web-1` is the candidate `web-1`; a file shared by processes works as
//! well. Without an address, and without `TENURE_STORE`, it runs on a store in memory and leads alone. A third argument is after how many
//! ticks its work is done; without it, it works until Ctrl-C.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use tenure::Namespace;
use tenure::election::{Elections, Term};
use tenure::session::Session;
use tenure::store::Store;

/// How long a leader that was killed is waited for.
const TTL: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().or_else(|| std::env::var("TENURE_STORE").ok());
    let candidate = arguments.next().unwrap_or_else(|| format!("process {}", std::process::id()));
    let ticks = arguments.next().map(|ticks| ticks.parse()).transpose()?.unwrap_or(u64::MAX);

    let store = Store::open(&address.as_deref().unwrap_or("memory:").parse()?).await?;
    let session = Session::options().ttl(TTL).open(store.clone())?;
    let elections = Elections::new(&session, &Namespace::parse("example")?).introduce(&candidate);
    let election = elections.election("leader_only")?;
    say(format_args!("{candidate} is a candidate"))?;

    // It campaigns, works while leadership is proven, and campaigns again after a loss. The future is dropped the moment leadership cannot
    // be proven any more, so whatever must not happen then belongs between its `.await`s.
    let leading = election.lead(candidate.clone(), |term| work(candidate.clone(), term, ticks));
    tokio::select! {
        worked = leading => worked??,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            say(format_args!("{candidate} stops"))?;
        }
    }

    // The place in the line goes first, then the lease: the next candidate need not wait for anything.
    session.close().await?;
    store.close().await;
    Ok(())
}

async fn work(candidate: String, term: Arc<Term>, ticks: u64) -> std::io::Result<()> {
    // Whatever is written elsewhere carries the token, so that it can be refused should this process be paused here and go on too late.
    say(format_args!("{candidate} leads, token {}", term.token()))?;
    for tick in 1..=ticks {
        tokio::time::sleep(Duration::from_millis(200)).await;
        say(format_args!("{candidate} works, tick {tick}, token {}", term.token()))?;
    }
    Ok(())
}

fn say(line: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{line}")
}
