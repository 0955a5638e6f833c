//! Handlers: the code that runs tasks of one kind, and how it reports what follows.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use tenure_core::record::Timestamp;
use tenure_core::task::retry::RetryDecision;
use tenure_core::worker::HandlerEnd;

use super::context::{Stopped, Task, TaskContext};
use crate::clock::{timestamp, wall_time};
use crate::hold::LossReason;
use crate::tenure::BoxFuture;

/// Runs tasks with props of type `P`. An `async fn(Task<P>) -> Result<(), E>` is a handler for every error type.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tenure::task::Handler;
/// use tenure::{Outcome, Task, TaskError};
///
/// #[derive(Serialize, Deserialize)]
/// struct Import {
///     file: String,
///     rows: u32,
/// }
///
/// async fn import(task: Task<Import>) -> Result<(), TaskError> {
///     let start = task.checkpoint::<u32>()?.unwrap_or(0);
///     for row in start..task.props.rows {
///         task.until_stopped(load(&task.props.file, row)).await??; // `Err(Stopped)` is no failure
///         task.save_checkpoint(&(row + 1)).await?;
///     }
///     Ok(())
/// }
///
/// struct Mailer {
///     from: String,
/// }
///
/// impl Handler<String> for Mailer {
///     async fn run(&self, task: Task<String>) -> Result<Outcome, TaskError> {
///         if self.from == task.props {
///             return Err(TaskError::permanent("sender and recipient are the same"));
///         }
///         Ok(Outcome::Complete)
///     }
/// }
/// # async fn load(_: &str, _: u32) -> std::io::Result<()> { Ok(()) }
/// # fn handles<P>(_: impl Handler<P>) {}
/// # handles(import);
/// # handles(Mailer { from: String::new() });
/// ```
///
/// # Guarantees
///
/// * It runs only while this worker's claim is valid, and at most once at a time on one worker.
/// * A panic fails the attempt, and nothing else.
/// * [`TaskContext::stopped`] returns before another worker can claim the task, unless the lease is revoked by an operator.
/// * Props that do not decode fail the attempt with their JSON path; the handler is not called.
///
/// # Not guaranteed
///
/// * *Exactly once*: a task runs at least once. Write with [`Hold::commit`](crate::Hold::commit), or send [`Hold::token`](crate::Hold::token)
///   to the system that is written to.
/// * That it can be stopped: it is requested to stop, and dropped at its next `.await` after the grace. Blocking code is not stopped.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a task handler for props `{P}`",
    note = "a handler is `async fn(Task<P>) -> Result<O, E>` with `O: Into<Outcome>` and `E: Into<TaskError>`, or a type that implements `Handler<P>`"
)]
pub trait Handler<P>: Send + Sync + 'static {
    /// Runs one attempt.
    ///
    /// # Errors
    ///
    /// [`TaskError`] fails the attempt; the retry policy of the worker decides what follows.
    fn run(&self, task: Task<P>) -> impl Future<Output = Result<Outcome, TaskError>> + Send;
}

impl<F, P, R, O, E> Handler<P> for F
where
    F: Fn(Task<P>) -> R + Send + Sync + 'static,
    R: Future<Output = Result<O, E>> + Send,
    O: Into<Outcome>,
    E: Into<TaskError>,
{
    fn run(&self, task: Task<P>) -> impl Future<Output = Result<Outcome, TaskError>> + Send {
        let running = self(task);
        async move { running.await.map(Into::into).map_err(Into::into) }
    }
}

/// What a handler returns. `()` is [`Outcome::Complete`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The task is completed. Terminal.
    Complete,
    /// Another worker runs the task; this one only if there is no other.
    Release,
    /// The task does not run before it is resumed.
    Pause,
    /// The task runs again after this long.
    Sleep(Duration),
    /// The task runs again at this time of the wall clock.
    SleepUntil(SystemTime),
}

impl From<()> for Outcome {
    fn from((): ()) -> Outcome {
        Outcome::Complete
    }
}

/// A failed attempt. Converts from every error, so `?` works in a handler.
///
/// An error with [`Stopped`] or [`Lost`](crate::Lost) in its chain of sources is no failure: the task goes on elsewhere.
pub struct TaskError {
    error: Box<dyn StdError + Send + Sync>,
    retry: RetryChoice,
}

/// What follows a failed attempt.
#[derive(Clone, Copy)]
enum RetryChoice {
    Policy,
    Never,
    After(Duration),
}

impl TaskError {
    /// Fails the task without another attempt.
    pub fn permanent(error: impl Into<Box<dyn StdError + Send + Sync>>) -> TaskError {
        TaskError { error: error.into(), retry: RetryChoice::Never }
    }

    /// Fails the attempt, and the next one begins after this delay, whatever the retry policy decides.
    pub fn retry_after(error: impl Into<Box<dyn StdError + Send + Sync>>, delay: Duration) -> TaskError {
        TaskError { error: error.into(), retry: RetryChoice::After(delay) }
    }

