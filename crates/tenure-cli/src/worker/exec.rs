//! Runs a task as a child process: its input, its stop, and the meaning of its exit code.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use rustix::process::Signal;
use tenure::task::{Handler, RawProps, StopReason, TaskContext};
use tenure::{Outcome, Task, TaskError};
use tenure_core::time::Moment;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::checkpoint_file::CheckpointFile;
use super::shell::Shell;
use super::stderr_tail::StderrTail;
use crate::failure::{Code, Failure};
use crate::hold::Timing;
use crate::output::Output;
use crate::supervise::{
    self, GroupLease, Job, PooledCommand, ProcessEnd, SentinelPool, StopTimes, SupervisorAction, run_pooled,
};

/// The exit code for "retry later" (EX_TEMPFAIL of sysexits.h).
const SLEEP: u8 = 75;

/// The exit code for "pause until `tenure task resume`".
const PAUSE: u8 = 99;

/// Longer props are on stdin only: Linux limits a variable to 128 KiB, its name included.
const PROPS_IN_ENV_MAX: usize = 100 * 1_024;

/// The number of concurrent process starts. Each first runs this program for a moment, and more of them only compete for the same cores.
const STARTS_AT_ONCE: usize = 8;

/// How long a task has to write a requested checkpoint, and the interval at which the worker reads its file meanwhile. The content is saved once two
/// reads agree, so that a half-written file is not saved.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_EVERY: Duration = Duration::from_millis(100);

/// Runs tasks as processes.
#[derive(Clone)]
pub(super) struct Exec {
    pool: Arc<ExecPool>,
}

/// The state that all tasks of a worker share.
pub(super) struct ExecPool {
    pub(super) shell: Shell,
    pub(super) timing: Timing,
    pub(super) sentinels: SentinelPool,
    /// The folder of the checkpoint files, with mode 0700.
    pub(super) folder: PathBuf,
    pub(super) namespace: String,
    pub(super) node: String,
    /// How long a task sleeps before a retry.
    pub(super) retry_after: Duration,
    /// The limit of open files for a task, if it differs from the worker's.
    pub(super) open_files: Option<u64>,
    /// True once all tasks are to be killed.
    pub(super) is_ending: watch::Receiver<bool>,
    /// Notes about tasks, for the operator.
    pub(super) remarks: mpsc::UnboundedSender<String>,
    pub(super) output: Output,
}

impl Exec {
    pub(super) fn new(pool: ExecPool) -> Exec {
        Exec { pool: Arc::new(pool) }
    }
}

impl Handler<RawProps> for Exec {
    async fn run(&self, task: Task<RawProps>) -> Result<Outcome, TaskError> {
        self.pool.run(task.context()).await
    }
}

/// Numbers the checkpoint files: the id of a task may contain characters that a file name may not.
static RUNS: AtomicU64 = AtomicU64::new(0);

static STARTS: Semaphore = Semaphore::const_new(STARTS_AT_ONCE);

impl ExecPool {
    async fn run(&self, context: TaskContext) -> Result<Outcome, TaskError> {
        let task = context.id();
        let name = RUNS.fetch_add(1, Ordering::Relaxed).to_string();
        let created = CheckpointFile::create(&self.folder, &name, context.checkpoint_bytes());
        let done = match &created {
            Ok(checkpoint) => self.supervise(&context, checkpoint).await,
            Err(error) => {
                Err(Failure::new(Code::Failed, format!("cannot create a checkpoint file: {error}")))
            }
        };
        let (outcome, last_line) = match done {
            Ok(done) => done,
            // The task did not run, so this is no failed attempt. Another host may have what this one lacks.
            Err(failure) => {
                self.remark(format!("'{task}' was not started and is released: {}", failure.message));
                return Ok(Outcome::Release);
            }
        };
        let is_deleted = context.stopped().now_or_never() == Some(StopReason::Deleted);
        // Also after a stop because of late renewals: the claim is valid for a moment longer, and the store may reply again.
        if context.is_valid()
            && !is_deleted
            && let Ok(checkpoint) = &created
            && let Err(why) = checkpoint.save(&context).await
        {
            self.remark(format!("the checkpoint of '{task}' was not saved: {why}"));
        }
        if outcome.is_lost && !is_deleted {
            self.remark(format!(
                "'{task}' was stopped, because its claim was lost or could not be renewed in time"
            ));
        }
        let result = self.interpret(outcome, last_line.as_deref());
        if let Err(why) = &result {
            self.remark(format!("'{task}' failed in attempt {}: {why}", context.attempt()));
        }
        result
    }

