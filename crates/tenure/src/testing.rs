//! A world in which your own loss handling can be tested, in milliseconds and the same way every time.
//!
//! Code that uses sessions is easy to write for good days. What it does when the network is cut, when a lease ends, when a clock
//! is wrong or a process was asleep is the part that matters, and the part that nobody sees before production. A [`World`] has one
//! store, any number of named participants who use it, and a knob for each of these days:
//!
//! ```
//! use std::time::Duration;
//! use tenure::session::{Session, SessionState};
//! use tenure::testing::World;
//!
//! # #[tokio::main(flavor = "current_thread")] // a test says `#[tokio::test]`
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let world = World::new();
//! let options = Session::options().ttl(Duration::from_secs(10)).clock(world.clock("web-1"));
//! let session = options.open(world.store("web-1"))?;
//! session.register_raw("/shop/web-1", "10.0.0.7:80").await?;
//!
//! world.partition("web-1");
//! world.advance(Duration::from_secs(12)).await;
//! assert!(matches!(*session.state().borrow(), SessionState::Lost { .. }));
//! let others = world.store("the others");
//! assert_eq!(others.get_key("/shop/web-1").await?, None);
//!
//! world.heal("web-1");
//! world.advance(Duration::from_secs(1)).await;
//! assert!(matches!(*session.state().borrow(), SessionState::Live { incarnation: 2 }));
//! assert!(others.get_key("/shop/web-1").await?.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! # Time
//!
//! There is one source of time: the paused clock of the tokio runtime. `World::new` pauses it. So sessions, feeds and your own
//! `tokio::time` code all live in the same virtual time, and nothing has to be passed around but the clock of each participant.
//!
//! * [`World::advance`] lets time pass from one wake-up to the next, and everybody acts at their own moment.
//! * Any other `.await` that has to wait lets time pass too, for the runtime skips to the next timer when nobody has anything to do.
//!   A test that awaits something that will never come ends when the last timeout is over, not after an hour.
//! * [`World::settle`] lets everybody do what they can do now, without time passing.
//!
//! The clocks of the world are exact to the millisecond. Plain tokio timers round up to the runtime's own milliseconds, which under
//! `#[tokio::test(start_paused = true)]` are the world's; under `#[tokio::test]` they are up to a millisecond late.
//!
//! # The same way every time
//!
//! The world throws no dice: leases are numbered in the order in which they are granted, participants are kept in order of their names, and
//! everybody who waits is woken in the order in which they began to. Sessions and feeds scatter their waits after a failure, so the
//! *moments* of their tries differ between runs, within the bounds of their retry rule. With a [`Fate`] they do not: one seed then decides
//! everything that is otherwise left to chance.
//!
//! # What it cannot do
//!
//! * The runtime must be tokio's current-thread one, as `#[tokio::test]` makes it.
//! * Nobody can stop a task that runs. [`World::stall`] stops a participant's clock, timers, requests and watches; what else its tasks do,
//!   they do.
//! * Where several wait on one of tokio's `watch` channels, tokio throws dice about who is woken first, and no [`Fate`] decides them. That is
//!   what `Session::state`, `Node::tenancy` and `changes` of a member or an instance give you. So two seats on one session (a member and an
//!   instance) may see in either order, within one instant, that it is lost.
//! * The store is the memory engine. For real servers that die there is real etcd; a world shows what *your* code does.

mod dial;

pub(crate) mod fate;

mod time;

mod participant;

mod wire;

mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::time::Moment;

use crate::store::memory::MemoryEngine;
use crate::store::{Engine, LeaseId, Limits, Revision, Store, StoreError};

use participant::{Link, Participant};
use time::WorldTime;
use wire::{LeaseNumbers, Wire};

pub use dial::Skew;
pub use fate::Fate;
pub use participant::ParticipantClock;

/// One store, and everybody who uses it. Cheap to clone; all clones are one world.
///
/// Participants are known by name from the moment their store or their clock was asked for. One that you never touch is an onlooker for whom
/// everything always works.
///
/// # Guarantees
///
/// * Without a knob turned, a participant's store is the memory engine: it passes the conformance suite.
/// * What a participant is told is what the etcd engine would tell it in the same place: reads and renewals without an answer are
///   [`StoreError::Unavailable`], writes without an answer are [`StoreError::Ambiguous`], and a watch stalls in silence and goes on without a gap.
///
/// # Panics
///
/// Every method that takes a name, but [`World::store`] and [`World::clock`], panics for a name that nobody has: a fault that hits nobody
/// would make a test pass for nothing.
#[derive(Clone)]
pub struct World {
    shared: Arc<Shared>,
}

struct Shared {
    time: WorldTime,
    memory: MemoryEngine,
    numbers: Arc<LeaseNumbers>,
    participants: Mutex<BTreeMap<String, Arc<Participant>>>,
}

impl World {
    /// An empty world, whose time stands still.
    ///
    /// # Panics
    ///
    /// Outside of a current-thread tokio runtime, whose clock alone can be stopped.
    pub fn new() -> World {
        World::with_limits(Limits::EMBEDDED)
    }

    /// An empty world whose store has these limits: other TTLs, smaller transactions.
    pub fn with_limits(limits: Limits) -> World {
        let time = WorldTime::begin();
        let shared = Shared {
            time,
            memory: MemoryEngine::with_clock(time, limits),
            numbers: Arc::new(LeaseNumbers::default()),
            participants: Mutex::new(BTreeMap::new()),
        };
        World { shared: Arc::new(shared) }
    }

