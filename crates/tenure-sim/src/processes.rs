//! The simulated processes of a world, each with a real session: how they join, stop, resume and
//! die.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::session::Session;
use tenure::store::Store;
use tenure::testing::{ProcessClock, World};
use tenure_core::id::Namespace;
use tokio::sync::Notify;

use crate::held::HoldTracker;
use crate::history::{Fact, RunHistory};

/// The namespace in which everything happens.
pub const NAMESPACE: &str = "sim";

/// The state of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessState {
    /// It does what it does.
    Awake,
    /// It is stopped, and may go on.
    Stopped,
    /// It was killed.
    Dead,
}

/// One simulated process.
#[derive(Clone)]
pub struct SimProcess {
    /// Its name, which no later process has.
    pub name: String,
    /// The store, as it reaches it.
    pub store: Store,
    /// Its clock.
    pub clock: ProcessClock,
    /// Its session.
    pub session: Session,
    signal: Arc<ProcessSignal>,
}

impl SimProcess {
    /// Returns immediately while it runs, and otherwise when it resumes: never, if it was killed.
    pub async fn awake(&self) {
        loop {
            // Before the look: a change between the two counts.
            let changed = self.signal.changed.notified();
            if self.signal.state() == ProcessState::Awake {
                return;
            }
            changed.await;
        }
    }

    /// Lets time pass, and as much more as it is stopped.
    pub async fn rest(&self, time: Duration) {
        tokio::time::sleep(time).await;
        self.awake().await;
    }
}

/// The state of a process, and the tasks that wait for it to resume. One list, so that they resume
/// in the order in which they began to wait.
struct ProcessSignal {
    state: Mutex<ProcessState>,
    changed: Notify,
}

impl ProcessSignal {
    fn state(&self) -> ProcessState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the state changed. A dead process stays dead.
    fn change(&self, to: ProcessState) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_change = *state != to && *state != ProcessState::Dead;
        if is_change {
            *state = to;
        }
        drop(state);
        if is_change {
            self.changed.notify_waiters();
        }
        is_change
    }
}

/// All simulated processes. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub struct SimProcesses {
    /// The world of the run.
    pub world: World,
    /// What happens to them.
    pub history: RunHistory,
    /// What they track_hold.
    pub holds: HoldTracker,
    /// The TTL of their sessions.
    pub ttl: Duration,
    processes: Arc<Mutex<BTreeMap<String, SimProcess>>>,
}

impl SimProcesses {
    /// No process yet.
    pub fn new(world: &World, history: &RunHistory, holds: &HoldTracker, ttl: Duration) -> SimProcesses {
        SimProcesses {
            world: world.clone(),
            history: history.clone(),
            holds: holds.clone(),
            ttl,
            processes: Arc::default(),
        }
    }

    /// A process joins, with a session of its own.
    ///
    /// # Panics
    ///
    /// If the TTL cannot be held: a world has a sensible one.
    pub fn enter(&self, name: &str, latency: Duration) -> SimProcess {
        let clock = self.world.process(name).clock();
        let store = self.world.process(name).store();
        self.world.process(name).set_latency(latency);
        let options = Session::options().ttl(self.ttl).clock(clock.clone());
        let session = options.open(store.clone()).expect("the TTL can be held");
        let signal =
            Arc::new(ProcessSignal { state: Mutex::new(ProcessState::Awake), changed: Notify::new() });
        let process = SimProcess { name: name.to_owned(), store, clock, session, signal };
        self.lock().insert(name.to_owned(), process.clone());
        process
    }

    /// The names of all processes that are not dead.
    pub fn living(&self) -> Vec<String> {
        let processes = self.lock();
        let living = processes.iter().filter(|(_, process)| process.signal.state() != ProcessState::Dead);
        living.map(|(name, _)| name.clone()).collect()
    }

    /// All processes that are not dead.
    pub fn processes(&self) -> Vec<SimProcess> {
        let processes = self.lock();
        processes.values().filter(|process| process.signal.state() != ProcessState::Dead).cloned().collect()
    }

    /// How many were killed.
    pub fn deaths(&self) -> usize {
        self.lock().values().filter(|process| process.signal.state() == ProcessState::Dead).count()
    }

    /// Whether a process can act.
    pub fn is_alive(&self, name: &str) -> bool {
        self.lock().get(name).is_some_and(|process| process.signal.state() != ProcessState::Dead)
    }

    /// Stops a process, as SIGSTOP does.
    pub fn stop(&self, name: &str) {
        if self.change(name, ProcessState::Stopped) {
            self.holds.leave(name);
            self.world.process(name).pause();
            self.log(format!("{name} is stopped"));
        }
    }

    /// Resumes a process.
    pub fn resume(&self, name: &str) {
        if !self.is_alive(name) {
            return;
        }
        self.world.process(name).resume();
        if self.change(name, ProcessState::Awake) {
            self.holds.come_back(name);
            self.log(format!("{name} goes on"));
        }
    }

    /// Kills a process: nothing of it reaches the store any more, and its clock stops.
    pub fn kill(&self, name: &str) {
        if self.change(name, ProcessState::Dead) {
            self.holds.leave(name);
            self.world.process(name).partition();
            self.world.process(name).pause();
            self.world.process(name).stop_delaying_writes();
            self.log(format!("{name} is killed"));
        }
    }

    /// Records a fault for the reader of the history.
    pub fn log(&self, text: String) {
        self.history.note(Fact::Fault(text));
    }

    fn change(&self, name: &str, to: ProcessState) -> bool {
        self.lock().get(name).is_some_and(|process| process.signal.change(to))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, SimProcess>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The namespace.
///
/// # Panics
///
/// Never: it is a good name.
pub fn namespace() -> Namespace {
    Namespace::parse(NAMESPACE).expect("a good name")
}
