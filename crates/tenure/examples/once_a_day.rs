//! A backup that one of all processes runs, once a day: start it on several machines, as often as you like.
//!
//! `cargo run -p tenure --example once_a_day -- etcd://127.0.0.1:2379`; a file shared by processes works as well. Without an address,
//! `TENURE_STORE` names the store.

use std::io::Write;
use std::time::Duration;

use tenure::once::Run;
use tenure::{Tenure, Token};

const DAY: Duration = Duration::from_secs(24 * 3_600);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut builder = Tenure::builder().namespace("example");
    if let Some(address) = std::env::args().nth(1) {
        builder = builder.store(address);
    }
    let tenure = builder.connect().await?;

    let backup_once = tenure.once("backup", DAY).retry_failed();
    match backup_once.run(|guard| async move { backup(guard.token()).await }).await? {
        Run::Ran(bytes) => writeln!(std::io::stdout(), "{bytes} bytes")?,
        Run::Skipped { last: Some(last) } => writeln!(std::io::stdout(), "done already at {}", last.started)?,
        Run::Skipped { last: None } => writeln!(std::io::stdout(), "another process runs it")?,
    }
    Ok(tenure.close().await?)
}

/// Its token goes with what it writes, so that a late write of an earlier run can be refused.
async fn backup(token: Token) -> std::io::Result<usize> {
    Ok(format!("backup {token}").len())
}
