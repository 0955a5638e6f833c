//! Virtual time and simulated faults, to test what a program does when a lock, a term or a session is lost.
//!
//! A [`World`] has one store and any number of named [`Process`]es. Each process has its own connection to the store and its own clock, and a
//! method for each fault: a partition, lost responses, a pause, a wrong clock, a crash. A test of a 20 s partition takes milliseconds, and its
//! result is the same in every run.
//!
//! ```
//! use std::time::Duration;
//! use tenure::session::SessionState;
//! use tenure::testing::World;
//!
//! # #[tokio::main(flavor = "current_thread")] // in a test: `#[tokio::test]`
//! # async fn main() -> tenure::Result<()> {
//! let world = World::new();
//! let (web, other) = (world.process("web-1"), world.process("other"));
//! let tenure = web.builder().namespace("shop").ttl(Duration::from_secs(10)).connect().await?;
//! let registration = tenure.register("web-1", "10.0.0.7:80").await?;
//!
//! web.partition();
//! world.advance(Duration::from_secs(12)).await;
//! assert!(matches!(*tenure.session().state().borrow(), SessionState::Lost { .. }));
//! assert_eq!(other.store().get_key("/shop/registry/web-1").await?, None);
//!
//! web.heal();
//! world.advance(Duration::from_secs(1)).await;
//! assert!(matches!(*tenure.session().state().borrow(), SessionState::Live { incarnation: 2 }));
//! assert!(other.store().get_key("/shop/registry/web-1").await?.is_some());
//! # drop(registration);
//! # Ok(())
//! # }
//! ```
//!
//! An election: the leader that is cut off stops before its successor starts.
//!
//! ```
//! use std::time::Duration;
//! use tenure::testing::World;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let world = World::new();
//! let (one, two) = (world.process("web-1"), world.process("web-2"));
//! let (a, b) = (one.tenure().election("scheduler"), two.tenure().election("scheduler"));
//! tokio::spawn(a.campaign().lead(|_| std::future::pending::<()>()));
//! world.run_until_idle().await;
//! tokio::spawn(b.campaign().lead(|_| std::future::pending::<()>()));
//!
//! one.partition();
//! for _ in 0..200 {
//!     world.advance(Duration::from_millis(100)).await;
//!     assert!(!(a.is_leader() && b.is_leader()));
//! }
//! assert!(b.is_leader());
//! # }
//! ```
//!
//! # Time
//!
//! There is one source of time: the paused clock of the tokio runtime. [`World::new`] pauses it. Sessions, feeds and plain `tokio::time`
//! code therefore share one virtual time.
//!
//! * [`World::advance`] moves time from one wake-up to the next, and each task runs at its own moment.
//! * Any other `.await` that has to wait moves time too, because the runtime skips to the next timer when every task is idle.
//!   A test that awaits something that never comes ends after the last virtual timeout, not after an hour.
//! * [`World::run_until_idle`] runs all tasks that can run now. Time does not move.
//!
//! The clocks of the world are exact to the millisecond. Plain tokio timers round up to the runtime's own milliseconds. Under
//! `#[tokio::test(start_paused = true)]` these are the world's; under `#[tokio::test]` they are up to a millisecond late.
//!
//! # Repeatable runs
//!
//! Nothing in the world itself is random. Leases are numbered in the order of their grants, processes are kept in the order of their names,
//! and waiting tasks are woken in the order in which they began to wait. The retries of sessions and feeds have jitter, so the *moments* of
//! their attempts differ between runs, within the bounds of their backoff. [`World::seeded`] derives this jitter and every id from one
//! number.
//!
//! # Limits
//!
//! * The runtime must be tokio's current-thread one, as `#[tokio::test]` makes it.
//! * A task cannot be stopped from outside. [`Process::pause`] and [`Process::kill`] stop the process's clock, timers, requests and watches.
//!   Its tasks still run if something else wakes them.
//! * tokio's own `watch` channels wake their receivers in a random order that no seed decides. `Session::state`, `Worker::status` and the
//!   `changes` of a member or an instance are such channels. Two registrations of one session can therefore see its loss in either order,
//!   at the same instant.
//! * The store is the memory engine. A world tests *your* code; for servers that fail there is real etcd.

mod clock_skew;

pub(crate) mod seed;

mod time;

mod link;

mod process;

mod faulty_engine;

mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::time::Moment;

use crate::store::memory::MemoryEngine;
use crate::store::{Engine, LeaseId, Limits, Revision, StoreError};
use crate::tenure::Tenure;

use faulty_engine::LeaseNumbers;
use link::{LinkMode, ProcessLink};
use seed::Seed;
use time::WorldTime;

pub use clock_skew::ClockSkew;
pub use process::{Process, ProcessClock};

/// One store and the processes that use it, in virtual time. Cheap to clone; all clones are one world.
///
/// # Guarantees
///
/// * Without a fault, the store of a process is the memory engine: it passes the conformance suite.
/// * Under a fault, a request gets the error that the etcd engine would return. Reads and renewals without a response are
///   [`StoreError::Unavailable`], and writes without a response are [`StoreError::Ambiguous`]. A watch stops without an error and continues
///   without a gap.
#[derive(Clone)]
pub struct World {
    shared: Arc<WorldShared>,
}

