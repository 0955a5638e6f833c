//! Transactions: what conditions see, what operations see, what is refused whole.

use super::check::{CheckFailure, CheckResult, ensure, equal, plus, refused};
use super::context::LONG;
use super::{Case, TestContext};
use crate::store::{
    Comparison, Condition, Field, Get, InvalidRequest, Op, OpReply, Revision, StoreError, Txn, TxnReply,
};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "T01",
            "A condition on the value of a missing key never holds: not for =, ≠, < or >.",
            |s| Box::pin(a_missing_value_compares_with_nothing(s)),
        ),
        Case::new("T02", "Version, created, modified and lease of a missing key equal zero.", |s| {
            Box::pin(a_missing_key_counts_as_zero(s))
        }),
        Case::new("T03", "Every comparison of every field of an existing key has the right result.", |s| {
            Box::pin(comparisons_of_a_present_key(s))
        }),
        Case::new(
            "T06",
            "A get before the own put sees the old value and revision, after it the new ones; conditions see the old.",
            |s| Box::pin(a_get_sees_what_came_before_it(s)),
        ),
        Case::new(
            "T07",
            "One branch changes a key once: put and put, put and delete, put and delete of its prefix are refused; delete and delete, or one change in each branch, are not.",
            |s| Box::pin(one_change_of_a_key(s)),
        ),
        Case::new(
            "T08",
            "As many operations as the limit are accepted, one more is refused, in each of the three lists.",
            |s| Box::pin(operations_up_to_the_limit(s)),
        ),
        Case::new(
            "T09",
            "One put under an unknown lease refuses the whole transaction: nothing is written.",
            |s| Box::pin(an_unknown_lease_refuses_all(s)),
        ),
        Case::new(
            "T10",
            "A get at the transaction's own revision is in the future, and the whole transaction is refused; one at the revision before it is served.",
            |s| Box::pin(a_get_cannot_see_its_own_revision(s)),
        ),
        Case::new("T11", "If a condition does not hold the other branch is done: not succeeded, +1.", |s| {
            Box::pin(the_other_branch(s))
        }),
        Case::new(
            "T20",
            "A batch gives each transaction an outcome of its own, in order: applied, condition not held, refused.",
            |s| Box::pin(a_batch_has_an_outcome_for_each(s)),
        ),
        Case::new(
            "T21",
            "A batch may be longer than any transaction, and its results match the store.",
            |s| Box::pin(a_batch_longer_than_a_transaction(s)),
        ),
    ]
}

const COMPARISONS: [Comparison; 4] =
    [Comparison::Equal, Comparison::NotEqual, Comparison::Less, Comparison::Greater];

/// Which of =, ≠, <, > hold.
async fn holding(s: &TestContext, name: &str, field: &Field) -> Result<[bool; 4], StoreError> {
    let mut held = [false; 4];
    for (held, is) in held.iter_mut().zip(COMPARISONS) {
        let condition = Condition { key: s.key(name), is, field: field.clone() };
        *held = s.txn(Txn::new().when(condition)).await?.succeeded;
    }
    Ok(held)
}

async fn a_missing_value_compares_with_nothing(s: &TestContext) -> CheckResult {
    for value in ["", "v"] {
        let held = holding(s, "missing", &Field::Value(value.into())).await?;
        equal("=, ≠, <, > on a missing value", held, [false; 4])?;
    }
    Ok(())
}

async fn a_missing_key_counts_as_zero(s: &TestContext) -> CheckResult {
    let zero =
        [Field::Version(0), Field::Created(Revision(0)), Field::Modified(Revision(0)), Field::Lease(None)];
    for field in zero {
        let held = holding(s, "missing", &field).await?;
        equal(&format!("=, ≠, <, > of {field:?}"), held, [true, false, false, false])?;
    }
    let held = holding(s, "missing", &Field::Version(1)).await?;
    equal("=, ≠, <, > of version 1", held, [false, true, true, false])
}

async fn comparisons_of_a_present_key(s: &TestContext) -> CheckResult {
    let lease = s.lease(LONG).await?.id;
    let first = s.put("a", "1").await?;
    let second = s.put_leased("a", "m", lease).await?;
    let [same, less, greater] =
        [[true, false, false, false], [false, true, true, false], [false, true, false, true]];
    for (field, expected) in [
        (Field::Version(2), same),
        (Field::Version(3), less),
        (Field::Version(1), greater),
        (Field::Created(first), same),
        (Field::Created(second), less),
        (Field::Created(Revision(0)), greater),
        (Field::Modified(second), same),
        (Field::Modified(plus(second, 1)), less),
        (Field::Modified(first), greater),
        (Field::Value("m".into()), same),
        (Field::Value("n".into()), less),
        (Field::Value("ma".into()), less),
        (Field::Value("l".into()), greater),
        (Field::Value("".into()), greater),
        (Field::Lease(Some(lease)), same),
        (Field::Lease(None), greater),
    ] {
        equal(&format!("=, ≠, <, > of {field:?}"), holding(s, "a", &field).await?, expected)?;
    }
    Ok(())
}

