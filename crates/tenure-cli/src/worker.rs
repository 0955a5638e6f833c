//! `tenure worker --exec CMD`: a node whose tasks are commands, for work that is not written in Rust.
//!
//! The library's node claims, balances and releases; each task is a child process under the supervision that `lock` has.

mod choice;
mod exec;
mod http;
mod metrics;
mod progress;
mod shell;
mod tail;
mod words;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tempfile::TempDir;
use tenure::client::Client;
use tenure::core::name::{Namespace, NodeId, TaskId};
use tenure::core::task::ERRORS_LEN_MAX;
use tenure::core::task::retry::ErrorRate;
use tenure::membership::JoinError;
use tenure::node::{Node, NodeEnd, NodeOptions, Notice};
use tenure::session::Session;
use tenure::store::Store;
use tokio::net::TcpListener;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, watch};

use self::choice::{Balance, Limits, Match};
use self::exec::{Crew, Exec};
use self::http::Pages;
use self::metrics::Metrics;
use self::shell::Shell;
use self::words::Words;
use crate::cli::Global;
use crate::connect::{self, Decision};
use crate::duration;
use crate::failure::{Code, Failure};
use crate::hold::{Stop, Timing, introduce, listen};
use crate::output::Output;
use crate::supervise::{Post, Signals, raise_open_files};

/// How long the store may take to let us in, from our start. Scripts were promised an answer within 6 s.
const JOIN_WITHIN: Duration = Duration::from_secs(5);

/// How long the store may take at the end; the exit code must not wait for a store that is down.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// How long releasing may take after everything has stopped.
const RELEASE_WITHIN: Duration = Duration::from_secs(5);

/// Errors that are older than this do not count any more.
const ERRORS_WITHIN: Duration = Duration::from_secs(4 * 60 * 60);

const HELP: &str = "\
Each task is one child process in a process group of its own. CMD is run as it is if it is a single word, and by `sh -c` otherwise; it is looked
up before any task is taken. Its stdout and stderr are ours.

  TENURE_TASK_ID      the task            TENURE_TASK_PROPS   its props, which are on stdin too (above 100 KiB only there)
  TENURE_FENCE        grows with every owner: check it with every write elsewhere
  TENURE_ATTEMPT      from 1 on           TENURE_CHECKPOINT   a file: what the last owner left in it is there, and what is left in it is kept
  TENURE_TASK_KIND, TENURE_NODE, TENURE_NAMESPACE, TENURE_LEASE, TENURE_TTL_SECONDS

Exit 0: completed. 75: sleeps, and is tried again after --retry-after. 99: paused. Anything else, or a signal: a fault, told with the last line
of stderr; after --retries of them within 4 h the next one fails the task, until then it sleeps for --retry-after.

pause, release, sleep, kill: SIGTERM, and after the grace SIGKILL; whatever a task exits with then, it is neither completed nor at fault.
checkpoint: SIGUSR1 to whoever catches it, then the file is kept. A claim that cannot be renewed: SIGTERM and SIGKILL before anybody else can
have the task. Should this process be killed or stopped, a sentinel kills the tasks in time.

SIGTERM or SIGINT to the worker: stop all tasks, release them, leave; a second one kills them at once.
Exit codes: 0 left, 1 something could not be stopped, 2 usage, 4 the node's id is in use, 5 store unavailable, 126 CMD is not executable, 127 not found.";

