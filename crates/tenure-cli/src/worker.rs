//! `tenure worker --exec CMD`: a worker that runs each task as a command, for work that is not written in Rust.
//!
//! The library's worker claims, balances and releases tasks. Each task is a child process, supervised as the command of `tenure lock` is.

mod args;
mod checkpoint_dir;
mod checkpoint_file;
mod exec;
mod http;
mod keep;
mod metrics;
mod output;
mod pending;
mod selector;
mod shell;
mod stderr_tail;

use std::future::IntoFuture;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::FutureExt;
use tenure::Tenure;
use tenure::member::JoinError;
use tenure::session::Session;
use tenure::store::Store;
use tenure::worker::{WorkerEnd, WorkerEvent};
use tenure_core::id::{Namespace, NodeId, TaskId};
use tenure_core::layout::{Key, Layout};
use tenure_core::record::{FrozenRecord, Record};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

pub(crate) use args::WorkerArgs;

use self::args::PreparedWorker;
use self::checkpoint_dir::CheckpointDir;
use self::exec::{Exec, ExecPool};
use self::http::HttpPages;
use self::metrics::Metrics;
use self::output::WorkerOutput;
use crate::cli::Global;
use crate::connect::{self, StorePurpose};
use crate::failure::{Code, Failure};
use crate::hold::{HoldExit, listen, warn_of_long};
use crate::output::Output;
use crate::supervise::{SentinelPool, Signals, raise_open_files};

/// The time limit of closing the store; the exit code must not wait for a store that is down.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// The time limit of releasing the tasks after they have stopped.
const RELEASE_WITHIN: Duration = Duration::from_secs(5);

/// Runs the worker until a signal, until it is drained, or until the store is lost.
pub(crate) async fn run(args: &WorkerArgs, global: &Global, output: &Output) -> Result<ExitCode, Failure> {
    let mut signals = listen()?;
    let settings = connect::decide(global)?;
    let namespace = settings.namespace.value.clone();
    let prepared = PreparedWorker::check(args, &settings).await?;
    warn_of_long(prepared.timing.ttl, output);
    let watched = match &args.http {
        Some(address) => Some(HttpEndpoint::bind(address).await?),
        None => None,
    };
    let store = tokio::select! {
        biased;
        signal = signals.next_end() => return HoldExit::signal(signal).exit(),
        store = connect::open_for(StorePurpose::Hold, &settings, output) => store?,
    };
    let done = work(args, prepared, watched, &namespace, &store, &mut signals, output).await;
    let _ = tokio::time::timeout(CLOSE_WITHIN, store.close()).await;
    done
}

/// The HTTP endpoint for probes and metrics.
struct HttpEndpoint {
    listener: TcpListener,
    metrics: Metrics,
}

impl HttpEndpoint {
    async fn bind(address: &str) -> Result<HttpEndpoint, Failure> {
        let listener = http::bind(address).await?;
        let metrics = Metrics::default();
        // A process has one recorder, and no other code here installs one.
        ::metrics::set_global_recorder(metrics.clone()).map_err(|error| {
            Failure::new(Code::Failed, format!("cannot install the metrics recorder: {error}"))
        })?;
        Ok(HttpEndpoint { listener, metrics })
    }
}

