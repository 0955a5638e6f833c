//! A scheduler that only the leader runs, and a health page that every process answers: the page asks nothing of the store.
//!
//! `cargo run -p tenure --example scheduler_health -- etcd://127.0.0.1:2379 web-1`; a file shared by processes works as well. It works for five
//! ticks, or until Ctrl-C.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use tenure::{Tenure, Term};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut builder = Tenure::builder().namespace("example").ttl(Duration::from_secs(5));
    if let Some(address) = arguments.next() {
        builder = builder.store(address);
    }
    if let Some(name) = arguments.next() {
        builder = builder.identity(name);
    }
    let tenure = builder.connect().await?;
    writeln!(std::io::stdout(), "{}", health_page(&tenure))?;

    let work = |term| schedule(tenure.clone(), term);
    let leading = tenure.election("scheduler").campaign().value("10.0.0.7:80").lead(work);
    tokio::select! {
        scheduled = leading => scheduled??,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    writeln!(std::io::stdout(), "{}", health_page(&tenure))?;
    Ok(tenure.close().await?)
}

/// Dropped at its next `.await` when leadership is lost.
async fn schedule(tenure: Tenure, term: Term) -> std::io::Result<()> {
    for tick in 1..=5 {
        writeln!(std::io::stdout(), "tick {tick}, token {}, {}", term.token(), health_page(&tenure))?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// What a handler of `GET /healthz` answers.
fn health_page(tenure: &Tenure) -> String {
    let is_well = tenure.health().failing_for.is_none();
    format!("well={is_well} leader={}", tenure.election("scheduler").is_leader())
}
