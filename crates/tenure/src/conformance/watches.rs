//! Watches: every change once, whole, in order, from the requested start.

use super::check::{CheckFailure, CheckResult, ensure, equal, plus, refused};
use super::context::LONG;
use super::{Case, TestContext};
use crate::store::{
    Change, InvalidRequest, KeyValue, LeaseId, Op, PreviousValues, Revision, Selection, StoreError, Txn,
    WatchStart,
};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("W01", "A watch from now on shows only what comes later.", |s| Box::pin(from_now_on(s))),
        Case::new(
            "W02",
            "A watch after a past revision shows every version since, one by one, and then new changes.",
            |s| Box::pin(from_the_past(s)),
        ),
        Case::new(
            "W03",
            "A watch after a revision that is yet to come waits for it: of +1 to +4 after +2 it shows +3 and +4.",
            |s| Box::pin(from_the_future(s)),
        ),
        Case::new("W04", "A transaction arrives in one batch, in the order of its operations.", |s| {
            Box::pin(a_transaction_arrives_whole(s))
        }),
        Case::new(
            "W05",
            "With previous values: none on create, the whole pair on update and delete. Without: none.",
            |s| Box::pin(what_was_there_before(s)),
        ),
        Case::new("W07", "What changes nothing shows nothing.", |s| Box::pin(no_change_no_event(s))),
        Case::new("W08", "A dropped watch ends alone: another one of the same keys continues.", |s| {
            Box::pin(a_dropped_watch_ends_alone(s))
        }),
        Case::new(
            "W09",
            "Progress never runs ahead: what it covers is never delivered after it, although others write meanwhile.",
            |s| Box::pin(progress_never_runs_ahead(s)),
        ),
        Case::new("W13", "A watch of one key does not show keys that begin with it.", |s| {
            Box::pin(a_key_is_no_prefix(s))
        }),
        Case::new("W14", "The lease shows in what is put and in what was there before.", |s| {
            Box::pin(the_lease_shows(s))
        }),
        Case::new("W15", "300 revisions are replayed in order, and none is missing.", |s| {
            Box::pin(three_hundred_revisions(s))
        }),
        Case::new(
            "W16",
            "A watch of everything shows every key; a range and an open end show the keys in them.",
            |s| Box::pin(wide_selections(s)),
        ),
        Case::new("W20", "A watch of an empty key or an open prefix is refused.", |s| {
            Box::pin(bad_selections_are_refused(s))
        }),
        Case::new(
            "W21",
            "When the call has returned nothing is missed: the very next put is seen, fifty times.",
            |s| Box::pin(nothing_is_missed(s)),
        ),
        Case::new("W22", "A hundred watches at once: each sees its own key, once.", |s| {
            Box::pin(a_hundred_watches(s))
        }),
        Case::new(
            "W23",
            "A watch from a recent revision and a read after it miss nothing between them, although others write meanwhile.",
            |s| Box::pin(recent_and_a_read_miss_nothing(s)),
        ),
    ]
}

/// What happened to which key, for comparing: `a=1`, or `-a`.
fn shown(s: &TestContext, change: &Change) -> String {
    match change {
        Change::Put { pair, .. } => {
            format!("{}={}", s.name(&pair.key), String::from_utf8_lossy(&pair.value))
        }
        Change::Delete { key, .. } => format!("-{}", s.name(key)),
    }
}

fn previous(change: &Change) -> Option<&KeyValue> {
    match change {
        Change::Put { previous, .. } | Change::Delete { previous, .. } => previous.as_ref(),
    }
}

async fn from_now_on(s: &TestContext) -> CheckResult {
    s.put("a", "before").await?;
    let mut watch = s.watch(s.all(), WatchStart::Now).await?;
    let put = s.put("b", "after").await?;
    let (revision, changes) = watch.batch().await?;
    equal("the first change", (shown(s, &changes[0]), revision), ("b=after".into(), put))
}

async fn from_the_past(s: &TestContext) -> CheckResult {
    let start = s.put("a", "0").await?;
    s.put("a", "1").await?;
    s.put("a", "2").await?;
    s.delete("a").await?;
    s.put("a", "3").await?;
    let mut watch = s.watch(s.all(), WatchStart::After(start)).await?;
    let mut seen = Vec::new();
    for step in 1..=4 {
        let (revision, changes) = watch.batch().await?;
        equal("the revision", revision, plus(start, step))?;
        seen.extend(changes.iter().map(|change| shown(s, change)));
    }
    equal("the past", seen, vec!["a=1".into(), "a=2".into(), "-a".into(), "a=3".into()])?;
    s.put("b", "live").await?;
    equal("what comes", shown(s, &watch.changes(1).await?[0]), "b=live".into())
}

async fn from_the_future(s: &TestContext) -> CheckResult {
    let start = s.revision().await?;
    let mut watch = s.watch(s.all(), WatchStart::After(plus(start, 2))).await?;
    for value in ["1", "2", "3", "4"] {
        s.put("a", value).await?;
    }
    let changes = watch.changes(2).await?;
    let seen: Vec<_> = changes.iter().map(|change| shown(s, change)).collect();
    equal("what the watch shows", seen, vec!["a=3".into(), "a=4".into()])
}

