//! Which run counts, and what is recorded when replies are lost.

use bytes::Bytes;

use super::*;
use crate::error::{Cause, StoreError};
use crate::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use crate::fence::Fence;
use crate::keyspace::Keyspace;
use crate::kv::Get;
use crate::limits::Limits;
use crate::record::Record;
use crate::revision::Token;
use crate::time::Moment;
use crate::txn::{Op, Txn};

const NOW: Moment = Moment::ORIGIN;
const HOUR: Duration = Duration::from_secs(3_600);
const RULE: OnceRule = OnceRule { every: HOUR, counted: CountedRuns::Begun };

fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000)
}

fn run_at(seconds: u64) -> OnceRecord {
    OnceRecord { started: at(seconds), ..OnceRecord::default() }
}

#[test]
fn period_begins_by_wall_clock() {
    assert_eq!(RULE.period(at(3_599)), 0);
    assert_eq!((RULE.period(at(3_600)), RULE.period(at(7_199))), (1, 1));
    assert_eq!(RULE.period(at(7_200)), 2);
    assert_eq!(RULE.until_next(at(3_600)), HOUR);
    assert_eq!(RULE.until_next(Timestamp(7_199_999)), Duration::from_millis(1));
}

#[test]
fn future_run_counts_within_clock_difference() {
    let now = at(7_190);
    for (started, age) in [
        (3_599, RunAge::Earlier),
        (3_600, RunAge::Current),
        (7_199, RunAge::Current),
        // Ten seconds later the next period begins, which a clock that is a little ahead has seen already.
        (7_200, RunAge::Current),
        (7_790, RunAge::Current),
        (7_791, RunAge::Future),
        (900_000_000, RunAge::Future),
    ] {
        assert_eq!(RunAge::of(at(started), now, HOUR), age, "{started}");
    }
    // A whole day ahead, but in the same period: the run was in this period.
    assert_eq!(RunAge::of(at(90_000), now, Duration::from_secs(1_000_000)), RunAge::Current);
    assert_eq!(RunAge::of(Timestamp(u64::MAX), now, HOUR), RunAge::Future);
}

#[test]
fn failed_run_counts_unless_only_successes_do() {
    let successes = OnceRule { counted: CountedRuns::Succeeded, ..RULE };
    for (exit_code, is_done) in [(None, false), (Some(3), false), (Some(0), true)] {
        let last = OnceRecord { exit_code, ..run_at(3_700) };
        assert_eq!(RULE.decide(Some(&last), at(3_800)), OnceDecision::Done(last.clone()));
        let decision = successes.decide(Some(&last), at(3_800));
        assert_eq!(matches!(decision, OnceDecision::Done(_)), is_done, "{exit_code:?}");
    }
    assert_eq!(RULE.decide(None, at(0)), OnceDecision::Due { ignored: None });
    let ahead = run_at(900_000);
    assert_eq!(RULE.decide(Some(&ahead), at(1)), OnceDecision::Due { ignored: Some(ahead) });
}

#[test]
fn long_name_has_a_lock_of_its_own() {
    let name = |text: String| LockName::parse(&text).unwrap();
    assert_eq!(lock_of(&name("backup".into())).as_str(), "once/backup");
    let (one, other) = (lock_of(&name("é".repeat(127) + "a")), lock_of(&name("é".repeat(127) + "b")));
    assert_ne!(one, other);
    assert!(one.as_str().starts_with("once/é") && one.as_str().len() <= NAME_BYTES_MAX);
}

/// A store with a lock that is held.
fn held() -> (Keyspace, Fence) {
    let mut store = Keyspace::new(Limits::EMBEDDED);
    let token = put(&mut store, "lock", "me");
    (store, Fence { key: "lock".into(), token })
}

fn put(store: &mut Keyspace, key: &'static str, value: impl Into<Bytes>) -> Token {
    Token(store.apply(&Txn::new().then(Op::put(key, value.into())), NOW).unwrap().revision)
}

fn stored(store: &mut Keyspace) -> Option<OnceRecord> {
    let page = store.get(&Get::key("run"), NOW).unwrap();
    page.pairs.first().map(|pair| OnceRecord::decode(&pair.value).unwrap())
}

fn send<E: Exchange>(store: &mut Keyspace, exchange: &E) -> Result<StoreReply, StoreError> {
    match exchange.request() {
        StoreRequest::Get(get) => store.get(&get, NOW).map(StoreReply::Page),
        StoreRequest::Txn(txn) => store.apply(&txn, NOW).map(StoreReply::Txn),
    }
}

fn finish<E: Exchange>(store: &mut Keyspace, exchange: &mut E) -> E::Output {
    loop {
        let reply = send(store, exchange);
        if let ExchangeStep::Done(output) = exchange.handle(reply) {
            return output;
        }
    }
}

fn begin(fence: &Fence, seconds: u64) -> BeginRun {
    BeginRun::new("run".into(), fence.clone(), RULE, run_at(seconds))
}

fn lost() -> StoreError {
    StoreError::Ambiguous(Cause::new("the reply was lost"))
}

