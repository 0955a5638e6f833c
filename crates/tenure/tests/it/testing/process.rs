//! Processes of the testing world, as a user of the library writes such tests.

use std::time::Duration;

use tenure::store::Selection;
use tenure::testing::World;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The example of the module's documentation: at no moment do both processes believe that they lead.
#[tokio::test]
async fn partitioned_leader_stops_before_successor() {
    let world = World::new();
    let (one, two) = (world.process("web-1"), world.process("web-2"));
    let (a, b) = (one.tenure().election("scheduler"), two.tenure().election("scheduler"));
    tokio::spawn(a.campaign().lead(|_| std::future::pending::<()>()));
    world.run_until_idle().await;
    tokio::spawn(b.campaign().lead(|_| std::future::pending::<()>()));

    assert!(a.is_leader());
    one.partition();
    for _ in 0..200 {
        world.advance(Duration::from_millis(100)).await;
        assert!(!(a.is_leader() && b.is_leader()));
    }
    assert!(b.is_leader());
}

#[tokio::test]
async fn process_has_one_tenure_until_killed() {
    let world = World::new();
    let web = world.process("web-1");
    let first = web.tenure();
    assert_eq!(first.identity().node, "web-1");
    let guard = web.tenure().lock("deploy").await.unwrap();
    assert_eq!(first.store().leases().await.unwrap().len(), 1, "both handles are one session");

    web.kill();
    let waiting = tokio::spawn(web.tenure().lock("deploy").into_future());
    world.advance(s(10)).await;
    assert!(!waiting.is_finished(), "a killed process revokes nothing");
    world.advance(s(10)).await;
    let successor = waiting.await.unwrap().unwrap();
    assert!(successor.token() > guard.token());
    assert!(guard.is_valid(), "its clock has stopped, so it cannot see that the lease has expired");
}

#[tokio::test]
async fn requests_of_killed_process_are_lost() {
    let world = World::new();
    let web = world.process("web-1");
    let (store, other) = (web.store(), world.process("other").store());
    web.set_latency(Duration::from_millis(10));
    web.delay_writes();
    let put = tokio::spawn(async move { store.put("/k", "v").await });
    world.run_until_idle().await;
    web.kill();
    world.advance(s(30)).await;
    assert!(!put.is_finished(), "its timers have stopped");
    assert!(other.list(Selection::everything()).await.unwrap().pairs.is_empty());
    assert!(web.store().put("/k", "successor").await.is_ok(), "its successor has no fault");
}

/// Each run has a thread and a runtime of its own, so that no task of an earlier world draws numbers.
#[test]
fn seeded_worlds_repeat_a_run() {
    async fn keys(seed: u64) -> String {
        let world = World::seeded(seed);
        let web = world.process("web-1");
        let tenure = web.builder().ttl(s(5)).connect().await.unwrap();
        let _registration = tenure.register("web-1", "10.0.0.7:80").await.unwrap();
        let guard = tenure.lock("deploy").await.unwrap();
        web.partition();
        world.advance(s(20)).await;
        assert!(!guard.is_valid());
        web.heal();
        world.advance(s(20)).await;
        let _guard = tenure.lock("deploy").await.unwrap();
        // The ids of leases and queue keys are random.
        let page = web.store().list(Selection::everything()).await.unwrap();
        format!("{:?}", page.pairs.iter().map(|pair| &pair.key).collect::<Vec<_>>())
    }
    let run = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        std::thread::spawn(move || runtime.block_on(keys(seed))).join().unwrap()
    };
    let first = run(7);
    assert_eq!(first, run(7));
    assert_ne!(first, run(8));
}
