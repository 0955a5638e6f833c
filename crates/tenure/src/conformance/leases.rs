//! Leases: granting, renewing, revoking, and ending on time: never early, maybe late.

use std::time::Duration;

use tokio::time::Instant;

use super::check::{CheckFailure, CheckResult, ensure, equal, plus, refused};
use super::context::LONG;
use super::{Case, TestContext};
use crate::store::{Change, InvalidRequest, LeaseId, Renewal, StoreError, WatchStart};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "L01",
            "A grant has a positive id and at least the requested TTL, and makes no revision; a TTL below the minimum is raised, zero and too much are refused.",
            |s| Box::pin(grant_is_at_least_the_request(s)),
        ),
        Case::new("L02", "A second lease under the same id is refused, and the first one stays.", |s| {
            Box::pin(an_id_is_granted_once(s))
        }),
        Case::new("L03", "A put under an unknown lease is refused and makes no revision.", |s| {
            Box::pin(an_unknown_lease_takes_no_keys(s))
        }),
        Case::new(
            "L04",
            "Revoking a lease with c, a and b is one revision: the deletes of a, b and c, in this order.",
            |s| Box::pin(a_lease_goes_in_one_revision(s)),
        ),
        Case::new("L05", "Revoking a lease without keys makes no revision.", |s| {
            Box::pin(an_empty_lease_goes_silently(s))
        }),
        Case::new(
            "L06",
            "An unknown lease: revoke is refused, renew returns `Gone`, the view is none.",
            |s| Box::pin(unknown_leases(s)),
        ),
        Case::new(
            "L07",
            "A put under a second lease moves the key: it survives the first lease and dies with the second.",
            |s| Box::pin(a_key_has_one_lease(s)),
        ),
        Case::new("L08", "A put without a lease detaches the key.", |s| Box::pin(a_put_can_detach(s))),
        Case::new("L09", "A delete detaches the key: put again it survives the lease.", |s| {
            Box::pin(a_delete_detaches(s))
        }),
        Case::new("L10", "A renewal gives the granted TTL again, and makes no revision.", |s| {
            Box::pin(a_renewal_gives_the_granted_ttl(s))
        }),
        Case::new(
            "L11",
            "Two leases with two keys each that end together are two revisions, one for each lease, in key order, and never before their TTL.",
            |s| Box::pin(leases_end_each_in_its_own_revision(s)),
        ),
        Case::new("L12", "A put under a lease does not renew it; a renewal does.", |s| {
            Box::pin(only_a_renewal_renews(s))
        }),
        Case::new(
            "L13",
            "After its end a lease does not exist for renew, view, list, revoke and put.",
            |s| Box::pin(an_ended_lease_is_gone(s)),
        ),
        Case::new(
            "L14",
            "A lease is listed while it lives; its view shows its TTL, what remains and its keys in order.",
            |s| Box::pin(a_lease_is_listed_while_it_lives(s)),
        ),
    ]
}

/// How late the end of a few leases may be seen. etcd looks twice a second and a busy machine takes its time; a lease that is later is lost.
const LATE_MAX: Duration = Duration::from_secs(5);

/// The TTL of leases that are waited for: what the store gives at least, but long enough that a busy machine's delay of
/// half a second is not taken for a renewal.
fn short(s: &TestContext) -> Duration {
    s.store.info().limits.ttl_min.max(Duration::from_secs(2))
}

fn deleted(s: &TestContext, changes: &[Change]) -> CheckResult<Vec<String>> {
    let names = changes.iter().map(|change| match change {
        Change::Delete { key, .. } => Ok(s.name(key)),
        Change::Put { .. } => Err(CheckFailure::new(format!("expected deletes, found {change:?}"))),
    });
    names.collect()
}

async fn grant_is_at_least_the_request(s: &TestContext) -> CheckResult {
    use StoreError::Invalid as Bad;
    let info = s.store.info().clone();
    let start = s.revision().await?;
    for requested in [Duration::from_millis(1), Duration::from_millis(1_500), LONG] {
        let grant = s.lease(requested).await?;
        ensure(grant.id.get() > 0, || format!("{:?} is not positive", grant.id))?;
        ensure(grant.ttl >= requested.max(info.limits.ttl_min), || {
            format!("requested {requested:?}, minimum {:?}, granted {:?}", info.limits.ttl_min, grant.ttl)
        })?;
    }
    let zero = s.store.grant(Duration::ZERO, None).await;
    refused!("a TTL of nothing", zero, Bad(InvalidRequest::TtlZero))?;
    let century = info.limits.ttl_max.saturating_add(Duration::from_secs(1));
    let too_long = s.store.grant(century, None).await;
    refused!("a TTL beyond the limit", too_long, Bad(InvalidRequest::TtlTooLarge { .. }))?;
    equal("the revision", s.revision().await?, start)
}

