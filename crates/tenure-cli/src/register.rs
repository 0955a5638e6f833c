//! `tenure register`: keeps keys in the store while a command runs, or until a signal.
//!
//! The session registers the keys; this module runs the command and reports. A lost lease does not stop the command:
//! a registration excludes no other process, and the session registers the keys again.

mod output;
mod pairs;

use std::ffi::OsString;
use std::future::IntoFuture;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use futures_util::future;
use rustix::process::Signal;
use tenure::session::{RegisterError, RegisteredKey, Session, SessionState};
use tenure::store::Store;
use tenure_core::id::Namespace;
use tokio::sync::watch;

use self::output::RegisterOutput;
use self::pairs::RegisterPair;
use crate::cli::Global;
use crate::connect::{self, ConnectSettings, StorePurpose};
use crate::duration;
use crate::failure::{Code, Failure};
use crate::hold::warn_of_long;
use crate::output::{Output, escape};
use crate::supervise::{self, Job, Program, Signals, StopTimes};

/// The time limit of the registration, from the start of the process: scripts rely on a reply within 6 s.
const START_WITHIN: Duration = Duration::from_secs(5);

/// The minimum of that limit after a slow connection.
const REGISTER_WITHIN_MIN: Duration = Duration::from_millis(500);

/// The time limit of removing the keys; the exit code must not wait for a store that is down.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// The same after a failed start, when the 6 s are nearly over.
const ABANDON_TIMEOUT: Duration = Duration::from_millis(200);

const HELP: &str = "\
A KEY of two parts is an instance of a service: web/1 is instance 1 of web, stored as /NAMESPACE/registry/services/web/1, and
`tenure service show web` lists it. Any other KEY, such as a or a/b/c, is stored as /NAMESPACE/registry/KEY. VALUE may be empty and may contain '='.

With a command, the keys stay as long as it runs. tenure forwards signals to it and ends with its exit code. Its
environment has TENURE_LEASE, TENURE_TTL_SECONDS, TENURE_NAMESPACE and TENURE_NODE. If the keys are lost, the
command runs on and the keys are registered again; TENURE_LEASE remains the id of the first lease.
Without a command, SIGINT and SIGTERM are the normal end: the keys are removed and the exit code is 0.

Exit codes with a command: its own, 128+N if signal N killed it, 125 if it was not started, 126 not executable,
127 not found. Without one: 0, or 2 usage, 4 another process has a key, 5 store unavailable.";

/// The flags of `tenure register`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct RegisterArgs {
    /// The keys with their values.
    #[arg(value_name = "KEY=VALUE", required = true)]
    pairs: Vec<OsString>,
    /// The TTL of the lease: how long the keys stay if this process is killed.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "15s")]
    ttl: Duration,
    /// Fail if another process has one of the keys, instead of overwriting it.
    #[arg(long)]
    create_only: bool,
    /// Kill the command this long after SIGTERM or SIGINT [default: no limit]. A second SIGINT within 2 s always kills.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, requires = "command")]
    grace: Option<Duration>,
    /// The command, after --.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl RegisterArgs {
    pub(crate) fn has_command(&self) -> bool {
        !self.command.is_empty()
    }
}

/// Registers, runs the command or waits for a signal, and removes the keys.
pub(crate) async fn run(args: &RegisterArgs, global: &Global, output: &Output) -> Result<ExitCode, Failure> {
    let begin = Instant::now();
    let settings = connect::decide(global)?;
    let namespace = settings.namespace.value.clone();
    let pairs = pairs::parse(&args.pairs, &namespace)?;
    let program = args.command.first().map(|name| Program::find(name)).transpose()?;
    let mut signals = Signals::listen()
        .map_err(|error| Failure::new(Code::Failed, format!("cannot install signal handlers: {error}")))?;
    let store = tokio::select! {
        biased;
        signal = signals.next_end() => return Ok(ended_by(signal)),
        store = connect::open_for(StorePurpose::Hold, &settings, output) => store?,
    };
    warn_of_long(args.ttl, output);
    // Checked here, because the session would retry a TTL that the store never grants.
    store.info().limits.grant_ttl(args.ttl)?;
    let session = Session::options().ttl(args.ttl).open(store.clone()).map_err(|error| {
        Failure::usage(error.to_string()).hint("use a longer --ttl; 15s suits most programs")
    })?;
    let context = RegisterContext { begin, settings, namespace, store, output };
    let done = keep(args, &pairs, program.as_ref(), &context, &session, &mut signals).await;
    // The session has ended its requests, so nothing is lost if the store does not close in time.
    let _ = tokio::time::timeout(ABANDON_TIMEOUT, context.store.close()).await;
    done
}

/// The context of a registration.
struct RegisterContext<'a> {
    begin: Instant,
    settings: ConnectSettings,
    namespace: Namespace,
    store: Store,
    output: &'a Output,
}

