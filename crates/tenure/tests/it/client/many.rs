//! Many tasks at once: few requests, one snapshot.

use std::time::Duration;

use tenure::store::{Op, Selection, Store, Txn};
use tenure::task::{SubmitError, TaskHandle, WaitTaskError, new_task_ids};
use tenure::{NewTask, Tenure};
use tenure_core::id::TaskId;
use tenure_core::layout::Key;
use tenure_core::record::Record;
use tenure_core::task::{StateRecord, TaskState, TaskStatus};
use tenure_fixture::Etcd;

use super::{client, layout, props_of};
use crate::membership::{connect, on_every_engine};

fn tasks(count: usize) -> Vec<NewTask> {
    (0..count).map(|n| NewTask::new("").id(task(n)).props(&n)).collect()
}

fn task(n: usize) -> TaskId {
    TaskId::parse(&format!("t{n}")).unwrap()
}

fn txns(etcd: &Etcd) -> f64 {
    etcd.member(0).metric_with("grpc_server_started_total", "grpc_method=\"Txn\"")
}

async fn submit_all(client: &Tenure, count: usize) -> Vec<Result<TaskHandle, SubmitError>> {
    client.submit_all(tasks(count)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_submit_sends_at_most_100_requests() {
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let client = client(&store);
    let before = txns(&etcd);
    let results = submit_all(&client, 10_000).await;
    assert!(results.iter().all(Result::is_ok));
    let asked = txns(&etcd) - before;
    assert!(asked <= 100.0, "{asked} requests");
    assert_eq!(client.tasks().list().await.unwrap().tasks.len(), 10_000);
    // Each existing id is refused with `Exists`, and the others are stored.
    let results = submit_all(&client, 10_100).await;
    assert!(results[..10_000].iter().all(|result| matches!(result, Err(SubmitError::Exists { .. }))));
    assert!(results[10_000..].iter().all(Result::is_ok));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_submit_reports_each_result_separately() {
    on_every_engine(|store| async move {
        let client = client(&store);
        put_states(&store, (0..300).step_by(3), TaskStatus::Killed).await;
        put_states(&store, (1..300).step_by(3), TaskStatus::Paused).await;
        let results = submit_all(&client, 300).await;
        for (n, result) in results.into_iter().enumerate() {
            match result {
                Err(SubmitError::Finished { state: TaskState::Killed }) => assert_eq!(n % 3, 0, "{n}"),
                result => assert!(result.is_ok() && n % 3 != 0, "{n}: {result:?}"),
            }
        }
        let listing = client.tasks().list().await.unwrap();
        assert_eq!(listing.tasks.len(), 200);
        for view in listing.tasks {
            let n: usize = view.id.as_str()[1..].parse().unwrap();
            let wanted = [TaskState::Killed, TaskState::Paused, TaskState::Runnable][n % 3];
            assert_eq!(view.state(), Some(wanted));
            assert!(!view.record().unwrap().ended);
        }
        assert_eq!(props_of(&client, &task(7)).await.unwrap(), "7");
    })
    .await;
}

async fn put_states(store: &Store, which: impl Iterator<Item = usize>, state: TaskStatus) {
    let value = StateRecord { state, ..StateRecord::default() }.encode();
    let put = |n: usize| Op::put(layout().encode(&Key::TaskState(task(n))), value.clone());
    for outcome in store.apply_all(which.map(put)).await.unwrap() {
        outcome.unwrap();
    }
}

/// While tasks move from one state to another, no listing shows one in both, or in neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_query_is_consistent_while_tasks_change() {
    on_every_engine(|store| async move {
        let client = client(&store);
        submit_all(&client, 250).await;
        let writing = {
            let store = store.clone();
            tokio::spawn(async move {
                for round in 0..40 {
                    let state = if round % 2 == 0 { TaskStatus::Paused } else { TaskStatus::Runnable };
                    let value = StateRecord { state, ..StateRecord::default() }.encode();
                    let put = |n: usize| Op::put(layout().encode(&Key::TaskState(task(n))), value.clone());
                    let txn = Txn { then: (0..100).map(put).collect(), ..Default::default() };
                    store.txn(txn).await.unwrap();
                }
            })
        };
        let mut looks = 0;
        while !writing.is_finished() || looks == 0 {
            let listing = client.tasks().state(TaskState::Paused).list().await.unwrap();
            assert!(matches!(listing.tasks.len(), 0 | 100), "{}", listing.tasks.len());
            let listing = client.tasks().state(TaskState::Paused).finished().list().await.unwrap();
            assert!(matches!(listing.tasks.len(), 0 | 100), "{}", listing.tasks.len());
            looks += 1;
        }
        writing.await.unwrap();
    })
    .await;
}

/// Ends a task as its owner would: the state is written in the step that takes the task away.
async fn end(store: &Store, n: usize, state: TaskStatus) {
    let record = StateRecord { state, ..StateRecord::default() };
    let txn = Txn::new()
        .then(Op::put(layout().encode(&Key::TaskState(task(n))), record.encode()))
        .then(Op::delete(layout().encode(&Key::Task(task(n)))));
    store.txn(txn).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_wait_reports_each_task_end() {
    on_every_engine(|store| async move {
        let client = client(&store);
        submit_all(&client, 40).await;
        // One task has ended before the wait begins, and one does not exist.
        end(&store, 0, TaskStatus::Completed).await;
        let waiting = client.clone();
        let ids: Vec<TaskId> = (0..30).chain([99]).map(task).collect();
        let waiting =
            tokio::spawn(
                async move { waiting.tasks().ids(ids).wait().timeout(Duration::from_secs(20)).await },
            );
        for n in 1..30 {
            match n % 3 {
                0 => end(&store, n, TaskStatus::Completed).await,
                1 => end(&store, n, TaskStatus::Failed).await,
                _ => drop(client.task(task(n)).delete().await.unwrap()),
            }
        }
        let ends = waiting.await.unwrap().unwrap();
        assert_eq!(ends.len(), 31);
        for n in 1..30 {
            let end = &ends[&task(n)];
            match n % 3 {
                0 => assert_eq!(end.as_ref().unwrap().state, TaskState::Completed, "{n}"),
                1 => assert_eq!(end.as_ref().unwrap().state, TaskState::Failed, "{n}"),
                // It may have been deleted before the first look.
                _ => assert!(matches!(end, Err(WaitTaskError::Deleted | WaitTaskError::NotFound)), "{end:?}"),
            }
        }
        assert!(ends[&task(0)].is_ok());
        assert!(matches!(ends[&task(99)], Err(WaitTaskError::NotFound)));
        let late = client
            .tasks()
            .ids([task(30), task(31)])
            .wait()
            .timeout(Duration::from_millis(100))
            .await
            .unwrap();
        assert!(late.values().all(|end| matches!(end, Err(WaitTaskError::Timeout { .. }))), "{late:?}");
        assert!(client.tasks().ids::<TaskId>([]).wait().timeout(Duration::ZERO).await.unwrap().is_empty());
        store.delete(Selection::everything()).await.unwrap();
    })
    .await;
}

#[test]
fn new_task_ids_are_unique_and_sorted() {
    let ids: Vec<TaskId> = new_task_ids().take(10_000).collect();
    assert!(ids.is_sorted_by(|a, b| a < b));
}
