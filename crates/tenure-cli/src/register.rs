//! `tenure register`: keys that live exactly as long as a command, or until a signal.
//!
//! The session does the work; here are the command line, the command, and what is said. Losing the lease does not stop the command:
//! a registration excludes nobody, and the session registers again by itself.

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

/// How long the store may take to hold the keys, from our start. Scripts were promised an answer within 6 s.
const START_WITHIN: Duration = Duration::from_secs(5);

/// What is left of that at least, when reaching the store took nearly all of it.
const REGISTER_WITHIN_MIN: Duration = Duration::from_millis(500);

/// How long the store may take at the end; the command's exit code must not wait for a store that is down.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// The same after a start that failed, because the 6 s are nearly over.
const ABANDON_TIMEOUT: Duration = Duration::from_millis(200);

const HELP: &str = "\
A KEY of two parts is an instance of a service: web/1 is instance 1 of web, stored as /NAMESPACE/registry/services/web/1, and
`tenure service show web` lists it. Any other KEY, such as a or a/b/c, is stored as /NAMESPACE/registry/KEY. VALUE may be empty and may hold '='.

With a command, the keys live as long as it does. Signals are passed on to it, its exit code is ours, and its
environment has TENURE_LEASE, TENURE_TTL_SECONDS, TENURE_NAMESPACE and TENURE_NODE. Should the keys be lost, the
command goes on and they are registered again; TENURE_LEASE is then the id of the first lease.
Without a command, SIGINT and SIGTERM are the normal end: the keys are removed and the exit code is 0.

Exit codes with a command: its own, 128+N if signal N killed it, 125 if it was not started, 126 not executable,
127 not found. Without one: 0, or 2 usage, 4 somebody else has a key, 5 store unavailable.";

/// What to register, and for how long.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct RegisterArgs {
    /// The keys with their values.
    #[arg(value_name = "KEY=VALUE", required = true)]
    pairs: Vec<OsString>,
    /// How long the keys outlive us if we cannot remove them.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "15s")]
    ttl: Duration,
    /// Fail if somebody else has one of the keys, instead of overwriting it.
    #[arg(long)]
    create_only: bool,
    /// Kill the command this long after SIGTERM or SIGINT; without it, it may take its time. A second SIGINT within 2 s always kills.
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
        .map_err(|error| Failure::new(Code::Failed, format!("signals cannot be heard: {error}")))?;
    let store = tokio::select! {
        biased;
        signal = signals.next_end() => return Ok(ended_by(signal)),
        store = connect::open_for(StorePurpose::Hold, &settings, output) => store?,
    };
    warn_of_long(args.ttl, output);
    // The session would go on asking for what no store grants.
    store.info().limits.grant_ttl(args.ttl)?;
    let session = Session::options().ttl(args.ttl).open(store.clone()).map_err(|error| {
        Failure::usage(error.to_string()).hint("use a longer --ttl; 15s suits nearly everybody")
    })?;
    let scene = RegisterContext { begin, settings, namespace, store, output };
    let done = keep(args, &pairs, program.as_ref(), &scene, &session, &mut signals).await;
    // The session has ended its own requests by now; whatever else is open ends with the process.
    let _ = tokio::time::timeout(ABANDON_TIMEOUT, scene.store.close()).await;
    done
}

/// What stands around a registration.
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
    scene: &RegisterContext<'_>,
    session: &Session,
    signals: &mut Signals,
) -> Result<ExitCode, Failure> {
    let output = scene.output;
    let (mut state, mut events) = (session.state(), session.events());
    let registered = tokio::select! {
        biased;
        signal = signals.next_end() => {
            close(session, args.ttl, output).await;
            return Ok(ended_by(signal));
        }
        registered = register(args, pairs, scene, session) => registered,
    };
    let registrations = match registered {
        Ok(registrations) => registrations,
        Err(failure) => {
            // The keys are wanted no more; one that was put and cannot be removed now ends with its lease.
            let _ = tokio::time::timeout(ABANDON_TIMEOUT, session.close()).await;
            return Err(failure);
        }
    };
    // The answer comes a moment before the state that goes with it; only a session that is gone has none.
    let _ = state.wait_for(|state| !matches!(state, SessionState::Idle)).await;
    let words = RegisterOutput { output, namespace: &scene.namespace, has_command: program.is_some() };
    let ttl = granted(args.ttl, &registrations, scene).await;
    let known = registrations.iter().map(|one| (one.key.clone(), one.revision)).collect();
    let env = environment(scene, &registrations, ttl);
    let job = program.map(|program| Job {
        program,
        args: args.command.get(1..).unwrap_or_default(),
        env: &env,
        grace: args.grace,
        signal: Signal::TERM,
    });
    let done = match words.ready(&registrations, ttl) {
        Ok(()) => tokio::select! {
            biased;
            done = work(job, signals, output) => done,
            failure = words.follow(session, &mut state, &mut events, &known) => Err(failure),
        },
        Err(failure) => Err(failure),
    };
    close(session, ttl, output).await;
    if done.is_ok() {
        words.rest(&mut events, &known)?;
    }
    done
}

