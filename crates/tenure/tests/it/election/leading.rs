//! Work that runs only while a term is valid, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tenure::election::{Election, Elections, LeadError};
use tenure::session::Session;
use tenure::testing::World;

use super::namespace;

const TTL: Duration = Duration::from_secs(10);

fn candidate(world: &World, who: &str) -> (Session, Election) {
    let options = Session::options().ttl(TTL).clock(world.process(who).clock());
    let session = options.open(world.process(who).store()).unwrap();
    let election = Elections::new(&session, &namespace()).identity(who).election("x");
    (session, election)
}

/// Counts the work that runs now, and how often work began.
#[derive(Clone, Default)]
struct Works {
    now: Arc<AtomicU32>,
    begun: Arc<AtomicU32>,
    overlapped: Arc<AtomicBool>,
}

impl Works {
    /// Works until it is dropped.
    async fn work(self) {
        struct Ends(Works);
        impl Drop for Ends {
            fn drop(&mut self) {
                self.0.now.fetch_sub(1, Ordering::SeqCst);
            }
        }
        if self.now.fetch_add(1, Ordering::SeqCst) > 0 {
            self.overlapped.store(true, Ordering::SeqCst);
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        let _ends = Ends(self);
        std::future::pending::<()>().await;
    }

    fn now(&self) -> u32 {
        self.now.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn work_is_dropped_before_successor_can_lead() {
    for fault in ["partition", "stall", "lose_answers", "refuse"] {
        let world = World::new();
        let ((_a, first), (_b, second)) = (candidate(&world, "a"), candidate(&world, "b"));
        let works = Works::default();
        let mut leading = Vec::new();
        for election in [first, second] {
            let works = works.clone();
            leading.push(tokio::spawn(async move {
                election.campaign().value("v").lead(|_| works.clone().work()).await
            }));
            world.advance(Duration::from_millis(200)).await;
        }
        assert_eq!((works.now(), works.begun.load(Ordering::SeqCst)), (1, 1), "{fault}");
        match fault {
            "partition" => world.process("a").partition(),
            "lose_answers" => world.process("a").drop_responses(),
            "refuse" => world.process("a").refuse_connections(),
            _ => world.process("a").pause(),
        }
        let (began, mut dropped_after) = (world.elapsed(), None);
        while works.begun.load(Ordering::SeqCst) < 2 && world.elapsed() - began < 4 * TTL {
            world.advance(Duration::from_millis(50)).await;
            if fault == "stall" && world.elapsed() - began > 2 * TTL {
                break;
            }
            if works.now() == 0 {
                dropped_after.get_or_insert(world.elapsed() - began);
            }
        }
        match fault {
            // A stalled process runs no task, so its work is not dropped. The first thing it notices is that its term is lost.
            "stall" => world.process("a").resume(),
            _ => {
                assert!(dropped_after.is_some_and(|after| after < TTL), "{fault} {dropped_after:?}");
                assert!(!works.overlapped.load(Ordering::SeqCst), "{fault}: two worked at once");
            }
        }
        world.process("a").heal();
        world.advance(3 * TTL).await;
        assert_eq!(works.now(), 1, "{fault}: one leads again");
        drop(leading);
    }
}

#[tokio::test]
async fn lost_leader_campaigns_again_unless_one_term() {
    for leads_again in [true, false] {
        let world = World::new();
        let (session, election) = candidate(&world, "a");
        let works = Works::default();
        let campaign = election.campaign().value("v");
        let campaign = if leads_again { campaign } else { campaign.one_term() };
        let leading = {
            let works = works.clone();
            tokio::spawn(async move { campaign.lead(|_| works.clone().work()).await })
        };
        world.advance(Duration::from_secs(1)).await;
        world.expire_lease(session.lease_id().unwrap());
        world.advance(2 * TTL).await;
        if leads_again {
            assert_eq!((works.now(), works.begun.load(Ordering::SeqCst)), (1, 2));
            session.close().await.unwrap();
            let ended = leading.await.unwrap();
            assert!(matches!(ended, Err(LeadError::Closed)), "{ended:?}");
        } else {
            let ended = leading.await.unwrap();
            assert!(matches!(ended, Err(LeadError::Lost(_))), "{ended:?}");
        }
        assert_eq!(works.now(), 0);
    }
}

#[tokio::test]
async fn completed_work_resigns_and_returns_its_result() {
    let world = World::new();
    let ((_a, first), (_b, second)) = (candidate(&world, "a"), candidate(&world, "b"));
    let token = first.campaign().value("v").lead(|term| async move { term.token() }).await.unwrap();
    assert_eq!(first.leader().await.unwrap(), None);
    assert!(second.campaign().value("w").try_now().await.unwrap().token() > token);
}

/// The request is applied and its reply lost: the retry finds the own key deleted, which this transfer did.
#[tokio::test]
async fn transfer_with_lost_reply_is_applied_once() {
    let world = World::new();
    let ((_a, first), (_b, second)) = (candidate(&world, "a"), candidate(&world, "b"));
    let term = first.campaign().value("1").await.unwrap();
    let waiting = tokio::spawn(second.campaign().value("2").into_future());
    world.advance(Duration::from_secs(1)).await;
    let heir = second.snapshot().await.unwrap().candidates.remove(0);
    world.process("a").set_latency(Duration::from_millis(10));
    let transfer = tokio::spawn(async move { term.transfer(&heir).await });
    // The listing has come and gone; the transaction has arrived, its answer has not.
    world.advance(Duration::from_millis(35)).await;
    world.process("a").drop_responses();
    let heir = waiting.await.unwrap().unwrap();
    assert!(!transfer.is_finished());
    // Longer than a request is waited for.
    world.advance(Duration::from_secs(6)).await;
    world.process("a").heal();
    transfer.await.unwrap().unwrap();
    world.advance(Duration::from_secs(20)).await;
    assert!(heir.is_valid(), "no retry ended the new term");
}

/// A request that the store never received is retried, and leadership is transferred when the store is reachable.
#[tokio::test]
async fn undelivered_transfer_is_retried() {
    let world = World::new();
    let ((_a, first), (_b, second)) = (candidate(&world, "a"), candidate(&world, "b"));
    let term = first.campaign().value("1").await.unwrap();
    let waiting = tokio::spawn(second.campaign().value("2").into_future());
    world.advance(Duration::from_secs(1)).await;
    let heir = second.snapshot().await.unwrap().candidates.remove(0);
    world.process("a").refuse_connections();
    let transfer = tokio::spawn(async move { term.transfer(&heir).await });
    world.advance(Duration::from_secs(2)).await;
    assert!(!waiting.is_finished() && !transfer.is_finished());
    world.process("a").heal();
    transfer.await.unwrap().unwrap();
    assert!(waiting.await.unwrap().unwrap().is_valid());
}

/// Work may hand its term to a task that outlives it. That term must be invalid before the store processes the release.
#[tokio::test]
async fn kept_term_is_invalid_before_release() {
    let world = World::new();
    let ((_a, first), (_b, operator)) = (candidate(&world, "a"), candidate(&world, "ops"));
    let works = Works::default();
    let (keep, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let leading = {
        let works = works.clone();
        let work = move |term| {
            keep.send(term).unwrap();
            works.clone().work()
        };
        tokio::spawn(async move { first.campaign().value("v").lead(work).await })
    };
    let kept = kept.recv().await.unwrap();
    world.advance(Duration::from_secs(1)).await;
    world.process("a").set_latency(Duration::from_millis(100));
    operator.request_resign().no_reply().await.unwrap();
    while works.now() > 0 {
        world.advance(Duration::from_millis(5)).await;
    }
    let leader = operator.leader().await.unwrap().map(|leader| leader.token);
    assert_eq!((leader, kept.is_valid()), (Some(kept.token()), false));
    leading.abort();
}