#[test]
fn run_is_recorded_before_it_begins_and_once() {
    let (mut store, fence) = held();
    let begun = finish(&mut store, &mut begin(&fence, 10)).unwrap();
    let record = stored(&mut store).unwrap();
    assert_eq!((record.started, record.token, record.exit_code), (at(10), Some(fence.token), None));
    assert_eq!(begun, Begun::Begun { record: record.clone(), ignored: None });
    // Another process acquires the lock in the same period, and later in the next one.
    let other = Fence {
        key: "lock".into(),
        token: {
            store.apply(&Txn::new().then(Op::delete("lock")), NOW).unwrap();
            put(&mut store, "lock", "other")
        },
    };
    assert_eq!(finish(&mut store, &mut begin(&other, 20)).unwrap(), Begun::Done(record));
    assert!(matches!(finish(&mut store, &mut begin(&other, 3_600)).unwrap(), Begun::Begun { .. }));
    assert_eq!(finish(&mut store, &mut begin(&fence, 7_200)).unwrap(), Begun::HoldLost);
    assert_eq!(stored(&mut store).unwrap().started, at(3_600));
}

/// The reply to the put is lost: it was applied, it was not, or it arrives after it was sent again.
#[test]
fn ambiguous_put_is_resolved_by_token() {
    for is_applied in [true, false] {
        let (mut store, fence) = held();
        let mut run = begin(&fence, 10);
        let read = send(&mut store, &run);
        assert!(matches!(run.handle(read), ExchangeStep::Send));
        let late = run.request();
        if is_applied {
            send(&mut store, &run).unwrap();
        }
        assert!(matches!(run.handle(Err(lost())), ExchangeStep::Retry(_)));
        assert!(matches!(finish(&mut store, &mut run).unwrap(), Begun::Begun { .. }));
        let revision = store.revision();
        let StoreRequest::Txn(late) = late else { panic!("{late:?}") };
        store.apply(&late, NOW).unwrap();
        assert_eq!(store.revision(), revision, "a put that arrives late changes nothing");
    }
}

/// The lock is lost while the outcome of the put is unknown: the run counts if it was recorded, and only then.
#[test]
fn ambiguous_put_after_lock_loss_is_resolved() {
    for is_applied in [true, false] {
        let (mut store, fence) = held();
        let mut run = begin(&fence, 10);
        let read = send(&mut store, &run);
        run.handle(read);
        if is_applied {
            send(&mut store, &run).unwrap();
        }
        run.handle(Err(lost()));
        store.apply(&Txn::new().then(Op::delete("lock")), NOW).unwrap();
        let begun = finish(&mut store, &mut run).unwrap();
        assert_eq!(matches!(begun, Begun::Begun { .. }), is_applied, "{begun:?}");
        assert_eq!(stored(&mut store).is_some(), is_applied);
    }
}

#[test]
fn error_after_an_unknown_put_stays_ambiguous() {
    let (mut store, fence) = held();
    let mut run = begin(&fence, 10);
    let read = send(&mut store, &run);
    run.handle(read);
    assert!(matches!(run.handle(Err(lost())), ExchangeStep::Retry(_)));
    let unavailable = || StoreError::Unavailable(Cause::new("no connection"));
    assert!(matches!(run.handle(Err(unavailable())), ExchangeStep::Retry(_)));
    assert!(matches!(run.handle(Err(unavailable())), ExchangeStep::Done(Err(StoreError::Ambiguous(_)))));
    let mut never_put = begin(&fence, 10);
    for _ in 0..2 {
        assert!(matches!(never_put.handle(Err(unavailable())), ExchangeStep::Retry(_)));
    }
    assert!(matches!(
        never_put.handle(Err(unavailable())),
        ExchangeStep::Done(Err(StoreError::Unavailable(_)))
    ));
}

#[test]
fn changed_record_is_decided_again() {
    let (mut store, fence) = held();
    let mut run = begin(&fence, 10);
    let read = send(&mut store, &run);
    run.handle(read);
    put(&mut store, "run", run_at(11).encode());
    assert_eq!(finish(&mut store, &mut run).unwrap(), Begun::Done(run_at(11)));
    put(&mut store, "run", "not json");
    let unreadable = finish(&mut store, &mut begin(&fence, 10)).unwrap();
    assert!(matches!(unreadable, Begun::Unreadable { .. }), "{unreadable:?}");
}

#[test]
fn end_is_recorded_only_under_lock() {
    let (mut store, fence) = held();
    let Begun::Begun { record, .. } = finish(&mut store, &mut begin(&fence, 10)).unwrap() else {
        panic!("a run is due")
    };
    let ended = OnceRecord { exit_code: Some(7), ..record };
    let mut end = EndRun::finished("run".into(), &fence, &ended);
    assert!(matches!(end.handle(Err(lost())), ExchangeStep::Retry(_)));
    assert!(finish(&mut store, &mut end).unwrap());
    assert_eq!(stored(&mut store), Some(ended));
    store.apply(&Txn::new().then(Op::delete("lock")), NOW).unwrap();
    assert!(!finish(&mut store, &mut EndRun::withdrawn("run".into(), &fence)).unwrap());
    assert!(stored(&mut store).is_some());
}
