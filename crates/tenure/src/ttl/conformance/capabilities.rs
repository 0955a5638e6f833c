//! Tokens, watches, and an election on the storage.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Moment;
use tokio::time::{Instant, timeout};

use super::super::election::TtlCampaignError;
use super::super::elections::TtlElections;
use super::super::storage::TtlStorage;
use super::context::{LATE_MAX, LONG, SHORT, StorageContext, TextStorage};
use super::{StorageCase, case, ensure, expect};
use crate::clock::{Clock, Sleep};
use crate::conformance::{CheckFailure, CheckResult};

/// The TTL of the terms in this suite: long enough for a slow storage.
const TTL: Duration = Duration::from_secs(8);

pub(super) fn cases<S: TextStorage>() -> Vec<StorageCase<S>> {
    vec![
        case!("F01", "tokens grow from insert to insert and stay through swaps", tokens, |has| has.fencing),
        case!("W01", "a watch reports a deletion", watch_deletion, |has| has.watch),
        case!("W02", "a watch reports an expiry", watch_end, |has| has.watch),
        case!("E01", "of two candidates with the same value one leads, until it releases", election),
        case!("E02", "a waiting candidate leads after a release", waiting),
    ]
}

async fn tokens<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    let token = async |value: &str| context.storage.token(&context.key("a"), &context.value(value)).await;
    let mut last = None;
    for round in ["one", "two", "three"] {
        let absent = token(round).await?;
        ensure(absent.is_none(), || format!("a token of {absent:?} for an absent value"))?;
        expect("the insert", context.insert("a", round, LONG).await, true)?;
        let first = token(round).await?.ok_or_else(|| CheckFailure::new("no token for a stored value"))?;
        ensure(last < Some(first), || format!("the token went from {last:?} to {first}"))?;
        expect("a swap", context.swap("a", round, "swapped", LONG).await, true)?;
        let second = token("swapped").await?;
        ensure(second == Some(first), || format!("a swap changed the token from {first} to {second:?}"))?;
        expect("a delete", context.delete("a", "swapped").await, true)?;
        last = Some(first);
    }
    Ok(())
}

async fn watch_deletion<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    expect("the insert", context.insert("a", "one", LONG).await, true)?;
    let freed = context.storage.watch(&context.key("a")).await?;
    expect("a delete", context.delete("a", "one").await, true)?;
    let notified = timeout(LATE_MAX, freed).await;
    ensure(notified.is_ok(), || format!("no notification within {LATE_MAX:?}"))
}

async fn watch_end<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    expect("the insert", context.insert("a", "one", SHORT).await, true)?;
    let freed = context.storage.watch(&context.key("a")).await?;
    let notified = timeout(SHORT + LATE_MAX, freed).await;
    ensure(notified.is_ok(), || format!("no notification within {:?}", SHORT + LATE_MAX))
}

fn two_candidates<S: TextStorage>(
    context: &StorageContext<S>,
) -> Result<[TtlElections<Arc<S>>; 2], CheckFailure> {
    let clock = RuntimeClock::new();
    let elections = || TtlElections::builder(context.storage.clone()).clock(clock).ttl(TTL).build();
    match (elections(), elections()) {
        (Ok(one), Ok(two)) => Ok([one, two]),
        (Err(error), _) | (_, Err(error)) => Err(CheckFailure::new(error.to_string())),
    }
}

async fn election<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    let [one, two] = two_candidates(context)?;
    let campaign = |elections: &TtlElections<Arc<S>>| {
        elections.election(context.key("a")).campaign(context.value("same")).try_now().into_future()
    };
    let first =
        campaign(&one).await.map_err(|error| CheckFailure::new(format!("the first candidate: {error}")))?;
    let second = campaign(&two).await;
    ensure(matches!(second, Err(TtlCampaignError::Held { .. })), || format!("the second got {second:?}"))?;
    let has_tokens = one.capabilities().fencing;
    ensure(first.token().is_some() == has_tokens, || format!("the token is {:?}", first.token()))?;
    first.release().await.map_err(|error| CheckFailure::new(format!("the release: {error}")))?;
    let second =
        campaign(&two).await.map_err(|error| CheckFailure::new(format!("after the release: {error}")))?;
    ensure(second.is_valid(), || "not valid although acquired".to_owned())?;
    two.close().await.map_err(|error| CheckFailure::new(format!("closing: {error}")))?;
    expect("an insert after closing", context.insert("a", "free", LONG).await, true)
}

async fn waiting<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    let [one, two] = two_candidates(context)?;
    let first = one.election(context.key("a")).campaign(context.value("one")).try_now().await;
    let first = first.map_err(|error| CheckFailure::new(format!("the first candidate: {error}")))?;
    let wait = two.election(context.key("a")).campaign(context.value("two")).timeout(TTL + LATE_MAX);
    let release = async {
        tokio::time::sleep(SHORT / 4).await;
        first.release().await
    };
    let (second, released) = tokio::join!(wait.into_future(), release);
    released.map_err(|error| CheckFailure::new(format!("the release: {error}")))?;
    let second = second.map_err(|error| CheckFailure::new(format!("the waiting candidate: {error}")))?;
    ensure(second.is_valid(), || "not valid although acquired".to_owned())?;
    second.release().await.map_err(|error| CheckFailure::new(format!("the second release: {error}")))
}

/// The runtime's clock, so that the suite takes no real time while that is paused.
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
