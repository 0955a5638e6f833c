//! Five hundred nodes join, and every one of five hundred views sees each of them: how long from the call of `join` to the sight.
//!
//! The reference is a bare put of a key with as many bare watches. On both sides the next node
//! joins when all nodes have seen the one before. The measurement is how soon a join is seen, not
//! how many joins a machine with all views in one process can take.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{join_all, try_join_all};
use tenure::member::{MemberEvent, MemberWatch, Members, Membership};
use tenure::session::Session;
use tenure_core::id::{Namespace, NodeId};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::SessionSize;
use super::register::open;
use crate::failure::BenchFailure;
use crate::internal::VALUE;
use crate::raw::Raw;
use crate::report::{BenchReport, Found, Goal, GoalResult, ResultRow};
use crate::sample::Sample;
use crate::store_under_test::{StoreUnderTest, close_session, failed};
use crate::workload::wrong;

const WORKLOAD: &str = "join_500_seen_by_500";
const NODES: usize = 500;

/// What was not seen after this long never will be.
const PATIENCE: Duration = Duration::from_secs(30);

/// When a view saw each join: the first, the second, and so on.
type ObservedTimes = Vec<Instant>;

pub(super) async fn run(
    place: &StoreUnderTest,
    size: SessionSize,
    report: &mut BenchReport,
) -> Result<(), BenchFailure> {
    let Some(raw) = &place.raw else { return Ok(()) };
    let nodes = NODES.min(size.keys_max);
    let counter = place.counter.as_ref();
    let mut counted = [place.handled().await; 3];
    let baseline = puts(place, raw, nodes).await?;
    counted[1] = place.handled().await;
    let tenure = joins(place, nodes).await?;
    counted[2] = place.handled().await;
    let row = |engine, sample: &Sample, leases: usize, requests: u64| ResultRow {
        leases: Some(leases),
        requests: counter.map(|_| requests),
        ..ResultRow::new(WORKLOAD, engine, sample)
    };
    report.row(&row(place.engine, &tenure, nodes, counted[2] - counted[1]))?;
    report.row(&row("raw", &baseline, 0, counted[1] - counted[0]))?;
    let more = tenure.p99_ms().unwrap_or(f64::NAN) - baseline.p99_ms().unwrap_or(f64::NAN);
    let names = (WORKLOAD, place.engine, "raw");
    report.goal(&GoalResult::new(names, "p99_more_than_raw", Found::Figure(more), Goal::AtMost(50.0)))
}

/// Nodes join one after the other, each with a session of its own, before the eyes of as many views.
async fn joins(place: &StoreUnderTest, nodes: usize) -> Result<Sample, BenchFailure> {
    let namespace = Namespace::parse(place.namespace()).map_err(|error| wrong(error.to_string()))?;
    let members = Members::new(place.store.clone(), &namespace);
    let seen_by = Arc::new(Semaphore::new(0));
    let mut views = Vec::new();
    for _ in 0..nodes {
        views.push(view(members.watch(), nodes, seen_by.clone()).await?);
    }
    let sessions = (0..nodes).map(|_| open(place)).collect::<Result<Vec<Session>, BenchFailure>>()?;
    let (mut began, mut joined) = (Vec::with_capacity(nodes), Vec::with_capacity(nodes));
    for (n, session) in sessions.iter().enumerate() {
        let id = NodeId::parse(&format!("node-{n}")).map_err(|error| wrong(error.to_string()))?;
        began.push(Instant::now());
        let membership = members.join(session, id).await;
        joined.push(membership.map_err(|error| wrong(format!("a node did not join: {error}")))?);
        all_views(&seen_by, nodes).await?;
    }
    let sample = seen(&began, views).await?;
    let left = join_all(joined.into_iter().map(Membership::unregister)).await;
    left.into_iter().collect::<Result<Vec<()>, _>>().map_err(|error| wrong(error.to_string()))?;
    for session in &sessions {
        close_session(session).await?;
    }
    Ok(sample)
}

/// A view that has its first picture, and then notes when it sees each node.
async fn view(
    mut watch: MemberWatch,
    nodes: usize,
    seen_by: Arc<Semaphore>,
) -> Result<JoinHandle<Result<ObservedTimes, BenchFailure>>, BenchFailure> {
    match watch.next().await {
        Some(Ok(MemberEvent::Snapshot(_))) => {}
        other => return Err(wrong(format!("a view began with {other:?}"))),
    }
    Ok(tokio::spawn(async move {
        let mut sights = ObservedTimes::with_capacity(nodes);
        while sights.len() < nodes {
            match watch.next().await {
                Some(Ok(MemberEvent::Joined(_))) => {
                    sights.push(Instant::now());
                    seen_by.add_permits(1);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => return Err(wrong("a view ended")),
            }
        }
        Ok(sights)
    }))
}

/// The same with bare calls: one key is put again and again before the eyes of as many watches.
async fn puts(place: &StoreUnderTest, raw: &Raw, nodes: usize) -> Result<Sample, BenchFailure> {
    let key = Bytes::from(format!("{}{WORKLOAD}/raw", place.prefix));
    let watches = try_join_all((0..nodes).map(|_| raw.watch(key.clone()))).await.map_err(failed)?;
    let seen_by = Arc::new(Semaphore::new(0));
    let watches = watches.into_iter().map(|mut watch| {
        let seen_by = seen_by.clone();
        tokio::spawn(async move {
            let mut sights = ObservedTimes::with_capacity(nodes);
            while sights.len() < nodes {
                match watch.next().await {
                    Some(Ok(_)) => {
                        sights.push(Instant::now());
                        seen_by.add_permits(1);
                    }
                    Some(Err(error)) => return Err(failed(error)),
                    None => return Err(wrong("a bare watch ended")),
                }
            }
            Ok(sights)
        })
    });
    let watches: Vec<_> = watches.collect();
    let mut began = Vec::with_capacity(nodes);
    for _ in 0..nodes {
        began.push(Instant::now());
        raw.put(key.clone(), Bytes::from_static(&VALUE)).await.map_err(failed)?;
        all_views(&seen_by, nodes).await?;
    }
    seen(&began, watches).await
}

/// Waits until all views have seen one more join.
async fn all_views(seen_by: &Semaphore, count: usize) -> Result<(), BenchFailure> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let seen = tokio::time::timeout(PATIENCE, seen_by.acquire_many(count)).await;
    let seen = seen.map_err(|_| wrong(format!("not every view saw it within {PATIENCE:?}")))?;
    seen.map_err(|_| wrong("all views are closed"))?.forget();
    Ok(())
}

/// How long each join took to be seen by all views. The first thing that a view sees is the first
/// join that was begun, and so on.
async fn seen(
    began: &[Instant],
    views: Vec<JoinHandle<Result<ObservedTimes, BenchFailure>>>,
) -> Result<Sample, BenchFailure> {
    let all = tokio::time::timeout(PATIENCE, join_all(views)).await;
    let all = all.map_err(|_| wrong(format!("not every view saw everything within {PATIENCE:?}")))?;
    let mut took = Vec::with_capacity(began.len() * all.len());
    for sights in all {
        let sights = sights.map_err(|error| wrong(format!("a view panicked: {error}")))??;
        took.extend(sights.iter().zip(began).map(|(seen, began)| seen.duration_since(*began)));
    }
    let (count, total) = (began.len(), began.first().map(Instant::elapsed).unwrap_or_default());
    Ok(Sample::new(took, total, count))
}