    /// The store as this participant reaches it. Several handles of one participant share its fate; closing one closes only that one.
    pub fn store(&self, who: &str) -> Store {
        Store::new(Wire::new(self.enter(who), self.shared.memory.clone(), self.shared.numbers.clone()))
    }

    /// This participant's clock, for `Session::options().clock(…)` and the like.
    pub fn clock(&self, who: &str) -> ParticipantClock {
        ParticipantClock::new(self.enter(who))
    }

    /// How long the world has existed, in its own time.
    pub fn elapsed(&self) -> Duration {
        self.shared.time.elapsed()
    }

    /// Lets time pass, from wake-up to wake-up, and everybody act at their moment; when it returns, everything is done that could be done by then.
    pub async fn advance(&self, duration: Duration) {
        let until = self.elapsed() + duration;
        self.shared.time.sleep_until(until).await;
        self.settle().await;
    }

    /// Lets everybody do what they can do without time passing.
    pub async fn settle(&self) {
        time::settle().await;
    }

    /// Cuts a participant off, both ways: its requests get no answer until it is healed or their patience is over.
    ///
    /// A request that had not arrived does not arrive, unless the cut heals while somebody still waits for it. One that had arrived was done, and
    /// its answer is what is missing. Which of the two it was, the participant is not told.
    pub fn partition(&self, who: &str) {
        self.find(who).set_link(Link::Cut);
    }

    /// Lets a participant's requests arrive and be done, and loses the answers.
    pub fn lose_answers(&self, who: &str) {
        self.find(who).set_link(Link::AnswersLost);
    }

    /// Fails a participant's requests at once, as a closed port does; what was on its way is broken off.
    pub fn refuse(&self, who: &str) {
        self.find(who).set_link(Link::Refused);
    }

    /// Ends whatever cuts a participant off. Requests that are still waited for go on, watches catch up.
    pub fn heal(&self, who: &str) {
        self.find(who).set_link(Link::Open);
    }

    /// Heals everybody.
    pub fn heal_all(&self) {
        for participant in self.everybody() {
            participant.set_link(Link::Open);
        }
    }

    /// Makes every message from and to a participant take this long. What is on its way can then be caught by a partition.
    pub fn latency(&self, who: &str, one_way: Duration) {
        self.find(who).set_latency(one_way);
    }

    /// Lets a participant's writes arrive after it has given them up, up to 7 s later, or not any more.
    ///
    /// So a write that was told as [`StoreError::Ambiguous`] may be done behind everybody's back, as on a real network.
    pub fn arrive_late(&self, who: &str, arrives_late: bool) {
        self.find(who).set_arrives_late(arrives_late);
    }

    /// Stops a participant, as SIGSTOP or a suspended machine does: its clock, its timers, its requests and its watches stand still.
    ///
    /// Tasks that wait for something else go on running, for nobody can stop them: they see a clock that stands still.
    pub fn stall(&self, who: &str) {
        self.find(who).stall();
    }

    /// Lets a stalled participant go on. Its clock jumps to where it would be, and every timer that was due rings at once.
    pub fn resume(&self, who: &str) {
        self.find(who).resume();
    }

    /// Makes a participant's clock wrong from now on.
    ///
    /// # Panics
    ///
    /// For a clock that would stand still or go back.
    pub fn skew(&self, who: &str, skew: Skew) {
        self.find(who).skew(skew);
    }

    /// Ends a lease and its keys now, as if its time had passed without a renewal. False if there is no such lease.
    pub fn expire(&self, lease: LeaseId) -> bool {
        // To the store a lease that is revoked and one that ran out end in the same way, and so they do to everybody else.
        at_once(self.shared.memory.revoke(lease)).is_ok()
    }

    /// Lets all leases begin anew, as they do under a new leader of etcd.
    pub fn renew_all(&self) {
        for lease in at_once(self.shared.memory.leases()).unwrap_or_default() {
            // One that is over stays over.
            let _ = at_once(self.shared.memory.renew(lease));
        }
    }

    /// Forgets history up to `revision`: whoever has not seen it by then has to list again.
    pub fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        at_once(self.shared.memory.compact(revision))
    }

    /// A participant that may be new.
    fn enter(&self, who: &str) -> Arc<Participant> {
        let mut participants = self.shared.participants.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = participants.entry(who.to_owned());
        entry.or_insert_with(|| Arc::new(Participant::new(who, self.shared.time))).clone()
    }

    /// A participant that must exist.
    fn find(&self, who: &str) -> Arc<Participant> {
        let participants = self.shared.participants.lock().unwrap_or_else(PoisonError::into_inner);
        let found = participants.get(who).cloned();
        found.unwrap_or_else(|| {
            let names: Vec<&String> = participants.keys().collect();
            panic!("nobody in this world is called {who:?}, there are {names:?}")
        })
    }

    fn everybody(&self) -> Vec<Arc<Participant>> {
        let participants = self.shared.participants.lock().unwrap_or_else(PoisonError::into_inner);
        participants.values().cloned().collect()
    }
}

impl Default for World {
    fn default() -> World {
        World::new()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World({:?}, {:?})", Moment::after_origin(self.elapsed()), self.everybody())
    }
}

/// The answer of the memory engine, which never waits for anything.
fn at_once<T>(answer: impl Future<Output = T>) -> T {
    answer.now_or_never().expect("the memory engine answers without waiting")
}
