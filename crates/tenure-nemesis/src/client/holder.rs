//! What all actors of a client have in common.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::hold::Hold;
use tenure::session::Session;
use tenure::store::Store;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::history::{HistoryEvent, HistoryWriter, HoldEnd, Stamp, now, stamp};
use crate::options::ClientOptions;
use crate::rng::NemesisRng;

/// What all actors have in common. Cheap to clone.
#[derive(Clone)]
pub(super) struct HolderContext {
    /// The name of this client.
    pub(super) name: String,
    pub(super) history: Arc<HistoryWriter>,
    pub(super) store: Store,
    pub(super) session: Session,
    /// Where the counters are.
    pub(super) ledger: SocketAddr,
    /// Faults are over: all actors finish their work and begin nothing new.
    pub(super) calm: CancellationToken,
    /// We are to go.
    pub(super) over: CancellationToken,
    pub(super) actors: TaskTracker,
    rng: Arc<Mutex<NemesisRng>>,
}

impl HolderContext {
    pub(super) fn new(
        options: &ClientOptions,
        history: Arc<HistoryWriter>,
        store: Store,
        session: Session,
    ) -> HolderContext {
        HolderContext {
            name: options.name.clone(),
            history,
            store,
            session,
            ledger: options.ledger,
            calm: CancellationToken::new(),
            over: CancellationToken::new(),
            actors: TaskTracker::new(),
            rng: Arc::new(Mutex::new(NemesisRng::new(options.seed))),
        }
    }

    /// A generator for one actor.
    pub(super) fn rng(&self) -> NemesisRng {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).split()
    }

    /// Runs an actor. It ends by itself once `calm` is cancelled.
    pub(super) fn act(&self, acting: impl Future<Output = ()> + Send + 'static) {
        self.actors.spawn(acting);
    }

    /// Waits; returns `false` once `calm` is cancelled.
    pub(super) async fn rest(&self, rest: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.calm.cancelled() => false,
            () = tokio::time::sleep(rest) => true,
        }
    }
}

/// A hold as it is written to the history. If it is dropped early, as by a handler that does not
/// stop in time, it counts as released: no code acts on it any more.
pub(super) struct RecordedHold<'a> {
    history: &'a HistoryWriter,
    pub(super) line: &'a str,
    pub(super) token: i64,
    is_open: AtomicBool,
}

impl<'a> RecordedHold<'a> {
    /// Not checked yet.
    pub(super) fn new(history: &'a HistoryWriter, line: &'a str, token: i64) -> RecordedHold<'a> {
        RecordedHold { history, line, token, is_open: AtomicBool::new(false) }
    }

    /// Checks whether it is held, and records the result. The check lies between two time stamps,
    /// so that what is recorded is certain.
    pub(super) fn look(&self, hold: &Hold) -> bool {
        let at = now();
        // In this order: the remaining time is counted from a moment after `at`, so the recorded
        // end is not too late.
        let remaining = hold.remaining();
        let is_valid = hold.is_valid();
        let by = now();
        if is_valid {
            let until = at.saturating_add(stamp(remaining));
            self.believed(at, by, until, Some(hold.lease().0.get()));
        } else {
            self.ended(HoldEnd::Lost);
        }
        is_valid
    }

    pub(super) fn believed(&self, at: Stamp, by: Stamp, until: Stamp, lease: Option<i64>) {
        self.is_open.store(true, Ordering::Relaxed);
        let (line, token) = (self.line.to_owned(), self.token);
        self.history.record_at(at, HistoryEvent::Believed { line, token, lease, by, until });
    }

    pub(super) fn ended(&self, how: HoldEnd) {
        self.is_open.store(false, Ordering::Relaxed);
        self.history.record(HistoryEvent::Ended { line: self.line.to_owned(), token: self.token, how });
    }

    /// It was refused by what it protects; does it know why?
    pub(super) fn refused(&self, believed: bool) {
        self.history.record(HistoryEvent::Refused {
            line: self.line.to_owned(),
            token: self.token,
            believed,
        });
    }
}

impl Drop for RecordedHold<'_> {
    fn drop(&mut self) {
        if *self.is_open.get_mut() {
            self.ended(HoldEnd::GivenUp);
        }
    }
}