async fn work(
    args: &WorkerArgs,
    prepared: PreparedWorker,
    watched: Option<HttpEndpoint>,
    namespace: &Namespace,
    store: &Store,
    signals: &mut Signals,
    output: &Output,
) -> Result<ExitCode, Failure> {
    let PreparedWorker { shell, timing, node: id, options } = prepared;
    store.info().limits.grant_ttl(timing.ttl)?;
    let session = Session::options().ttl(timing.ttl).open(store.clone()).map_err(|error| {
        Failure::usage(error.to_string()).hint("use a longer --ttl; 15s suits most programs")
    })?;
    let folder = CheckpointDir::create()
        .map_err(|error| Failure::new(Code::Failed, format!("cannot create a temporary folder: {error}")))?;
    let sentinels = SentinelPool::start().map_err(|error| {
        Failure::new(Code::Failed, format!("cannot start the sentinel: {error}"))
            .hint("see how many processes and open files you may have with `ulimit -a`")
    })?;
    let (end_now, is_ending) = watch::channel(false);
    let (remarks, mut remarks_received) = mpsc::unbounded_channel();
    let pool = ExecPool {
        shell,
        timing,
        sentinels: sentinels.clone(),
        folder: folder.path().to_owned(),
        namespace: namespace.to_string(),
        node: id.to_string(),
        retry_after: args.retry_after,
        open_files: raise_open_files(),
        is_ending,
        remarks,
        output: *output,
    };
    let reports = WorkerOutput { node: id.as_str(), quiet: output.is_quiet, output };
    let tenure =
        Tenure::on_session(&session, namespace).map_err(|error| Failure::usage(error.to_string()))?;
    let joining = options.start(tenure.worker(&id), &Exec::new(pool));
    let node = tokio::select! {
        biased;
        signal = signals.next_end() => return HoldExit::signal(signal).exit(),
        joined = joining => joined.map_err(|error| not_joined(&error, args))?,
    };
    let mut events = node.events();
    let (leaving, is_leaving) = watch::channel(false);
    let address = watched.as_ref().and_then(|watched| http::address_of(&watched.listener));
    let watchers = watched.map(|HttpEndpoint { listener, metrics }| {
        let pages = HttpPages { status: node.status(), is_leaving, metrics };
        // Served until the end, so that a scraper sees the shutdown, too.
        tokio::spawn(http::serve(listener, pages))
    });
    reports.joined(address, frozen(store, namespace, &id).await.as_ref());
    if !args.matches.is_empty() {
        selector::warn_if_none_match(&args.matches, &tenure, output).await;
    }
    let (mut ending, mut signal_count) = (None, 0_u32);
    let end = loop {
        tokio::select! {
            biased;
            _ = signals.next_end() => {
                signal_count += 1;
                leaving.send_replace(true);
                let is_now = signal_count > 1;
                reports.ending(node.status().borrow().tasks, is_now);
                if is_now {
                    end_now.send_replace(true);
                }
                let within = timing.grace + RELEASE_WITHIN;
                // A second signal does not restart the shutdown and its time limit.
                ending.get_or_insert_with(|| tokio::spawn(node.shutdown().timeout(within).into_future()));
            }
            end = node.finished() => break end,
            Some(remark) = remarks_received.recv() => reports.remark(&remark),
            event = events.next() => match event {
                Some(event) => {
                    if matches!(event, WorkerEvent::Draining { .. }) {
                        leaving.send_replace(true);
                    }
                    reports.event(&event);
                }
                None => break node.finished().await,
            },
        }
    };
    while let Ok(remark) = remarks_received.try_recv() {
        reports.remark(&remark);
    }
    while let Some(Some(event)) = events.next().now_or_never() {
        reports.event(&event);
    }
    let code = finish(&end, &session, &sentinels, &reports).await;
    if let Some(watchers) = watchers {
        watchers.abort();
    }
    drop(folder);
    code
}

/// The freeze record of the node, if it is frozen. If this read fails, the worker's own event reports the freeze later.
async fn frozen(store: &Store, namespace: &Namespace, id: &NodeId) -> Option<FrozenRecord> {
    let key = Layout::new(namespace).encode(&Key::Frozen(id.clone()));
    let pair = store.get_key(key).await.ok()??;
    Some(FrozenRecord::decode(&pair.value).unwrap_or_default())
}

/// Reports how the worker ended, and closes the session and the sentinel.
async fn finish(
    end: &WorkerEnd,
    session: &Session,
    sentinels: &SentinelPool,
    reports: &WorkerOutput<'_>,
) -> Result<ExitCode, Failure> {
    match end {
        WorkerEnd::Left { running } if running.is_empty() => {
            // All keys are deleted, so a lease that cannot be revoked now may expire by itself.
            let _ = tokio::time::timeout(CLOSE_WITHIN, session.close()).await;
            sentinels.close().await;
            reports.left();
            Ok(ExitCode::SUCCESS)
        }
        WorkerEnd::Left { running } => {
            let names: Vec<&str> = running.iter().take(5).map(TaskId::as_str).collect();
            // The session stays open and the sentinel stays in charge: the lease lapses, and the sentinel kills what still runs.
            Err(Failure::new(
                Code::Failed,
                format!(
                    "{} tasks did not stop in time and were not released: {}",
                    running.len(),
                    names.join(", ")
                ),
            )
            .hint("no worker claims them before the lease ends; see what their processes wait for with `ps`"))
        }
        WorkerEnd::Replaced => {
            sentinels.close().await;
            Err(Failure::new(Code::Conflict, format!("another node has the id '{}' now", reports.node))
                .hint("see it with `tenure node ls`, and give each worker its own id with --node"))
        }
        WorkerEnd::Store(error) => {
            sentinels.close().await;
            Err(Failure::from(error.clone()).while_doing("the store is lost"))
        }
        _ => Err(Failure::new(Code::Failed, "the worker has ended")),
    }
}

fn not_joined(error: &JoinError, args: &WorkerArgs) -> Failure {
    match error {
        JoinError::Held { by: other } => {
            let hint = match args.wait {
                None => {
                    "choose another --node; if that node is dead, wait until its lease ends with --wait 20s"
                }
                Some(_) => "choose another --node, or stop the other worker",
            };
            Failure::new(Code::Conflict, other.to_string()).hint(hint)
        }
        JoinError::Timeout { .. } => {
            Failure::new(Code::Unavailable, error.to_string()).hint("run `tenure doctor`")
        }
        JoinError::Store(error) => error.clone().into(),
        error => Failure::new(Code::Failed, error.to_string()),
    }
}