/// What runs tasks, and which.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct WorkerArgs {
    /// The command that runs a task.
    #[arg(long, value_name = "CMD")]
    exec: String,
    /// The node's id, which must be no other live node's [default: TENURE_NODE, or this host and process].
    #[arg(long, value_name = "ID")]
    node: Option<String>,
    /// How many tasks to hold at most, sleeping and paused ones included; without it, no limit.
    #[arg(long, value_name = "N", value_parser = parse_capacity)]
    capacity: Option<usize>,
    /// Who decides which tasks to take and to give away.
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    balance: Balance,
    /// With --balance capacity: take tasks while less than this much of the memory is used, in percent [default: 80].
    #[arg(long, value_name = "PERCENT")]
    claim_below: Option<u64>,
    /// With --balance capacity: give tasks away while more than this much of the memory is used, in percent [default: 90].
    #[arg(long, value_name = "PERCENT")]
    release_above: Option<u64>,
    /// Take only tasks of a kind (kind=mail) or with a label (zone=eu). Several kinds are alternatives, several labels must all be there.
    #[arg(long = "match", value_name = "NAME=VALUE", value_parser = Match::parse)]
    matches: Vec<Match>,
    /// How long tasks stay ours if we cannot give them back. Renewed every third of this.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "15s")]
    ttl: Duration,
    /// How long a task has between being asked to stop and being killed [default: 5s or a third of the TTL].
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    grace: Option<Duration>,
    /// How often a task that fails is tried again within 4 h; 0 to 7.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = parse_retries)]
    retries: usize,
    /// How long a task sleeps before it is tried again.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "10m")]
    retry_after: Duration,
    /// How long to wait for another live node with our id to go; without it, that is a failure.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Where the worker can be reached, for whoever looks.
    #[arg(long, value_name = "ADDR")]
    address: Option<String>,
    /// Something to say of the worker. May be given several times.
    #[arg(long = "label", value_name = "K=V", value_parser = choice::parse_label)]
    labels: Vec<(String, String)>,
    /// Serve /healthz, /readyz and /metrics there, as in 127.0.0.1:9464.
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Say only what went wrong.
    #[arg(short, long)]
    quiet: bool,
}

fn parse_capacity(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("a worker with room for 0 tasks would never take one; use `tenure node freeze` to keep one from taking more".to_owned()),
        Ok(tasks) => Ok(tasks),
        Err(_) => Err("write it as a number from 1 on".to_owned()),
    }
}

fn parse_retries(text: &str) -> Result<usize, String> {
    let most = ERRORS_LEN_MAX - 1;
    match text.parse() {
        Ok(retries) if retries <= most => Ok(retries),
        _ => Err(format!("use 0 to {most}: a task keeps its newest {ERRORS_LEN_MAX} errors")),
    }
}

/// What was typed, checked.
struct Prepared {
    shell: Shell,
    timing: Timing,
    node: NodeId,
    options: NodeOptions,
}

/// Works until a signal, until it is drained, or until it cannot any more.
pub(crate) async fn run(args: &WorkerArgs, global: &Global, output: &Output) -> Result<ExitCode, Failure> {
    let mut signals = listen()?;
    let decision = connect::decide(global)?;
    let namespace = Namespace::parse(&decision.namespace.value)
        .map_err(|error| Failure::usage(format!("the namespace: {error}")))?;
    let prepared = prepare(args, &decision).await?;
    let watched = match &args.http {
        Some(address) => Some(Watched::bind(address).await?),
        None => None,
    };
    let store = tokio::select! {
        biased;
        signal = signals.next_end() => return Stop::signal(signal).exit(),
        store = connect::open(&decision, output) => store?,
    };
    let done = work(args, prepared, watched, &namespace, &store, &mut signals, output).await;
    let _ = tokio::time::timeout(CLOSE_WITHIN, store.close()).await;
    done
}

/// Where others watch over us.
struct Watched {
    listener: TcpListener,
    metrics: Metrics,
}

impl Watched {
    async fn bind(address: &str) -> Result<Watched, Failure> {
        let listener = http::bind(address).await?;
        let metrics = Metrics::default();
        // Only one can be installed in a process, and nobody else does.
        ::metrics::set_global_recorder(metrics.clone())
            .map_err(|error| Failure::new(Code::Failed, format!("nothing can be counted: {error}")))?;
        Ok(Watched { listener, metrics })
    }
}

