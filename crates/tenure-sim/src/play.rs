//! One seed: a day in a world of its own, from its first participant to what was left behind.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::client::{Client, TaskFilter};
use tenure::lock::Locks;
use tenure::membership::Cluster;
use tenure::testing::World;
use tenure_core::id::TaskId;
use tenure_core::layout::{Key, Layout};
use tenure_core::sabotage::Rule;
use tenure_core::task::TaskMessage;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::{Audit, Entry};
use crate::belief::Beliefs;
use crate::cast::{Cast, Player, namespace};
use crate::dice::Dice;
use crate::fault;
use crate::history::{Fact, History};
use crate::invariant::{self, Violation};
use crate::workload::{self, Stage};

/// What is wanted is done by then, in a world without faults.
const SETTLES_WITHIN: Duration = Duration::from_secs(3);

/// How a world is: everything that the seed decides before the first moment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What decides everything.
    pub seed: u64,
    /// How many participants begin.
    pub players: u64,
    /// The TTL of their sessions.
    pub ttl: Duration,
    /// How long faults happen.
    pub storm: Duration,
    /// How many faults.
    pub faults: u64,
    /// What they do.
    pub works: BTreeSet<Work>,
}

/// A kind of work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Work {
    /// See [`workload::lock`].
    Locks,
    /// See [`workload::election`].
    Election,
    /// See [`workload::ttl`].
    Ttl,
    /// See [`workload::registry`].
    Registry,
    /// See [`workload::tasks`].
    Tasks,
}

const WORKS: [Work; 5] = [Work::Locks, Work::Election, Work::Ttl, Work::Registry, Work::Tasks];

impl Plan {
    /// What a seed decides.
    pub fn of(seed: u64) -> Plan {
        let mut dice = Dice::new(seed ^ 0x7E4E_5EED);
        let first = *dice.pick(&WORKS);
        let mut works = BTreeSet::from([first]);
        if dice.percent(60) {
            works.insert(*dice.pick(&WORKS));
        }
        Plan {
            seed,
            players: dice.between(2, 5),
            ttl: Duration::from_secs(*dice.pick(&[3, 5, 8, 15])),
            storm: dice.ms(10_000, 30_000),
            faults: dice.between(3, 16),
            works,
        }
    }
}

/// What a day came to.
#[derive(Debug)]
pub struct Story {
    /// What the seed decided.
    pub plan: Plan,
    /// What happened.
    pub facts: Vec<(Duration, Fact)>,
    /// What was committed.
    pub log: Vec<Entry>,
    /// Where everything lay.
    pub layout: Layout,
    /// How long the day was.
    pub lasted: Duration,
}

impl Story {
    /// What was broken.
    pub fn violations(&self) -> Vec<Violation> {
        invariant::all(self)
    }

    /// How many faults there were.
    pub fn faults(&self) -> usize {
        self.facts.iter().filter(|(_, fact)| matches!(fact, Fact::Fault(_))).count()
    }

    /// The whole story, for people; the same for the same seed, to the byte.
    pub fn trace(&self) -> String {
        let Plan { seed, players, ttl, storm, faults, works } = &self.plan;
        let mut text = format!(
            "seed {seed}: {players} participants, TTL {ttl:?}, {faults} faults within {storm:?}, {works:?}\n"
        );
        for (at, fact) in &self.facts {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:>9.3} s  {fact}", at.as_secs_f64());
        }
        let _ = writeln!(text, "{} changes were committed", self.log.len());
        text
    }
}

/// Plays a seed, with a rule broken on purpose or none.
///
/// # Panics
///
/// If no runtime can be built, or if a rule is to be broken in a build without `--cfg tenure_sabotage`.
pub fn play(seed: u64, broken: Option<Rule>) -> Story {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime of one thread needs nothing");
    #[cfg(tenure_sabotage)]
    let _sabotage = broken.map(tenure_core::sabotage::Sabotage::of);
    #[cfg(not(tenure_sabotage))]
    assert!(broken.is_none(), "a rule can be broken only in a build with `--cfg tenure_sabotage`");
    runtime.block_on(day(Plan::of(seed)))
}

