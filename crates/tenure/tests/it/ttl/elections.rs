//! Who leads, and until when, on storages that hang, fail and lose answers. All in virtual time.

use std::sync::Arc;
use std::time::Duration;

use tenure::clock::VirtualClock;
use tenure::ttl::{
    AcquireError, CannotFence, Elections, Leadership, LossReason, Memory, Options, ReleaseError,
    StorageError, TtlStorage, Value,
};

use super::faulty::{Fault, Faulty, Verb};
use crate::tokio_clock::TokioClock;

/// Renewed every second, valid until 3.5 s after the last yes was sent.
const DURATION: Duration = Duration::from_secs(4);

const KEY: &str = "boss";

type Faulting = Elections<String, String, Arc<Faulty>>;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(super) async fn acquire(elections: &Faulting) -> Result<Leadership<String>, AcquireError> {
    elections.acquire(KEY.to_owned(), "web-1".to_owned(), DURATION).await
}

pub(super) fn on_faulty() -> (Arc<Faulty>, Faulting) {
    let clock = TokioClock::new();
    let storage = Arc::new(Faulty::new(clock));
    (storage.clone(), Elections::new(storage, clock))
}

/// Lets the tasks do what they can without time passing.
async fn let_them_run() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn validity_ends_to_the_millisecond_while_the_storage_hangs() {
    let clock = VirtualClock::new();
    let storage = Arc::new(Faulty::new(clock.clone()));
    let elections: Faulting = Elections::new(storage.clone(), clock.clone());
    let leadership = acquire(&elections).await.unwrap();
    assert_eq!(leadership.remaining(), ms(3_500));

    // The renewal that is sent at 1,000 ms is answered: validity counts from there.
    clock.advance(ms(1_000));
    let_them_run().await;
    assert_eq!(leadership.remaining(), ms(3_500));
    storage.always(Verb::Swap, Fault::Hang);
    clock.advance(ms(1_000));
    let_them_run().await;
    clock.advance(ms(2_499));
    assert!(leadership.is_valid());
    assert_eq!(leadership.remaining(), ms(1));
    clock.advance(ms(1));
    assert!(!leadership.is_valid());
    assert_eq!(leadership.remaining(), Duration::ZERO);
    assert_eq!(leadership.lost().await.reason, LossReason::Lapsed);

    // The storage agrees for the margin more, and not for longer.
    clock.advance(ms(499));
    assert!(storage.memory.stored(&KEY.to_owned()).is_some());
    clock.advance(ms(1));
    assert!(storage.memory.stored(&KEY.to_owned()).is_none());
}