struct WorldShared {
    time: WorldTime,
    memory: MemoryEngine,
    numbers: Arc<LeaseNumbers>,
    processes: Mutex<BTreeMap<String, RunningProcess>>,
    seed: Option<Seed>,
}

/// A process as it is now. A process that was killed is replaced by its successor.
struct RunningProcess {
    link: Arc<ProcessLink>,
    tenure: Option<Tenure>,
}

impl World {
    /// Makes a world without keys, and pauses time.
    ///
    /// # Panics
    ///
    /// Outside a current-thread tokio runtime: only its clock can be paused.
    pub fn new() -> World {
        World::with_limits(Limits::EMBEDDED)
    }

    /// Makes a world with these limits of its store: other TTLs, smaller transactions.
    pub fn with_limits(limits: Limits) -> World {
        World::begin(WorldTime::begin(), limits, None)
    }

    /// Makes a world in which every random number is derived from `seed`, and the wall clock and the boot clock follow virtual time.
    ///
    /// This holds for the whole thread until the last clone of the world is dropped. The same seed gives the same run.
    ///
    /// # Panics
    ///
    /// If another seeded world of this thread is alive: tasks that are left of it would draw numbers of this one. A task that holds a clone of
    /// a world keeps it alive until it has ended.
    pub fn seeded(seed: u64) -> World {
        let time = WorldTime::begin();
        World::begin(time, Limits::EMBEDDED, Some(Seed::begin(seed)))
    }

    fn begin(time: WorldTime, limits: Limits, seed: Option<Seed>) -> World {
        let shared = WorldShared {
            time,
            memory: MemoryEngine::with_clock(time, limits),
            numbers: Arc::new(LeaseNumbers::default()),
            processes: Mutex::new(BTreeMap::new()),
            seed,
        };
        World { shared: Arc::new(shared) }
    }

    /// Returns the process of this name, and starts it if there is none. All handles of one name are one process.
    pub fn process(&self, name: impl Into<String>) -> Process {
        Process::start(self, name.into())
    }

    /// Returns the virtual time since the world was made.
    pub fn elapsed(&self) -> Duration {
        self.shared.time.elapsed()
    }

    /// Moves time forward, from wake-up to wake-up. When it returns, every task has done what it can do by then.
    pub async fn advance(&self, duration: Duration) {
        let until = self.elapsed() + duration;
        self.shared.time.sleep_until(until).await;
        self.run_until_idle().await;
    }

    /// Runs every task until none of them can continue. Time does not move.
    pub async fn run_until_idle(&self) {
        time::run_until_idle().await;
    }

    /// Heals every process; see [`Process::heal`].
    pub fn heal_all(&self) {
        for process in self.processes().values() {
            process.link.set_mode(LinkMode::Open);
        }
    }

    /// Ends a lease and deletes its keys now, as if its TTL had passed without a renewal. Returns `false` if there is no such lease.
    pub fn expire_lease(&self, lease: LeaseId) -> bool {
        // In the store a revoked lease and an expired one end in the same way, so no process can see a difference.
        immediately(self.shared.memory.revoke(lease)).is_ok()
    }

    /// Restarts the TTL of every lease, as a new leader of etcd does.
    pub fn renew_all_leases(&self) {
        for lease in immediately(self.shared.memory.leases()).unwrap_or_default() {
            // A lease that has expired meanwhile stays expired.
            let _ = immediately(self.shared.memory.renew(lease));
        }
    }

    /// Compacts the history up to `revision`. A watcher that has not read it by then has to list again.
    ///
    /// # Errors
    ///
    /// [`StoreError::Compacted`] and [`StoreError::FutureRevision`], as those of the store.
    pub fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        immediately(self.shared.memory.compact(revision))
    }

    /// Sets the wall clock of a [seeded](World::seeded) world forward, or back. No other clock of the world moves.
    ///
    /// # Panics
    ///
    /// If the world is not seeded: its wall clock is that of the machine.
    pub fn step_wall_clock(&self, by_ms: i64) {
        self.shared.seed.as_ref().expect("only a seeded world has a wall clock of its own").step_wall(by_ms);
    }

    fn processes(&self) -> MutexGuard<'_, BTreeMap<String, RunningProcess>> {
        // No method panics between two changes of the map.
        self.shared.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for World {
    fn default() -> World {
        World::new()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let links: Vec<Arc<ProcessLink>> =
            self.processes().values().map(|process| process.link.clone()).collect();
        write!(f, "World({:?}, {links:?})", Moment::after_origin(self.elapsed()))
    }
}

/// The reply of the memory engine: its futures are always ready.
fn immediately<T>(reply: impl Future<Output = T>) -> T {
    reply.now_or_never().expect("the memory engine replies without waiting")
}
