//! Reads: limits, orders, filters and the past.

use super::check::{CheckFailure, CheckResult, equal, plus, refused};
use super::context::LONG;
use super::{Case, TestContext};
use crate::store::{Get, InvalidRequest, Op, Page, Revision, Selection, SortOrder, StoreError, Txn};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "R01",
            "A limit of 2 on five keys gives the first 2 and reports that there are more; a limit of 5 gives all and does not.",
            |s| Box::pin(limit_reports_more(s)),
        ),
        Case::new(
            "R02",
            "Without values, everything else is there: created, modified, version and lease.",
            |s| Box::pin(keys_without_values(s)),
        ),
        Case::new("R03", "A range with its ends in the wrong order selects nothing, and is no error.", |s| {
            Box::pin(an_inverted_range_is_empty(s))
        }),
        Case::new("R04", "A selection from a key on begins with that key and has no end.", |s| {
            Box::pin(from_a_key_on(s))
        }),
        Case::new(
            "R05",
            "Keys are sorted by creation, in either direction, before the limit is applied.",
            |s| Box::pin(sorted_then_cut(s)),
        ),
        Case::new("R07", "Only keys created up to a revision: the filter comes before the limit.", |s| {
            Box::pin(created_up_to(s))
        }),
        Case::new(
            "R08",
            "A read at a past revision shows the keys of then, without deleted ones; a future revision is refused; the reply has the store's revision.",
            |s| Box::pin(the_past_and_the_future(s)),
        ),
        Case::new(
            "R20",
            "A prefix that does not end in '/' is refused: one name can never match another.",
            |s| Box::pin(an_open_prefix_is_refused(s)),
        ),
        Case::new("R21", "A limit of 0 and a revision of 0 or below are refused.", |s| {
            Box::pin(questions_without_sense_are_refused(s))
        }),
        Case::new(
            "R22",
            "A listing longer than a page is whole, sorted, and of one revision although others write meanwhile.",
            |s| Box::pin(a_long_listing_is_of_one_revision(s)),
        ),
    ]
}

fn names(s: &TestContext, page: &Page) -> Vec<String> {
    page.pairs.iter().map(|pair| s.name(&pair.key)).collect()
}

async fn five(s: &TestContext) -> CheckResult {
    for name in ["b", "a", "e", "d", "c"] {
        s.put(name, name).await?;
    }
    Ok(())
}

async fn limit_reports_more(s: &TestContext) -> CheckResult {
    five(s).await?;
    let some = s.store.get(Get::new(s.all()).limit(2)).await?;
    equal("two of five", (names(s, &some), some.more), (vec!["a".into(), "b".into()], true))?;
    let all = s.store.get(Get::new(s.all()).limit(5)).await?;
    equal("five of five", (all.pairs.len(), all.more), (5, false))?;
    let unlimited = s.store.get(Get::new(s.all())).await?;
    equal("without a limit", (unlimited.pairs.len(), unlimited.more), (5, false))
}

async fn keys_without_values(s: &TestContext) -> CheckResult {
    let lease = s.lease(LONG).await?.id;
    s.put("a", "1").await?;
    s.put_leased("a", "2", lease).await?;
    let whole = s.store.get(Get::new(s.all())).await?;
    let bare = s.store.get(Get::new(s.all()).keys_only()).await?;
    let mut expected = whole.pairs;
    equal("the lease", expected.first().and_then(|pair| pair.lease), Some(lease))?;
    expected.iter_mut().for_each(|pair| pair.value.clear());
    equal("the keys without values", bare.pairs, expected)
}

async fn an_inverted_range_is_empty(s: &TestContext) -> CheckResult {
    five(s).await?;
    let inverted = Selection::Range(s.key("d"), s.key("b"));
    equal("an inverted range", s.store.get(Get::new(inverted.clone())).await?.pairs.len(), 0)?;
    equal("deleted through it", s.store.delete(inverted).await?, 0)?;
    let empty = Selection::Range(s.key("b"), s.key("b"));
    equal("an empty range", s.store.get(Get::new(empty)).await?.pairs.len(), 0)?;
    let range = s.store.get(Get::new(Selection::Range(s.key("b"), s.key("d")))).await?;
    equal("a range", names(s, &range), vec!["b".into(), "c".into()])
}

async fn from_a_key_on(s: &TestContext) -> CheckResult {
    five(s).await?;
    let page = s.store.get(Get::new(Selection::From(s.key("c"))).limit(2)).await?;
    equal("from the third on", names(s, &page), vec!["c".into(), "d".into()])?;
    let all = s.store.get(Get::new(Selection::From(s.key("c")))).await?;
    let own = names(s, &all).into_iter().filter(|name| name.len() == 1).collect::<Vec<_>>();
    equal("the keys of this case from there on", own, vec!["c".into(), "d".into(), "e".into()])
}

async fn sorted_then_cut(s: &TestContext) -> CheckResult {
    five(s).await?;
    s.put("b", "put again, which is no new life").await?;
    let oldest = s.store.get(Get::new(s.all()).order(SortOrder::Created).limit(3)).await?;
    equal(
        "the oldest three",
        (names(s, &oldest), oldest.more),
        (vec!["b".into(), "a".into(), "e".into()], true),
    )?;
    let newest = s.store.get(Get::new(s.all()).order(SortOrder::CreatedDescending).limit(2)).await?;
    equal("the newest two", (names(s, &newest), newest.more), (vec!["c".into(), "d".into()], true))
}

