//! What runs a task: your code, and what it is given to work with.
//!
//! ```
//! use tenure::handler::{Context, Outcome};
//!
//! async fn count_to_ten(ctx: Context) -> Outcome {
//!     let begun = ctx.checkpoint().and_then(|bytes| bytes.first().copied()).unwrap_or(0);
//!     for n in begun..10 {
//!         tokio::select! {
//!             biased;
//!             // Told to stop: give the task back with what was done so far.
//!             _ = ctx.stopped() => {
//!                 return match ctx.save_checkpoint(vec![n]).await {
//!                     Ok(()) => Outcome::Release,
//!                     Err(error) => Outcome::Fault(error.to_string()),
//!                 };
//!             }
//!             () = tokio::task::yield_now() => {}
//!         }
//!     }
//!     Outcome::Done
//! }
//! # fn is_a_handler(_: impl tenure::handler::Handler) {}
//! # is_a_handler(count_to_ten);
//! ```

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use tenure_core::fence::Fence;
use tenure_core::id::TaskId;
use tenure_core::record::TaskRecord;
use tenure_core::revision::Token;
use tenure_core::task::{Checkpoint, CheckpointTooLarge, StateRecord};
use tenure_core::time::Moment;
use tenure_core::worker::{Start, StopReason};
use thiserror::Error;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::hold::{Hold, LossReason, Subject, Validity};
use crate::news;
use crate::session::Loan;
use crate::store::Store;

pub use tenure_core::worker::Outcome;

/// Runs tasks. An `async fn(Context) -> Outcome` is one.
///
/// # Guarantees
///
/// * It runs only while this node owns the task, as far as the node can tell, and at most once at a time on one node.
/// * A panic in it is a fault of its task, and of nothing else.
/// * What it is told by [`Context::stopped`] comes before anybody else can own the task, unless its lease is revoked by hand.
///
/// # Not guaranteed
///
/// * *Exactly once*: a task runs at least once. A node that dies has not said how far it got; write guarded by [`Hold::fenced`], or show
///   [`Hold::token`] to whatever you write to.
/// * That it can be stopped: it is asked, and after its grace dropped at its next `.await`. Code that blocks cannot be stopped by anybody.
pub trait Handler: Send + Sync + 'static {
    /// Runs one task until it is done, fails, or is told to stop.
    fn run(&self, context: Context) -> impl Future<Output = Outcome> + Send + 'static;
}

impl<F, R> Handler for F
where
    F: Fn(Context) -> R + Send + Sync + 'static,
    R: Future<Output = Outcome> + Send + 'static,
{
    fn run(&self, context: Context) -> impl Future<Output = Outcome> + Send + 'static {
        self(context)
    }
}

/// A handler of any type.
pub(crate) trait AnyHandler: Send + Sync {
    fn begin(&self, context: Context) -> Pin<Box<dyn Future<Output = Outcome> + Send>>;
}

impl<H: Handler> AnyHandler for H {
    fn begin(&self, context: Context) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        // A handler may panic before it has made its future, and that is its task's fault too.
        match catch_unwind(AssertUnwindSafe(|| self.run(context))) {
            Ok(running) => Box::pin(running),
            Err(panic) => Box::pin(std::future::ready(Outcome::Fault(words_of(&*panic)))),
        }
    }
}

/// What a panic said.
pub(crate) fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    match said {
        Some(said) => format!("the handler panicked: {said}"),
        None => "the handler panicked".to_owned(),
    }
}

/// What a handler is given: its task, how far it got, and whether it may continue. Cheap to clone. The claim is a [`Hold`].
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    start: Start,
    hold: Hold,
    store: Store,
    /// Keeps the lease while the handler, or a clone of its context, is alive.
    _loan: Loan,
    stop: news::Receiver<Option<Told>>,
    wanted: Arc<Notify>,
    progress: mpsc::UnboundedSender<Progress>,
}

/// That a handler was told to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    pub(crate) why: StopReason,
    pub(crate) until: Moment,
}

/// Progress that a handler wants kept.
pub(crate) struct Progress {
    pub(crate) task: TaskId,
    pub(crate) token: Token,
    pub(crate) blob: Checkpoint,
    pub(crate) answer: oneshot::Sender<Result<(), String>>,
}

/// The node's ends of what a context is connected to.
pub(crate) struct Reins {
    pub(crate) stop: news::Sender<Option<Told>>,
    pub(crate) wanted: Arc<Notify>,
    /// Ended when the claim is lost, and when nothing of the run is left.
    pub(crate) validity: Validity,
}