    /// Whether the handler only returned because it had to stop. The reasons are sources of [`Stopped`] and `Lost`, so they are found below every
    /// wrapper, also below one that hides the type of its top-level error as `anyhow` does.
    fn is_stop(&self) -> bool {
        let mut cause: Option<&(dyn StdError + 'static)> = Some(self.error.as_ref());
        while let Some(error) = cause {
            if error.is::<Stopped>() || error.is::<StopCause>() || error.is::<LossReason>() {
                return true;
            }
            cause = error.source();
        }
        false
    }

    fn message(&self) -> String {
        let mut message = self.error.to_string();
        let mut cause = self.error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Transparent wrappers repeat the message of what they wrap.
            if !message.ends_with(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            cause = error.source();
        }
        message
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for TaskError {
    fn from(error: E) -> TaskError {
        TaskError { error: error.into(), retry: RetryChoice::Policy }
    }
}

impl fmt::Debug for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskError({:?})", self.message())
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

/// The source of every [`Stopped`]: found also in a chain that hides its first type.
#[derive(Clone, Copy, Debug)]
pub(super) struct StopCause;

impl fmt::Display for StopCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the worker requested it")
    }
}

impl StdError for StopCause {}

/// What the machine stores for the end of a handler.
pub(crate) fn reported(result: Result<Outcome, TaskError>) -> HandlerEnd {
    match result {
        Ok(Outcome::Complete) => HandlerEnd::Completed,
        Ok(Outcome::Release) => HandlerEnd::Release,
        Ok(Outcome::Pause) => HandlerEnd::Pause,
        Ok(Outcome::Sleep(time)) => HandlerEnd::Sleep { until: after(time) },
        Ok(Outcome::SleepUntil(time)) => HandlerEnd::Sleep { until: timestamp(time) },
        Err(error) if error.is_stop() => HandlerEnd::Release,
        Err(error) => {
            let message = error.message();
            match error.retry {
                RetryChoice::Policy => HandlerEnd::Fault(message),
                RetryChoice::Never => {
                    let decision = RetryDecision::Fail { reason: message.clone() };
                    HandlerEnd::FaultDecided { message, decision }
                }
                RetryChoice::After(delay) => HandlerEnd::FaultDecided {
                    message,
                    decision: RetryDecision::Sleep { until: after(delay) },
                },
            }
        }
    }
}

pub(crate) fn after(time: Duration) -> Timestamp {
    wall_time().after(time)
}

/// The message of a panic, as a failed attempt.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    match text {
        Some(text) => format!("the handler panicked: {text}"),
        None => "the handler panicked".to_owned(),
    }
}

/// What a handler receives as the props of a task: any type that serde decodes from JSON, or [`RawProps`].
///
/// A task without props is decoded from `null`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the props of a task",
    note = "derive `serde::Deserialize` for it, or use `RawProps`"
)]
pub trait FromProps: Sized + Send + 'static {
    /// Decodes stored props.
    ///
    /// # Errors
    ///
    /// Which part is not of this type.
    fn from_props(props: Option<&Bytes>) -> Result<Self, InvalidTaskProps>;
}

impl<P: DeserializeOwned + Send + 'static> FromProps for P {
    fn from_props(props: Option<&Bytes>) -> Result<P, InvalidTaskProps> {
        let mut json = serde_json::Deserializer::from_slice(props.map_or(b"null", |props| props));
        let decoded = serde_path_to_error::deserialize(&mut json).map_err(|error| InvalidTaskProps {
            path: error.path().to_string(),
            message: error.inner().to_string(),
        })?;
        // Text behind the value is a mistake of the program that stored it.
        json.end().map_err(|error| InvalidTaskProps { path: ".".to_owned(), message: error.to_string() })?;
        Ok(decoded)
    }
}

/// Props as they are stored, also if they are not JSON; empty if the task has none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawProps(pub Bytes);

impl FromProps for RawProps {
    fn from_props(props: Option<&Bytes>) -> Result<RawProps, InvalidTaskProps> {
        Ok(RawProps(props.cloned().unwrap_or_default()))
    }
}

/// Props that are not of the type that the handler takes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid props at {path}: {message}")]
pub struct InvalidTaskProps {
    /// The JSON path: `rows`, `to[2].name`; `.` for the whole.
    pub path: String,
    /// What is wrong there.
    pub message: String,
}

/// A handler of any type.
pub(crate) trait AnyHandler: Send + Sync {
    fn begin(self: Arc<Self>, context: TaskContext) -> BoxFuture<Result<Outcome, TaskError>>;
}

/// A handler with the type of its props.
struct Typed<H, P> {
    handler: H,
    props: PhantomData<fn() -> P>,
}

impl<P: FromProps, H: Handler<P>> AnyHandler for Typed<H, P> {
    fn begin(self: Arc<Self>, context: TaskContext) -> BoxFuture<Result<Outcome, TaskError>> {
        Box::pin(async move {
            let props = P::from_props(context.props_bytes())?;
            self.handler.run(Task::new(props, context)).await
        })
    }
}

pub(crate) fn erased<P: FromProps>(handler: impl Handler<P>) -> Arc<dyn AnyHandler> {
    Arc::new(Typed { handler, props: PhantomData })
}

#[cfg(test)]
mod tests;