    /// Maps the end of a process to an outcome. After a requested stop the exit code does not count: most programs then end with 0, and that must
    /// not complete an unfinished task.
    fn interpret(
        &self,
        outcome: supervise::CommandExit,
        last_line: Option<&str>,
    ) -> Result<Outcome, TaskError> {
        if outcome.is_lost || outcome.is_stopped {
            return Ok(Outcome::Release);
        }
        let why = match outcome.end {
            ProcessEnd::Exited(0) => return Ok(Outcome::Complete),
            ProcessEnd::Exited(SLEEP) => return Ok(Outcome::Sleep(self.retry_after)),
            ProcessEnd::Exited(PAUSE) => return Ok(Outcome::Pause),
            ProcessEnd::Exited(code) => format!("exit code {code}"),
            ProcessEnd::Killed(signal) => match named(signal) {
                Some(name) => format!("killed by signal {signal} ({name})"),
                None => format!("killed by signal {signal}"),
            },
        };
        Err(match last_line {
            Some(line) => format!("{why}: {line}").into(),
            None => why.into(),
        })
    }

    /// Runs the process while the claim is valid.
    async fn supervise(
        &self,
        context: &TaskContext,
        checkpoint: &CheckpointFile,
    ) -> Result<(supervise::CommandExit, Option<String>), Failure> {
        let cannot = |error: io::Error| {
            Failure::new(Code::Failed, format!("cannot prepare the command: {error}"))
                .hint("see how many processes and open files you may have with `ulimit -a`")
        };
        let turn = tokio::select! {
            biased;
            _ = context.stopped() => return Err(Failure::new(Code::Lost, "the task was stopped before its start")),
            turn = STARTS.acquire() => turn.map_err(|_| Failure::new(Code::Failed, "the worker is shutting down"))?,
        };
        let env = self.environment(context, checkpoint);
        let (tail, stderr) = StderrTail::open().map_err(cannot)?;
        let checkpoint_signal = Notify::new();
        let stdin = stdin_of(context.props_bytes()).map_err(cannot)?;
        let hold = GroupLease(context.lease().get().cast_unsigned());
        let pooled = PooledCommand {
            sentinels: &self.sentinels,
            hold,
            stdin,
            stderr,
            nudge: &checkpoint_signal,
            open_files: self.open_files,
            turn,
        };
        let job = Job {
            program: &self.shell.program,
            args: &self.shell.args,
            env: &env,
            grace: Some(self.timing.grace),
            signal: Signal::TERM,
        };
        let until = context.valid_until();
        let deadlines = Some(self.timing.deadlines(Timing::sent(until, context.ttl()), context.ttl()));
        let (feed, terms) = watch::channel(StopTimes { deadlines, order: SupervisorAction::Run });
        let outcome = tokio::select! {
            biased;
            outcome = run_pooled(&job, pooled, terms, &self.output) => outcome?,
            () = self.follow(context, until, &feed) => unreachable!("the future never completes"),
            () = self.save_on_request(context, checkpoint, &checkpoint_signal) => unreachable!("the future never completes"),
        };
        Ok((outcome, tail.last_line().await))
    }