/// Checks everything that can be checked without a store.
async fn prepare(args: &WorkerArgs, decision: &Decision) -> Result<Prepared, Failure> {
    let timing = Timing::divide(args.ttl, args.grace, None)?;
    let who = introduce(decision, &[]);
    let name = match (&args.node, &decision.node) {
        (Some(name), _) => name.clone(),
        (None, Some(configured)) => configured.value.clone(),
        // Two workers on one host are two nodes.
        (None, None) => format!("{}-{}", who.host, who.pid),
    };
    let node = NodeId::parse(&name).map_err(|error| {
        Failure::usage(format!("the node's id: {error}")).hint("use an id like --node web-1")
    })?;
    choice::check_labels(&args.labels)?;
    let wanted = choice::wanted(&args.matches)?;
    let policy = ErrorRate::default()
        .too_many(args.retries + 1, ERRORS_WITHIN)
        .map_err(|error| Failure::usage(format!("--retries: {error}")))?
        .sleep(args.retry_after);
    let limits = Limits { claim_below: args.claim_below, release_above: args.release_above };
    let mut options = Node::options(node.clone())
        .grace(timing.grace)
        .wait_for_handlers()
        .error_policy(policy)
        .version(env!("CARGO_PKG_VERSION"))
        .join_within(JOIN_WITHIN);
    options = args.balance.apply(options, limits)?;
    for (name, value) in &args.labels {
        options = options.label(name, value);
    }
    for kind in wanted.kinds {
        options = options.kind(kind);
    }
    for (name, value) in wanted.labels {
        options = options.only_with_label(name, value);
    }
    if let Some(address) = &args.address {
        options = options.address(address);
    }
    if let Some(capacity) = args.capacity {
        options = options.capacity(capacity);
    }
    if let Some(wait) = args.wait {
        options = options.join_wait_up_to(wait);
    }
    let shell = Shell::find(&args.exec).await?;
    Ok(Prepared { shell, timing, node, options })
}

async fn work(
    args: &WorkerArgs,
    prepared: Prepared,
    watched: Option<Watched>,
    namespace: &Namespace,
    store: &Store,
    signals: &mut Signals,
    output: &Output,
) -> Result<ExitCode, Failure> {
    let Prepared { shell, timing, node: id, options } = prepared;
    store.info().limits.grant_ttl(timing.ttl)?;
    let session = Session::options().ttl(timing.ttl).open(store.clone()).map_err(|error| {
        Failure::usage(error.to_string()).hint("use a longer --ttl; 15s suits nearly everybody")
    })?;
    let folder = folder()?;
    let post = Post::start().map_err(|error| {
        Failure::new(Code::Failed, format!("the sentinel cannot be started: {error}"))
            .hint("see how many processes and open files you may have with `ulimit -a`")
    })?;
    let (end_now, is_ending) = watch::channel(false);
    let (remarks, mut remarked) = mpsc::unbounded_channel();
    let crew = Crew {
        shell,
        timing,
        post: post.clone(),
        folder: folder.path().to_owned(),
        namespace: namespace.to_string(),
        node: id.to_string(),
        retry_after: args.retry_after,
        open_files: raise_open_files(),
        is_ending,
        remarks,
        output: *output,
    };
    let words = Words { node: id.as_str(), quiet: args.quiet, output };
    let joining = options.start(&session, namespace, Exec::new(crew));
    let node = tokio::select! {
        biased;
        signal = signals.next_end() => return Stop::signal(signal).exit(),
        joined = joining => joined.map_err(|error| not_joined(&error, args))?,
    };
    let mut notices = node.notices();
    let (leaving, is_leaving) = watch::channel(false);
    let address = watched.as_ref().and_then(|watched| http::address_of(&watched.listener));
    let watchers = watched.map(|Watched { listener, metrics }| {
        let pages = Pages { tenancy: node.tenancy(), is_leaving, metrics };
        // Until the very end: whoever watches wants to see that, too.
        tokio::spawn(http::serve(listener, pages))
    });
    words.joined(address);
    if !args.matches.is_empty() {
        choice::warn_of_nothing(&args.matches, &Client::new(store.clone(), namespace), output).await;
    }
    let (mut ending, mut asked) = (None, 0_u32);
    let end = loop {
        tokio::select! {
            biased;
            _ = signals.next_end() => {
                asked += 1;
                leaving.send_replace(true);
                let is_now = asked > 1;
                words.ending(node.tenancy().borrow().tasks, is_now);
                if is_now {
                    end_now.send_replace(true);
                }
                let (node, within) = (node.clone(), timing.grace + RELEASE_WITHIN);
                // Asked again, the earlier end counts.
                ending.get_or_insert_with(|| tokio::spawn(async move { node.shutdown(within).await }));
            }
            end = node.ended() => break end,
            Some(remark) = remarked.recv() => words.remark(&remark),
            notice = notices.recv() => match notice {
                Ok(notice) => {
                    if matches!(notice, Notice::Draining { .. }) {
                        leaving.send_replace(true);
                    }
                    words.notice(&notice);
                }
                Err(RecvError::Lagged(count)) => words.missed(count),
                Err(RecvError::Closed) => break node.ended().await,
            },
        }
    };
    while let Ok(remark) = remarked.try_recv() {
        words.remark(&remark);
    }
    while let Ok(notice) = notices.try_recv() {
        words.notice(&notice);
    }
    let code = finish(&end, &session, &post, &words).await;
    if let Some(watchers) = watchers {
        watchers.abort();
    }
    drop(folder);
    code
}