async fn created_up_to(s: &TestContext) -> CheckResult {
    let start = s.revision().await?;
    five(s).await?;
    let third = plus(start, 3);
    let page = s.store.get(Get::new(s.all()).created_max(third)).await?;
    equal("created up to the third", names(s, &page), vec!["a".into(), "b".into(), "e".into()])?;
    let cut = s.store.get(Get::new(s.all()).created_max(third).limit(2)).await?;
    equal("two of them", (names(s, &cut), cut.more), (vec!["a".into(), "b".into()], true))?;
    let all = s.store.get(Get::new(s.all()).created_max(third).limit(3)).await?;
    equal("three of them", (all.pairs.len(), all.more), (3, false))?;
    let before = Get::new(s.all()).created_max(third).order(SortOrder::CreatedDescending).limit(1);
    equal("the newest of them", names(s, &s.store.get(before).await?), vec!["e".into()])
}

async fn the_past_and_the_future(s: &TestContext) -> CheckResult {
    let first = s.put("a", "1").await?;
    let second = s.put("a", "2").await?;
    s.delete("a").await?;
    let third = plus(second, 1);
    let last = s.put("b", "other").await?;
    for (at, expected) in [(first, Some("1")), (second, Some("2")), (third, None), (last, None)] {
        let page = s.store.get(Get::key(s.key("a")).at(at)).await?;
        let value = page.pairs.first().map(|pair| pair.value.clone());
        equal("the value then", value, expected.map(Into::into))?;
        equal("the revision of the reply", page.revision, last)?;
    }
    let then = s.store.get(Get::new(s.all()).at(second)).await?;
    let pair = then.pairs.first().ok_or_else(|| CheckFailure::new("the key is missing in the past"))?;
    equal("what was created then", (then.pairs.len(), pair.created, pair.modified), (1, first, second))?;
    equal("the version then", pair.version, 2)?;
    let future = Get::key(s.key("a")).at(plus(last, 1));
    refused!("a read in the future", s.store.get(future).await, StoreError::FutureRevision)
}

async fn an_open_prefix_is_refused(s: &TestContext) -> CheckResult {
    use StoreError::Invalid as Bad;
    s.put("t1/a", "v").await?;
    s.put("t10/a", "v").await?;
    let start = s.revision().await?;
    let open = Selection::Prefix(s.key("t1"));
    refused!("a get", s.store.get(Get::new(open.clone())).await, Bad(InvalidRequest::OpenPrefix(_)))?;
    let txn = Txn::new().then(Op::Delete(open));
    refused!("a delete", s.txn(txn).await, Bad(InvalidRequest::OpenPrefix(_)))?;
    let page = s.store.get(Get::new(s.below("t1/"))).await?;
    equal("a closed prefix", names(s, &page), vec!["t1/a".into()])?;
    equal("the revision", s.revision().await?, start)
}

async fn questions_without_sense_are_refused(s: &TestContext) -> CheckResult {
    use StoreError::Invalid as Bad;
    s.put("a", "v").await?;
    let none = Get::new(s.all()).limit(0);
    refused!("a limit of 0", s.store.get(none).await, Bad(InvalidRequest::LimitZero))?;
    for revision in [0, -1] {
        let before = Get::new(s.all()).at(Revision(revision));
        refused!(
            "a revision before the first",
            s.store.get(before).await,
            Bad(InvalidRequest::NoSuchRevision(_))
        )?;
    }
    Ok(())
}

async fn a_long_listing_is_of_one_revision(s: &TestContext) -> CheckResult {
    let count = 2_100;
    let puts = (0..count).map(|n| Op::put(s.key(&format!("{n:05}")), "v"));
    for outcome in s.store.apply_all(puts).await? {
        outcome?;
    }
    // Each writer turns a whole hundred at once, so a listing of two revisions would show a torn one.
    let writing = async {
        for round in 0..5 {
            for hundred in 0..count / 100 {
                let keys = (0..100).map(|n| s.key(&format!("{:05}", hundred * 100 + n)));
                let txn = keys.fold(Txn::new(), |txn, key| txn.then(Op::put(key, format!("{round}"))));
                s.txn(txn).await?;
            }
        }
        Ok::<_, StoreError>(())
    };
    let reading = async {
        for _ in 0..5 {
            let page = s.store.list(s.all()).await?;
            equal("keys", (page.pairs.len(), page.more), (count, false))?;
            for hundred in page.pairs.chunks(100) {
                let torn = hundred.iter().find(|pair| pair.value != hundred[0].value);
                equal("a transaction that is shown by half", torn, None)?;
            }
            let sorted = page.pairs.is_sorted_by(|a, b| a.key < b.key);
            equal("keys are sorted, each once", sorted, true)?;
        }
        Ok::<_, CheckFailure>(())
    };
    let (written, read) = tokio::join!(writing, reading);
    written?;
    read
}
