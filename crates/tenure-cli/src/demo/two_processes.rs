//! What the file engine promises to processes that share a file: events, locks and fencing tokens across them.

use std::path::Path;
use std::time::{Duration, Instant};

use tenure::clock::{BootClock, Clock};
use tenure::store::{Change, LeaseChoice, Previous, Selection, Start, Store};

use super::one_process::{self, TTL};
use super::{Outcome, PATIENCE, Story, broken, ms, must, next_change};
use crate::child::Part;
use crate::connect;
use crate::failure::Failure;
use crate::part::{Held, Seen, now_ns};

pub(super) async fn play(story: &mut Story<'_>, path: &Path) -> Result<(), Failure> {
    let store = connect::open_file(path).await?;
    one_process::play(story, &store).await?;
    let begin = Instant::now();
    story.tell("file", "a second process sees every change", begin, seen_elsewhere(&store, path).await)?;
    let begin = Instant::now();
    let outcome = taken_over(&store, path).await;
    story.tell("file", "a killed holder is followed by one with a larger token", begin, outcome)?;
    store.close().await;
    Ok(())
}

/// How many changes the other process must see.
const CHANGES: usize = 50;

async fn seen_elsewhere(store: &Store, path: &Path) -> Outcome {
    let mut other = Part::start(&["watch", &path.to_string_lossy(), "/demo/far/"])?;
    other.ready().await?;
    let mut took = Vec::new();
    for n in 0..CHANGES {
        let before = now_ns();
        let revision = store.put(format!("/demo/far/{n}"), "x").await?;
        let seen: Seen = other.say(PATIENCE).await?;
        if seen.revision != revision.0 || !seen.is_put || seen.key != format!("/demo/far/{n}") {
            return must(
                false,
                format!("{} at {} came where /demo/far/{n} at {revision} was due", seen.key, seen.revision),
            );
        }
        took.push(Duration::from_nanos(seen.seen_ns.saturating_sub(before)));
    }
    took.sort();
    let lease = store.grant(TTL, None).await?;
    store.put_leased("/demo/far/leased", "x", lease.id).await?;
    other.say::<Seen>(PATIENCE).await?;
    let gone: Seen = other.say(PATIENCE).await?;
    let due = u64::try_from((lease.asked_at + lease.ttl).since_origin().as_nanos()).unwrap_or(u64::MAX);
    must(
        !gone.is_put && gone.seen_ns >= due,
        format!(
            "{CHANGES} puts, p50 {}, and the end of a lease {} after it was due",
            ms(took[CHANGES / 2]),
            ms(Duration::from_nanos(gone.seen_ns.saturating_sub(due)))
        ),
    )
}

async fn taken_over(store: &Store, path: &Path) -> Outcome {
    let key = "/demo/lock";
    let ttl = format!("{}ms", TTL.as_millis());
    let mut stream = store.watch(Selection::key(key), Start::Now, Previous::Omitted).await?;
    let mut holder = Part::start(&["hold", &path.to_string_lossy(), key, &ttl])?;
    let mut held: Held = holder.say(PATIENCE).await?;
    next_change(&mut stream).await?;
    if store.create(key, "us", LeaseChoice::Detach).await?.is_some() {
        return Err(broken("two processes held one key"));
    }
    // Past its first TTL it holds only because it renews.
    let first_end = held.renewed_ns + u64::try_from(TTL.as_nanos()).unwrap_or(u64::MAX);
    while held.renewed_ns < first_end {
        held = holder.say(PATIENCE).await?;
    }
    holder.kill().await?;
    let end = next_change(&mut stream).await?;
    let alone = BootClock.now().since_origin().saturating_sub(Duration::from_nanos(held.renewed_ns));
    let token =
        store.create(key, "us", LeaseChoice::Detach).await?.ok_or_else(|| broken("the key is still held"))?;
    must(
        matches!(end, Change::Delete { .. }) && alone >= TTL && token.0.0 > held.token,
        format!("killed, gone {} after its last renewal, token {} became {token}", ms(alone), held.token),
    )
}
