//! TTLs: never early, soon after, and counted anew by a swap only.

use std::time::Duration;

use tokio::time::Instant;

use super::super::elections::Key;
use super::super::stamp::Value;
use super::super::storage::TtlStorage;
use super::scene::{LONG, SHORT, Scene};
use super::{Case, case, expect};
use crate::conformance::Verdict;

/// Below every second, and below the floor of some storages: it may be raised, never refused or cut to nothing.
const SUBSECOND: Duration = Duration::from_millis(70);

/// How many times half the TTL passes before a swap: in all more than a storage may have added to the TTL by rounding up.
const SWAPS: usize = 6;

pub(super) fn cases<K, V, S>() -> Vec<Case<K, V, S>>
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    vec![
        case!("T01", "a key stays for its whole TTL and goes soon after", whole_ttl),
        case!("T02", "a TTL below a second is kept as well", subsecond_ttl),
        case!("T03", "a swap counts the TTL anew", swap_renews),
        case!("T04", "what was refused prolongs nothing", refusal_renews_nothing),
        case!("T05", "what is over can be neither swapped nor deleted", over_is_over),
    ]
}

async fn nothing() -> Verdict {
    Ok(())
}

async fn whole_ttl<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    let sent = Instant::now();
    expect("the insert", scene.insert("a", "one", SHORT).await, true)?;
    scene.insert_when_free("a", "two", sent + SHORT, nothing).await
}

async fn subsecond_ttl<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    let sent = Instant::now();
    expect("the insert", scene.insert("a", "one", SUBSECOND).await, true)?;
    scene.insert_when_free("a", "two", sent + SUBSECOND, nothing).await
}

async fn swap_renews<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    expect("the insert", scene.insert("a", "one", SHORT).await, true)?;
    expect("the other insert", scene.insert("b", "one", SHORT).await, true)?;
    let mut sent = Instant::now();
    let names: Vec<String> = (0..=SWAPS).map(|round| format!("round-{round}")).collect();
    expect("a first swap", scene.swap("b", "one", &names[0], SHORT).await, true)?;
    for pair in names.windows(2) {
        tokio::time::sleep(SHORT / 2).await;
        sent = Instant::now();
        expect("a swap of the value for itself", scene.swap("a", "one", "one", SHORT).await, true)?;
        expect("a swap for another value", scene.swap("b", &pair[0], &pair[1], SHORT).await, true)?;
    }
    scene.insert_when_free("a", "three", sent + SHORT, nothing).await?;
    scene.insert_when_free("b", "three", sent + SHORT, nothing).await
}

async fn refusal_renews_nothing<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    let sent = Instant::now();
    expect("the insert", scene.insert("a", "one", SHORT).await, true)?;
    // The refused inserts are those of the wait itself.
    let refused = || async {
        expect("a swap from another value", scene.swap("a", "two", "two", LONG).await, false)?;
        expect("a delete with another value", scene.delete("a", "two").await, false)
    };
    scene.insert_when_free("a", "three", sent + SHORT, refused).await
}

async fn over_is_over<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    let sent = Instant::now();
    expect("the insert", scene.insert("a", "one", SHORT).await, true)?;
    expect("an insert beside it", scene.insert("b", "one", SHORT).await, true)?;
    scene.insert_when_free("a", "two", sent + SHORT, nothing).await?;
    expect("a swap of what is over", scene.swap("a", "one", "one", LONG).await, false)?;
    expect("a delete of what is over", scene.delete("a", "one").await, false)?;
    expect("a swap of what came after", scene.swap("a", "two", "two", LONG).await, true)?;
    // The same where nothing came after: first wait until it must be over, without touching it.
    tokio::time::sleep_until(sent + SHORT + super::scene::LATE_MAX / 2).await;
    expect("a swap of what is over and gone", scene.swap("b", "one", "one", LONG).await, false)?;
    expect("an insert after it", scene.insert("b", "two", LONG).await, true)
}
