//! `tenure worker --exec CMD`: a node whose tasks are commands, for work that is not written in Rust.
//!
//! The library's node claims, balances and releases; each task is a child process under the supervision that `lock` has.

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
use tenure::client::Client;
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

/// How long the store may take at the end; the exit code must not wait for a store that is down.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// How long releasing may take after everything has stopped.
const RELEASE_WITHIN: Duration = Duration::from_secs(5);

/// Works until a signal, until it is drained, or until it cannot any more.
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

/// Where others watch over us.
struct HttpEndpoint {
    listener: TcpListener,
    metrics: Metrics,
}

impl HttpEndpoint {
    async fn bind(address: &str) -> Result<HttpEndpoint, Failure> {
        let listener = http::bind(address).await?;
        let metrics = Metrics::default();
        // Only one can be installed in a process, and nobody else does.
        ::metrics::set_global_recorder(metrics.clone())
            .map_err(|error| Failure::new(Code::Failed, format!("nothing can be counted: {error}")))?;
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
        Failure::usage(error.to_string()).hint("use a longer --ttl; 15s suits nearly everybody")
    })?;
    let folder = CheckpointDir::create()
        .map_err(|error| Failure::new(Code::Failed, format!("no temporary folder can be made: {error}")))?;
    let sentinels = SentinelPool::start().map_err(|error| {
        Failure::new(Code::Failed, format!("the sentinel cannot be started: {error}"))
            .hint("see how many processes and open files you may have with `ulimit -a`")
    })?;
    let (end_now, is_ending) = watch::channel(false);
    let (remarks, mut remarked) = mpsc::unbounded_channel();
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
    let words = WorkerOutput { node: id.as_str(), quiet: output.is_quiet, output };
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
        // Until the very end: whoever watches wants to see that, too.
        tokio::spawn(http::serve(listener, pages))
    });
    words.joined(address, frozen(store, namespace, &id).await.as_ref());
    if !args.matches.is_empty() {
        selector::warn_of_nothing(&args.matches, &Client::new(store.clone(), namespace), output).await;
    }
    let (mut ending, mut asked) = (None, 0_u32);
    let end = loop {
        tokio::select! {
            biased;
            _ = signals.next_end() => {
                asked += 1;
                leaving.send_replace(true);
                let is_now = asked > 1;
                words.ending(node.status().borrow().tasks, is_now);
                if is_now {
                    end_now.send_replace(true);
                }
                let within = timing.grace + RELEASE_WITHIN;
                // Asked again, the earlier end counts.
                ending.get_or_insert_with(|| tokio::spawn(node.shutdown().timeout(within).into_future()));
            }
            end = node.finished() => break end,
            Some(remark) = remarked.recv() => words.remark(&remark),
            event = events.next() => match event {
                Some(event) => {
                    if matches!(event, WorkerEvent::Draining { .. }) {
                        leaving.send_replace(true);
                    }
                    words.event(&event);
                }
                None => break node.finished().await,
            },
        }
    };
    while let Ok(remark) = remarked.try_recv() {
        words.remark(&remark);
    }
    while let Some(Some(event)) = events.next().now_or_never() {
        words.event(&event);
    }
    let code = finish(&end, &session, &sentinels, &words).await;
    if let Some(watchers) = watchers {
        watchers.abort();
    }
    drop(folder);
    code
}

/// How a node is frozen, if it is. The store was reached a moment ago; should it not answer now, the notice of the node follows.
async fn frozen(store: &Store, namespace: &Namespace, id: &NodeId) -> Option<FrozenRecord> {
    let key = Layout::new(namespace).encode(&Key::Frozen(id.clone()));
    let pair = store.get_key(key).await.ok()??;
    Some(FrozenRecord::decode(&pair.value).unwrap_or_default())
}

/// Says how it ended, and closes what is left.
async fn finish(
    end: &WorkerEnd,
    session: &Session,
    sentinels: &SentinelPool,
    words: &WorkerOutput<'_>,
) -> Result<ExitCode, Failure> {
    match end {
        WorkerEnd::Left { running } if running.is_empty() => {
            // Without its keys the lease holds nothing: whether it ends now or by itself matters to nobody.
            let _ = tokio::time::timeout(CLOSE_WITHIN, session.close()).await;
            sentinels.close().await;
            words.left();
            Ok(ExitCode::SUCCESS)
        }
        WorkerEnd::Left { running } => {
            let names: Vec<&str> = running.iter().take(5).map(TaskId::as_str).collect();
            // Neither closed nor dismissed: their leases lapse, and the sentinel does what it can.
            Err(Failure::new(
                Code::Failed,
                format!(
                    "{} tasks did not stop in time and are not released: {}",
                    running.len(),
                    names.join(", ")
                ),
            )
            .hint("nobody runs them before their lease is over; see what their processes wait for with `ps`"))
        }
        WorkerEnd::Replaced => {
            sentinels.close().await;
            Err(Failure::new(Code::Conflict, format!("another node has taken the id '{}'", words.node))
                .hint("see it with `tenure node ls`, and give each worker an id of its own with --node"))
        }
        WorkerEnd::Store(error) => {
            sentinels.close().await;
            Err(Failure::from(error.clone()).while_doing("the store can never be used again"))
        }
        _ => Err(Failure::new(Code::Failed, "the node has ended")),
    }
}

fn not_joined(error: &JoinError, args: &WorkerArgs) -> Failure {
    match error {
        JoinError::Held { by: other } => {
            let hint = match args.wait {
                None => {
                    "choose another --node, or wait with --wait 20s until its lease is over if it is dead"
                }
                Some(_) => "choose another --node, or stop the other one",
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
