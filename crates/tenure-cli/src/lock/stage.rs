//! What stands around a lock: the store, a session, who we are; opened for it and closed after it.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure::core::name::Namespace;
use tenure::core::record::HolderRecord;
use tenure::lock::{Guard, Locks};
use tenure::session::Session;
use tenure::store::{Store, StoreError};

use super::terms::{self, HoldArgs};
use super::timing::Timing;
use crate::cli::Global;
use crate::connect::{self, Decision};
use crate::failure::{Code, Failure};
use crate::output::{Output, escape};
use crate::supervise::{Program, Signals};

/// How long the store may take at the end; the command's exit code must not wait for a store that is down.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// The same after a start that failed, because the 6 s that scripts were promised are nearly over.
const GIVE_UP_WITHIN: Duration = Duration::from_millis(200);

/// How much of a command line others are shown.
const COMMAND_CHARS_MAX: usize = 200;

/// Why there is nothing more to do.
pub(crate) enum Stop {
    Failed(Failure),
    /// Everything is said; this is the exit code.
    Ended(ExitCode),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Stop {
        Stop::Failed(error.into())
    }
}

impl Stop {
    pub(crate) fn exit(self) -> Result<ExitCode, Failure> {
        match self {
            Stop::Failed(failure) => Err(failure),
            Stop::Ended(code) => Ok(code),
        }
    }

    /// Somebody asked us to end before there was anything to hold.
    pub(crate) fn signal(signal: Signal) -> Stop {
        Stop::Ended(ExitCode::from(128 | u8::try_from(signal.as_raw()).unwrap_or(0)))
    }
}

/// What stands around a lock.
pub(crate) struct Stage<'a> {
    pub(super) begin: Instant,
    pub(crate) namespace: Namespace,
    pub(crate) store: Store,
    pub(super) session: Session,
    pub(super) locks: Locks,
    pub(crate) who: HolderRecord,
    pub(super) timing: Timing,
    pub(crate) args: &'a HoldArgs,
    pub(super) program: Option<Program>,
    /// The command with its arguments.
    pub(super) command: &'a [OsString],
    pub(crate) output: &'a Output,
}

impl<'a> Stage<'a> {
    /// Checks everything that can be checked without a store, then opens one.
    pub(crate) async fn open(
        args: &'a HoldArgs,
        command: &'a [OsString],
        global: &Global,
        output: &'a Output,
        signals: &mut Signals,
    ) -> Result<Stage<'a>, Stop> {
        let begin = Instant::now();
        let timing = args.timing()?;
        let program = terms::find(command)?;
        let decision = connect::decide(global)?;
        let namespace = Namespace::parse(&decision.namespace.value)
            .map_err(|error| Failure::usage(format!("the namespace: {error}")))?;
        let store = tokio::select! {
            biased;
            signal = signals.next_end() => return Err(Stop::signal(signal)),
            store = connect::open(&decision, output) => store?,
        };
        store.info().limits.grant_ttl(timing.ttl)?;
        let session = Session::options().ttl(timing.ttl).open(store.clone()).map_err(|error| {
            Failure::usage(error.to_string()).hint("use a longer --ttl; 15s suits nearly everybody")
        })?;
        let who = introduce(&decision, command);
        let locks = Locks::new(&session, &namespace).introduce(who.clone());
        Ok(Stage { begin, namespace, store, session, locks, who, timing, args, program, command, output })
    }

    pub(crate) fn program(&self) -> Option<&Program> {
        self.program.as_ref()
    }

    /// Ends the session and the store; what cannot be ended in time ends by itself.
    pub(crate) async fn close(self, patience: Patience) {
        let within = match patience {
            Patience::Usual => CLOSE_WITHIN,
            Patience::Short => GIVE_UP_WITHIN,
        };
        let _ = tokio::time::timeout(within, self.session.close()).await;
        let _ = tokio::time::timeout(GIVE_UP_WITHIN, self.store.close()).await;
    }

    /// Gives a lock back, and the session with it. None if the store did not answer in time.
    pub(crate) async fn release(&self, guard: Guard) -> Option<Result<(), tenure::lock::ReleaseError>> {
        let begin = Instant::now();
        let released = tokio::time::timeout(CLOSE_WITHIN, guard.release()).await.ok();
        // Without its place the lease holds nothing: whether it ends now or by itself matters to nobody.
        let _ =
            tokio::time::timeout(CLOSE_WITHIN.saturating_sub(begin.elapsed()), self.session.close()).await;
        released
    }

    /// What the command's environment has beside ours.
    pub(super) fn environment(&self, name: &str, guard: &Guard) -> Vec<(&'static str, OsString)> {
        let fence = guard.fence();
        let key = String::from_utf8_lossy(&fence.key).into_owned();
        let token = guard.token().to_string();
        vec![
            ("TENURE_LOCK", name.into()),
            ("TENURE_LOCK_KEY", key.clone().into()),
            ("TENURE_FENCE", token.clone().into()),
            ("TENURE_LEASE", guard.lease().to_string().into()),
            ("TENURE_TTL_SECONDS", guard.ttl().as_secs_f64().to_string().into()),
            ("TENURE_NAMESPACE", self.namespace.to_string().into()),
            ("TENURE_NODE", self.who.node.clone().into()),
            ("ETCD_LOCK_KEY", key.into()),
            ("ETCD_LOCK_REV", token.into()),
        ]
    }
}

/// How long a closing may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    Usual,
    Short,
}

impl Patience {
    /// Where something was held, the session was closed with it; where nothing could be, the time is nearly over. Only one who left the
    /// line leaves something to wait for.
    pub(crate) fn after(done: &Result<ExitCode, Stop>) -> Patience {
        match done {
            Ok(_) | Err(Stop::Failed(_)) => Patience::Short,
            Err(Stop::Ended(_)) => Patience::Usual,
        }
    }
}

pub(crate) fn listen() -> Result<Signals, Failure> {
    Signals::listen().map_err(|error| Failure::new(Code::Failed, format!("signals cannot be heard: {error}")))
}

/// What others see of us.
fn introduce(decision: &Decision, command: &[OsString]) -> HolderRecord {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let words: Vec<String> = command.iter().map(|word| escape(word.as_encoded_bytes())).collect();
    let mut line = words.join(" ");
    if let Some((end, _)) = line.char_indices().nth(COMMAND_CHARS_MAX) {
        line.truncate(end);
        line.push('…');
    }
    HolderRecord {
        node: decision.node.as_ref().map_or_else(|| host.clone(), |node| node.value.clone()),
        pid: std::process::id(),
        host,
        user: user(),
        command: line,
        ..HolderRecord::default()
    }
}

/// The name of our user; its number where nobody gave it a name.
fn user() -> String {
    let uid = rustix::process::getuid().as_raw().to_string();
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    });
    name.unwrap_or(uid)
}
