//! One task as a child process: what it is given, when it is stopped, and what its end means.

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

/// "Try again later", as sendmail has it (EX_TEMPFAIL).
const SLEEP: u8 = 75;

/// "Let me be until I am told otherwise."
const PAUSE: u8 = 99;

/// One variable may have 128 KiB on Linux, its name included; longer props are on stdin alone.
const PROPS_IN_ENV_MAX: usize = 100 * 1_024;

/// How many processes are started at once: each is this program for a moment, and more of them only wait for the same cores.
const STARTS_AT_ONCE: usize = 8;

/// How long a task that was asked for its progress has to write it, and how often its file is looked at meanwhile. It counts once it has
/// stayed the same from one look to the next, so that a file is not read while it is half written.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs tasks as processes.
#[derive(Clone)]
pub(super) struct Exec {
    pool: Arc<ExecPool>,
}

/// What all tasks of a worker share.
pub(super) struct ExecPool {
    pub(super) shell: Shell,
    pub(super) timing: Timing,
    pub(super) sentinels: SentinelPool,
    /// Where checkpoint files are; for its owner alone.
    pub(super) folder: PathBuf,
    pub(super) namespace: String,
    pub(super) node: String,
    /// How long a task sleeps that wants to try again.
    pub(super) retry_after: Duration,
    /// How many files a task may have open, if not as many as we.
    pub(super) open_files: Option<u64>,
    /// Whether everything is to be killed.
    pub(super) is_ending: watch::Receiver<bool>,
    /// What people should know of a task.
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

/// Numbers for checkpoint files: ids of tasks may be anything, names of files not.
static RUNS: AtomicU64 = AtomicU64::new(0);

static STARTS: Semaphore = Semaphore::const_new(STARTS_AT_ONCE);

impl ExecPool {
    async fn run(&self, context: TaskContext) -> Result<Outcome, TaskError> {
        let task = context.id();
        let name = RUNS.fetch_add(1, Ordering::Relaxed).to_string();
        let laid = CheckpointFile::create(&self.folder, &name, context.checkpoint_bytes());
        let done = match &laid {
            Ok(progress) => self.supervise(&context, progress).await,
            Err(error) => Err(Failure::new(Code::Failed, format!("no checkpoint file can be made: {error}"))),
        };
        let (outcome, last_line) = match done {
            Ok(done) => done,
            // It did not run, so it is not at fault; another node may have what this one lacks.
            Err(failure) => {
                self.remark(format!("'{task}' was not started and is given back: {}", failure.message));
                return Ok(Outcome::Release);
            }
        };
        let is_deleted = context.stopped().now_or_never() == Some(StopReason::Deleted);
        // Also one that was stopped because renewals were late: its claim is good for a moment longer, and perhaps the store is back.
        if context.is_valid()
            && !is_deleted
            && let Ok(progress) = &laid
            && let Err(why) = progress.save(&context).await
        {
            self.remark(format!("the checkpoint of '{task}' is not kept: {why}"));
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

    /// What the end of a process means. One that was told to stop has stopped, whatever it ended with: most programs end with 0 when they are
    /// asked to, and that must not complete a task that is not done.
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

    /// Runs the process for as long as the task may run.
    async fn supervise(
        &self,
        context: &TaskContext,
        progress: &CheckpointFile,
    ) -> Result<(supervise::CommandExit, Option<String>), Failure> {
        let cannot = |error: io::Error| {
            Failure::new(Code::Failed, format!("the command cannot be prepared: {error}"))
                .hint("see how many processes and open files you may have with `ulimit -a`")
        };
        let turn = tokio::select! {
            biased;
            _ = context.stopped() => return Err(Failure::new(Code::Lost, "it was told to stop before")),
            turn = STARTS.acquire() => turn.map_err(|_| Failure::new(Code::Failed, "nothing is started any more"))?,
        };
        let env = self.environment(context, progress);
        let (tail, stderr) = StderrTail::open().map_err(cannot)?;
        let nudge = Notify::new();
        let stdin = stdin_of(context.props_bytes()).map_err(cannot)?;
        let hold = GroupLease(context.lease().get().cast_unsigned());
        let pooled = PooledCommand {
            sentinels: &self.sentinels,
            hold,
            stdin,
            stderr,
            nudge: &nudge,
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
            () = self.follow(context, until, &feed) => unreachable!("it goes on for ever"),
            () = self.keep_progress(context, progress, &nudge) => unreachable!("it goes on for ever"),
        };
        Ok((outcome, tail.last_line().await))
    }

    /// Tells the supervision what is wanted of the process, and until when it may run: by renewals after the one that it knows of.
    async fn follow(&self, context: &TaskContext, mut until: Moment, feed: &watch::Sender<StopTimes>) {
        let mut is_ending = self.is_ending.clone();
        let mut order = SupervisorAction::Run;
        loop {
            let news = tokio::select! {
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
            order = news.unwrap_or(order);
            let deadlines = Some(self.timing.deadlines(Timing::sent(until, context.ttl()), context.ttl()));
            feed.send_replace(StopTimes { deadlines, order });
        }
    }

    /// Asks the process for its progress when somebody wants it, and keeps what it writes.
    async fn keep_progress(&self, context: &TaskContext, progress: &CheckpointFile, nudge: &Notify) {
        loop {
            context.checkpoint_requested().await;
            nudge.notify_one();
            let until = Instant::now() + WRITTEN_WITHIN;
            let mut before = None;
            while Instant::now() < until {
                tokio::time::sleep(LOOK_EVERY).await;
                let now = progress.unsaved().ok().flatten();
                if now.is_some() && now == before {
                    break;
                }
                before = now;
            }
            if let Err(why) = progress.save(context).await {
                self.remark(format!("the checkpoint of '{}' is not kept: {why}", context.id()));
            }
        }
    }

    fn environment(&self, context: &TaskContext, progress: &CheckpointFile) -> Vec<(&'static str, OsString)> {
        let mut env: Vec<(&'static str, OsString)> = vec![
            ("TENURE_TASK_ID", context.id().as_str().into()),
            ("TENURE_TASK_KIND", context.kind().into()),
            ("TENURE_FENCING_TOKEN", context.token().to_string().into()),
            ("TENURE_ATTEMPT", context.attempt().to_string().into()),
            ("TENURE_CHECKPOINT", progress.path().into()),
            ("TENURE_LEASE", context.lease().to_string().into()),
            ("TENURE_TTL_SECONDS", context.ttl().as_secs_f64().to_string().into()),
            ("TENURE_NAMESPACE", self.namespace.clone().into()),
            ("TENURE_NODE", self.node.clone().into()),
        ];
        let props = context.props_bytes().map_or(&b""[..], |props| props);
        if props.len() <= PROPS_IN_ENV_MAX {
            // Props are JSON, and JSON is text.
            env.push(("TENURE_TASK_PROPS", String::from_utf8_lossy(props).into_owned().into()));
        }
        env
    }

    fn remark(&self, text: String) {
        // Nobody listens any more when the worker has ended.
        let _ = self.remarks.send(text);
    }
}

/// What ends programs most often, by the name that people know it by.
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

/// The props as something to read, without anybody who has to write them: a file that nobody else can open.
fn stdin_of(props: Option<&Bytes>) -> io::Result<File> {
    let Some(props) = props else { return File::open("/dev/null") };
    let mut file = tempfile::tempfile()?;
    file.write_all(props)?;
    file.rewind()?;
    Ok(file)
}
