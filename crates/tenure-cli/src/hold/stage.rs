//! What stands around something held: the store, a session, who we are; opened for it and closed after it.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure::core::name::Namespace;
use tenure::core::record::HolderRecord;
use tenure::session::Session;
use tenure::store::{Store, StoreError};

use super::terms::{self, HoldArgs};
use super::timing::Timing;
use super::who;
use crate::cli::Global;
use crate::connect;
use crate::failure::{Code, Failure};
use crate::output::Output;
use crate::supervise::{Program, Signals};

/// How long the store may take at the end; the command's exit code must not wait for a store that is down.
pub(super) const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// The same after a start that failed, because the 6 s that scripts were promised are nearly over.
const GIVE_UP_WITHIN: Duration = Duration::from_millis(200);

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

/// What stands around something held.
pub(crate) struct Stage<'a> {
    pub(super) begin: Instant,
    pub(crate) namespace: Namespace,
    pub(crate) store: Store,
    pub(crate) session: Session,
    pub(crate) who: HolderRecord,
    pub(super) timing: Timing,
    pub(crate) args: &'a HoldArgs,
    pub(crate) program: Option<Program>,
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
        let who = who::introduce(&decision, command);
        Ok(Stage { begin, namespace, store, session, who, timing, args, program, command, output })
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
