//! What a handler works with: its task, the stored progress, and when it has to stop.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_core::fence::Fence;
use tenure_core::id::TaskId;
use tenure_core::revision::Token;
use tenure_core::task::{Checkpoint, CheckpointTooLarge};
use tenure_core::time::Moment;
use tenure_core::worker::HandlerStart;
use thiserror::Error;
use tokio::sync::{Notify, mpsc, oneshot};

use super::handler::StopCause;
use crate::hold::{Hold, LossReason, Lost, Subject, Validity};
use crate::ordered_watch;
use crate::session::LeaseHandle;
use crate::tenure::Tenure;

pub use tenure_core::worker::StopReason;

/// A claimed task with its props. Dereferences to [`TaskContext`].
#[derive(Debug)]
pub struct Task<P = ()> {
    /// What the task was submitted with.
    pub props: P,
    context: TaskContext,
}

impl<P> Task<P> {
    pub(super) fn new(props: P, context: TaskContext) -> Task<P> {
        Task { props, context }
    }

    /// The context, for code that does not depend on the props.
    pub fn context(&self) -> TaskContext {
        self.context.clone()
    }
}

impl<P> Deref for Task<P> {
    type Target = TaskContext;

    fn deref(&self) -> &TaskContext {
        &self.context
    }
}

/// A claimed task without its props. Cheap to clone. The claim is a [`Hold`].
#[derive(Clone)]
pub struct TaskContext {
    inner: Arc<ContextState>,
}

struct ContextState {
    start: HandlerStart,
    hold: Hold,
    tenure: Tenure,
    /// Keeps the lease while the handler, or a clone of its context, is alive.
    _loan: LeaseHandle,
    stop: ordered_watch::OrderedReceiver<Option<Stop>>,
    checkpoint_requested: Arc<Notify>,
    saves: mpsc::UnboundedSender<SaveCheckpoint>,
}

/// That a handler has to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stop {
    pub(crate) reason: StopReason,
    pub(crate) until: Moment,
}

/// Progress that a handler stores.
pub(crate) struct SaveCheckpoint {
    pub(crate) task: TaskId,
    pub(crate) token: Token,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) reply: oneshot::Sender<Result<(), String>>,
}

/// The worker's ends of a context.
pub(crate) struct Controls {
    pub(crate) stop: ordered_watch::OrderedSender<Option<Stop>>,
    pub(crate) checkpoint_requested: Arc<Notify>,
    /// Ended when the claim is lost, and when the run has ended.
    pub(crate) validity: Validity,
}

impl Drop for Controls {
    fn drop(&mut self) {
        // The worker has ended, and no process renews the claim any more.
        self.validity.end(LossReason::Closed);
    }
}

impl TaskContext {
    pub(crate) fn new(
        start: HandlerStart,
        fence: Fence,
        tenure: Tenure,
        loan: LeaseHandle,
        saves: mpsc::UnboundedSender<SaveCheckpoint>,
    ) -> (TaskContext, Controls) {
        let (stop, stopped) = ordered_watch::channel(None);
        let checkpoint_requested = Arc::new(Notify::new());
        let subject = Subject { kind: "task", name: start.task.shared_str() };
        let validity = loan.validity_of(subject);
        let hold = Hold::new(validity.clone(), fence, loan.lease(), tenure.store().clone());
        let controls = Controls { stop, checkpoint_requested: checkpoint_requested.clone(), validity };
        let inner =
            ContextState { start, hold, tenure, _loan: loan, stop: stopped, checkpoint_requested, saves };
        (TaskContext { inner: Arc::new(inner) }, controls)
    }

    /// The id of the task.
    pub fn id(&self) -> &TaskId {
        &self.inner.start.task
    }

    /// The kind of the task; empty if it was submitted without one.
    pub fn kind(&self) -> &str {
        self.inner.start.record.kind.as_deref().unwrap_or_default()
    }