/// A process that was stopped for an hour: no task has run, and nobody may believe.
#[tokio::test]
async fn a_clock_that_jumped_ends_it_before_any_task_has_noticed() {
    let clock = VirtualClock::new();
    let storage = Arc::new(Faulty::new(clock.clone()));
    let elections: Faulting = Elections::new(storage, clock.clone());
    let leadership = acquire(&elections).await.unwrap();
    clock.advance(Duration::from_secs(3_600));
    assert!(!leadership.is_valid());
    let was_polled = leadership.run(async { panic!("polled after the end") }).await;
    assert_eq!(was_polled.unwrap_err().reason, LossReason::Lapsed);
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_hangs_longer_than_the_ttl_ends_leadership_before_it() {
    let (storage, elections) = on_faulty();
    let began = tokio::time::Instant::now();
    let leadership = acquire(&elections).await.unwrap();
    storage.always(Verb::Swap, Fault::Hang);
    assert_eq!(leadership.lost().await.reason, LossReason::Lapsed);
    let after = began.elapsed();
    assert!(after >= ms(3_500) && after < ms(3_520), "{after:?}");
    assert!(storage.memory.stored(&KEY.to_owned()).is_some(), "the storage still agreed");
}

#[tokio::test(start_paused = true)]
async fn three_failed_swaps_then_success_keep_it() {
    for fault in [Fault::Refuse, Fault::LoseRequest, Fault::LoseAnswer, Fault::Panic] {
        let (storage, elections) = on_faulty();
        let leadership = acquire(&elections).await.unwrap();
        let mut swaps = 0;
        storage.rule(move |verb| {
            swaps += usize::from(verb == Verb::Swap);
            if verb == Verb::Swap && swaps <= 3 { fault } else { Fault::None }
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(leadership.is_valid(), "{fault:?}");
        leadership.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn persistent_errors_lose_it_when_validity_ends() {
    for fault in [Fault::Refuse, Fault::LoseRequest, Fault::Hang, Fault::Panic] {
        let (storage, elections) = on_faulty();
        let began = tokio::time::Instant::now();
        let leadership = acquire(&elections).await.unwrap();
        storage.always(Verb::Swap, fault);
        assert_eq!(leadership.lost().await.reason, LossReason::Lapsed, "{fault:?}");
        assert!(began.elapsed() >= ms(3_500) && began.elapsed() < ms(3_520), "{fault:?}");
        assert!(storage.requests() > 3, "{fault:?}: it was not tried again");
        assert_eq!(leadership.release().await, Err(ReleaseError::NotLeading));
    }
}

/// A swap that was applied, and whose answer was lost, has renewed; asking again must not find "another" value.
#[tokio::test(start_paused = true)]
async fn lost_answers_of_our_own_swaps_do_not_lose_it() {
    let (storage, elections) = on_faulty();
    let leadership = acquire(&elections).await.unwrap();
    let mut count = 0;
    storage.rule(move |verb| {
        count += 1;
        if verb == Verb::Swap && count % 2 == 0 { Fault::LoseAnswer } else { Fault::None }
    });
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(leadership.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_slow_storage_is_led_on_as_long_as_its_answers_are_of_use() {
    let (storage, elections) = on_faulty();
    let leadership = acquire(&elections).await.unwrap();
    // More than the patience of a second, less than the validity that is left.
    storage.always(Verb::Swap, Fault::Slow(1_600));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(leadership.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_the_insert_is_settled() {
    for (fault, leads) in [
        (Fault::LoseAnswer, true),
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
            Ok(leadership) => assert!(leads && leadership.is_valid(), "{fault:?}"),
            Err(error) => {
                assert!(!leads && matches!(error, AcquireError::Storage(_)), "{fault:?}: {error}");
                assert_eq!(storage.memory.stored(&KEY.to_owned()), None, "{fault:?}");
                assert!(elections.leading().is_empty());
            }
        }
    }
}

/// What nobody could settle is given back when the storage answers again.
#[tokio::test(start_paused = true)]
async fn an_insert_that_cannot_be_settled_is_given_back() {
    let (storage, elections) = on_faulty();
    let mut deletes = 0;
    storage.rule(move |verb| match verb {
        Verb::Insert => Fault::LoseAnswer,
        Verb::Swap => Fault::LoseRequest,
        Verb::Delete => {
            deletes += 1;
            if deletes < 3 { Fault::LoseRequest } else { Fault::None }
        }
    });
    assert!(matches!(acquire(&elections).await, Err(AcquireError::Storage(StorageError::Unknown(_)))));
    assert!(storage.memory.stored(&KEY.to_owned()).is_some());
    elections.close().await.unwrap();
    assert_eq!(storage.memory.stored(&KEY.to_owned()), None);
}

#[tokio::test(start_paused = true)]
async fn another_value_in_the_storage_ends_it_at_once() {
    let (storage, elections) = on_faulty();
    let leadership = acquire(&elections).await.unwrap();
    let key = KEY.to_owned();
    let ours = storage.memory.stored(&key).unwrap();
    assert_eq!(ours.unstamped().unwrap().1, "web-1");
    let foreign = "somebody".to_owned();
    assert!(storage.memory.compare_and_swap(&key, &ours, &foreign, DURATION).await.unwrap());
    let began = tokio::time::Instant::now();
    assert_eq!(leadership.lost().await.reason, LossReason::Replaced);
    assert!(began.elapsed() <= ms(1_010), "{:?}", began.elapsed());
    drop(leadership);
    elections.close().await.unwrap();
    assert_eq!(storage.memory.stored(&key), Some(foreign));
}

#[tokio::test(start_paused = true)]
async fn a_foreign_value_is_never_deleted() {
    let (storage, elections) = on_faulty();
    let leadership = acquire(&elections).await.unwrap();
    let key = KEY.to_owned();
    let ours = storage.memory.stored(&key).unwrap();
    let foreign = ours.unstamped().unwrap().1;
    assert!(storage.memory.compare_and_swap(&key, &ours, &foreign, DURATION).await.unwrap());
    assert_eq!(leadership.release().await, Err(ReleaseError::NotLeading));
    assert_eq!(storage.memory.stored(&key), Some(foreign));
}

#[tokio::test(start_paused = true)]
async fn of_two_electors_with_the_same_value_one_leads() {
    let clock = TokioClock::new();
    let storage: Memory<String, String> = Memory::new(clock);
    for _ in 0..100 {
        let one = Elections::new(storage.clone(), clock);
        let two = Elections::new(storage.clone(), clock);
        let (first, second) = tokio::join!(
            one.acquire(KEY.to_owned(), "same".to_owned(), DURATION),
            two.acquire(KEY.to_owned(), "same".to_owned(), DURATION),
        );
        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
        // Through several renewals, and a release of the one who does not lead.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let (leader, other) = if first.is_ok() { (&first, &two) } else { (&second, &one) };
        assert_eq!(other.release(&KEY.to_owned()).await, Err(ReleaseError::NotLeading));
        assert!(leader.as_ref().is_ok_and(|leadership| leadership.is_valid()));
        one.close().await.unwrap();
        two.close().await.unwrap();
    }
}

/// Without the nonce, the swap that settles the lost insert would find "our" value: that of the one who leads.
#[tokio::test(start_paused = true)]
async fn an_elector_that_settles_a_lost_insert_does_not_find_its_namesake_s_value() {
    for fault in [Fault::LoseRequest, Fault::LoseAnswer, Fault::Hang, Fault::HangAfter] {
        let clock = TokioClock::new();
        let storage = Arc::new(Faulty::new(clock));
        let (one, two): (Faulting, Faulting) =
            (Elections::new(storage.clone(), clock), Elections::new(storage.clone(), clock));
        let leader = acquire(&one).await.unwrap();
        storage.always(Verb::Insert, fault);
        let second = acquire(&two).await;
        assert!(second.is_err(), "{fault:?}: two lead");
        two.close().await.unwrap();
        assert!(leader.is_valid(), "{fault:?}");
        assert!(storage.memory.stored(&KEY.to_owned()).is_some(), "{fault:?}: the namesake deleted it");
    }
}

#[tokio::test(start_paused = true)]
async fn one_handle_leads_a_key_once() {
    let (_, elections) = on_faulty();
    let leadership = acquire(&elections).await.unwrap();
    assert!(matches!(acquire(&elections).await, Err(AcquireError::AlreadyLeading)));
    assert_eq!(elections.leading(), [KEY]);
    leadership.release().await.unwrap();
    assert!(acquire(&elections).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn tokens_grow_from_leader_to_leader() {
    let (_, elections) = on_faulty();
    let mut last = None;
    for _ in 0..3 {
        let leadership = acquire(&elections).await.unwrap();
        assert!(leadership.token() > last);
        last = leadership.token();
        leadership.release().await.unwrap();
    }
    let clock = TokioClock::new();
    let plain: Faulting = Elections::new(Arc::new(Faulty::plain(clock)), clock);
    assert_eq!(acquire(&plain).await.unwrap().token(), None);
}

#[tokio::test(start_paused = true)]
async fn strict_elections_refuse_a_storage_that_cannot_fence() {
    let clock = TokioClock::new();
    let refused = Elections::with(Arc::new(Faulty::plain(clock)), clock, Options::new().strict());
    let refused: Result<Faulting, CannotFence> = refused;
    assert_eq!(
        refused.unwrap_err().to_string(),
        "the storage cannot fence, and strict elections need that (it offers: nothing more)"
    );
    let taken = Elections::with(Arc::new(Faulty::new(clock)), clock, Options::new().strict());
    assert!(acquire(&taken.unwrap()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn durations_that_cannot_work_are_refused_before_anything_is_sent() {
    let (storage, elections) = on_faulty();
    let acquire = |duration| elections.acquire(KEY.to_owned(), String::new(), duration);
    assert!(matches!(acquire(Duration::ZERO).await, Err(AcquireError::Storage(StorageError::ZeroTtl))));
    let Err(AcquireError::TooShort(refused)) = acquire(ms(999)).await else { panic!("taken") };
    assert!(refused.to_string().starts_with("a TTL of 999ms is too short"), "{refused}");
    assert_eq!(storage.requests(), 0);
    assert!(acquire(ms(1_000)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_margin_of_its_own_allows_durations_of_milliseconds() {
    let clock = TokioClock::new();
    let storage = Arc::new(Faulty::new(clock));
    let elections: Faulting = Elections::with(storage.clone(), clock, Options::new().margin(ms(20))).unwrap();
    let leadership = elections.acquire(KEY.to_owned(), String::new(), ms(200)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(leadership.is_valid());
    storage.always(Verb::Swap, Fault::Hang);
    let began = tokio::time::Instant::now();
    leadership.lost().await;
    assert!(began.elapsed() <= ms(182), "{:?}", began.elapsed());
}
