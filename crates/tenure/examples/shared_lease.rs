//! Three keys under one shared lease, from the first registration to the last.
//!
//! `cargo run -p tenure --example shared_lease -- etcd://127.0.0.1:2379` shows it on etcd; without an address, and without
//! `TENURE_STORE`, it runs on a store in memory. The keys are under `/example/shared_lease/`.

use std::error::Error;
use std::io::Write;

use tenure::session::Session;
use tenure::store::{LeaseId, Selection, Store};

const PREFIX: &str = "/example/shared_lease/";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).or_else(|| std::env::var("TENURE_STORE").ok());
    let store = Store::open(&address.as_deref().unwrap_or("memory:").parse()?).await?;
    print(format_args!("store: {}", store.info().kind))?;

    // Nothing is sent before the first key.
    let session = Session::open(store.clone())?;

    // The first registration returns the lease of its key; the others share it.
    let mut leases = Vec::new();
    for name in ["a", "b", "c"] {
        let registration = session.register_raw(format!("{PREFIX}{name}"), "10.0.0.7:80").await?;
        print(format_args!("registered {name} under lease {}", registration.lease))?;
        leases.push(registration.lease);
    }
    leases.dedup();
    let [lease] = leases[..] else { return Err("three keys must share one lease".into()) };
    print_store(&store, lease).await?;

    // To register again is to overwrite; the lease stays.
    session.register_raw(format!("{PREFIX}a"), "10.0.0.8:80").await?;
    let pair = store.get_key(format!("{PREFIX}a")).await?.ok_or("a registered key is in the store")?;
    print(format_args!("overwrote a with {}", String::from_utf8_lossy(&pair.value)))?;

    // The session revokes the lease with the last key.
    for name in ["a", "b", "c"] {
        session.unregister(format!("{PREFIX}{name}"));
        session.synced().await;
        print(format_args!("unregistered {name}"))?;
        print_store(&store, lease).await?;
    }

    // Without a close the lease would expire after its TTL.
    session.close().await?;
    store.close().await;
    Ok(())
}

/// Prints what the store contains, not what the session knows.
async fn print_store(store: &Store, lease: LeaseId) -> Result<(), Box<dyn Error>> {
    let stored = store.list(Selection::prefix(PREFIX)).await?.pairs.len();
    match store.lease(lease).await? {
        Some(view) => print(format_args!(
            "  the store has {stored} keys, {} of them on lease {lease}, which lives for {:?} more",
            view.keys.len(),
            view.remaining
        ))?,
        None => print(format_args!("  the store has {stored} keys, and lease {lease} is gone"))?,
    }
    Ok(())
}

fn print(line: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{line}")
}
