//! Submits tasks: each exactly once, many at a time.

use tenure_core::backoff::Backoff;
use tenure_core::client::SubmitTasks;
use tenure_core::id::{CommandIds, TaskId};

use super::{Client, NewTask, SubmitError, Submitted};
use crate::clock::wall_time;
use crate::retry::Attempts;
use crate::rng;

/// How many tasks are prepared at a time: some forty requests, so that all connections are busy, and a few MiB at most as long as props are small.
const ROUND_LEN: usize = 4_096;

/// Ids for tasks that need no name, as many as you take: each is new, and they sort by the time at which they were made.
pub fn new_task_ids() -> impl Iterator<Item = TaskId> {
    let mut ids = CommandIds::default();
    std::iter::repeat_with(move || {
        let id = ids.next(wall_time(), rng::nonce().to_be_bytes());
        TaskId::parse(id.as_str()).expect("a UUID is a name")
    })
}

impl Client {
    /// Submits a task.
    ///
    /// # Errors
    ///
    /// See [`SubmitError`].
    pub async fn submit(&self, task: NewTask) -> Result<Submitted, SubmitError> {
        let mut results = self.submit_many(vec![task]).await;
        results.pop().expect("one task has one result")
    }

    /// Submits many tasks in as few requests as possible. Each has a result of its own, in the order in which they were given;
    /// of several with one id the first counts.
    pub async fn submit_many(&self, tasks: Vec<NewTask>) -> Vec<Result<Submitted, SubmitError>> {
        let mut submit = SubmitTasks::default();
        let mut tasks = tasks.into_iter().peekable();
        while tasks.peek().is_some() {
            for task in tasks.by_ref().take(ROUND_LEN) {
                submit.push(&self.layout, task, format!("{:016x}", rng::nonce()), wall_time());
            }
            let mut attempts = Attempts::new(&self.clock, Backoff::REQUEST);
            while !submit.is_done() {
                let replies = self.store.batch(submit.txns()).await;
                if let Some(error) = submit.handle(replies) {
                    attempts.wait("task submit", &error).await;
                }
            }
        }
        submit.into_results()
    }
}
