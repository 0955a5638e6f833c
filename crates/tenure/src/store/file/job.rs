//! A request on its way to a thread of the engine, and the queue in which it waits.
//!
//! The caller hands over a closure and keeps only the receiving end of a channel. So a dropped future leaves no
//! transaction open: the thread finishes a job that it has begun, and skips a job if its receiver was dropped.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::store::file::error::is_refusal;
use crate::store::file::rows::Tables;
use crate::store::{Cause, StoreError};

/// How many requests may wait in one queue. Far more than a machine serves in the five seconds after which they fail;
/// without a bound, a stalled disk would fill the memory.
const QUEUE_LEN_MAX: usize = 65_536;

/// A request that waits for its thread.
pub(super) struct Job {
    work: Box<dyn RunnableJob>,
    size: usize,
    /// When it joined the queue.
    pub(super) since: Instant,
}

impl Job {
    /// Makes a job, and the channel for its result. `size` is about how many bytes it writes.
    ///
    /// `work` may run twice: if SQLite fails in the middle of a group, each job of the group is tried again alone.
    pub(super) fn new<T, F>(size: usize, work: F) -> (Job, oneshot::Receiver<Result<T, StoreError>>)
    where
        T: Send + 'static,
        F: FnMut(&mut Tables<'_, '_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, result) = oneshot::channel();
        let call = JobCall { work, reply, result: None };
        (Job { work: Box::new(call), size, since: Instant::now() }, result)
    }

    /// Runs the job. A refusal is a result. An error is one of the transaction, which must then be rolled back.
    pub(super) fn run(&mut self, tables: &mut Tables<'_, '_>) -> Result<(), StoreError> {
        self.work.run(tables)
    }

    /// Sends the result to the caller, after COMMIT.
    pub(super) fn finish(self) {
        self.work.reply(None);
    }

    /// Sends an error to the caller: the job had no effect, or its outcome is unknown.
    pub(super) fn fail(self, error: StoreError) {
        self.work.reply(Some(error));
    }
}

trait RunnableJob: Send {
    fn is_wanted(&self) -> bool;
    fn run(&mut self, tables: &mut Tables<'_, '_>) -> Result<(), StoreError>;
    fn reply(self: Box<Self>, error: Option<StoreError>);
}

struct JobCall<T, F> {
    work: F,
    reply: oneshot::Sender<Result<T, StoreError>>,
    result: Option<Result<T, StoreError>>,
}

impl<T, F> RunnableJob for JobCall<T, F>
where
    T: Send,
    F: FnMut(&mut Tables<'_, '_>) -> Result<T, StoreError> + Send,
{
    fn is_wanted(&self) -> bool {
        !self.reply.is_closed()
    }

    fn run(&mut self, tables: &mut Tables<'_, '_>) -> Result<(), StoreError> {
        match (self.work)(tables) {
            Err(error) if !is_refusal(&error) => Err(error),
            result => {
                self.result = Some(result);
                Ok(())
            }
        }
    }

    fn reply(self: Box<Self>, error: Option<StoreError>) {
        let JobCall { reply, result, .. } = *self;
        let result = match (error, result) {
            // A refused request had no effect, whether the transaction around it was committed or not.
            (Some(_), Some(Err(refusal))) => Err(refusal),
            (Some(error), _) => Err(error),
            (None, Some(result)) => result,
            (None, None) => Err(StoreError::Closed),
        };
        // The caller may have dropped its future.
        let _ = reply.send(result);
    }
}

/// The queue of one thread.
pub(super) struct JobQueue {
    state: Mutex<QueuedJobs>,
    arrived: Condvar,
}

struct QueuedJobs {
    jobs: VecDeque<Job>,
    over: Option<StoreError>,
}

/// Why a thread that waited at its queue continues.
#[derive(Debug)]
pub(super) enum QueueWakeup {
    /// There are jobs.
    Jobs,
    /// There were none within its timeout.
    Idle,
    /// There will be no more.
    Over,
}

impl JobQueue {
    pub(super) fn new() -> JobQueue {
        let waiting = QueuedJobs { jobs: VecDeque::new(), over: None };
        JobQueue { state: Mutex::new(waiting), arrived: Condvar::new() }
    }

    /// Adds jobs. A job that does not fit gets an error.
    pub(super) fn join(&self, jobs: Vec<Job>) {
        let mut state = self.lock();
        let refusal = match &state.over {
            Some(over) => Some(over.clone()),
            None if state.jobs.len() + jobs.len() > QUEUE_LEN_MAX => {
                let reason = format!("{} requests are waiting already", state.jobs.len());
                Some(StoreError::Busy(Cause::new(reason)))
            }
            None => None,
        };
        if let Some(refusal) = refusal {
            drop(state);
            jobs.into_iter().for_each(|job| job.fail(refusal.clone()));
            return;
        }
        state.jobs.extend(jobs);
        drop(state);
        self.arrived.notify_one();
    }

    /// Waits for jobs, without taking them.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> QueueWakeup {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut state = self.lock();
        loop {
            if state.over.is_some() {
                return QueueWakeup::Over;
            }
            if !state.jobs.is_empty() {
                return QueueWakeup::Jobs;
            }
            state = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return QueueWakeup::Idle,
                Some(left) => {
                    self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Takes those at the head that make one group, without waiting for more.
    pub(super) fn take(&self, len_max: usize, bytes_max: usize) -> Vec<Job> {
        let mut state = self.lock();
        let mut group = Vec::new();
        let mut bytes = 0;
        while let Some(job) = state.jobs.front() {
            let is_full = group.len() == len_max || (!group.is_empty() && bytes + job.size > bytes_max);
            if is_full {
                break;
            }
            bytes += job.size;
            group.extend(state.jobs.pop_front().filter(|job| job.work.is_wanted()));
        }
        group
    }

    /// Takes those that have waited since before `limit`.
    pub(super) fn take_older_than(&self, limit: Instant) -> Vec<Job> {
        let mut state = self.lock();
        let old = state.jobs.iter().take_while(|job| job.since < limit).count();
        state.jobs.drain(..old).collect()
    }

    /// Since when the first one waits.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.lock().jobs.front().map(|job| job.since)
    }

    /// Ends the queue: queued and later jobs get this error.
    pub(super) fn end(&self, error: &StoreError) {
        let mut state = self.lock();
        state.over.get_or_insert_with(|| error.clone());
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.arrived.notify_all();
        for job in jobs {
            job.fail(error.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueuedJobs> {
        // No change of the list can panic between two steps.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