async fn a_transaction_arrives_whole(s: &TestContext) -> CheckResult {
    for name in ["x", "d/2", "d/1"] {
        s.put(name, "v").await?;
    }
    let mut watch = s.watch(s.all(), WatchStart::Now).await?;
    let txn = Txn::new()
        .then(Op::put(s.key("b"), "1"))
        .then(Op::delete(s.key("x")))
        .then(Op::put(s.key("a"), "2"))
        .then(Op::Delete(s.below("d/")))
        .then(Op::put(s.key("c"), "3"));
    let reply = s.txn(txn).await?;
    let (revision, changes) = watch.batch().await?;
    equal("the revision", revision, reply.revision)?;
    let seen: Vec<_> = changes.iter().map(|change| shown(s, change)).collect();
    let expected = ["b=1", "-x", "a=2", "-d/1", "-d/2", "c=3"].map(String::from);
    equal("the changes in order", seen, expected.to_vec())
}

async fn what_was_there_before(s: &TestContext) -> CheckResult {
    let start = s.revision().await?;
    let mut with = s.watch_with(s.all(), WatchStart::Now, PreviousValues::Included).await?;
    let mut states = vec![None];
    for value in ["1", "2"] {
        s.put("a", value).await?;
        states.push(s.pair("a").await?);
    }
    s.delete("a").await?;
    let changes = with.changes(3).await?;
    let before: Vec<_> = changes.iter().map(|change| previous(change).cloned()).collect();
    equal("what was there before", &before, &states)?;
    let mut replayed = s.watch_with(s.all(), WatchStart::After(start), PreviousValues::Included).await?;
    equal("the same, replayed", replayed.changes(3).await?, changes)?;
    let mut without = s.watch(s.all(), WatchStart::After(start)).await?;
    let none = without.changes(3).await?.iter().all(|change| previous(change).is_none());
    ensure(none, || "a previous value came although it was not requested".into())
}

async fn no_change_no_event(s: &TestContext) -> CheckResult {
    s.put("a", "1").await?;
    let mut watch = s.watch(s.all(), WatchStart::Now).await?;
    s.delete("missing").await?;
    s.txn(Txn::new().then(Op::get(s.key("a")))).await?;
    s.txn(Txn::new()).await?;
    let lease = s.lease(LONG).await?.id;
    s.store.renew(lease).await?;
    s.store.revoke(lease).await?;
    s.put("last", "v").await?;
    let (_, changes) = watch.batch().await?;
    equal("the only change", shown(s, &changes[0]), "last=v".into())
}

async fn a_dropped_watch_ends_alone(s: &TestContext) -> CheckResult {
    let mut first = s.watch(s.all(), WatchStart::Now).await?;
    let mut second = s.watch(s.all(), WatchStart::Now).await?;
    s.put("a", "1").await?;
    first.changes(1).await?;
    drop(first);
    s.put("a", "2").await?;
    let seen = second.changes(2).await?;
    equal("the other watch", shown(s, &seen[1]), "a=2".into())?;
    drop(second);
    s.put("a", "3").await?;
    let mut third = s.watch(s.all(), WatchStart::Now).await?;
    s.put("a", "4").await?;
    equal("a new watch", shown(s, &third.changes(1).await?[0]), "a=4".into())
}

async fn progress_never_runs_ahead(s: &TestContext) -> CheckResult {
    let mut watch = s.watch(s.below("seen/"), WatchStart::Now).await?;
    let mut puts = Vec::new();
    for n in 0..100 {
        s.put(&format!("beside/{n}"), "v").await?;
        puts.push(s.put("seen/a", &n.to_string()).await?);
    }
    // The watch itself refuses what comes after its progress; here nothing may be missing either.
    let mut seen = Vec::new();
    while seen.len() < puts.len() {
        seen.push(watch.batch().await?.0);
    }
    equal("the revisions", seen, puts)
}

async fn a_key_is_no_prefix(s: &TestContext) -> CheckResult {
    let mut watch = s.watch(Selection::Key(s.key("a")), WatchStart::Now).await?;
    for name in ["a/b", "ab", "a\0", "A", "a"] {
        s.put(name, "v").await?;
    }
    equal("the only change", shown(s, &watch.changes(1).await?[0]), "a=v".into())
}

async fn the_lease_shows(s: &TestContext) -> CheckResult {
    let lease = s.lease(LONG).await?.id;
    let mut watch = s.watch_with(s.all(), WatchStart::Now, PreviousValues::Included).await?;
    s.put_leased("a", "1", lease).await?;
    s.put("a", "2").await?;
    s.put_leased("a", "3", lease).await?;
    s.store.revoke(lease).await?;
    let leases: Vec<(Option<LeaseId>, Option<LeaseId>)> = watch
        .changes(4)
        .await?
        .iter()
        .map(|change| {
            let now = match change {
                Change::Put { pair, .. } => pair.lease,
                Change::Delete { .. } => None,
            };
            (now, previous(change).and_then(|pair| pair.lease))
        })
        .collect();
    let expected = vec![(Some(lease), None), (None, Some(lease)), (Some(lease), None), (None, Some(lease))];
    equal("the lease now and before", leases, expected)
}

