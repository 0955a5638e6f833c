//! Terms on storages that hang, fail and lose replies. All in virtual time.

use std::sync::Arc;
use std::time::Duration;

use tenure::clock::VirtualClock;
use tenure::ttl::{
    MemoryStorage, StorageError, TtlCampaignError, TtlElections, TtlStorage, TtlTerm, TtlValue,
};
use tenure::{Clock, LossReason, ReleaseError};

use super::faulty::{Fault, Faulty, Verb};
use crate::tokio_clock::TokioClock;

/// Renewed every second, valid until 3.5 s after the last acknowledged renewal was sent.
const DURATION: Duration = Duration::from_secs(4);

const KEY: &str = "boss";

type Faulting = TtlElections<Arc<Faulty>>;

/// Elections on this clock.
pub(super) fn elections_on<S: TtlStorage>(storage: S, clock: impl Clock) -> TtlElections<S> {
    TtlElections::builder(storage).clock(clock).build().unwrap()
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(super) async fn acquire(elections: &Faulting) -> Result<TtlTerm, TtlCampaignError> {
    elections.election(KEY).campaign("web-1").ttl(DURATION).try_now().await
}

pub(super) fn on_faulty() -> (Arc<Faulty>, Faulting) {
    let clock = TokioClock::new();
    let storage = Arc::new(Faulty::new(clock));
    (storage.clone(), elections_on(storage, clock))
}

/// Runs the tasks without advancing the time.
async fn run_tasks() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn validity_ends_on_time_while_storage_hangs() {
    let clock = VirtualClock::new();
    let storage = Arc::new(Faulty::new(clock.clone()));
    let elections = elections_on(storage.clone(), clock.clone());
    let term = acquire(&elections).await.unwrap();
    assert_eq!(term.remaining(), ms(3_500));

    // The renewal that is sent at 1,000 ms is acknowledged: validity counts from there.
    clock.advance(ms(1_000));
    run_tasks().await;
    assert_eq!(term.remaining(), ms(3_500));
    storage.always(Verb::Swap, Fault::Hang);
    clock.advance(ms(1_000));
    run_tasks().await;
    clock.advance(ms(2_499));
    assert!(term.is_valid());
    assert_eq!(term.remaining(), ms(1));
    clock.advance(ms(1));
    assert!(!term.is_valid());
    assert_eq!(term.remaining(), Duration::ZERO);
    assert_eq!(term.lost().await.reason, LossReason::Lapsed);

    // The storage keeps the key for the margin, and not for longer.
    clock.advance(ms(499));
    assert!(storage.memory.stored(&KEY.to_owned()).is_some());
    clock.advance(ms(1));
    assert!(storage.memory.stored(&KEY.to_owned()).is_none());
}

/// A process that was stopped for an hour: no task has run, and the term must not be valid.
#[tokio::test]
async fn clock_jump_ends_term_before_any_task_runs() {
    let clock = VirtualClock::new();
    let storage = Arc::new(Faulty::new(clock.clone()));
    let elections = elections_on(storage, clock.clone());
    let term = acquire(&elections).await.unwrap();
    clock.advance(Duration::from_secs(3_600));
    assert!(!term.is_valid());
    let was_polled = term.run(async { panic!("polled after the end") }).await;
    assert_eq!(was_polled.unwrap_err().reason, LossReason::Lapsed);
}

#[tokio::test(start_paused = true)]
async fn hanging_storage_ends_term_before_the_ttl() {
    let (storage, elections) = on_faulty();
    let began = tokio::time::Instant::now();
    let term = acquire(&elections).await.unwrap();
    storage.always(Verb::Swap, Fault::Hang);
    assert_eq!(term.lost().await.reason, LossReason::Lapsed);
    let after = began.elapsed();
    assert!(after >= ms(3_500) && after < ms(3_520), "{after:?}");
    assert!(storage.memory.stored(&KEY.to_owned()).is_some(), "the storage still has the key");
}

#[tokio::test(start_paused = true)]
async fn three_failed_renewals_keep_the_term() {
    for fault in [Fault::Refuse, Fault::LoseRequest, Fault::LoseReply, Fault::Panic] {
        let (storage, elections) = on_faulty();
        let term = acquire(&elections).await.unwrap();
        let mut swaps = 0;
        storage.rule(move |verb| {
            swaps += usize::from(verb == Verb::Swap);
            if verb == Verb::Swap && swaps <= 3 { fault } else { Fault::None }
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(term.is_valid(), "{fault:?}");
        term.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn persistent_errors_end_term_on_time() {
    for fault in [Fault::Refuse, Fault::LoseRequest, Fault::Hang, Fault::Panic] {
        let (storage, elections) = on_faulty();
        let began = tokio::time::Instant::now();
        let term = acquire(&elections).await.unwrap();
        storage.always(Verb::Swap, fault);
        assert_eq!(term.lost().await.reason, LossReason::Lapsed, "{fault:?}");
        assert!(began.elapsed() >= ms(3_500) && began.elapsed() < ms(3_520), "{fault:?}");
        assert!(storage.requests() > 3, "{fault:?}: it was not retried");
        assert!(matches!(term.release().await, Err(ReleaseError::Lost(_))));
    }
}

/// A swap that was applied without a reply has renewed the key. The next one must not find another value.
#[tokio::test(start_paused = true)]
async fn ambiguous_renewals_keep_the_term() {
    let (storage, elections) = on_faulty();
    let term = acquire(&elections).await.unwrap();
    let mut count = 0;
    storage.rule(move |verb| {
        count += 1;
        if verb == Verb::Swap && count % 2 == 0 { Fault::LoseReply } else { Fault::None }
    });
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(term.is_valid());
}

#[tokio::test(start_paused = true)]
async fn slow_storage_keeps_the_term() {
    let (storage, elections) = on_faulty();
    let term = acquire(&elections).await.unwrap();
    // More than the patience of a second, less than the validity that is left.
    storage.always(Verb::Swap, Fault::Slow(1_600));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(term.is_valid());
}

#[tokio::test(start_paused = true)]
async fn ambiguous_insert_is_settled() {
    for (fault, leads) in [
        (Fault::LoseReply, true),
        (Fault::HangAfter, true),
        (Fault::LoseRequest, false),
        (Fault::Hang, false),
        (Fault::Refuse, false),
        (Fault::Panic, false),
    ] {
        let (storage, elections) = on_faulty();
        storage.always(Verb::Insert, fault);
        let outcome = acquire(&elections).await;
        match outcome {
            Ok(term) => assert!(leads && term.is_valid(), "{fault:?}"),
            Err(error) => {
                assert!(!leads && matches!(error, TtlCampaignError::Storage(_)), "{fault:?}: {error}");
                assert_eq!(storage.memory.stored(&KEY.to_owned()), None, "{fault:?}");
                assert!(!elections.election(KEY).is_leader());
            }
        }
    }
}

/// An insert that no swap could settle is deleted when the storage replies again.
#[tokio::test(start_paused = true)]
async fn unsettled_insert_is_deleted() {
    let (storage, elections) = on_faulty();
    let mut deletes = 0;
    storage.rule(move |verb| match verb {
        Verb::Insert => Fault::LoseReply,
        Verb::Swap => Fault::LoseRequest,
        Verb::Delete => {
            deletes += 1;
            if deletes < 3 { Fault::LoseRequest } else { Fault::None }
        }
    });
    assert!(matches!(acquire(&elections).await, Err(TtlCampaignError::Storage(StorageError::Ambiguous(_)))));
    assert!(storage.memory.stored(&KEY.to_owned()).is_some());
    elections.close().await.unwrap();
    assert_eq!(storage.memory.stored(&KEY.to_owned()), None);
}

#[tokio::test(start_paused = true)]
async fn replaced_value_ends_term_immediately() {
    let (storage, elections) = on_faulty();
    let term = acquire(&elections).await.unwrap();
    let key = KEY.to_owned();
    let ours = storage.memory.stored(&key).unwrap();
    assert_eq!(ours.unstamped().unwrap().1, "web-1");
    let foreign = "foreign".to_owned();
    assert!(storage.memory.compare_and_swap(&key, &ours, &foreign, DURATION).await.unwrap());
    let began = tokio::time::Instant::now();
    assert_eq!(term.lost().await.reason, LossReason::Replaced);
    assert!(began.elapsed() <= ms(1_010), "{:?}", began.elapsed());
    drop(term);
    elections.close().await.unwrap();
    assert_eq!(storage.memory.stored(&key), Some(foreign));
}

#[tokio::test(start_paused = true)]
async fn foreign_value_is_never_deleted() {
    let (storage, elections) = on_faulty();
    let term = acquire(&elections).await.unwrap();
    let key = KEY.to_owned();
    let ours = storage.memory.stored(&key).unwrap();
    let foreign = ours.unstamped().unwrap().1;
    assert!(storage.memory.compare_and_swap(&key, &ours, &foreign, DURATION).await.unwrap());
    assert!(matches!(term.release().await, Err(ReleaseError::Lost(_))));
    assert_eq!(storage.memory.stored(&key), Some(foreign));
}

#[tokio::test(start_paused = true)]
async fn one_of_two_equal_values_leads() {
    let clock = TokioClock::new();
    let storage: MemoryStorage = MemoryStorage::new(clock);
    for _ in 0..100 {
        let (one, two) = (elections_on(storage.clone(), clock), elections_on(storage.clone(), clock));
        let campaign = |of: &TtlElections<_>| of.election(KEY).campaign("same").ttl(DURATION).try_now();
        let (first, second) = tokio::join!(campaign(&one).into_future(), campaign(&two).into_future());
        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
        // Through several renewals.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let (leader, other) = if first.is_ok() { (&first, &two) } else { (&second, &one) };
        assert!(!other.election(KEY).is_leader());
        assert!(leader.as_ref().is_ok_and(|term| term.is_valid()));
        one.close().await.unwrap();
        two.close().await.unwrap();
    }
}

/// Without the nonce, the swap that settles the lost insert would succeed on the value of the leader.
#[tokio::test(start_paused = true)]
async fn settling_ignores_equal_value_of_another_candidate() {
    for fault in [Fault::LoseRequest, Fault::LoseReply, Fault::Hang, Fault::HangAfter] {
        let clock = TokioClock::new();
        let storage = Arc::new(Faulty::new(clock));
        let (one, two): (Faulting, Faulting) =
            (elections_on(storage.clone(), clock), elections_on(storage.clone(), clock));
        let leader = acquire(&one).await.unwrap();
        storage.always(Verb::Insert, fault);
        let second = acquire(&two).await;
        assert!(second.is_err(), "{fault:?}: two candidates lead");
        two.close().await.unwrap();
        assert!(leader.is_valid(), "{fault:?}");
        assert!(
            storage.memory.stored(&KEY.to_owned()).is_some(),
            "{fault:?}: the other candidate deleted it"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn elections_lead_a_key_once() {
    let (_, elections) = on_faulty();
    let term = acquire(&elections).await.unwrap();
    assert!(matches!(acquire(&elections).await, Err(TtlCampaignError::AlreadyLeading)));
    assert!(elections.election(KEY).is_leader() && !elections.election("other").is_leader());
    term.release().await.unwrap();
    assert!(acquire(&elections).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn tokens_grow_from_leader_to_leader() {
    let (_, elections) = on_faulty();
    let mut last = None;
    for _ in 0..3 {
        let term = acquire(&elections).await.unwrap();
        assert!(term.token() > last);
        last = term.token();
        term.release().await.unwrap();
    }
    let clock = TokioClock::new();
    let plain = elections_on(Arc::new(Faulty::plain(clock)), clock);
    assert_eq!(acquire(&plain).await.unwrap().token(), None);
}

#[tokio::test(start_paused = true)]
async fn required_fencing_refuses_storage_without_tokens() {
    let clock = TokioClock::new();
    let build = |storage| TtlElections::builder(storage).clock(clock).require_fencing().build();
    let refused = build(Arc::new(Faulty::plain(clock))).unwrap_err();
    assert!(matches!(refused, TtlCampaignError::NotFenced { .. }), "{refused}");
    assert_eq!(
        refused.to_string(),
        "the storage has no fencing tokens, which are required (it has: no capabilities)"
    );
    let accepted = build(Arc::new(Faulty::new(clock))).unwrap();
    assert!(acquire(&accepted).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn invalid_ttl_is_refused_before_any_request() {
    let (storage, elections) = on_faulty();
    let acquire = |ttl| elections.election(KEY).campaign("").ttl(ttl).try_now();
    assert!(matches!(acquire(Duration::ZERO).await, Err(TtlCampaignError::InvalidTtl(_))));
    let Err(TtlCampaignError::InvalidTtl(refused)) = acquire(ms(999)).await else { panic!("accepted") };
    assert!(refused.to_string().starts_with("a TTL of 999ms is too short"), "{refused}");
    assert_eq!(storage.requests(), 0, "an invalid TTL reaches no storage");
    assert!(acquire(ms(1_000)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn explicit_margin_allows_ttl_of_milliseconds() {
    let clock = TokioClock::new();
    let storage = Arc::new(Faulty::new(clock));
    let elections =
        TtlElections::builder(storage.clone()).clock(clock).margin(ms(20)).ttl(ms(200)).build().unwrap();
    let term = elections.election(KEY).campaign("").await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(term.is_valid());
    storage.always(Verb::Swap, Fault::Hang);
    let began = tokio::time::Instant::now();
    term.lost().await;
    assert!(began.elapsed() <= ms(182), "{:?}", began.elapsed());
}