async fn keep(
    args: &RegisterArgs,
    pairs: &[RegisterPair],
    program: Option<&Program>,
    context: &RegisterContext<'_>,
    session: &Session,
    signals: &mut Signals,
) -> Result<ExitCode, Failure> {
    let output = context.output;
    let (mut state, mut events) = (session.state(), session.events());
    let registered = tokio::select! {
        biased;
        signal = signals.next_end() => {
            close(session, args.ttl, output).await;
            return Ok(ended_by(signal));
        }
        registered = register(args, pairs, context, session) => registered,
    };
    let registrations = match registered {
        Ok(registrations) => registrations,
        Err(failure) => {
            // A key that was put and cannot be removed now expires with its lease.
            let _ = tokio::time::timeout(ABANDON_TIMEOUT, session.close()).await;
            return Err(failure);
        }
    };
    // The registrations return just before the session publishes its state. An error means that the session is closed.
    let _ = state.wait_for(|state| !matches!(state, SessionState::Idle)).await;
    let reports = RegisterOutput { output, namespace: &context.namespace, has_command: program.is_some() };
    let ttl = granted(args.ttl, &registrations, context).await;
    let known = registrations.iter().map(|one| (one.key.clone(), one.revision)).collect();
    let env = environment(context, &registrations, ttl);
    let job = program.map(|program| Job {
        program,
        args: args.command.get(1..).unwrap_or_default(),
        env: &env,
        grace: args.grace,
        signal: Signal::TERM,
    });
    let done = match reports.ready(&registrations, ttl) {
        Ok(()) => tokio::select! {
            biased;
            done = work(job, signals, output) => done,
            failure = reports.follow(session, &mut state, &mut events, &known) => Err(failure),
        },
        Err(failure) => Err(failure),
    };
    close(session, ttl, output).await;
    if done.is_ok() {
        reports.report_remaining(&mut events, &known)?;
    }
    done
}

/// Registers all keys, or fails with the first refused one.
async fn register(
    args: &RegisterArgs,
    pairs: &[RegisterPair],
    context: &RegisterContext<'_>,
    session: &Session,
) -> Result<Vec<RegisteredKey>, Failure> {
    let within = START_WITHIN.saturating_sub(context.begin.elapsed()).max(REGISTER_WITHIN_MIN);
    let requests = pairs.iter().map(|pair| {
        let request = session.register_raw(pair.path.clone(), pair.value.clone()).timeout(within);
        if args.create_only { request.if_absent() } else { request }.into_future()
    });
    let replies = future::join_all(requests).await;
    pairs.iter().zip(replies).map(|(pair, reply)| reply.map_err(|error| refused(pair, error))).collect()
}

fn refused(pair: &RegisterPair, error: RegisterError) -> Failure {
    let key = escape(pair.name.as_str().as_bytes());
    match error {
        RegisterError::Held { .. } => {
            Failure::new(Code::Conflict, format!("another process has registered {key}"))
                .hint("see its value and lease with `tenure kv get KEY --json`, or leave --create-only out")
        }
        RegisterError::Timeout { after } => {
            Failure::new(Code::Unavailable, format!("{key} was not registered within {after:.1?}"))
                .hint("run `tenure doctor`")
        }
        RegisterError::Store(error) => Failure::from(error).while_doing(&key),
        other => Failure::new(Code::Failed, format!("{key}: {other}")).hint("run the command again"),
    }
}

/// The granted TTL. Prints a note if it differs from the requested one.
async fn granted(
    requested: Duration,
    registrations: &[RegisteredKey],
    context: &RegisterContext<'_>,
) -> Duration {
    let Some(first) = registrations.first() else { return requested };
    let view = tokio::time::timeout(REGISTER_WITHIN_MIN, context.store.lease(first.lease)).await;
    // Only a note depends on this read, and the session itself reports a failing store.
    let Ok(Ok(Some(view))) = view else { return requested };
    if view.granted != requested {
        context
            .output
            .note(&format!("the store granted a TTL of {:?} instead of {requested:?}", view.granted));
    }
    view.granted
}

/// The variables that are added to the command's environment.
fn environment(
    context: &RegisterContext<'_>,
    registrations: &[RegisteredKey],
    ttl: Duration,
) -> Vec<(&'static str, OsString)> {
    let node = match &context.settings.node {
        Some(node) => node.value.clone(),
        None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    };
    let lease = registrations.first().map(|first| first.lease.to_string()).unwrap_or_default();
    vec![
        ("TENURE_LEASE", lease.into()),
        ("TENURE_TTL_SECONDS", ttl.as_secs_f64().to_string().into()),
        ("TENURE_NAMESPACE", context.namespace.to_string().into()),
        ("TENURE_NODE", node.into()),
    ]
}

/// Runs the command, or waits for a signal that ends this process.
async fn work(job: Option<Job<'_>>, signals: &mut Signals, output: &Output) -> Result<ExitCode, Failure> {
    let Some(job) = job else {
        signals.next_end().await;
        return Ok(ExitCode::SUCCESS);
    };
    // The command relies on no hold, so it has no deadline.
    let (_feed, terms) = watch::channel(StopTimes::FREE);
    let outcome = supervise::run(&job, terms, signals, output).await?;
    Ok(ExitCode::from(outcome.exit_code()))
}

/// Removes the keys within a time limit.
async fn close(session: &Session, ttl: Duration, output: &Output) {
    let lease = session.lease_id();
    let closed = tokio::time::timeout(CLOSE_WITHIN, session.close()).await;
    if let Some(lease) = lease
        && !matches!(closed, Ok(Ok(())))
    {
        // Counted from now, because the last renewal may have arrived just now.
        let seconds = ttl.as_secs_f64().ceil();
        output.note(&format!(
            "the store does not reply, so the keys were not removed; lease {lease} expires in {seconds} s"
        ));
    }
}

/// The exit code after a signal before the keys were registered.
fn ended_by(signal: Signal) -> ExitCode {
    ExitCode::from(128 | u8::try_from(signal.as_raw()).unwrap_or(0))
}
