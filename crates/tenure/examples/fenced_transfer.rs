//! A transfer under a lock, with a write that fails once a later holder has the lock: start it several times on one store, and the sum is right.
//!
//! `cargo run -p tenure --example fenced_transfer -- etcd://127.0.0.1:2379` moves one unit; a file shared by processes works as well. Without an
//! address, `TENURE_STORE` names the store.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use tenure::store::{Op, Txn};
use tenure::{Hold, Tenure};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut builder = Tenure::builder().namespace("bank");
    if let Some(address) = std::env::args().nth(1) {
        builder = builder.store(address);
    }
    let tenure = builder.connect().await?;

    let guard = tenure.lock("ledger").reason("transfer").timeout(Duration::from_secs(60)).await?;
    // Dropped if the lock is lost.
    let balance = guard.try_run(transfer(&tenure, &guard)).await?;
    writeln!(std::io::stdout(), "balance {balance}, token {}", guard.token())?;
    guard.release().await?;
    Ok(tenure.close().await?)
}

async fn transfer(tenure: &Tenure, hold: &Hold) -> Result<i64, Box<dyn Error>> {
    let stored = tenure.store().get_key("/bank/balance").await?;
    let balance: i64 = match stored {
        Some(stored) => std::str::from_utf8(&stored.value)?.parse()?,
        None => 0,
    };
    let balance = balance + 1;
    // Refused if another process holds the lock when the store applies it. A database compares `hold.token()` with the largest token it has seen.
    hold.commit(Txn::from(Op::put("/bank/balance", balance.to_string()))).await?;
    Ok(balance)
}
