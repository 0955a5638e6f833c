//! What every engine promises inside one process.

use std::time::{Duration, Instant};

use tenure::clock::{BootClock, Clock};
use tenure::store::{Change, Condition, LeaseChoice, Op, Previous, Selection, Start, Store, Txn};

use super::{Outcome, Story, ms, must, next_change};
use crate::failure::Failure;

pub(super) async fn play(story: &mut Story<'_>, store: &Store) -> Result<(), Failure> {
    let engine = store.info().kind;
    let begin = Instant::now();
    story.tell(engine, "a change makes exactly one revision", begin, revisions(store).await)?;
    let begin = Instant::now();
    story.tell(engine, "a transaction does all or nothing", begin, all_or_nothing(store).await)?;
    let begin = Instant::now();
    story.tell(engine, "only one of 100 claims wins", begin, one_winner(store).await)?;
    let begin = Instant::now();
    story.tell(engine, "a watch tells every change once, in order", begin, watched(store).await)?;
    let begin = Instant::now();
    story.tell(engine, "a lease never ends early, and takes its keys along", begin, expiry(store).await)
}

async fn revisions(store: &Store) -> Outcome {
    let first = store.put("/demo/greeting", "hello").await?;
    let second = store.put("/demo/greeting", "hello again").await?;
    let found = store.get_key("/demo/greeting").await?;
    let is_last = found.is_some_and(|pair| pair.value == "hello again" && pair.version == 2);
    must(is_last && second == first.next(), format!("revision {first}, then {second}"))
}

async fn all_or_nothing(store: &Store) -> Outcome {
    let txn = Txn::new()
        .when(Condition::absent("/demo/a"))
        .then(Op::put("/demo/a", "1"))
        .then(Op::put("/demo/b", "1"));
    let first = store.txn(txn.clone()).await?;
    let second = store.txn(txn).await?;
    must(
        first.succeeded && !second.succeeded && second.revision == first.revision,
        format!("done once at revision {}, refused the second time", first.revision),
    )
}

async fn one_winner(store: &Store) -> Outcome {
    let claims = (0..100).map(|n| {
        let store = store.clone();
        tokio::spawn(
            async move { store.create("/demo/owner", format!("node-{n}"), LeaseChoice::Detach).await },
        )
    });
    let mut tokens = Vec::new();
    for claim in claims.collect::<Vec<_>>() {
        let claimed = claim.await.map_err(|error| super::broken(error.to_string()))?;
        tokens.extend(claimed?);
    }
    let [token] = tokens[..] else { return must(false, format!("{} won", tokens.len())) };
    must(true, format!("one won, with the token {token}"))
}

async fn watched(store: &Store) -> Outcome {
    let mut stream = store.watch(Selection::prefix("/demo/line/"), Start::Now, Previous::Omitted).await?;
    let mut put = Vec::new();
    for n in 0..100 {
        put.push(store.put(format!("/demo/line/{n}"), "x").await?);
    }
    for revision in &put {
        let seen = next_change(&mut stream).await?.revision();
        if seen != *revision {
            return must(false, format!("revision {seen} came where {revision} was due"));
        }
    }
    must(true, format!("{} changes, nothing missing, nothing twice", put.len()))
}

/// How long the demo's leases live: the shortest that engines grant.
pub(super) const TTL: Duration = Duration::from_secs(1);

async fn expiry(store: &Store) -> Outcome {
    let mut stream = store.watch(Selection::key("/demo/leased"), Start::Now, Previous::Omitted).await?;
    let grant = store.grant(TTL, None).await?;
    store.put_leased("/demo/leased", "x", grant.id).await?;
    next_change(&mut stream).await?;
    let end = next_change(&mut stream).await?;
    let lived = BootClock.now().since(grant.asked_at);
    must(
        matches!(end, Change::Delete { .. }) && lived >= grant.ttl,
        format!("asked for {}, gone after {}", ms(grant.ttl), ms(lived)),
    )
}
