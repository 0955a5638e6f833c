//! Who plays: the participants of a world, with the real session of each, and what becomes of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::session::Session;
use tenure::store::Store;
use tenure::testing::{ProcessClock, World};
use tenure_core::id::Namespace;
use tokio::sync::Notify;

use crate::belief::Beliefs;
use crate::history::{Fact, History};

/// The namespace in which everything happens.
pub const NAMESPACE: &str = "sim";

/// How a participant is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vigour {
    /// It does what it does.
    Awake,
    /// It is stopped, and may go on.
    Stopped,
    /// It was killed.
    Dead,
}

/// One participant: a process, as far as the others can tell.
#[derive(Clone)]
pub struct Player {
    /// Its name, which no later life has.
    pub name: String,
    /// The store, as it reaches it.
    pub store: Store,
    /// Its clock.
    pub clock: ProcessClock,
    /// Its session.
    pub session: Session,
    pulse: Arc<Pulse>,
}

impl Player {
    /// Returns at once while it is awake, and otherwise when it goes on: never, if it was killed.
    pub async fn awake(&self) {
        loop {
            // Before the look: a change between the two counts.
            let changed = self.pulse.changed.notified();
            if self.pulse.vigour() == Vigour::Awake {
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

/// How a participant is, and who waits for it to go on: one list, so that they go on in the order in which they began to wait.
struct Pulse {
    vigour: Mutex<Vigour>,
    changed: Notify,
}

impl Pulse {
    fn vigour(&self) -> Vigour {
        *self.vigour.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if that is news: whoever is dead stays so.
    fn change(&self, to: Vigour) -> bool {
        let mut vigour = self.vigour.lock().unwrap_or_else(PoisonError::into_inner);
        let is_change = *vigour != to && *vigour != Vigour::Dead;
        if is_change {
            *vigour = to;
        }
        drop(vigour);
        if is_change {
            self.changed.notify_waiters();
        }
        is_change
    }
}

/// All participants. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Cast {
    /// The world they live in.
    pub world: World,
    /// What happens to them.
    pub history: History,
    /// What they believe.
    pub beliefs: Beliefs,
    /// The TTL of their sessions.
    pub ttl: Duration,
    players: Arc<Mutex<BTreeMap<String, Player>>>,
}

impl Cast {
    /// Nobody yet.
    pub fn new(world: &World, history: &History, beliefs: &Beliefs, ttl: Duration) -> Cast {
        Cast {
            world: world.clone(),
            history: history.clone(),
            beliefs: beliefs.clone(),
            ttl,
            players: Arc::default(),
        }
    }

    /// Somebody joins, with a session of its own.
    ///
    /// # Panics
    ///
    /// If the TTL cannot be held: a world has a sensible one.
    pub fn enter(&self, name: &str, latency: Duration) -> Player {
        let clock = self.world.process(name).clock();
        let store = self.world.process(name).store();
        self.world.process(name).set_latency(latency);
        let options = Session::options().ttl(self.ttl).clock(clock.clone());
        let session = options.open(store.clone()).expect("the TTL can be held");
        let pulse = Arc::new(Pulse { vigour: Mutex::new(Vigour::Awake), changed: Notify::new() });
        let player = Player { name: name.to_owned(), store, clock, session, pulse };
        self.lock().insert(name.to_owned(), player.clone());
        player
    }

    /// The names of all who are not dead.
    pub fn living(&self) -> Vec<String> {
        let players = self.lock();
        let living = players.iter().filter(|(_, player)| player.pulse.vigour() != Vigour::Dead);
        living.map(|(name, _)| name.clone()).collect()
    }

    /// All who are not dead.
    pub fn players(&self) -> Vec<Player> {
        let players = self.lock();
        players.values().filter(|player| player.pulse.vigour() != Vigour::Dead).cloned().collect()
    }

    /// How many were killed.
    pub fn deaths(&self) -> usize {
        self.lock().values().filter(|player| player.pulse.vigour() == Vigour::Dead).count()
    }

    /// Whether somebody can act.
    pub fn is_alive(&self, name: &str) -> bool {
        self.lock().get(name).is_some_and(|player| player.pulse.vigour() != Vigour::Dead)
    }

    /// Stops somebody, as SIGSTOP does.
    pub fn stop(&self, name: &str) {
        if self.change(name, Vigour::Stopped) {
            self.beliefs.leave(name);
            self.world.process(name).pause();
            self.tell(format!("{name} is stopped"));
        }
    }

    /// Lets somebody go on.
    pub fn resume(&self, name: &str) {
        if !self.is_alive(name) {
            return;
        }
        self.world.process(name).resume();
        if self.change(name, Vigour::Awake) {
            self.beliefs.come_back(name);
            self.tell(format!("{name} goes on"));
        }
    }

    /// Kills somebody: nothing of it reaches the store any more, and no clock of it moves.
    pub fn kill(&self, name: &str) {
        if self.change(name, Vigour::Dead) {
            self.beliefs.leave(name);
            self.world.process(name).partition();
            self.world.process(name).pause();
            self.world.process(name).stop_delaying_writes();
            self.tell(format!("{name} is killed"));
        }
    }

    /// Tells the reader about a fault.
    pub fn tell(&self, text: String) {
        self.history.note(Fact::Fault(text));
    }

    fn change(&self, name: &str, to: Vigour) -> bool {
        self.lock().get(name).is_some_and(|player| player.pulse.change(to))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Player>> {
        self.players.lock().unwrap_or_else(PoisonError::into_inner)
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
