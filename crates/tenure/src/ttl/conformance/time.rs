//! TTLs: keys never expire early, expire soon after, and only a swap restarts the TTL.

use std::time::Duration;

use tokio::time::Instant;

use super::context::{LONG, SHORT, StorageContext, TextStorage};
use super::{StorageCase, case, expect};
use crate::conformance::CheckResult;

/// Below a second, and below the floor of some storages: it may be rounded up, never refused or cut to zero.
const SUBSECOND: Duration = Duration::from_millis(70);

/// How many times half the TTL passes before a swap: in all more than a storage may have added to the TTL by rounding up.
const SWAPS: usize = 6;

pub(super) fn cases<S: TextStorage>() -> Vec<StorageCase<S>> {
    vec![
        case!("T01", "a key stays for its whole TTL and expires soon after", whole_ttl),
        case!("T02", "a TTL below a second is kept", subsecond_ttl),
        case!("T03", "a swap restarts the TTL", swap_renews),
        case!("T04", "a refused request prolongs nothing", refused_request_renews_nothing),
        case!("T05", "an expired key can be neither swapped nor deleted", expired_key_is_gone),
    ]
}

async fn nothing() -> CheckResult {
    Ok(())
}

async fn whole_ttl<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    let sent = Instant::now();
    expect("the insert", context.insert("a", "one", SHORT).await, true)?;
    context.insert_when_free("a", "two", sent + SHORT, nothing).await
}

async fn subsecond_ttl<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    let sent = Instant::now();
    expect("the insert", context.insert("a", "one", SUBSECOND).await, true)?;
    context.insert_when_free("a", "two", sent + SUBSECOND, nothing).await
}

async fn swap_renews<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    expect("the insert", context.insert("a", "one", SHORT).await, true)?;
    expect("the other insert", context.insert("b", "one", SHORT).await, true)?;
    let mut sent = Instant::now();
    let names: Vec<String> = (0..=SWAPS).map(|round| format!("round-{round}")).collect();
    expect("a first swap", context.swap("b", "one", &names[0], SHORT).await, true)?;
    for pair in names.windows(2) {
        tokio::time::sleep(SHORT / 2).await;
        sent = Instant::now();
        expect("a swap of the value for itself", context.swap("a", "one", "one", SHORT).await, true)?;
        expect("a swap for another value", context.swap("b", &pair[0], &pair[1], SHORT).await, true)?;
    }
    context.insert_when_free("a", "three", sent + SHORT, nothing).await?;
    context.insert_when_free("b", "three", sent + SHORT, nothing).await
}

async fn refused_request_renews_nothing<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    let sent = Instant::now();
    expect("the insert", context.insert("a", "one", SHORT).await, true)?;
    // The refused inserts are those of `insert_when_free`.
    let refused = || async {
        expect("a swap from another value", context.swap("a", "two", "two", LONG).await, false)?;
        expect("a delete with another value", context.delete("a", "two").await, false)
    };
    context.insert_when_free("a", "three", sent + SHORT, refused).await
}

async fn expired_key_is_gone<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    let sent = Instant::now();
    expect("the insert", context.insert("a", "one", SHORT).await, true)?;
    expect("an insert of another key", context.insert("b", "one", SHORT).await, true)?;
    context.insert_when_free("a", "two", sent + SHORT, nothing).await?;
    expect("a swap of an expired key", context.swap("a", "one", "one", LONG).await, false)?;
    expect("a delete of an expired key", context.delete("a", "one").await, false)?;
    expect("a swap of its successor", context.swap("a", "two", "two", LONG).await, true)?;
    // The same without a successor: waits until the key must have expired, without touching it.
    tokio::time::sleep_until(sent + SHORT + super::context::LATE_MAX / 2).await;
    expect("a swap of an untouched expired key", context.swap("b", "one", "one", LONG).await, false)?;
    expect("an insert after it", context.insert("b", "two", LONG).await, true)
}