impl Drop for Reins {
    fn drop(&mut self) {
        // The node has ended, and with it the renewal of what the claim means.
        self.validity.end(LossReason::Closed);
    }
}

impl Context {
    pub(crate) fn new(
        start: Start,
        fence: Fence,
        store: Store,
        loan: Loan,
        progress: mpsc::UnboundedSender<Progress>,
    ) -> (Context, Reins) {
        let (stop, told) = news::channel(None);
        let wanted = Arc::new(Notify::new());
        let subject = Subject { kind: "task", name: start.task.shared_str() };
        let validity = loan.validity_of(subject);
        let hold = Hold::new(validity.clone(), fence, loan.lease(), store.clone());
        let reins = Reins { stop, wanted: wanted.clone(), validity };
        let inner = Inner { start, hold, store, _loan: loan, stop: told, wanted, progress };
        (Context { inner: Arc::new(inner) }, reins)
    }

    /// The task.
    pub fn task(&self) -> &TaskId {
        &self.inner.start.task
    }

    /// What its submitter says of it: kind, labels, when it was submitted.
    pub fn record(&self) -> &TaskRecord {
        &self.inner.start.record
    }

    /// What it was submitted with.
    pub fn props(&self) -> Option<&Bytes> {
        self.inner.start.props.as_ref()
    }

    /// What it was submitted with, read as a type of yours. A task without props is read as JSON's `null`.
    ///
    /// # Errors
    ///
    /// Why it cannot be read; returned as [`Outcome::Fault`] it stands in the task's state.
    pub fn props_as<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(self.props().map_or(b"null", |props| props))
    }

    /// Which attempt this is, from 1 on: one more than the faults so far. Moves from node to node are not counted.
    pub fn attempt(&self) -> u64 {
        self.state().attempt()
    }

    /// How the task stood when this run began: errors, history, faults.
    pub fn state(&self) -> &StateRecord {
        &self.inner.start.state
    }

    /// The progress that was last kept before this run began.
    pub fn checkpoint(&self) -> Option<&Bytes> {
        self.state().checkpoint.as_ref().map(Checkpoint::bytes)
    }

    /// The store that the task lives in.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Waits until the handler must stop, and says why. Comes on time even while the node or the store hangs.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind.
    pub async fn stopped(&self) -> StopReason {
        let mut told = self.inner.stop.clone();
        tokio::select! {
            biased;
            told = told.wait_for(Option::is_some) => match told.as_deref() {
                Ok(Some(told)) => told.why,
                // The node is gone: nobody keeps the claim any more.
                Ok(None) | Err(_) => StopReason::Lost,
            },
            lost = self.lost() => match lost.reason {
                LossReason::Closed => StopReason::Shutdown,
                LossReason::Deleted => StopReason::Deleted,
                _ => StopReason::Lost,
            },
        }
    }

    /// How much longer it may take to stop; none if it was not told to.
    pub fn grace(&self) -> Option<Duration> {
        let told = *self.inner.stop.borrow();
        told.map(|told| told.until.remaining(self.clock().now()))
    }

    /// Waits until somebody wants the progress kept (`tenure task checkpoint`).
    ///
    /// # Cancellation
    ///
    /// Nothing is lost: the next call is told.
    pub async fn checkpoint_wanted(&self) {
        self.inner.wanted.notified().await;
    }

    /// Keeps progress with the task's state, for whoever runs it next. Returns when it is stored.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`]; nothing was stored then, except if the store's answer was lost.
    ///
    /// # Cancellation
    ///
    /// It may be stored or not.
    pub async fn save_checkpoint(&self, blob: impl Into<Bytes>) -> Result<(), CheckpointError> {
        let blob = Checkpoint::new(blob)?;
        let (answer, answered) = oneshot::channel();
        let progress = Progress { task: self.task().clone(), token: self.token(), blob, answer };
        self.inner.progress.send(progress).map_err(|_| CheckpointError::NodeGone)?;
        match answered.await {
            Ok(stored) => stored.map_err(CheckpointError::NotStored),
            Err(_) => Err(CheckpointError::NodeGone),
        }
    }
}

impl Deref for Context {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.inner.hold
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({} at {}, {:?} left)", self.task(), self.token(), self.remaining())
    }
}

/// Why progress was not kept.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// Keep it elsewhere, and keep here where that is.
    #[error(transparent)]
    TooLarge(#[from] CheckpointTooLarge),
    /// The node could not store it, and says why.
    #[error("progress is not kept: {0}")]
    NotStored(String),
    /// The node has ended: stop.
    #[error("progress is not kept: the node has ended")]
    NodeGone,
}