/// Says how it ended, and closes what is left.
async fn finish(
    end: &NodeEnd,
    session: &Session,
    post: &Post,
    words: &Words<'_>,
) -> Result<ExitCode, Failure> {
    match end {
        NodeEnd::Left { running } if running.is_empty() => {
            // Without its keys the lease holds nothing: whether it ends now or by itself matters to nobody.
            let _ = tokio::time::timeout(CLOSE_WITHIN, session.close()).await;
            post.close().await;
            words.left();
            Ok(ExitCode::SUCCESS)
        }
        NodeEnd::Left { running } => {
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
        NodeEnd::Displaced => {
            post.close().await;
            Err(Failure::new(Code::Conflict, format!("another node has taken the id '{}'", words.node))
                .hint("see it with `tenure node ls`, and give each worker an id of its own with --node"))
        }
        NodeEnd::Store(error) => {
            post.close().await;
            Err(Failure::from(error.clone()).while_doing("the store can never be used again"))
        }
        _ => Err(Failure::new(Code::Failed, "the node has ended")),
    }
}

fn not_joined(error: &JoinError, args: &WorkerArgs) -> Failure {
    match error {
        JoinError::Alive(other) => {
            let hint = match args.wait {
                None => {
                    "choose another --node, or wait with --wait 20s until its lease is over if it is dead"
                }
                Some(_) => "choose another --node, or stop the other one",
            };
            Failure::new(Code::Conflict, other.to_string()).hint(hint)
        }
        JoinError::NotYet { .. } => {
            Failure::new(Code::Unavailable, error.to_string()).hint("run `tenure doctor`")
        }
        JoinError::Store(error) => error.clone().into(),
        JoinError::Ttl(_) => {
            Failure::usage(error.to_string()).hint("use a longer --ttl; 15s suits nearly everybody")
        }
        error => Failure::new(Code::Failed, error.to_string()),
    }
}

/// Where checkpoint files are, for us alone.
fn folder() -> Result<TempDir, Failure> {
    tempfile::Builder::new()
        .prefix("tenure-worker-")
        .tempdir()
        .map_err(|error| Failure::new(Code::Failed, format!("no temporary folder can be made: {error}")))
}