/// Puts all keys, or fails with the first that cannot be.
async fn register(
    args: &RegisterArgs,
    pairs: &[RegisterPair],
    scene: &RegisterContext<'_>,
    session: &Session,
) -> Result<Vec<RegisteredKey>, Failure> {
    let within = START_WITHIN.saturating_sub(scene.begin.elapsed()).max(REGISTER_WITHIN_MIN);
    let wishes = pairs.iter().map(|pair| {
        let wish = session.register_raw(pair.path.clone(), pair.value.clone()).timeout(within);
        if args.create_only { wish.if_absent() } else { wish }.into_future()
    });
    let answers = future::join_all(wishes).await;
    pairs.iter().zip(answers).map(|(pair, answer)| answer.map_err(|error| refused(pair, error))).collect()
}

fn refused(pair: &RegisterPair, error: RegisterError) -> Failure {
    let key = escape(pair.name.as_str().as_bytes());
    match error {
        RegisterError::Held { .. } => {
            Failure::new(Code::Conflict, format!("somebody else has registered {key}"))
                .hint("see who with `tenure kv get KEY --json`, or leave --create-only out")
        }
        RegisterError::Timeout { after } => {
            Failure::new(Code::Unavailable, format!("the store did not take {key} within {after:.1?}"))
                .hint("run `tenure doctor`")
        }
        RegisterError::Store(error) => Failure::from(error).while_doing(&key),
        other => Failure::new(Code::Failed, format!("{key}: {other}")).hint("run the command again"),
    }
}

/// The TTL that the store granted; says so if it is another than was asked for.
async fn granted(asked: Duration, registrations: &[RegisteredKey], scene: &RegisterContext<'_>) -> Duration {
    let Some(first) = registrations.first() else { return asked };
    let view = tokio::time::timeout(REGISTER_WITHIN_MIN, scene.store.lease(first.lease)).await;
    // A store that fails just now is the session's business; it is asked for a figure here.
    let Ok(Ok(Some(view))) = view else { return asked };
    if view.granted != asked {
        scene.output.note(&format!("the store granted a TTL of {:?} instead of {asked:?}", view.granted));
    }
    view.granted
}

/// What the command's environment has beside ours.
fn environment(
    scene: &RegisterContext<'_>,
    registrations: &[RegisteredKey],
    ttl: Duration,
) -> Vec<(&'static str, OsString)> {
    let node = match &scene.settings.node {
        Some(node) => node.value.clone(),
        None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    };
    let lease = registrations.first().map(|first| first.lease.to_string()).unwrap_or_default();
    vec![
        ("TENURE_LEASE", lease.into()),
        ("TENURE_TTL_SECONDS", ttl.as_secs_f64().to_string().into()),
        ("TENURE_NAMESPACE", scene.namespace.to_string().into()),
        ("TENURE_NODE", node.into()),
    ]
}

/// Runs the command, or waits for the signal that ends us.
async fn work(job: Option<Job<'_>>, signals: &mut Signals, output: &Output) -> Result<ExitCode, Failure> {
    let Some(job) = job else {
        signals.next_end().await;
        return Ok(ExitCode::SUCCESS);
    };
    // Nothing that the command relies on can end.
    let (_feed, terms) = watch::channel(StopTimes::FREE);
    let outcome = supervise::run(&job, terms, signals, output).await?;
    Ok(ExitCode::from(outcome.exit_code()))
}

/// Removes the keys, if the store lets us in time.
async fn close(session: &Session, ttl: Duration, output: &Output) {
    let lease = session.lease_id();
    let closed = tokio::time::timeout(CLOSE_WITHIN, session.close()).await;
    if let Some(lease) = lease
        && !matches!(closed, Ok(Ok(())))
    {
        // Counted from now, because nobody knows whether the last renewal arrived.
        let seconds = ttl.as_secs_f64().ceil();
        output.note(&format!(
            "the store does not answer, so the keys could not be removed; lease {lease} expires by itself in {seconds} s"
        ));
    }
}

/// The exit code of one who was asked to end before there was anything to keep.
fn ended_by(signal: Signal) -> ExitCode {
    ExitCode::from(128 | u8::try_from(signal.as_raw()).unwrap_or(0))
}
