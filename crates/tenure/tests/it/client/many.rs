//! Many tasks at once: few requests, one picture.

use tenure::client::{Client, NewTask, SubmitError, Submitted, TaskFilter};
use tenure::core::layout::Key;
use tenure::core::name::TaskId;
use tenure::core::record::Record;
use tenure::core::task::{State, StateKind, StateRecord};
use tenure::store::{Op, Store};
use tenure_fixture::Etcd;

use super::{client, layout};
use crate::membership::{connect, on_every_engine};

fn tasks(count: usize) -> Vec<NewTask> {
    (0..count).map(|n| NewTask::new(task(n)).props(&n).unwrap()).collect()
}

fn task(n: usize) -> TaskId {
    TaskId::parse(&format!("t{n}")).unwrap()
}

fn txns(etcd: &Etcd) -> f64 {
    etcd.member(0).metric_with("grpc_server_started_total", "grpc_method=\"Txn\"")
}

async fn submit_all(client: &Client, count: usize) -> Vec<Result<Submitted, SubmitError>> {
    client.submit_many(tasks(count)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_tasks_are_submitted_in_a_hundred_requests() {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let client = client(&store);
    let before = txns(&etcd);
    let results = submit_all(&client, 10_000).await;
    assert!(results.iter().all(|result| matches!(result, Ok(Submitted::Accepted))));
    let asked = txns(&etcd) - before;
    assert!(asked <= 100.0, "{asked} requests");
    assert_eq!(client.tasks(&TaskFilter::new()).await.unwrap().tasks.len(), 10_000);
    // Each that is there already is told so, and the others are taken.
    let results = submit_all(&client, 10_100).await;
    assert!(results[..10_000].iter().all(|result| matches!(result, Err(SubmitError::Exists))));
    assert!(results[10_000..].iter().all(Result::is_ok));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_many_has_a_result_of_its_own() {
    on_every_engine(|store| async move {
        let client = client(&store);
        put_states(&store, (0..300).step_by(3), State::Killed).await;
        put_states(&store, (1..300).step_by(3), State::Paused).await;
        let results = submit_all(&client, 300).await;
        for (n, result) in results.into_iter().enumerate() {
            let wanted = if n % 3 == 0 { Submitted::Ended(StateKind::Killed) } else { Submitted::Accepted };
            assert_eq!(result.unwrap(), wanted, "{n}");
        }
        let listing = client.tasks(&TaskFilter::new()).await.unwrap();
        assert_eq!(listing.tasks.len(), 300);
        for view in listing.tasks {
            let n: usize = view.id.as_str()[1..].parse().unwrap();
            let wanted = [StateKind::Killed, StateKind::Paused, StateKind::Runnable][n % 3];
            assert_eq!(view.state_kind(), Some(wanted));
            assert_eq!(view.record().unwrap().ended, n.is_multiple_of(3));
        }
        assert_eq!(client.props(&task(7)).await.unwrap().unwrap(), "7");
    })
    .await;
}

async fn put_states(store: &Store, which: impl Iterator<Item = usize>, state: State) {
    let value = StateRecord { state, ..StateRecord::default() }.encode();
    let put = |n: usize| Op::put(layout().encode(&Key::TaskState(task(n))), value.clone());
    for outcome in store.apply_all(which.map(put)).await.unwrap() {
        outcome.unwrap();
    }
}

/// While tasks move from one state to another, no listing shows one in both, or in neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_is_one_picture_while_tasks_change() {
    on_every_engine(|store| async move {
        let client = client(&store);
        submit_all(&client, 250).await;
        let writing = {
            let store = store.clone();
            tokio::spawn(async move {
                for round in 0..40 {
                    let state = if round % 2 == 0 { State::Paused } else { State::Runnable };
                    let value = StateRecord { state, ..StateRecord::default() }.encode();
                    let put = |n: usize| Op::put(layout().encode(&Key::TaskState(task(n))), value.clone());
                    let txn = tenure::store::Txn { then: (0..100).map(put).collect(), ..Default::default() };
                    store.txn(txn).await.unwrap();
                }
            })
        };
        let mut looks = 0;
        while !writing.is_finished() || looks == 0 {
            let listing = client.tasks(&TaskFilter::new().state(StateKind::Paused)).await.unwrap();
            assert!(matches!(listing.tasks.len(), 0 | 100), "{}", listing.tasks.len());
            let with_ended = TaskFilter::new().state(StateKind::Paused).with_ended();
            let listing = client.tasks(&with_ended).await.unwrap();
            assert!(matches!(listing.tasks.len(), 0 | 100), "{}", listing.tasks.len());
            looks += 1;
        }
        writing.await.unwrap();
    })
    .await;
}
