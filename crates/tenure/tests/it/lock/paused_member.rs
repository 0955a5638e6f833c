//! A member of etcd is paused while it has enters to apply, and applies them when it continues: no key of a cancelled acquire stays.

use tokio::task::JoinSet;

use super::*;

/// Acquires in flight when the member is paused.
const ACQUIRES: usize = 120;

/// Which members the client knows.
#[derive(Clone, Copy, Debug)]
enum Endpoints {
    /// The paused follower alone: everything waits in it.
    PresenceWatch,
    /// All of them, the follower first: the client settles its enters through another member while they wait in the paused one.
    All,
}

/// Pauses a follower for so long under many acquires that are cancelled meanwhile.
async fn pause_under_acquires(pause: Duration, endpoints: Endpoints, run: usize) {
    let etcd = Etcd::cluster(3);
    let follower = (etcd.leader() + 1) % 3;
    let address = |member: usize| etcd.member(member).client_addr().to_string();
    let others = (0..3).filter(|&member| member != follower).map(address);
    let known: Vec<String> = match endpoints {
        Endpoints::PresenceWatch => vec![address(follower)],
        Endpoints::All => std::iter::once(address(follower)).chain(others).collect(),
    };
    let store = Store::open(&format!("etcd://{}", known.join(",")).parse().unwrap()).await.unwrap();
    let session = Session::options().ttl(Duration::from_secs(120)).open(store).unwrap();
    let locks = Locks::new(&session, &namespace());
    soon(locks.lock("first").into_future()).await.unwrap().release().await.unwrap();

    etcd.member(follower).pause();
    let begin = std::time::Instant::now();
    let mut acquires = JoinSet::new();
    for n in 0..ACQUIRES {
        let acquire = locks.lock(format!("l{n}")).timeout(Duration::from_millis(500));
        acquires.spawn(acquire.into_future());
    }
    // An acquire that came through another member is released like any other.
    while let Some(acquired) = acquires.join_next().await {
        drop(acquired.unwrap());
    }
    tokio::time::sleep(pause.saturating_sub(begin.elapsed())).await;
    etcd.member(follower).resume();

    let onlooker = connect(&etcd).await;
    // The session works again, so its member has applied what it had.
    let after = tokio::time::timeout(Duration::from_secs(60), locks.lock("after").into_future());
    after.await.expect("the member is back").unwrap().release().await.unwrap();
    let empty = async {
        while keys(&onlooker).await > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), empty).await.expect("every queue key is deleted");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(keys(&onlooker).await, 0, "{endpoints:?}, run {run}: a late enter was applied");
    let (other, free) = process(&onlooker);
    for n in 0..ACQUIRES {
        let acquired = soon(free.lock(format!("l{n}")).try_now().into_future()).await;
        drop(acquired.expect("the lock is free"));
    }
    session.close().await.unwrap();
    // A slow reply can leave an unsettled enter, and so a guard, in this process too.
    drop(free);
    other.close().await.unwrap();
    let guards = onlooker.list(Selection::prefix("/t/guards/")).await.unwrap().pairs;
    assert!(guards.is_empty(), "guards end with their lease: {guards:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_enters_leave_no_key_on_other_members() {
    pause_under_acquires(Duration::from_secs(3), Endpoints::All, 0).await;
}

/// A pause of 5 s in every check; with `TENURE_SOAK=1` 20 runs each of 5, 13 and 30 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soak_late_enters_of_paused_member_leave_nothing() {
    let is_soak = std::env::var("TENURE_SOAK").is_ok_and(|value| value == "1");
    let (pauses, runs) = if is_soak { (&[5, 13, 30][..], 20) } else { (&[5][..], 1) };
    for &pause in pauses {
        for run in 0..runs {
            let endpoints = if run % 2 == 0 { Endpoints::PresenceWatch } else { Endpoints::All };
            pause_under_acquires(Duration::from_secs(pause), endpoints, run).await;
        }
    }
}
