//! Revisions and keys: what a change is, what it counts, and what is refused.

use bytes::Bytes;

use super::check::{CheckFailure, CheckResult, ensure, equal, plus, refused};
use super::context::LONG;
use super::{Case, TestContext};
use crate::store::{
    Change, Condition, Get, InvalidRequest, LeaseChoice, Op, OpReply, PreviousValues, Selection, StoreError,
    Txn, WatchStart,
};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "K01",
            "Two puts of one value are two changes: +1, +2, then created +1, modified +2, version 2.",
            |s| Box::pin(an_equal_put_is_a_change(s)),
        ),
        Case::new("K02", "Put, put, delete, put: the key is created +4, modified +4, version 1.", |s| {
            Box::pin(a_new_life_counts_anew(s))
        }),
        Case::new("K03", "Deleting a missing key deletes 0 and makes no revision.", |s| {
            Box::pin(deleting_nothing_changes_nothing(s))
        }),
        Case::new(
            "K04",
            "Deleting a prefix of three keys is one revision with three deletes, each with what was there.",
            |s| Box::pin(a_prefix_goes_in_one_revision(s)),
        ),
        Case::new(
            "K05",
            "A failed, a read-only, a deleting-nothing and an empty transaction make no revision; the empty one succeeds.",
            |s| Box::pin(no_change_no_revision(s)),
        ),
        Case::new(
            "K06",
            "Three puts in one transaction are +1, and all three keys are modified +1, version 1.",
            |s| Box::pin(one_transaction_one_revision(s)),
        ),
        Case::new(
            "K07",
            "What was there before the first put is nothing, before the second it is the first.",
            |s| Box::pin(each_put_knows_what_it_replaced(s)),
        ),
        Case::new(
            "K09",
            "A put that keeps the lease changes the value and leaves the lease; on a missing key it is refused.",
            |s| Box::pin(a_put_can_keep_the_lease(s)),
        ),
        Case::new(
            "K10",
            "An empty key is refused in a put, a get, a delete and a condition, and nothing is written.",
            |s| Box::pin(an_empty_key_is_refused(s)),
        ),
        Case::new("K11", "Any bytes are a key: 00 FF 00 with an empty value is read back unchanged.", |s| {
            Box::pin(any_bytes_are_a_key(s))
        }),
        Case::new(
            "K12",
            "Values just below the request limit are taken, above it they are refused with both numbers and nothing is written.",
            |s| Box::pin(large_values_up_to_the_limit(s)),
        ),
    ]
}

async fn an_equal_put_is_a_change(s: &TestContext) -> CheckResult {
    let start = s.revision().await?;
    equal("the first put", s.put("a", "v").await?, plus(start, 1))?;
    equal("the second put", s.put("a", "v").await?, plus(start, 2))?;
    let pair = s.pair("a").await?.ok_or_else(|| CheckFailure::new("the key is missing"))?;
    equal("created", pair.created, plus(start, 1))?;
    equal("modified", pair.modified, plus(start, 2))?;
    equal("version", pair.version, 2)
}

async fn a_new_life_counts_anew(s: &TestContext) -> CheckResult {
    let start = s.revision().await?;
    s.put("a", "1").await?;
    s.put("a", "2").await?;
    equal("deleted", s.delete("a").await?, 1)?;
    s.put("a", "3").await?;
    let pair = s.pair("a").await?.ok_or_else(|| CheckFailure::new("the key is missing"))?;
    equal("created", pair.created, plus(start, 4))?;
    equal("modified", pair.modified, plus(start, 4))?;
    equal("version", pair.version, 1)
}

async fn deleting_nothing_changes_nothing(s: &TestContext) -> CheckResult {
    let start = s.revision().await?;
    equal("deleted keys", s.delete("missing").await?, 0)?;
    equal("deleted keys of a prefix", s.store.delete(s.all()).await?, 0)?;
    equal("the revision", s.revision().await?, start)
}

async fn a_prefix_goes_in_one_revision(s: &TestContext) -> CheckResult {
    for name in ["d/2", "d/1", "d/3", "d0"] {
        s.put(name, name).await?;
    }
    let start = s.revision().await?;
    let mut watch = s.watch_with(s.all(), WatchStart::After(start), PreviousValues::Included).await?;
    let reply = s.txn(Txn::new().then(Op::Delete(s.below("d/")))).await?;
    equal("the reply", reply.results, vec![OpReply::Delete { count: 3 }])?;
    equal("the revision", reply.revision, plus(start, 1))?;
    let (revision, changes) = watch.batch().await?;
    equal("the revision of the deletes", revision, plus(start, 1))?;
    let mut gone = Vec::new();
    for change in changes {
        let Change::Delete { key, previous, .. } = change else {
            return Err(CheckFailure::new(format!("expected deletes, found {change:?}")));
        };
        let previous = previous.ok_or_else(|| CheckFailure::new("a delete has no previous value"))?;
        equal("the key that was there", previous.key, key.clone())?;
        equal("the value that was there", previous.value, Bytes::from(s.name(&key)))?;
        gone.push(s.name(&key));
    }
    equal("the keys deleted", gone, vec!["d/1".into(), "d/2".into(), "d/3".into()])?;
    equal("the keys left", s.names().await?, vec!["d0".into()])
}

