//! Waiting campaigns, release, drop and close.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::ttl::{MemoryStorage, TtlCampaignError, TtlElections, TtlValue};
use tenure::{CloseError, LossReason, ReleaseError};

use super::elections::{acquire, elections_on, on_faulty};
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
async fn release_stops_work_before_it_deletes_the_key() {
    let (storage, elections) = on_faulty();
    let term = acquire(&elections).await.unwrap();
    let is_stopped = Arc::new(AtomicBool::new(false));
    let flag = Flag(is_stopped.clone());
    let working = term.validity();
    let work = tokio::spawn(async move {
        let mut running = Box::pin(working.run(async move {
            let _flag = flag;
            std::future::pending::<()>().await;
        }));
        assert!(futures_util::poll!(&mut running).is_pending());
        // Not polled for a while, as under a blocking call: it stops only after that.
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
    term.release().await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(690), "{:?}", began.elapsed());
    assert!(order.load(Ordering::SeqCst), "the key was deleted while the work went on");
    assert_eq!(work.await.unwrap().unwrap_err().reason, LossReason::Released);
    assert_eq!(storage.memory.stored(&key()), None);
    assert!(!elections.election(KEY).is_leader());
}

#[tokio::test(start_paused = true)]
async fn running_work_keeps_key_until_expiry() {
    let (storage, elections) = on_faulty();
    let term = acquire(&elections).await.unwrap();
    // Polled once and then not any more, as under a blocking call.
    let validity = term.validity();
    let mut work = Box::pin(validity.run(std::future::pending::<()>()));
    assert!(futures_util::poll!(&mut work).is_pending());
    assert!(matches!(term.release().await, Err(ReleaseError::StillRunning { .. })));
    assert!(!validity.is_valid());
    assert!(storage.memory.stored(&key()).is_some());
    assert_eq!(work.await.unwrap_err().reason, LossReason::Released);
}

#[tokio::test(start_paused = true)]
async fn lost_term_drops_the_work() {
    let (storage, elections) = on_faulty();
    let term = acquire(&elections).await.unwrap();
    assert_eq!(term.run(async { 42 }).await, Ok(42));
    storage.always(Verb::Swap, Fault::Hang);
    let is_dropped = Arc::new(AtomicBool::new(false));
    let flag = Flag(is_dropped.clone());
    let lost = term
        .run(async move {
            let _flag = flag;
            std::future::pending::<()>().await;
        })
        .await;
    assert_eq!(lost.unwrap_err().reason, LossReason::Lapsed);
    assert!(is_dropped.load(Ordering::SeqCst));
    assert_eq!(term.run(async {}).await.unwrap_err().reason, LossReason::Lapsed);
}

#[tokio::test(start_paused = true)]
async fn dropped_term_is_released() {
    let clock = TokioClock::new();
    let storage: MemoryStorage = MemoryStorage::new(clock);
    let (one, two) = (elections_on(storage.clone(), clock), elections_on(storage, clock));
    let term = one.election(key()).campaign("one").ttl(DURATION).try_now().await.unwrap();
    let waiting = two.election(key()).campaign("two").ttl(DURATION);
    let began = tokio::time::Instant::now();
    let (second, ()) = tokio::join!(waiting.into_future(), async { drop(term) });
    assert!(second.unwrap().is_valid());
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn dropped_campaign_is_undone() {
    for fault in [Fault::None, Fault::Slow(500), Fault::LoseReply, Fault::HangAfter] {
        let (storage, elections) = on_faulty();
        storage.always(Verb::Insert, fault);
        let mut asking = Box::pin(acquire(&elections));
        assert!(futures_util::poll!(&mut asking).is_pending());
        // Long enough for the insert to be in flight, too short for its reply.
        tokio::task::yield_now().await;
        drop(asking);
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        assert_eq!(storage.memory.stored(&key()), None, "{fault:?}");
        assert!(!elections.election(KEY).is_leader());
    }
}

#[tokio::test(start_paused = true)]
async fn failed_delete_is_retried_and_reported() {
    let (storage, elections) = on_faulty();
    let term = acquire(&elections).await.unwrap();
    let mut deletes = 0;
    storage.rule(move |verb| {
        deletes += usize::from(verb == Verb::Delete);
        if verb == Verb::Delete && deletes < 4 { Fault::LoseReply } else { Fault::None }
    });
    // The first request deleted it, and the fourth found it gone.
    assert_eq!(term.release().await, Ok(()));
    assert_eq!(storage.memory.stored(&key()), None);

    let term = acquire(&elections).await.unwrap();
    storage.always(Verb::Delete, Fault::Hang);
    let began = tokio::time::Instant::now();
    assert_eq!(term.release().await, Err(ReleaseError::NotConfirmed { ttl: DURATION }));
    assert!(began.elapsed() <= Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn close_releases_all_and_refuses_campaigns() {
    let (storage, elections) = on_faulty();
    let mut terms = Vec::new();
    for index in 0..20 {
        let key = format!("key-{index}");
        let term = elections.election(key.clone()).campaign("web-1").ttl(DURATION).await.unwrap();
        terms.push((key, term));
    }
    elections.close().await.unwrap();
    for (key, term) in &terms {
        assert!(!term.is_valid());
        assert_eq!(term.lost().await.reason, LossReason::Closed);
        assert_eq!(storage.memory.stored(key), None);
    }
    assert!(matches!(acquire(&elections).await, Err(TtlCampaignError::Closed)));
    let waited = elections.election(key()).campaign("web-1").ttl(DURATION).await;
    assert!(matches!(waited, Err(TtlCampaignError::Closed)));
    elections.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn close_reports_unconfirmed_keys() {
    let (storage, elections) = on_faulty();
    let term = acquire(&elections).await.unwrap();
    storage.always(Verb::Delete, Fault::Hang);
    let error = elections.close().await.unwrap_err();
    assert!(
        matches!(&error, CloseError::StillHeld { holds, .. } if *holds == ["election 'boss'"]),
        "{error}"
    );
    assert_eq!(error.to_string(), "election 'boss' is still held; expires within 4s");
    assert!(!term.is_valid());
}

#[tokio::test(start_paused = true)]
async fn drop_of_last_handle_releases_all() {
    let (storage, elections) = on_faulty();
    let term = acquire(&elections).await.unwrap();
    drop(elections);
    assert_eq!(term.lost().await.reason, LossReason::Closed);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(storage.memory.stored(&key()), None);
}

/// On real threads, in whichever order they run.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn campaign_racing_with_close_is_undone() {
    let mut ended = [0, 0];
    for round in 0..1_000_u32 {
        let clock = tenure::clock::BootClock;
        let storage = Arc::new(Faulty::new(clock));
        if round % 3 == 0 {
            storage.always(Verb::Insert, Fault::Slow(u64::from(round % 2)));
        }
        let elections = elections_on(storage.clone(), clock);
        let racing = elections.clone();
        let campaign = tokio::spawn(async move { acquire(&racing).await });
        for _ in 0..round % 7 {
            tokio::task::yield_now().await;
        }
        elections.close().await.unwrap();
        assert_eq!(storage.memory.stored(&key()), None, "round {round}: key stored");
        match campaign.await.unwrap() {
            Ok(term) => {
                assert!(!term.is_valid(), "round {round}: leads after close");
                ended[0] += 1;
            }
            Err(TtlCampaignError::Closed) => ended[1] += 1,
            Err(error) => panic!("round {round}: {error}"),
        }
        assert_eq!(storage.memory.stored(&key()), None, "round {round}: stored after close");
    }
    assert_eq!(ended[0] + ended[1], 1_000);
    assert!(ended[1] > 0, "no acquire lost the race: {ended:?}");
}

#[tokio::test(start_paused = true)]
async fn waiting_campaign_polls_without_a_watch() {
    let clock = TokioClock::new();
    let storage = Arc::new(Faulty::plain(clock));
    let (one, two) = (elections_on(storage.clone(), clock), elections_on(storage.clone(), clock));
    let term = one.election(key()).campaign("one").ttl(DURATION).try_now().await.unwrap();
    let waiting = tokio::spawn(async move {
        let outcome = two.election(key()).campaign("two").ttl(DURATION).await;
        (outcome, two)
    });
    tokio::time::sleep(Duration::from_secs(40)).await;
    let requests = storage.requests();
    // 40 renewals, and between 40 and 80 tries.
    assert!((60..=130).contains(&requests), "{requests}");
    term.release().await.unwrap();
    let began = tokio::time::Instant::now();
    let (outcome, _two) = waiting.await.unwrap();
    assert!(outcome.unwrap().is_valid());
    assert!(began.elapsed() <= DURATION / 4, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn waiting_campaign_is_notified_by_a_watch() {
    let clock = TokioClock::new();
    let storage = Arc::new(Faulty::new(clock));
    let (one, two) = (elections_on(storage.clone(), clock), elections_on(storage.clone(), clock));
    let term = one.election(key()).campaign("one").ttl(DURATION).try_now().await.unwrap();
    let waiting = tokio::spawn(async move {
        let outcome = two.election(key()).campaign("two").ttl(DURATION).await;
        (outcome, two)
    });
    tokio::time::sleep(Duration::from_secs(40)).await;
    let requests = storage.requests();
    assert!((40..=65).contains(&requests), "{requests}");
    term.release().await.unwrap();
    let began = tokio::time::Instant::now();
    let (outcome, _two) = waiting.await.unwrap();
    assert!(outcome.unwrap().is_valid());
    assert!(began.elapsed() <= DURATION / 90, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn waiting_campaign_survives_an_outage() {
    let (storage, elections) = on_faulty();
    storage.rule(|_| Fault::Refuse);
    let waiting = tokio::spawn(async move {
        let outcome = elections.election(key()).campaign("web-1").ttl(DURATION).await;
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
async fn stop_within_bounds_the_wait_for_work() {
    let clock = TokioClock::new();
    let storage: MemoryStorage = MemoryStorage::new(clock);
    let builder = TtlElections::builder(storage).clock(clock);
    let elections = builder.stop_within(Duration::from_millis(300)).build().unwrap();
    let term = elections.election(key()).campaign("one").ttl(DURATION).try_now().await.unwrap();
    let validity = term.validity();
    let mut work = Box::pin(validity.run(std::future::pending::<()>()));
    assert!(futures_util::poll!(&mut work).is_pending());
    let began = tokio::time::Instant::now();
    assert!(matches!(term.release().await, Err(ReleaseError::StillRunning { .. })));
    assert!(began.elapsed() <= Duration::from_millis(310), "{:?}", began.elapsed());
}
