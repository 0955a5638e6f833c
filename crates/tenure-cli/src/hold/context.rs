//! The context of a hold: store, session and identity, opened before it and closed after it.

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

use super::args::{self, HoldArgs};
use super::timing::{LONGER_TTL, Timing, warn_of_long};
use crate::cli::Global;
use crate::connect::{self, StorePurpose};
use crate::failure::{Code, Failure};
use crate::mistake;
use crate::output::Output;
use crate::supervise::{Program, Signals};

/// How long the release may take. The exit code is documented to follow within 2 s of the command's end, even if the store does not
/// reply, and half a second of that is for everything else. Halved, a busy store would keep locks until they expire.
pub(super) const CLOSE_WITHIN: Duration = Duration::from_millis(1_500);

/// The same after a failed start, because most of the documented 6 s has passed.
const SHORT_CLOSE_WITHIN: Duration = Duration::from_millis(200);

/// Why the wrapper ends.
pub(crate) enum HoldExit {
    Failed(Failure),
    /// Everything is reported; this is the exit code.
    Ended(ExitCode),
}

impl From<Failure> for HoldExit {
    fn from(failure: Failure) -> HoldExit {
        HoldExit::Failed(failure)
    }
}

impl From<StoreError> for HoldExit {
    fn from(error: StoreError) -> HoldExit {
        HoldExit::Failed(error.into())
    }
}

impl HoldExit {
    pub(crate) fn exit(self) -> Result<ExitCode, Failure> {
        match self {
            HoldExit::Failed(failure) => Err(failure),
            HoldExit::Ended(code) => Ok(code),
        }
    }

    /// A signal arrived before anything was held.
    pub(crate) fn signal(signal: Signal) -> HoldExit {
        HoldExit::Ended(ExitCode::from(128 | u8::try_from(signal.as_raw()).unwrap_or(0)))
    }
}

/// The context of a hold.
pub(crate) struct HoldContext<'a> {
    pub(super) begin: Instant,
    /// The same instant on the clock of sessions.
    pub(super) begin_at: Moment,
    pub(crate) namespace: Namespace,
    pub(crate) store: Store,
    pub(crate) session: Session,
    pub(crate) identity: Identity,
    pub(super) timing: Timing,
    pub(crate) args: &'a HoldArgs,
    pub(crate) program: Option<Program>,
    /// The command with its arguments.
    pub(super) command: &'a [OsString],
    pub(crate) output: &'a Output,
    /// Whether the last wait for the store timed out. Closing does not wait for it then.
    pub(super) is_silent: Cell<bool>,
}

impl<'a> HoldContext<'a> {
    /// Checks everything that needs no store, then opens the store and a session.
    pub(crate) async fn open(
        args: &'a HoldArgs,
        command: &'a [OsString],
        global: &Global,
        output: &'a Output,
        signals: &mut Signals,
        wait: Option<Duration>,
    ) -> Result<HoldContext<'a>, HoldExit> {
        let (begin, begin_at) = (Instant::now(), BootClock.now());
        let timing = args.timing()?;
        let program = args::find(command)?;
        warn_of_long(timing.ttl, output);
        if let Some(warning) = mistake::flag_after_command(command) {
            output.warn(&warning);
        }
        let settings = connect::decide_waiting(global, wait)?;
        let namespace = settings.namespace.value.clone();
        let store = tokio::select! {
            biased;
            signal = signals.next_end() => return Err(HoldExit::signal(signal)),
            store = connect::open_for(StorePurpose::Hold, &settings, output) => store?,
        };
        store.info().limits.grant_ttl(timing.ttl)?;
        let session = Session::options()
            .ttl(timing.ttl)
            .open(store.clone())
            .map_err(|error| Failure::usage(error.to_string()).hint(LONGER_TTL))?;
        Ok(HoldContext {
            begin,
            begin_at,
            namespace,
            store,
            session,
            identity: settings.identity(command),
            timing,
            args,
            program,
            command,
            output,
            is_silent: Cell::new(false),
        })
    }

    /// Closes the session and the store. A lease that is not revoked in time expires.
    pub(crate) async fn close(self, deadline: CloseDeadline) {
        let (session_within, store_within) = match deadline {
            // Both start to close, and this process does not wait for them.
            _ if self.is_silent.get() => (Duration::ZERO, Duration::ZERO),
            CloseDeadline::Usual => (CLOSE_WITHIN, SHORT_CLOSE_WITHIN),
            CloseDeadline::Short => (SHORT_CLOSE_WITHIN, SHORT_CLOSE_WITHIN),
        };
        let _ = tokio::time::timeout(session_within, self.session.close()).await;
        let _ = tokio::time::timeout(store_within, self.store.close()).await;
    }
}

/// How long closing may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CloseDeadline {
    Usual,
    Short,
}

impl CloseDeadline {
    /// A release has closed the session already, and a failed start has used most of its time. Only a request that left the queue
    /// has a key to delete.
    pub(crate) fn after(done: &Result<ExitCode, HoldExit>) -> CloseDeadline {
        match done {
            Ok(_) | Err(HoldExit::Failed(_)) => CloseDeadline::Short,
            Err(HoldExit::Ended(_)) => CloseDeadline::Usual,
        }
    }
}

pub(crate) fn listen() -> Result<Signals, Failure> {
    Signals::listen()
        .map_err(|error| Failure::new(Code::Failed, format!("cannot install signal handlers: {error}")))
}