async fn a_get_sees_what_came_before_it(s: &TestContext) -> CheckResult {
    let start = s.put("a", "old").await?;
    let txn = Txn::new()
        .when(Condition::value_is(s.key("a"), "old"))
        .then(Op::get(s.key("a")))
        .then(Op::put(s.key("a"), "new"))
        .then(Op::get(s.key("a")))
        .then(Op::Get(Get::key(s.key("a")).at(start)));
    let reply = s.txn(txn).await?;
    equal("the condition held", reply.succeeded, true)?;
    equal("the revision", reply.revision, plus(start, 1))?;
    let [OpReply::Get(before), OpReply::Put, OpReply::Get(after), OpReply::Get(past)] = &reply.results[..]
    else {
        return Err(CheckFailure::new(format!(
            "the replies do not match the operations: {:?}",
            reply.results
        )));
    };
    for (what, page, value, modified) in [
        ("before", before, "old", start),
        ("after", after, "new", plus(start, 1)),
        ("past", past, "old", start),
    ] {
        let pair =
            page.pairs.first().ok_or_else(|| CheckFailure::new(format!("{what}: the key is missing")))?;
        equal(what, (&pair.value[..], pair.modified), (value.as_bytes(), modified))?;
    }
    equal("the revision before", before.revision, start)?;
    equal("the revision after", after.revision, plus(start, 1))
}

async fn one_change_of_a_key(s: &TestContext) -> CheckResult {
    use StoreError::Invalid as Bad;
    let start = s.put("d/a", "v").await?;
    let put = || Op::put(s.key("d/a"), "w");
    let delete = || Op::delete(s.key("d/a"));
    let delete_all = || Op::Delete(s.below("d/"));
    for (what, first, second) in [
        ("put and put", put(), put()),
        ("put and delete", put(), delete()),
        ("delete and put", delete(), put()),
        ("put and delete of its prefix", put(), delete_all()),
        ("delete of its prefix and put", delete_all(), put()),
    ] {
        let then = Txn::new().then(first.clone()).then(second.clone());
        refused!(what, s.txn(then).await, Bad(InvalidRequest::DuplicateKey(_)))?;
        let otherwise = Txn::new().otherwise(first).otherwise(second);
        refused!(what, s.txn(otherwise).await, Bad(InvalidRequest::DuplicateKey(_)))?;
    }
    equal("the revision after the refusals", s.revision().await?, start)?;
    let both = s.txn(Txn::new().then(put()).otherwise(put())).await?;
    equal("a put in each branch", both.succeeded, true)?;
    let twice = s.txn(Txn::new().then(delete()).then(delete()).then(delete_all())).await?;
    let counts =
        vec![OpReply::Delete { count: 1 }, OpReply::Delete { count: 0 }, OpReply::Delete { count: 0 }];
    equal("two deletes", twice.results, counts)?;
    equal("their revision", twice.revision, plus(start, 2))
}

async fn operations_up_to_the_limit(s: &TestContext) -> CheckResult {
    use StoreError::Invalid as Bad;
    let max = s.store.info().limits.txn_ops_max;
    let start = s.revision().await?;
    let fill = |count: usize| (0..count).map(|n| Op::put(s.key(&format!("{n}")), "v")).collect::<Vec<_>>();
    let reply = s.txn(Txn { then: fill(max), ..Txn::new() }).await?;
    equal("as many as allowed", (reply.results.len(), reply.revision), (max, plus(start, 1)))?;
    let conditions: Vec<_> = (0..=max).map(|n| Condition::exists(s.key(&format!("{n}")))).collect();
    let allowed = s.txn(Txn { when: conditions[..max].to_vec(), ..Txn::new() }).await?;
    equal("as many conditions as allowed", allowed.succeeded, true)?;
    for (what, txn) in [
        ("then", Txn { then: fill(max + 1), ..Txn::new() }),
        ("otherwise", Txn { otherwise: fill(max + 1), ..Txn::new() }),
        ("conditions", Txn { when: conditions, ..Txn::new() }),
    ] {
        match s.txn(txn).await {
            Err(Bad(InvalidRequest::TooManyOps { count, max: told })) => {
                equal("both numbers in the refusal", (count, told), (max + 1, max))?;
            }
            other => return Err(CheckFailure::new(format!("{what}: expected TooManyOps, found {other:?}"))),
        }
    }
    equal("the revision after the refusals", s.revision().await?, plus(start, 1))
}