async fn an_id_is_granted_once(s: &TestContext) -> CheckResult {
    let id = s.lease(LONG).await?.id;
    refused!("the same id again", s.store.grant(LONG, Some(id)).await, StoreError::LeaseExists)?;
    ensure(s.store.lease(id).await?.is_some(), || "the first lease is gone".into())?;
    s.store.revoke(id).await?;
    let chosen = s.lease_as(LONG, Some(id)).await?;
    equal("the id of the caller's choice", chosen.id, id)
}

async fn an_unknown_lease_takes_no_keys(s: &TestContext) -> CheckResult {
    let dead = s.dead_lease().await?;
    let start = s.revision().await?;
    refused!("the put", s.put_leased("a", "v", dead).await, StoreError::LeaseNotFound)?;
    equal("the revision", s.revision().await?, start)?;
    equal("the key", s.pair("a").await?, None)
}

async fn a_lease_goes_in_one_revision(s: &TestContext) -> CheckResult {
    let lease = s.lease(LONG).await?.id;
    for name in ["c", "a", "b"] {
        s.put_leased(name, "v", lease).await?;
    }
    let start = s.put("stays", "v").await?;
    let mut watch = s.watch(s.all(), WatchStart::Now).await?;
    equal("the revision returned", s.store.revoke(lease).await?, plus(start, 1))?;
    let (revision, changes) = watch.batch().await?;
    equal("the revision", revision, plus(start, 1))?;
    equal("the keys deleted", deleted(s, &changes)?, vec!["a".into(), "b".into(), "c".into()])?;
    equal("the keys left", s.names().await?, vec!["stays".into()])
}

async fn an_empty_lease_goes_silently(s: &TestContext) -> CheckResult {
    let lease = s.lease(LONG).await?.id;
    let start = s.revision().await?;
    equal("the revision returned", s.store.revoke(lease).await?, start)?;
    equal("the revision", s.revision().await?, start)
}

async fn unknown_leases(s: &TestContext) -> CheckResult {
    let dead = s.dead_lease().await?;
    refused!("revoke", s.store.revoke(dead).await, StoreError::LeaseNotFound)?;
    equal("renew", s.store.renew(dead).await?, Renewal::Gone)?;
    equal("view", s.store.lease(dead).await?, None)
}

async fn a_key_has_one_lease(s: &TestContext) -> CheckResult {
    let (first, second) = (s.lease(LONG).await?.id, s.lease(LONG).await?.id);
    s.put_leased("a", "1", first).await?;
    s.put_leased("a", "2", second).await?;
    equal("the lease", s.pair("a").await?.and_then(|pair| pair.lease), Some(second))?;
    s.store.revoke(first).await?;
    ensure(s.pair("a").await?.is_some(), || "the key died with the lease it had left".into())?;
    s.store.revoke(second).await?;
    equal("the key after its lease", s.pair("a").await?, None)
}

async fn a_put_can_detach(s: &TestContext) -> CheckResult {
    let lease = s.lease(LONG).await?.id;
    s.put_leased("a", "1", lease).await?;
    s.put("a", "2").await?;
    equal("the lease", s.pair("a").await?.map(|pair| pair.lease), Some(None))?;
    s.store.revoke(lease).await?;
    ensure(s.pair("a").await?.is_some(), || "the key died with the lease it had left".into())
}

async fn a_delete_detaches(s: &TestContext) -> CheckResult {
    let lease = s.lease(LONG).await?.id;
    s.put_leased("a", "1", lease).await?;
    s.delete("a").await?;
    s.put("a", "2").await?;
    let start = s.revision().await?;
    equal("the revision of the revocation", s.store.revoke(lease).await?, start)?;
    ensure(s.pair("a").await?.is_some(), || "the key died with the lease of its last life".into())
}

async fn a_renewal_gives_the_granted_ttl(s: &TestContext) -> CheckResult {
    let grant = s.lease(LONG).await?;
    let start = s.revision().await?;
    match s.store.renew(grant.id).await? {
        Renewal::Renewed { ttl, .. } => equal("the TTL", ttl, grant.ttl)?,
        Renewal::Gone => return Err(CheckFailure::new("a fresh lease is gone")),
    }
    equal("the revision", s.revision().await?, start)
}

