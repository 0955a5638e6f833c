//! What stands around something held: the store, a session, who we are; opened for it and closed after it.

use std::cell::Cell;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure::Identity;
use tenure::clock::{BootClock, Clock};
use tenure::session::Session;
use tenure::store::{Store, StoreError};
use tenure_core::id::Namespace;
use tenure_core::time::Moment;

use super::terms::{self, HoldArgs};
use super::timing::{Timing, warn_of_long};
use super::who;
use crate::cli::Global;
use crate::connect::{self, Purpose};
use crate::failure::{Code, Failure};
use crate::mistake;
use crate::output::Output;
use crate::supervise::{Program, Signals};

/// How long the store may take at the end. Scripts were promised the command's exit code within 2 s of its end, however silent the store is, and
/// half a second of that is for everything else; halved, a store that is only busy would keep locks until they expire.
pub(super) const CLOSE_WITHIN: Duration = Duration::from_millis(1_500);

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
    /// The same moment on the clock of sessions.
    pub(super) begin_at: Moment,
    pub(crate) namespace: Namespace,
    pub(crate) store: Store,
    pub(crate) session: Session,
    pub(crate) who: Identity,
    pub(super) timing: Timing,
    pub(crate) args: &'a HoldArgs,
    pub(crate) program: Option<Program>,
    /// The command with its arguments.
    pub(super) command: &'a [OsString],
    pub(crate) output: &'a Output,
    /// Whether the store did not answer the last time that it was waited for: then nothing more is waited for at the end.
    pub(super) is_silent: Cell<bool>,
}

impl<'a> Stage<'a> {
    /// Checks everything that can be checked without a store, then opens one.
    pub(crate) async fn open(
        args: &'a HoldArgs,
        command: &'a [OsString],
        global: &Global,
        output: &'a Output,
        signals: &mut Signals,
        wait: Option<Duration>,
    ) -> Result<Stage<'a>, Stop> {
        let (begin, begin_at) = (Instant::now(), BootClock.now());
        let timing = args.timing()?;
        let program = terms::find(command)?;
        warn_of_long(timing.ttl, output);
        if let Some(warning) = mistake::flag_after_command(command) {
            output.warn(&warning);
        }
        let decision = connect::decide_waiting(global, wait)?;
        let namespace = Namespace::parse(&decision.namespace.value)
            .map_err(|error| Failure::usage(format!("the namespace: {error}")))?;
        let store = tokio::select! {
            biased;
            signal = signals.next_end() => return Err(Stop::signal(signal)),
            store = connect::open_for(Purpose::Hold, &decision, output) => store?,
        };
        store.info().limits.grant_ttl(timing.ttl)?;
        let session = Session::options().ttl(timing.ttl).open(store.clone()).map_err(|error| {
            Failure::usage(error.to_string()).hint("use a longer --ttl; 15s suits nearly everybody")
        })?;
        let who = who::introduce(&decision, command);
        let is_silent = Cell::new(false);
        Ok(Stage {
            begin,
            begin_at,
            namespace,
            store,
            session,
            who,
            timing,
            args,
            program,
            command,
            output,
            is_silent,
        })
    }

    /// Ends the session and the store; what cannot be ended in time ends by itself.
    pub(crate) async fn close(self, patience: Patience) {
        let (session_within, store_within) = match patience {
            // Both are told to close, and nobody waits for it.
            _ if self.is_silent.get() => (Duration::ZERO, Duration::ZERO),
            Patience::Usual => (CLOSE_WITHIN, GIVE_UP_WITHIN),
            Patience::Short => (GIVE_UP_WITHIN, GIVE_UP_WITHIN),
        };
        let _ = tokio::time::timeout(session_within, self.session.close()).await;
        let _ = tokio::time::timeout(store_within, self.store.close()).await;
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
