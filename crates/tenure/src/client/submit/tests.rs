//! What a submission makes of answers that were lost, on a store that nobody else uses.

use tenure_core::name::Namespace;
use tenure_core::task::State;

use super::*;
use crate::store::{Cause, Store};

fn attempt() -> Attempt {
    let layout = Layout::new(&Namespace::parse("t").unwrap());
    Attempt::new(&layout, NewTask::new(TaskId::parse("t1").unwrap()))
}

fn lost() -> Result<TxnReply, StoreError> {
    Err(StoreError::Ambiguous(Cause::new("cut off")))
}

async fn puts(store: &Store, attempt: &Attempt) -> i64 {
    store.get_key(attempt.keys.task.clone()).await.unwrap().map_or(0, |pair| pair.version)
}

async fn end(store: &Store, attempt: &Attempt, state: State) {
    let record = StateRecord { state, ..StateRecord::default() };
    let txn = Txn::new()
        .then(Op::delete(attempt.keys.task.clone()))
        .then(Op::put(attempt.keys.state.clone(), record.encode()));
    store.txn(txn).await.unwrap();
}

#[tokio::test]
async fn a_submission_that_was_done_is_known_again_by_its_nonce() {
    let (store, mut attempt) = (Store::memory(), attempt());
    store.txn(attempt.txn()).await.unwrap();
    assert!(attempt.handle(lost()).is_none());
    let again = store.txn(attempt.txn()).await;
    assert!(matches!(attempt.handle(again), Some(Ok(Submitted::Accepted))));
    assert_eq!(puts(&store, &attempt).await, 1);
}

#[tokio::test]
async fn a_submission_that_was_not_done_is_done_once() {
    let (store, mut attempt) = (Store::memory(), attempt());
    assert!(attempt.handle(lost()).is_none());
    let again = store.txn(attempt.txn()).await;
    assert!(matches!(attempt.handle(again), Some(Ok(Submitted::Accepted))));
    assert_eq!(puts(&store, &attempt).await, 1);
}

#[tokio::test]
async fn another_one_s_task_is_not_taken_for_ours() {
    let (store, mut ours) = (Store::memory(), attempt());
    store.txn(attempt().txn()).await.unwrap();
    assert!(ours.handle(lost()).is_none());
    let again = store.txn(ours.txn()).await;
    assert!(matches!(ours.handle(again), Some(Err(SubmitError::Exists))));
}

/// The answer was lost, somebody ran the task to its end, and then we look: a second submission would be one too many.
#[tokio::test]
async fn a_task_that_may_have_run_already_is_not_submitted_again() {
    let (store, mut attempt) = (Store::memory(), attempt());
    store.txn(attempt.txn()).await.unwrap();
    assert!(attempt.handle(lost()).is_none());
    end(&store, &attempt, State::Completed).await;
    let again = store.txn(attempt.txn()).await;
    assert!(matches!(attempt.handle(again), Some(Err(SubmitError::Unknown(_)))));
    assert_eq!(puts(&store, &attempt).await, 0);
}

#[tokio::test]
async fn a_definite_failure_after_a_lost_answer_is_not_definite() {
    let mut with_lost = attempt();
    assert!(with_lost.handle(lost()).is_none());
    assert!(matches!(with_lost.handle(Err(StoreError::Closed)), Some(Err(SubmitError::Unknown(_)))));
    assert!(matches!(attempt().handle(Err(StoreError::Closed)), Some(Err(SubmitError::Store(_)))));
}

#[tokio::test]
async fn after_three_lost_answers_it_is_not_known() {
    let mut attempt = attempt();
    assert!(attempt.handle(lost()).is_none());
    assert!(attempt.handle(lost()).is_none());
    assert!(matches!(attempt.handle(lost()), Some(Err(SubmitError::Unknown(_)))));
}

#[tokio::test]
async fn an_earlier_end_is_told_and_marked() {
    let (store, mut attempt) = (Store::memory(), attempt());
    end(&store, &attempt, State::Failed).await;
    let reply = store.txn(attempt.txn()).await;
    assert!(attempt.handle(reply).is_none());
    let reply = store.txn(attempt.txn()).await;
    assert!(matches!(attempt.handle(reply), Some(Ok(Submitted::Ended(StateKind::Failed)))));
    let stored = store.get_key(attempt.keys.task.clone()).await.unwrap().unwrap();
    assert!(TaskRecord::decode(&stored.value).unwrap().ended);
}