async fn no_change_no_revision(s: &TestContext) -> CheckResult {
    s.put("a", "v").await?;
    let start = s.revision().await?;
    let absent = Condition::absent(s.key("a"));
    let failed = s.txn(Txn::new().when(absent).then(Op::put(s.key("a"), "w"))).await?;
    equal("a failed transaction", (failed.succeeded, failed.revision), (false, start))?;
    let reading = s.txn(Txn::new().then(Op::get(s.key("a")))).await?;
    equal("a read-only transaction", (reading.succeeded, reading.revision), (true, start))?;
    let deleting = s.txn(Txn::new().then(Op::delete(s.key("missing")))).await?;
    equal("a deleting-nothing transaction", (deleting.succeeded, deleting.revision), (true, start))?;
    let empty = s.txn(Txn::new()).await?;
    equal("an empty transaction", (empty.succeeded, empty.revision), (true, start))?;
    equal("the revision", s.revision().await?, start)
}

async fn one_transaction_one_revision(s: &TestContext) -> CheckResult {
    let start = s.revision().await?;
    let names = ["a", "b", "c"];
    let txn = names.iter().fold(Txn::new(), |txn, name| txn.then(Op::put(s.key(name), "v")));
    equal("the revision", s.txn(txn).await?.revision, plus(start, 1))?;
    for name in names {
        let pair = s.pair(name).await?.ok_or_else(|| CheckFailure::new("a key is missing"))?;
        equal("created", pair.created, plus(start, 1))?;
        equal("modified", pair.modified, plus(start, 1))?;
        equal("version", pair.version, 1)?;
    }
    Ok(())
}

async fn each_put_knows_what_it_replaced(s: &TestContext) -> CheckResult {
    let mut watch = s.watch_with(s.all(), WatchStart::Now, PreviousValues::Included).await?;
    s.put("a", "1").await?;
    let first = s.pair("a").await?;
    s.put("a", "2").await?;
    let changes = watch.changes(2).await?;
    let previous: Vec<_> = changes
        .into_iter()
        .map(|change| match change {
            Change::Put { previous, .. } | Change::Delete { previous, .. } => previous,
        })
        .collect();
    ensure(first.is_some(), || "the key is missing".into())?;
    equal("what was there before", previous, vec![None, first])
}

async fn a_put_can_keep_the_lease(s: &TestContext) -> CheckResult {
    let lease = s.lease(LONG).await?.id;
    s.put_leased("a", "1", lease).await?;
    let keep = |name: &str| {
        let put = Op::Put { key: s.key(name), value: "2".into(), lease: LeaseChoice::Keep };
        Txn::new().then(Op::put(s.key("beside"), "v")).then(put)
    };
    s.txn(keep("a")).await?;
    let pair = s.pair("a").await?.ok_or_else(|| CheckFailure::new("the key is missing"))?;
    equal("the value", &pair.value[..], b"2")?;
    equal("the lease", pair.lease, Some(lease))?;
    let start = s.revision().await?;
    refused!("a put that keeps the lease of a missing key", s.txn(keep("b")).await, StoreError::KeyNotFound)?;
    equal("the revision after the refusal", s.revision().await?, start)
}

async fn an_empty_key_is_refused(s: &TestContext) -> CheckResult {
    use StoreError::Invalid as Bad;
    let start = s.revision().await?;
    let empty = Bytes::new();
    let put = Txn::new().then(Op::put(s.key("a"), "v")).then(Op::put(empty.clone(), "v"));
    refused!("a put", s.txn(put).await, Bad(InvalidRequest::EmptyKey))?;
    refused!("a get", s.store.get(Get::key(empty.clone())).await, Bad(InvalidRequest::EmptyKey))?;
    let delete = Txn::new().then(Op::put(s.key("a"), "v")).then(Op::delete(empty.clone()));
    refused!("a delete", s.txn(delete).await, Bad(InvalidRequest::EmptyKey))?;
    let condition = Txn::new().when(Condition::absent(empty)).then(Op::put(s.key("a"), "v"));
    refused!("a condition", s.txn(condition).await, Bad(InvalidRequest::EmptyKey))?;
    equal("the revision", s.revision().await?, start)
}

async fn any_bytes_are_a_key(s: &TestContext) -> CheckResult {
    let key = Bytes::from([&s.key("bytes/")[..], &[0x00, 0xff, 0x00]].concat());
    s.store.put(key.clone(), Bytes::new()).await?;
    let pair = s.store.get_key(key.clone()).await?.ok_or_else(|| CheckFailure::new("the key is missing"))?;
    equal("the key", pair.key, key.clone())?;
    equal("the value", pair.value, Bytes::new())?;
    equal("the listing", s.store.list(s.below("bytes/")).await?.pairs.len(), 1)?;
    equal("deleted", s.store.delete(Selection::Key(key)).await?, 1)
}

async fn large_values_up_to_the_limit(s: &TestContext) -> CheckResult {
    let max = s.store.info().limits.request_bytes_max;
    for (name, size) in [("two thirds", max / 3 * 2), ("nine tenths", max / 10 * 9)] {
        let value = Bytes::from(vec![0x5a; size]);
        s.store.put(s.key(name), value.clone()).await?;
        let pair = s.pair(name).await?.ok_or_else(|| CheckFailure::new("the key is missing"))?;
        ensure(pair.value == value, || format!("a value of {size} bytes came back otherwise"))?;
    }
    let start = s.revision().await?;
    let size = max + max / 15;
    let refusal = s.store.put(s.key("too large"), vec![0x5a; size]).await;
    let Err(StoreError::Invalid(InvalidRequest::TooLarge { bytes, max: told })) = refusal else {
        return Err(CheckFailure::new(format!(
            "a value of {size} bytes: expected TooLarge, found {refusal:?}"
        )));
    };
    ensure(bytes >= size, || format!("the refusal speaks of {bytes} bytes, the value had {size}"))?;
    equal("the limit in the refusal", told, max)?;
    equal("the revision after the refusal", s.revision().await?, start)
}