async fn leases_end_each_in_its_own_revision(s: &TestContext) -> CheckResult {
    let began = Instant::now();
    let one = s.lease(short(s)).await?;
    let two = s.lease(short(s)).await?;
    for (name, lease) in [("b", one.id), ("d", two.id), ("a", one.id), ("c", two.id)] {
        s.put_leased(name, "v", lease).await?;
    }
    let start = s.revision().await?;
    let mut watch = s.watch(s.all(), WatchStart::After(start)).await?;
    watch.quiet_until(began + one.ttl.min(two.ttl)).await?;
    let mut groups = Vec::new();
    for step in 1..=2 {
        let (revision, changes) = watch.batch().await?;
        equal("the revision", revision, plus(start, step))?;
        groups.push(deleted(s, &changes)?);
    }
    groups.sort();
    equal(
        "the keys of each revision",
        groups,
        vec![vec!["a".into(), "b".into()], vec!["c".into(), "d".into()]],
    )?;
    let late = began.elapsed().saturating_sub(one.ttl.max(two.ttl));
    ensure(late <= LATE_MAX, || format!("the leases ended {late:?} late"))
}

async fn only_a_renewal_renews(s: &TestContext) -> CheckResult {
    let began = Instant::now();
    let written = s.lease(short(s)).await?;
    let renewed = s.lease(short(s)).await?;
    s.put_leased("written", "1", written.id).await?;
    s.put_leased("renewed", "1", renewed.id).await?;
    let mut watch = s.watch(s.all(), WatchStart::Now).await?;

    let ttl = written.ttl.min(renewed.ttl);
    watch.quiet_until(began + ttl.mul_f64(0.75)).await?;
    let renewed_at = Instant::now();
    let renewal = s.store.renew(renewed.id).await?;
    ensure(renewal != Renewal::Gone, || "the lease was gone before its time".into())?;
    s.put_leased("written", "2", written.id).await?;
    let put_at = Instant::now();
    watch.changes(1).await?;

    watch.quiet_until(began + written.ttl).await?;
    let (_, changes) = watch.batch().await?;
    equal("the first to end", deleted(s, &changes)?, vec!["written".into()])?;
    ensure(Instant::now() < put_at + written.ttl, || "the put renewed its lease".into())?;

    watch.quiet_until(renewed_at + renewed.ttl).await?;
    let (_, changes) = watch.batch().await?;
    equal("the second to end", deleted(s, &changes)?, vec!["renewed".into()])?;
    let late = renewed_at.elapsed().saturating_sub(renewed.ttl);
    ensure(late <= LATE_MAX, || format!("the renewed lease ended {late:?} late"))
}

async fn an_ended_lease_is_gone(s: &TestContext) -> CheckResult {
    let began = Instant::now();
    let grant = s.lease(short(s)).await?;
    s.put_leased("a", "v", grant.id).await?;
    let mut watch = s.watch(s.all(), WatchStart::Now).await?;
    watch.quiet_until(began + grant.ttl).await?;
    let (_, changes) = watch.batch().await?;
    equal("the key deleted", deleted(s, &changes)?, vec!["a".into()])?;
    equal("renew", s.store.renew(grant.id).await?, Renewal::Gone)?;
    equal("view", s.store.lease(grant.id).await?, None)?;
    ensure(!s.store.leases().await?.contains(&grant.id), || "the lease is still listed".into())?;
    refused!("revoke", s.store.revoke(grant.id).await, StoreError::LeaseNotFound)?;
    refused!("put", s.put_leased("a", "v", grant.id).await, StoreError::LeaseNotFound)?;
    equal("the key", s.pair("a").await?, None)
}

async fn a_lease_is_listed_while_it_lives(s: &TestContext) -> CheckResult {
    let grant = s.lease(LONG).await?;
    let listed = async |id: LeaseId| Ok::<_, StoreError>(s.store.leases().await?.contains(&id));
    equal("listed", listed(grant.id).await?, true)?;
    for name in ["c", "a", "b"] {
        s.put_leased(name, "v", grant.id).await?;
    }
    s.delete("b").await?;
    let view = s.store.lease(grant.id).await?.ok_or_else(|| CheckFailure::new("the lease cannot be seen"))?;
    equal("its TTL", view.granted, grant.ttl)?;
    ensure(view.remaining <= grant.ttl && view.remaining + Duration::from_secs(20) > grant.ttl, || {
        format!("{:?} remain of {:?}", view.remaining, grant.ttl)
    })?;
    equal("its keys", view.keys, vec![s.key("a"), s.key("c")])?;
    s.store.revoke(grant.id).await?;
    equal("listed after it was revoked", listed(grant.id).await?, false)
}