async fn three_hundred_revisions(s: &TestContext) -> CheckResult {
    let start = s.revision().await?;
    for n in 0..300 {
        s.put(&format!("{}", n % 7), &n.to_string()).await?;
    }
    let mut watch = s.watch(s.all(), WatchStart::After(start)).await?;
    for n in 0..300 {
        let (revision, changes) = watch.batch().await?;
        equal("the revision", revision, plus(start, n + 1))?;
        equal("the change", shown(s, &changes[0]), format!("{}={n}", n % 7))?;
    }
    equal("delivered", watch.delivered() >= plus(start, 300), true)
}

async fn wide_selections(s: &TestContext) -> CheckResult {
    let start = s.revision().await?;
    let mut everything = s.watch(Selection::everything(), WatchStart::After(start)).await?;
    let mut range = s.watch(Selection::Range(s.key("b"), s.key("d")), WatchStart::After(start)).await?;
    let mut open = s.watch(Selection::From(s.key("c")), WatchStart::After(start)).await?;
    for name in ["a", "b", "c", "d"] {
        s.put(name, "v").await?;
    }
    let seen = |changes: Vec<Change>| changes.iter().map(|change| s.name(change.key())).collect::<String>();
    equal("everything", seen(everything.changes(4).await?), "abcd".into())?;
    equal("from b to before d", seen(range.changes(2).await?), "bc".into())?;
    equal("from c on", seen(open.changes(2).await?), "cd".into())
}

async fn bad_selections_are_refused(s: &TestContext) -> CheckResult {
    use StoreError::Invalid as Bad;
    let watch = |select| s.store.watch(select, WatchStart::Now, PreviousValues::Omitted);
    let empty = watch(Selection::key("")).await;
    refused!("an empty key", empty, Bad(InvalidRequest::EmptyKey))?;
    let open = watch(Selection::Prefix(s.key("open"))).await;
    refused!("an open prefix", open, Bad(InvalidRequest::OpenPrefix(_)))
}

async fn nothing_is_missed(s: &TestContext) -> CheckResult {
    for n in 0..50 {
        let mut watch = s.watch(s.all(), WatchStart::Now).await?;
        let put = s.put("a", &n.to_string()).await?;
        let (revision, changes) = watch.batch().await?;
        equal("the very next put", (revision, shown(s, &changes[0])), (put, format!("a={n}")))?;
    }
    Ok(())
}

async fn recent_and_a_read_miss_nothing(s: &TestContext) -> CheckResult {
    let busy = async {
        for n in 0..200 {
            s.put("busy", &n.to_string()).await?;
            // An engine that never waits would put all of them at once.
            tokio::task::yield_now().await;
        }
        Ok(())
    };
    let looking = async {
        for _ in 0..20 {
            let mut watch = s.watch(s.all(), WatchStart::Recent).await?;
            let mut value = s.pair("busy").await?.map_or(-1, |pair| number(&pair));
            // The last one is put when all others were: until then each must come, and none may be skipped.
            let until = (value + 5).min(199);
            while value < until {
                for change in watch.batch().await?.1 {
                    let Change::Put { pair, .. } = change else { continue };
                    let next = number(&pair);
                    ensure(next <= value + 1, || format!("{next} came after {value} was read or shown"))?;
                    value = value.max(next);
                }
            }
        }
        Ok(())
    };
    tokio::try_join!(busy, looking).map(drop)
}

fn number(pair: &KeyValue) -> i64 {
    String::from_utf8_lossy(&pair.value).parse().unwrap_or(i64::MAX)
}

async fn a_hundred_watches(s: &TestContext) -> CheckResult {
    let name = |n: usize| format!("{n:03}");
    let mut watches = Vec::new();
    for n in 0..100 {
        watches.push(s.watch(Selection::Key(s.key(&name(n))), WatchStart::Now).await?);
    }
    let mut puts: Vec<Revision> = Vec::new();
    for n in 0..100 {
        puts.push(s.put(&name(n), "1").await?);
    }
    for (n, watch) in watches.iter_mut().enumerate() {
        let (revision, changes) = watch.batch().await?;
        equal("what a watch sees", (revision, changes.len()), (puts[n], 1))?;
    }
    let reply = s.txn((0..100).fold(Txn::new(), |txn, n| txn.then(Op::put(s.key(&name(n)), "2")))).await?;
    for watch in &mut watches {
        let (revision, changes) = watch.batch().await?;
        let own = changes.first().ok_or_else(|| CheckFailure::new("an empty batch"))?;
        equal("its part of a transaction", (revision, changes.len()), (reply.revision, 1))?;
        ensure(shown(s, own).ends_with("=2"), || format!("an old value came: {own:?}"))?;
    }
    Ok(())
}