async fn an_unknown_lease_refuses_all(s: &TestContext) -> CheckResult {
    let dead = s.dead_lease().await?;
    s.put("old", "v").await?;
    let start = s.revision().await?;
    let txn = Txn::new()
        .then(Op::put(s.key("a"), "v"))
        .then(Op::delete(s.key("old")))
        .then(Op::put_leased(s.key("b"), "v", dead))
        .then(Op::put(s.key("c"), "v"));
    refused!("the transaction", s.txn(txn).await, StoreError::LeaseNotFound)?;
    equal("the revision", s.revision().await?, start)?;
    equal("the keys", s.names().await?, vec!["old".into()])?;
    // Only the branch that is done can be refused for what the store holds.
    let other = Txn::new().then(Op::put(s.key("a"), "v")).otherwise(Op::put_leased(s.key("b"), "v", dead));
    equal("the lease of the branch not done", s.txn(other).await?.succeeded, true)
}

async fn a_get_cannot_see_its_own_revision(s: &TestContext) -> CheckResult {
    let start = s.put("a", "old").await?;
    let with_get_at =
        |at| Txn::new().then(Op::put(s.key("a"), "new")).then(Op::Get(Get::key(s.key("a")).at(at)));
    let future = s.txn(with_get_at(plus(start, 1))).await;
    refused!("a get at the own revision", future, StoreError::FutureRevision)?;
    equal("the revision", s.revision().await?, start)?;
    let reply = s.txn(with_get_at(start)).await?;
    let Some(OpReply::Get(page)) = reply.results.get(1) else {
        return Err(CheckFailure::new("the get has no reply"));
    };
    equal("the value before", page.pairs.first().map(|pair| &pair.value[..]), Some(&b"old"[..]))
}

async fn the_other_branch(s: &TestContext) -> CheckResult {
    let start = s.put("a", "1").await?;
    let txn = Txn::new()
        .when(Condition::exists(s.key("a")))
        .when(Condition::absent(s.key("a")))
        .then(Op::put(s.key("a"), "then"))
        .otherwise(Op::put(s.key("a"), "otherwise"))
        .otherwise(Op::get(s.key("a")));
    let reply = s.txn(txn).await?;
    equal("the conditions", reply.succeeded, false)?;
    equal("the revision", reply.revision, plus(start, 1))?;
    equal("the number of replies", reply.results.len(), 2)?;
    let value = s.pair("a").await?.map(|pair| pair.value);
    equal("the value", value, Some("otherwise".into()))
}

async fn a_batch_has_an_outcome_for_each(s: &TestContext) -> CheckResult {
    let dead = s.dead_lease().await?;
    s.put("taken", "mine").await?;
    let create = |name: &str| {
        Txn::new()
            .when(Condition::absent(s.key(name)))
            .then(Op::put(s.key(name), "batch"))
            .otherwise(Op::get(s.key(name)))
    };
    let replies = s
        .store
        .batch(vec![
            create("a"),
            create("taken"),
            Txn::new().then(Op::put_leased(s.key("b"), "batch", dead)),
            create("c"),
        ])
        .await;
    let outcomes: [Result<TxnReply, StoreError>; 4] = replies.try_into().map_err(|replies: Vec<_>| {
        CheckFailure::new(format!("{} replies to 4 transactions", replies.len()))
    })?;
    let [first, taken, leased, last] = outcomes;
    for (name, reply) in [("a", first?), ("c", last?)] {
        let pair = s.pair(name).await?.ok_or_else(|| CheckFailure::new(format!("{name} is missing")))?;
        equal(name, (reply.succeeded, reply.revision), (true, pair.created))?;
    }
    let taken = taken?;
    let Some(OpReply::Get(page)) = taken.results.first() else {
        return Err(CheckFailure::new("the get of the other branch has no reply"));
    };
    let value = page.pairs.first().map(|pair| &pair.value[..]);
    equal("what was taken", (taken.succeeded, value), (false, Some(&b"mine"[..])))?;
    refused!("an unknown lease", leased, StoreError::LeaseNotFound)?;
    equal("the keys", s.names().await?, vec!["a".into(), "c".into(), "taken".into()])
}

async fn a_batch_longer_than_a_transaction(s: &TestContext) -> CheckResult {
    let count = s.store.info().limits.txn_ops_max.min(200) * 2 + 1;
    let txns = (0..count).map(|n| {
        let key = s.key(&format!("{n:04}"));
        Txn::new().when(Condition::absent(key.clone())).then(Op::put(key, format!("{n}")))
    });
    let replies = s.store.batch(txns.collect()).await;
    equal("the number of replies", replies.len(), count)?;
    let pairs = s.store.list(s.all()).await?.pairs;
    equal("keys", pairs.len(), count)?;
    for (n, (reply, pair)) in replies.into_iter().zip(pairs).enumerate() {
        let reply = reply?;
        ensure(reply.succeeded, || format!("transaction {n} found its key taken"))?;
        equal("the revision of the reply", reply.revision, pair.created)?;
        equal("the value", pair.value, format!("{n}").into())?;
    }
    equal("an empty batch", s.store.batch(Vec::new()).await.len(), 0)
}