async fn day(plan: Plan) -> Story {
    let mut dice = Dice::new(plan.seed);
    let world = World::seeded(plan.seed);
    let history = History::new(&world);
    let beliefs = Beliefs::new(&history);
    let layout = Layout::new(&namespace());
    let onlooker = world.process("onlooker").store();
    let cast = Cast::new(&world, &history, &beliefs, plan.ttl);
    let audit = Audit::default();
    let reading = audit.clone().read(world.clone(), onlooker.clone(), layout.clone(), beliefs.clone());
    let reading = tokio::spawn(reading);
    // Lets the onlooker begin before anything is written.
    tokio::task::yield_now().await;
    let stage = Stage {
        cast: cast.clone(),
        layout: layout.clone(),
        onlooker: onlooker.clone(),
        over: CancellationToken::new(),
        actors: TaskTracker::new(),
    };
    let latency = dice.ms(0, 30);
    for number in 0..plan.players {
        let player = cast.enter(&format!("p{number}"), latency);
        join(&stage, &plan, &player, &mut dice);
    }
    if plan.works.contains(&Work::Tasks) {
        workload::tasks::begin_submitting(&stage, &mut dice);
        if dice.percent(30) {
            workload::orders::begin(&stage, &mut dice, plan.storm);
        }
    }
    let views: Vec<_> = cast
        .players()
        .iter()
        .map(|player| {
            let cluster = Cluster::new(player.store.clone(), &namespace()).clock(player.clock.clone());
            (player.name.clone(), cluster.view())
        })
        .collect();

    let scenes = fault::script(&mut dice, plan.faults, plan.storm, plan.ttl);
    let (lives, heirs) = (AtomicU64::new(dice.number()), Mutex::new(dice.split()));
    fault::play(&cast, scenes, &onlooker, &layout, |life| {
        let player = cast.enter(&format!("q{life}"), latency);
        lives.fetch_add(1, Ordering::Relaxed);
        let mut dice = heirs.lock().unwrap_or_else(PoisonError::into_inner);
        join(&stage, &plan, &player, &mut dice);
    })
    .await;
    let rest = plan.storm.saturating_sub(world.elapsed());
    tokio::time::sleep(rest).await;
    fault::calm(&cast, latency);

    let settling = plan.ttl * 2 + Duration::from_secs(2);
    tokio::time::sleep(settling).await;
    if plan.works.contains(&Work::Tasks) {
        finish_tasks(&stage, &plan).await;
    }
    tokio::time::sleep(SETTLES_WITHIN).await;
    check_views(&stage, &views, &history, &onlooker, &layout).await;
    history.note(Fact::Over);
    stage.over.cancel();
    stage.actors.close();
    stage.actors.wait().await;
    drop(views);
    tokio::time::sleep(SETTLES_WITHIN).await;
    history.note(Fact::Compared { living: cast.living().into_iter().collect() });
    // So that nothing of what follows happens in the same moment.
    tokio::time::sleep(Duration::from_millis(1)).await;
    check_locks_are_free(&stage, &plan).await;
    for player in cast.players() {
        if let Err(left) = player.session.close().await {
            history.remark(format!("the session of {} left something behind: {left}", player.name));
        }
    }
    tokio::time::sleep(settling).await;
    check_what_is_left(&stage).await;
    assert!(!reading.is_finished(), "the onlooker has stopped reading along");
    reading.abort();
    let lasted = world.elapsed();
    Story { plan, facts: history.facts(), log: audit.log(), layout, lasted }
}

/// Somebody begins its day.
fn join(stage: &Stage, plan: &Plan, player: &Player, dice: &mut Dice) {
    for work in &plan.works {
        match work {
            Work::Locks => workload::lock::begin(stage, player, dice),
            Work::Election => workload::election::begin(stage, player, dice),
            Work::Ttl => workload::ttl::begin(stage, player, dice),
            Work::Registry => workload::registry::begin(stage, player, dice),
            Work::Tasks => {
                workload::tasks::begin_node(stage, player, dice);
                if dice.percent(40) {
                    workload::commands::begin(stage, player, dice);
                }
            }
        }
    }
}