    /// Passes stop requests and the deadlines of new renewals to the supervision.
    async fn follow(&self, context: &TaskContext, mut until: Moment, feed: &watch::Sender<StopTimes>) {
        let mut is_ending = self.is_ending.clone();
        let mut order = SupervisorAction::Run;
        loop {
            let changed = tokio::select! {
                biased;
                _ = is_ending.wait_for(|is_ending| *is_ending), if order != SupervisorAction::End => Some(SupervisorAction::End),
                _ = context.lost(), if !matches!(order, SupervisorAction::Lost | SupervisorAction::End) => Some(SupervisorAction::Lost),
                why = context.stopped(), if order == SupervisorAction::Run => Some(match why {
                    StopReason::Lost | StopReason::Deleted => SupervisorAction::Lost,
                    StopReason::Command | StopReason::NodeCommand | StopReason::Release | StopReason::Shutdown => SupervisorAction::Stop,
                }),
                renewed = context.renewed_after(until) => {
                    until = renewed;
                    None
                }
            };
            order = changed.unwrap_or(order);
            let deadlines = Some(self.timing.deadlines(Timing::sent(until, context.ttl()), context.ttl()));
            feed.send_replace(StopTimes { deadlines, order });
        }
    }

    /// Requests a checkpoint from the process when a command requires one, and saves what the process writes.
    async fn save_on_request(&self, context: &TaskContext, checkpoint: &CheckpointFile, nudge: &Notify) {
        loop {
            context.checkpoint_requested().await;
            nudge.notify_one();
            let until = Instant::now() + WRITE_TIMEOUT;
            let mut before = None;
            while Instant::now() < until {
                tokio::time::sleep(POLL_EVERY).await;
                let now = checkpoint.unsaved().ok().flatten();
                if now.is_some() && now == before {
                    break;
                }
                before = now;
            }
            if let Err(why) = checkpoint.save(context).await {
                self.remark(format!("the checkpoint of '{}' was not saved: {why}", context.id()));
            }
        }
    }

    fn environment(
        &self,
        context: &TaskContext,
        checkpoint: &CheckpointFile,
    ) -> Vec<(&'static str, OsString)> {
        let mut env: Vec<(&'static str, OsString)> = vec![
            ("TENURE_TASK_ID", context.id().as_str().into()),
            ("TENURE_TASK_KIND", context.kind().into()),
            ("TENURE_FENCING_TOKEN", context.token().to_string().into()),
            ("TENURE_ATTEMPT", context.attempt().to_string().into()),
            ("TENURE_CHECKPOINT", checkpoint.path().into()),
            ("TENURE_LEASE", context.lease().to_string().into()),
            ("TENURE_TTL_SECONDS", context.ttl().as_secs_f64().to_string().into()),
            ("TENURE_NAMESPACE", self.namespace.clone().into()),
            ("TENURE_NODE", self.node.clone().into()),
        ];
        let props = context.props_bytes().map_or(&b""[..], |props| props);
        if props.len() <= PROPS_IN_ENV_MAX {
            // Props are JSON, so they are UTF-8.
            env.push(("TENURE_TASK_PROPS", String::from_utf8_lossy(props).into_owned().into()));
        }
        env
    }

    fn remark(&self, text: String) {
        // The receiver is gone only after the worker has ended.
        let _ = self.remarks.send(text);
    }
}

/// The name of a common fatal signal.
fn named(signal: u8) -> Option<&'static str> {
    let signal = Signal::from_named_raw(i32::from(signal))?;
    let names = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
    ];
    names.iter().find(|(known, _)| *known == signal).map(|(_, name)| *name)
}

/// The props as a readable file. An unlinked temporary file needs no writer task, and no other process can open it.
fn stdin_of(props: Option<&Bytes>) -> io::Result<File> {
    let Some(props) = props else { return File::open("/dev/null") };
    let mut file = tempfile::tempfile()?;
    file.write_all(props)?;
    file.rewind()?;
    Ok(file)
}