    /// The labels of the task.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.inner.start.record.labels
    }

    /// The number of this attempt, from 1 on: failed and lost attempts count, moves between workers do not.
    pub fn attempt(&self) -> u64 {
        self.inner.start.state.attempt()
    }

    /// The props as they are stored; none if the task has none.
    pub fn props_bytes(&self) -> Option<&Bytes> {
        self.inner.start.props.as_ref()
    }

    /// The connection of the worker, to lock, submit or read in the namespace of the task.
    pub fn tenure(&self) -> &Tenure {
        &self.inner.tenure
    }

    /// The progress that the last attempt stored; none if there is none.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Invalid`] if it is not of this type. It is stored as JSON by [`TaskContext::save_checkpoint`].
    pub fn checkpoint<T: DeserializeOwned>(&self) -> Result<Option<T>, CheckpointError> {
        let decode = |bytes: &Bytes| serde_json::from_slice(bytes).map_err(CheckpointError::Invalid);
        self.checkpoint_bytes().map(decode).transpose()
    }

    /// The progress that the last attempt stored, as bytes.
    pub fn checkpoint_bytes(&self) -> Option<&Bytes> {
        self.inner.start.state.checkpoint.as_ref().map(Checkpoint::bytes)
    }

    /// Stores progress with the task for the next attempt, as JSON. Returns when it is stored.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`].
    ///
    /// # Cancellation
    ///
    /// The progress may be stored or not.
    pub async fn save_checkpoint<T: Serialize + Sync + ?Sized>(
        &self,
        value: &T,
    ) -> Result<(), CheckpointError> {
        let bytes = serde_json::to_vec(value).map_err(CheckpointError::Invalid)?;
        self.save_checkpoint_bytes(bytes).await
    }

    /// Stores progress as bytes; otherwise as [`TaskContext::save_checkpoint`].
    ///
    /// # Errors
    ///
    /// [`CheckpointError`].
    ///
    /// # Cancellation
    ///
    /// The progress may be stored or not.
    pub async fn save_checkpoint_bytes(&self, bytes: impl Into<Bytes>) -> Result<(), CheckpointError> {
        let checkpoint = Checkpoint::new(bytes)?;
        let (reply, stored) = oneshot::channel();
        let save = SaveCheckpoint { task: self.id().clone(), token: self.token(), checkpoint, reply };
        let sent = self.inner.saves.send(save).is_ok();
        // Both channels end with the worker, and the hold has the reason then.
        let stored = if sent { stored.await.ok() } else { None };
        match stored {
            Some(Ok(())) => Ok(()),
            Some(Err(reason)) => Err(self.not_stored(reason)),
            None => Err(self.not_stored("the worker has ended".to_owned())),
        }
    }

    fn not_stored(&self, reason: String) -> CheckpointError {
        match self.check() {
            Err(lost) => CheckpointError::Lost(lost),
            Ok(()) => CheckpointError::NotStored(reason),
        }
    }

    /// Waits until a client requests a checkpoint, for example with `tenure task checkpoint`.
    ///
    /// # Cancellation
    ///
    /// No request is missed: the next call returns.
    pub async fn checkpoint_requested(&self) {
        self.inner.checkpoint_requested.notified().await;
    }

    /// Waits until the handler has to stop, and returns the reason. Returns on time although the worker or the store hangs.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn stopped(&self) -> StopReason {
        let mut stop = self.inner.stop.clone();
        tokio::select! {
            biased;
            stop = stop.wait_for(Option::is_some) => match stop.as_deref() {
                Ok(Some(stop)) => stop.reason,
                // The worker has ended, and no process renews the claim any more.
                Ok(None) | Err(_) => StopReason::Lost,
            },
            lost = self.lost() => stop_reason(lost.reason),
        }
    }

    /// Whether the handler has to stop.
    pub fn is_stopping(&self) -> bool {
        self.inner.stop.borrow().is_some() || !self.is_valid()
    }

    /// How long the handler may still take to stop; none if it does not have to.
    pub fn grace(&self) -> Option<Duration> {
        let stop = *self.inner.stop.borrow();
        stop.map(|stop| stop.until.remaining(self.clock().now()))
    }

    /// Runs a future, and drops it when the handler has to stop. Never polls it while the claim is not valid.
    ///
    /// # Errors
    ///
    /// [`Stopped`] with the reason. Returned by the handler it is no failure.
    ///
    /// # Cancellation
    ///
    /// Drops the future too.
    pub async fn until_stopped<F: Future>(&self, work: F) -> Result<F::Output, Stopped> {
        tokio::select! {
            biased;
            reason = self.stopped() => Err(Stopped { reason }),
            done = self.run(work) => done.map_err(|lost| Stopped { reason: stop_reason(lost.reason) }),
        }
    }

    /// Sleeps while the task stays claimed, on the clock of the session. For a long sleep return [`Outcome::Sleep`](super::Outcome::Sleep).
    ///
    /// # Errors
    ///
    /// [`Stopped`] if the handler has to stop before that.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn sleep(&self, time: Duration) -> Result<(), Stopped> {
        let clock = self.clock();
        self.until_stopped(clock.sleep_until(clock.now() + time)).await
    }
}

fn stop_reason(loss: LossReason) -> StopReason {
    match loss {
        LossReason::Closed => StopReason::Shutdown,
        LossReason::Deleted => StopReason::Deleted,
        _ => StopReason::Lost,
    }
}

impl Deref for TaskContext {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.inner.hold
    }
}

impl fmt::Debug for TaskContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskContext({} at {}, {:?} left)", self.id(), self.token(), self.remaining())
    }
}

/// The handler had to stop. Returned with `?` it is no failure: what follows is decided by what stopped it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopped {
    /// Why.
    pub reason: StopReason,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the handler was stopped ({})", self.reason.as_str())
    }
}

impl StdError for Stopped {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&StopCause)
    }
}

/// Why progress is not read or not stored.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// It is not of this type, or cannot be written as JSON.
    #[error("the checkpoint is not of this type")]
    Invalid(#[source] serde_json::Error),
    /// It is too long. Store it elsewhere, and its address here.
    #[error(transparent)]
    TooLarge(#[from] CheckpointTooLarge),
    /// The claim is lost, and nothing is stored: stop.
    #[error("the checkpoint is not stored")]
    Lost(#[source] Lost),
    /// The store did not store it, or that is unknown.
    #[error("the checkpoint is not stored: {0}")]
    NotStored(String),
}