/// Once faults have ended every task runs: those that were paused are told to, and then each is waited for.
async fn finish_tasks(stage: &Stage, plan: &Plan) {
    let client = Client::new(stage.onlooker.clone(), &namespace());
    let within = plan.ttl * 3 + Duration::from_secs(90);
    let deadline = tokio::time::Instant::now() + within;
    loop {
        let listing = client.tasks(&TaskFilter::new()).await.expect("the onlooker reaches the store");
        if listing.tasks.is_empty() {
            break;
        }
        if tokio::time::Instant::now() > deadline {
            for task in &listing.tasks {
                let what = format!("{} stands at {:?}", task.id, task.state_kind());
                stage.cast.history.note(Fact::Overdue(what));
            }
            break;
        }
        workload::orders::thaw(stage, &client).await;
        for task in &listing.tasks {
            if task.state_kind() == Some(tenure_core::task::TaskState::Paused) {
                workload::commands::send(stage, "onlooker", &client, &task.id, TaskMessage::Run).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(1_500)).await;
    }
    let submitted: BTreeSet<String> = stage
        .cast
        .history
        .facts()
        .into_iter()
        .filter_map(|(_, fact)| if let Fact::Submitted { task } = fact { Some(task) } else { None })
        .collect();
    for task in submitted {
        let id = TaskId::parse(&task).expect("it was submitted");
        let state = client.state(&id).await.expect("the onlooker reaches the store");
        let state = state.map(|state| state.state.kind());
        stage.cast.history.note(Fact::Final { task, state });
    }
}

async fn check_views(
    stage: &Stage,
    views: &[(String, tenure::membership::MemberView)],
    history: &History,
    onlooker: &tenure::store::Store,
    layout: &Layout,
) {
    let page = onlooker.list(layout.nodes()).await.expect("the onlooker reaches the store");
    let is_node = |key: &[u8]| match layout.parse(key) {
        Some(Key::Node(node)) => Some(node.to_string()),
        _ => None,
    };
    let truth: BTreeSet<String> = page.pairs.iter().filter_map(|pair| is_node(&pair.key)).collect();
    for (name, view) in views.iter().filter(|(name, _)| stage.cast.is_alive(name)) {
        let shows = match view.snapshot() {
            Some(members) => members.members().iter().map(|member| member.id.to_string()).collect(),
            None => BTreeSet::from(["nothing yet".to_owned()]),
        };
        history.note(Fact::View { of: format!("{name}'s view of the nodes"), shows, truth: truth.clone() });
    }
}

/// When all who wanted them are gone, locks are free.
async fn check_locks_are_free(stage: &Stage, plan: &Plan) {
    if !plan.works.contains(&Work::Locks) {
        return;
    }
    let player = stage.cast.enter("last", Duration::ZERO);
    let locks = Locks::new(&player.session, &namespace());
    for name in workload::lock::NAMES {
        let within = plan.ttl * 2 + Duration::from_secs(2);
        match locks.lock(name).wait_up_to(within).await {
            Ok(guard) => drop(guard.release().await),
            Err(error) => {
                stage.cast.history.note(Fact::Overdue(format!("lock {name} is not free: {error}")));
            }
        }
    }
}

async fn check_what_is_left(stage: &Stage) {
    let page = stage.onlooker.list(tenure::store::Selection::everything()).await;
    let page = page.expect("the onlooker reaches the store");
    for pair in page.pairs {
        let is_kept = match stage.layout.parse(&pair.key) {
            Some(
                Key::TaskState(_)
                | Key::EndedTask(..)
                | Key::CommandResult(_)
                | Key::TaskCommand(_)
                | Key::Frozen(_)
                | Key::Audit(_),
            ) => true,
            // A node that comes back finds them.
            Some(Key::NodeCommand(node, _)) => !stage.cast.is_alive(node.as_str()),
            Some(_) => false,
            None => pair.key.starts_with(workload::REGISTERS.as_bytes()),
        };
        if !is_kept {
            let key = String::from_utf8_lossy(&pair.key).into_owned();
            stage.cast.history.note(Fact::Left(format!("key {key} of {}", pair.modified)));
        }
    }
    for lease in stage.onlooker.leases().await.expect("the onlooker reaches the store") {
        stage.cast.history.note(Fact::Left(format!("lease {lease}")));
    }
}

/// Plays many seeds on all cores, and hands each story to `each`, in no particular order.
pub fn play_all(seeds: std::ops::Range<u64>, broken: Option<Rule>, each: impl Fn(Story) -> bool + Sync) {
    let next = AtomicU64::new(seeds.start);
    let each = &each;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = Arc::new(next);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let next = next.clone();
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || !each(play(seed, broken)) {
                        next.store(seeds.end, Ordering::Relaxed);
                        return;
                    }
                }
            });
        }
    });
}
