//! What a submission makes of lost replies, on a store that no other client uses.

use super::super::tests::ClientWorld;
use super::*;
use crate::error::Cause;
use crate::id::Namespace;
use crate::task::TaskStatus;

fn submission(nonce: &str) -> Submission {
    let layout = Layout::new(&Namespace::parse("t").unwrap());
    let task = TaskSpec::new(TaskId::parse("t1").unwrap());
    Submission::new(&layout, task, (nonce.to_owned(), Timestamp(1)))
}

fn lost() -> Result<TxnReply, StoreError> {
    Err(StoreError::Ambiguous(Cause::new("cut off")))
}

fn stored(shop: &mut ClientWorld, submission: &Submission) -> Option<TaskRecord> {
    shop.get(&submission.keys.task).map(|pair| TaskRecord::decode(&pair.value).unwrap())
}

fn puts(shop: &mut ClientWorld, submission: &Submission) -> i64 {
    shop.get(&submission.keys.task).map_or(0, |pair| pair.version)
}

fn end(shop: &mut ClientWorld, submission: &Submission, state: TaskStatus) {
    let record = StateRecord { state, ..StateRecord::default() };
    let txn = Txn::new()
        .then(Op::delete(submission.keys.task.clone()))
        .then(Op::put(submission.keys.state.clone(), record.encode()));
    shop.apply(&txn).unwrap();
}

#[test]
fn applied_submission_is_recognised_by_nonce() {
    let (mut shop, mut submission) = (ClientWorld::new(), submission("n"));
    shop.apply(&submission.txn()).unwrap();
    assert!(submission.handle(lost()).is_none());
    let again = shop.apply(&submission.txn());
    assert!(matches!(submission.handle(again), Some(Ok(()))));
    assert_eq!(puts(&mut shop, &submission), 1);
}

#[test]
fn unapplied_submission_is_applied_once() {
    let (mut shop, mut submission) = (ClientWorld::new(), submission("n"));
    assert!(submission.handle(lost()).is_none());
    let again = shop.apply(&submission.txn());
    assert!(matches!(submission.handle(again), Some(Ok(()))));
    assert_eq!(puts(&mut shop, &submission), 1);
}

#[test]
fn task_of_another_client_exists() {
    let (mut shop, mut first) = (ClientWorld::new(), submission("first"));
    shop.apply(&submission("other").txn()).unwrap();
    assert!(first.handle(lost()).is_none());
    let again = shop.apply(&first.txn());
    assert!(matches!(first.handle(again), Some(Err(SubmitTaskError::Exists(TaskState::Runnable)))));
}

/// The reply was lost, and a worker ran the task to its end before the next request: a second submission would be one too many.
#[test]
fn maybe_run_task_is_not_resubmitted() {
    let (mut shop, mut submission) = (ClientWorld::new(), submission("n"));
    shop.apply(&submission.txn()).unwrap();
    assert!(submission.handle(lost()).is_none());
    end(&mut shop, &submission, TaskStatus::Completed);
    let again = shop.apply(&submission.txn());
    assert!(matches!(submission.handle(again), Some(Err(SubmitTaskError::Unknown(_)))));
    assert_eq!(puts(&mut shop, &submission), 0);
}

#[test]
fn failure_after_lost_reply_is_unknown() {
    let mut with_lost = submission("n");
    assert!(with_lost.handle(lost()).is_none());
    assert!(matches!(with_lost.handle(Err(StoreError::Closed)), Some(Err(SubmitTaskError::Unknown(_)))));
    assert!(matches!(submission("n").handle(Err(StoreError::Closed)), Some(Err(SubmitTaskError::Store(_)))));
}

#[test]
fn third_lost_reply_is_unknown() {
    let mut submission = submission("n");
    assert!(submission.handle(lost()).is_none());
    assert!(submission.handle(lost()).is_none());
    assert!(matches!(submission.handle(lost()), Some(Err(SubmitTaskError::Unknown(_)))));
}

#[test]
fn finished_id_is_refused_and_stores_nothing() {
    let (mut shop, mut submission) = (ClientWorld::new(), submission("n"));
    end(&mut shop, &submission, TaskStatus::Failed);
    let reply = shop.apply(&submission.txn());
    assert!(matches!(submission.handle(reply), Some(Err(SubmitTaskError::Finished(TaskState::Failed)))));
    assert_eq!(stored(&mut shop, &submission), None);
}

#[test]
fn rerun_replaces_final_state() {
    let (mut shop, mut submission) = (ClientWorld::new(), submission("n"));
    submission.rerun = true;
    end(&mut shop, &submission, TaskStatus::Failed);
    let reply = shop.apply(&submission.txn());
    assert!(submission.handle(reply).is_none());
    let reply = shop.apply(&submission.txn());
    assert!(matches!(submission.handle(reply), Some(Ok(()))));
    assert!(!stored(&mut shop, &submission).unwrap().ended);
    assert_eq!(shop.get(&submission.keys.state), None, "with its history");
}

/// The first rerun was applied and its reply lost: the task that it put must not be refused as another one.
#[test]
fn lost_rerun_reply_is_recognised_by_nonce() {
    let (mut shop, mut submission) = (ClientWorld::new(), submission("n"));
    submission.rerun = true;
    end(&mut shop, &submission, TaskStatus::Failed);
    let reply = shop.apply(&submission.txn());
    assert!(submission.handle(reply).is_none());
    shop.apply(&submission.txn()).unwrap();
    assert!(submission.handle(lost()).is_none());
    let again = shop.apply(&submission.txn());
    assert!(matches!(submission.handle(again), Some(Ok(()))));
    assert_eq!(puts(&mut shop, &submission), 1);
}

/// A version before 0.2 stored a finished task again, with a mark.
#[test]
fn marked_task_of_earlier_version_is_finished() {
    let (mut shop, mut submission) = (ClientWorld::new(), submission("n"));
    end(&mut shop, &submission, TaskStatus::Killed);
    let marked = TaskRecord { ended: true, nonce: "old".to_owned(), ..TaskRecord::default() };
    shop.apply(&Txn::new().then(Op::put(submission.keys.task.clone(), marked.encode()))).unwrap();
    let reply = shop.apply(&submission.txn());
    assert!(matches!(submission.handle(reply), Some(Err(SubmitTaskError::Finished(TaskState::Killed)))));
}
