//! What a storage may offer beyond the verbs, and an election on all of it.

use std::time::Duration;

use tenure_core::time::Moment;
use tokio::time::{Instant, timeout};

use super::super::elections::{AcquireError, Elections, Key};
use super::super::stamp::Value;
use super::super::storage::TtlStorage;
use super::scene::{LATE_MAX, LONG, SHORT, Scene};
use super::{Case, case, ensure, expect};
use crate::clock::{Clock, Sleep};
use crate::conformance::{Failure, Verdict};

/// How long the leaderships of the kit last: long enough for a slow storage.
const DURATION: Duration = Duration::from_secs(8);

pub(super) fn cases<K, V, S>() -> Vec<Case<K, V, S>>
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    vec![
        case!("F01", "tokens grow from insert to insert and stay through swaps", tokens, |offers| offers
            .fencing),
        case!("W01", "a watch tells of a deletion", watch_deletion, |offers| offers.watch),
        case!("W02", "a watch tells of a TTL that is over", watch_end, |offers| offers.watch),
        case!("E01", "of two electors with the same value one leads, until it releases", election),
        case!("E02", "one who waits leads after a release", waiting),
    ]
}

async fn tokens<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    let token = async |value: &str| scene.storage.token(&scene.key("a"), &scene.value(value)).await;
    let mut last = None;
    for round in ["one", "two", "three"] {
        let absent = token(round).await?;
        ensure(absent.is_none(), || format!("a token of {absent:?} for what is not stored"))?;
        expect("the insert", scene.insert("a", round, LONG).await, true)?;
        let first = token(round).await?.ok_or_else(|| Failure::new("no token for what is stored"))?;
        ensure(last < Some(first), || format!("the token went from {last:?} to {first}"))?;
        expect("a swap", scene.swap("a", round, "swapped", LONG).await, true)?;
        let second = token("swapped").await?;
        ensure(second == Some(first), || format!("a swap changed the token from {first} to {second:?}"))?;
        expect("a delete", scene.delete("a", "swapped").await, true)?;
        last = Some(first);
    }
    Ok(())
}

async fn watch_deletion<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    expect("the insert", scene.insert("a", "one", LONG).await, true)?;
    let freed = scene.storage.watch(&scene.key("a")).await?;
    expect("a delete", scene.delete("a", "one").await, true)?;
    let told = timeout(LATE_MAX, freed).await;
    ensure(told.is_ok(), || format!("nothing was told within {LATE_MAX:?}"))
}

async fn watch_end<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    expect("the insert", scene.insert("a", "one", SHORT).await, true)?;
    let freed = scene.storage.watch(&scene.key("a")).await?;
    let told = timeout(SHORT + LATE_MAX, freed).await;
    ensure(told.is_ok(), || format!("nothing was told within {:?}", SHORT + LATE_MAX))
}

async fn election<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    let clock = RuntimeClock::new();
    let (one, two) =
        (Elections::new(scene.storage.clone(), clock), Elections::new(scene.storage.clone(), clock));
    let acquire = |elections: &Elections<K, V, _>| {
        let elections = elections.clone();
        async move { elections.acquire(scene.key("a"), scene.value("same"), DURATION).await }
    };
    let first = acquire(&one).await.map_err(|error| Failure::new(format!("the first elector: {error}")))?;
    let second = acquire(&two).await;
    ensure(matches!(second, Err(AcquireError::Held)), || format!("the second elector was told {second:?}"))?;
    let fences = one.capabilities().fencing;
    ensure(first.token().is_some() == fences, || format!("the token is {:?}", first.token()))?;
    first.release().await.map_err(|error| Failure::new(format!("the release: {error}")))?;
    let second = acquire(&two).await.map_err(|error| Failure::new(format!("after the release: {error}")))?;
    ensure(second.is_valid(), || "not valid although acquired".to_owned())?;
    two.close().await.map_err(|error| Failure::new(format!("closing: {error}")))?;
    expect("an insert after closing", scene.insert("a", "free", LONG).await, true)
}

async fn waiting<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    let clock = RuntimeClock::new();
    let (one, two) =
        (Elections::new(scene.storage.clone(), clock), Elections::new(scene.storage.clone(), clock));
    let first = one.acquire(scene.key("a"), scene.value("one"), DURATION).await;
    let first = first.map_err(|error| Failure::new(format!("the first elector: {error}")))?;
    let wait = two.acquire_wait(scene.key("a"), scene.value("two"), DURATION);
    let release = async {
        tokio::time::sleep(SHORT / 4).await;
        first.release().await
    };
    let (second, released) = tokio::join!(timeout(DURATION + LATE_MAX, wait), release);
    released.map_err(|error| Failure::new(format!("the release: {error}")))?;
    let second = second.map_err(|_| Failure::new("still waiting long after the release"))?;
    let second = second.map_err(|error| Failure::new(format!("the one who waits: {error}")))?;
    ensure(second.is_valid(), || "not valid although acquired".to_owned())?;
    second.release().await.map_err(|error| Failure::new(format!("the second release: {error}")))
}

/// The runtime's own time, so that the kit takes none when that is paused.
#[derive(Clone, Copy, Debug)]
struct RuntimeClock {
    origin: Instant,
}

impl RuntimeClock {
    fn new() -> RuntimeClock {
        RuntimeClock { origin: Instant::now() }
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Moment {
        Moment::after_origin(self.origin.elapsed())
    }

    fn sleep_until(&self, deadline: Moment) -> Sleep {
        Box::pin(tokio::time::sleep_until(self.origin + deadline.since_origin()))
    }
}
