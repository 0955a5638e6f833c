//! Waiting, releasing, dropping and closing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::ttl::{AcquireError, Elections, LossReason, Memory, Options, ReleaseError, Value};

use super::elections::{acquire, on_faulty};
use super::faulty::{Fault, Faulty, Verb};
use crate::tokio_clock::TokioClock;

const KEY: &str = "boss";
const DURATION: Duration = Duration::from_secs(4);

fn key() -> String {
    KEY.to_owned()
}

/// Sets its flag when it is dropped.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_stops_the_work_before_it_deletes_the_key() {
    let (storage, elections) = on_faulty();
    let leadership = Arc::new(acquire(&elections).await.unwrap());
    let is_stopped = Arc::new(AtomicBool::new(false));
    let flag = Flag(is_stopped.clone());
    let working = leadership.clone();
    let work = tokio::spawn(async move {
        let mut running = Box::pin(working.run(async move {
            let _flag = flag;
            std::future::pending::<()>().await;
        }));
        assert!(futures_util::poll!(&mut running).is_pending());
        // Busy elsewhere for a while, as under a call that blocks: only then does it notice that it must stop.
        tokio::time::sleep(Duration::from_millis(700)).await;
        running.await
    });
    tokio::task::yield_now().await;
    let seen = is_stopped.clone();
    let order = Arc::new(AtomicBool::new(false));
    let was_stopped_first = order.clone();
    storage.rule(move |verb| {
        if verb == Verb::Delete {
            was_stopped_first.store(seen.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        Fault::None
    });
    let began = tokio::time::Instant::now();
    elections.release(&key()).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(690), "{:?}", began.elapsed());
    assert!(order.load(Ordering::SeqCst), "the key was deleted while the work went on");
    assert_eq!(work.await.unwrap().unwrap_err().reason, LossReason::Released);
    assert_eq!(storage.memory.stored(&key()), None);
    assert_eq!(elections.release(&key()).await, Err(ReleaseError::NotLeading));
}

#[tokio::test(start_paused = true)]
async fn work_that_does_not_stop_keeps_the_key_until_it_lapses() {
    let (storage, elections) = on_faulty();
    let leadership = acquire(&elections).await.unwrap();
    // Begun and then not polled any more, as under a call that blocks.
    let mut work = Box::pin(leadership.run(std::future::pending::<()>()));
    assert!(futures_util::poll!(&mut work).is_pending());
    assert_eq!(elections.release(&key()).await, Err(ReleaseError::StillRunning));
    assert!(!leadership.is_valid());
    assert!(storage.memory.stored(&key()).is_some());
    assert_eq!(work.await.unwrap_err().reason, LossReason::Released);
}

#[tokio::test(start_paused = true)]
async fn the_work_is_dropped_when_the_leadership_is_lost() {
    let (storage, elections) = on_faulty();
    let leadership = acquire(&elections).await.unwrap();
    assert_eq!(leadership.run(async { 42 }).await, Ok(42));
    storage.always(Verb::Swap, Fault::Hang);
    let is_dropped = Arc::new(AtomicBool::new(false));
    let flag = Flag(is_dropped.clone());
    let lost = leadership
        .run(async move {
            let _flag = flag;
            std::future::pending::<()>().await;
        })
        .await;
    assert_eq!(lost.unwrap_err().reason, LossReason::Lapsed);
    assert!(is_dropped.load(Ordering::SeqCst));
    assert_eq!(leadership.run(async {}).await.unwrap_err().reason, LossReason::Lapsed);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_leadership_is_given_back() {
    let clock = TokioClock::new();
    let storage: Memory<String, String> = Memory::new(clock);
    let (one, two) = (Elections::new(storage.clone(), clock), Elections::new(storage, clock));
    let leadership = one.acquire(key(), "one".to_owned(), DURATION).await.unwrap();
    let waiting = two.acquire_wait(key(), "two".to_owned(), DURATION);
    let began = tokio::time::Instant::now();
    let (second, ()) = tokio::join!(waiting, async { drop(leadership) });
    assert!(second.unwrap().is_valid());
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_acquire_is_given_back() {
    for fault in [Fault::None, Fault::Slow(500), Fault::LoseAnswer, Fault::HangAfter] {
        let (storage, elections) = on_faulty();
        storage.always(Verb::Insert, fault);
        let mut asking = Box::pin(acquire(&elections));
        assert!(futures_util::poll!(&mut asking).is_pending());
        // Long enough for the insert to be under way, too short for its answer.
        tokio::task::yield_now().await;
        drop(asking);
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        assert_eq!(storage.memory.stored(&key()), None, "{fault:?}");
        assert!(elections.leading().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_fails_is_tried_again_and_reported_when_it_is_in_vain() {
    let (storage, elections) = on_faulty();
    let leadership = acquire(&elections).await.unwrap();
    let mut deletes = 0;
    storage.rule(move |verb| {
        deletes += usize::from(verb == Verb::Delete);
        if verb == Verb::Delete && deletes < 4 { Fault::LoseAnswer } else { Fault::None }
    });
    // It was deleted at the first try, and found gone at the fourth.
    assert_eq!(leadership.release().await, Ok(()));
    assert_eq!(storage.memory.stored(&key()), None);

    let leadership = acquire(&elections).await.unwrap();
    storage.always(Verb::Delete, Fault::Hang);
    let began = tokio::time::Instant::now();
    assert_eq!(leadership.release().await, Err(ReleaseError::Unconfirmed));
    assert!(began.elapsed() <= Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn closing_ends_all_and_refuses_what_comes_later() {
    let (storage, elections) = on_faulty();
    let mut leaderships = Vec::new();
    for index in 0..20 {
        let key = format!("key-{index}");
        leaderships.push(elections.acquire(key, "web-1".to_owned(), DURATION).await.unwrap());
    }
    elections.close().await.unwrap();
    for leadership in &leaderships {
        assert!(!leadership.is_valid());
        assert_eq!(leadership.lost().await.reason, LossReason::Closed);
        assert_eq!(storage.memory.stored(leadership.key()), None);
    }
    assert!(matches!(acquire(&elections).await, Err(AcquireError::Closed)));
    let waited = elections.acquire_wait(key(), "web-1".to_owned(), DURATION).await;
    assert!(matches!(waited, Err(AcquireError::Closed)));
    elections.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn closing_says_what_it_could_not_give_back() {
    let (storage, elections) = on_faulty();
    let leadership = acquire(&elections).await.unwrap();
    storage.always(Verb::Delete, Fault::Hang);
    let left = elections.close().await.unwrap_err();
    assert_eq!(left.keys, [KEY]);
    assert!(!leadership.is_valid());
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_gives_everything_back() {
    let (storage, elections) = on_faulty();
    let leadership = acquire(&elections).await.unwrap();
    drop(elections);
    assert_eq!(leadership.lost().await.reason, LossReason::Closed);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(storage.memory.stored(&key()), None);
}

/// On real threads and in every order that they find.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_acquire_that_races_with_close_is_given_back_a_thousand_times() {
    let mut ended = [0, 0];
    for round in 0..1_000_u32 {
        let clock = tenure::clock::BootClock;
        let storage = Arc::new(Faulty::new(clock));
        if round % 3 == 0 {
            storage.always(Verb::Insert, Fault::Slow(u64::from(round % 2)));
        }
        let elections: Elections<String, String, _> = Elections::new(storage.clone(), clock);
        let racing = elections.clone();
        let acquire = tokio::spawn(async move { racing.acquire(key(), "web-1".to_owned(), DURATION).await });
        for _ in 0..round % 7 {
            tokio::task::yield_now().await;
        }
        elections.close().await.unwrap();
        assert_eq!(storage.memory.stored(&key()), None, "round {round}: left behind");
        match acquire.await.unwrap() {
            Ok(leadership) => {
                assert!(!leadership.is_valid(), "round {round}: leads after close");
                ended[0] += 1;
            }
            Err(AcquireError::Closed) => ended[1] += 1,
            Err(error) => panic!("round {round}: {error}"),
        }
        assert_eq!(storage.memory.stored(&key()), None, "round {round}: stored after close");
    }
    assert_eq!(ended[0] + ended[1], 1_000);
    assert!(ended[1] > 0, "no acquire lost the race: {ended:?}");
}

#[tokio::test(start_paused = true)]
async fn one_who_waits_without_a_watch_asks_now_and_then() {
    let clock = TokioClock::new();
    let storage = Arc::new(Faulty::plain(clock));
    let one: Elections<String, String, _> = Elections::new(storage.clone(), clock);
    let two = Elections::new(storage.clone(), clock);
    let leadership = one.acquire(key(), "one".to_owned(), DURATION).await.unwrap();
    let waiting = tokio::spawn(async move {
        let outcome = two.acquire_wait(key(), "two".to_owned(), DURATION).await;
        (outcome, two)
    });
    tokio::time::sleep(Duration::from_secs(40)).await;
    let asked = storage.requests();
    // 40 renewals, and between 40 and 80 tries.
    assert!((60..=130).contains(&asked), "{asked}");
    leadership.release().await.unwrap();
    let began = tokio::time::Instant::now();
    let (outcome, _two) = waiting.await.unwrap();
    assert!(outcome.unwrap().is_valid());
    assert!(began.elapsed() <= DURATION / 4, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_who_waits_with_a_watch_hardly_asks_and_is_told_at_once() {
    let clock = TokioClock::new();
    let storage = Arc::new(Faulty::new(clock));
    let one: Elections<String, String, _> = Elections::new(storage.clone(), clock);
    let two = Elections::new(storage.clone(), clock);
    let leadership = one.acquire(key(), "one".to_owned(), DURATION).await.unwrap();
    let waiting = tokio::spawn(async move {
        let outcome = two.acquire_wait(key(), "two".to_owned(), DURATION).await;
        (outcome, two)
    });
    tokio::time::sleep(Duration::from_secs(40)).await;
    let asked = storage.requests();
    assert!((40..=65).contains(&asked), "{asked}");
    leadership.release().await.unwrap();
    let began = tokio::time::Instant::now();
    let (outcome, _two) = waiting.await.unwrap();
    assert!(outcome.unwrap().is_valid());
    assert!(began.elapsed() <= DURATION / 90, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_who_waits_waits_through_an_outage() {
    let (storage, elections) = on_faulty();
    storage.rule(|_| Fault::Refuse);
    let waiting = tokio::spawn(async move {
        let outcome = elections.acquire_wait(key(), "web-1".to_owned(), DURATION).await;
        (outcome, elections)
    });
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!waiting.is_finished());
    storage.rule(|_| Fault::None);
    let (outcome, _elections) = waiting.await.unwrap();
    assert!(outcome.unwrap().is_valid());
    assert_eq!(storage.memory.stored(&key()).unwrap().unstamped().unwrap().1, "web-1");
}

#[tokio::test(start_paused = true)]
async fn the_work_has_as_long_to_stop_as_the_options_say() {
    let clock = TokioClock::new();
    let storage: Memory<String, String> = Memory::new(clock);
    let options = Options::new().stop_within(Duration::from_millis(300));
    let elections = Elections::with(storage, clock, options).unwrap();
    let leadership = elections.acquire(key(), "one".to_owned(), DURATION).await.unwrap();
    let mut work = Box::pin(leadership.run(std::future::pending::<()>()));
    assert!(futures_util::poll!(&mut work).is_pending());
    let began = tokio::time::Instant::now();
    assert_eq!(elections.release(&key()).await, Err(ReleaseError::StillRunning));
    assert!(began.elapsed() <= Duration::from_millis(310), "{:?}", began.elapsed());
}
