//! One seed: a run in a world of its own, from its first process to the check for leftovers.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::Tenure;
use tenure::lock::Locks;
use tenure::member::Members;
use tenure::session::Session;
use tenure::testing::World;
use tenure_core::id::TaskId;
use tenure_core::layout::{Key, Layout};
use tenure_core::sabotage::SabotageRule;
use tenure_core::task::TaskMessage;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::{Audit, AuditEntry};
use crate::fault;
use crate::held::HoldTracker;
use crate::history::{Fact, RunHistory};
use crate::invariant::{self, Violation};
use crate::processes::{SimProcess, SimProcesses, namespace};
use crate::rng::SimRng;
use crate::workload::{self, WorkloadContext};

/// What is wanted is done by then, in a world without faults.
const SETTLES_WITHIN: Duration = Duration::from_secs(3);

/// How a world is: everything that the seed decides before the first moment.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// What decides everything.
    pub seed: u64,
    /// How many processes begin.
    pub processes: u64,
    /// The TTL of their sessions.
    pub ttl: Duration,
    /// How long faults happen.
    pub storm: Duration,
    /// How many faults.
    pub faults: u64,
    /// What they do.
    pub works: BTreeSet<WorkloadKind>,
}

/// A kind of work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WorkloadKind {
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

const WORKLOADS: [WorkloadKind; 5] = [
    WorkloadKind::Locks,
    WorkloadKind::Election,
    WorkloadKind::Ttl,
    WorkloadKind::Registry,
    WorkloadKind::Tasks,
];

impl RunPlan {
    /// What a seed decides.
    pub fn of(seed: u64) -> RunPlan {
        let mut rng = SimRng::new(seed ^ 0x7E4E_5EED);
        let first = *rng.pick(&WORKLOADS);
        let mut works = BTreeSet::from([first]);
        if rng.percent(60) {
            works.insert(*rng.pick(&WORKLOADS));
        }
        RunPlan {
            seed,
            processes: rng.between(2, 5),
            ttl: Duration::from_secs(*rng.pick(&[3, 5, 8, 15])),
            storm: rng.ms(10_000, 30_000),
            faults: rng.between(3, 16),
            works,
        }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct RunRecord {
    /// What the seed decided.
    pub plan: RunPlan,
    /// What happened.
    pub facts: Vec<(Duration, Fact)>,
    /// What was committed.
    pub log: Vec<AuditEntry>,
    /// Where everything lay.
    pub layout: Layout,
    /// How long the run was.
    pub lasted: Duration,
}

impl RunRecord {
    /// What was broken.
    pub fn violations(&self) -> Vec<Violation> {
        invariant::all(self)
    }

    /// How many faults there were.
    pub fn faults(&self) -> usize {
        self.facts.iter().filter(|(_, fact)| matches!(fact, Fact::Fault(_))).count()
    }

    /// The whole run, for people; the same for the same seed, to the byte.
    pub fn trace(&self) -> String {
        let RunPlan { seed, processes, ttl, storm, faults, works } = &self.plan;
        let mut text = format!(
            "seed {seed}: {processes} participants, TTL {ttl:?}, {faults} faults within {storm:?}, {works:?}\n"
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
pub fn run_seed(seed: u64, broken: Option<SabotageRule>) -> RunRecord {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime of one thread needs nothing");
    #[cfg(tenure_sabotage)]
    let _sabotage = broken.map(tenure_core::sabotage::Sabotage::of);
    #[cfg(not(tenure_sabotage))]
    assert!(broken.is_none(), "a rule can be broken only in a build with `--cfg tenure_sabotage`");
    runtime.block_on(day(RunPlan::of(seed)))
}

async fn day(plan: RunPlan) -> RunRecord {
    let mut rng = SimRng::new(plan.seed);
    let world = World::seeded(plan.seed);
    let history = RunHistory::new(&world);
    let holds = HoldTracker::new(&history);
    let layout = Layout::new(&namespace());
    let observer = world.process("observer").store();
    let processes = SimProcesses::new(&world, &history, &holds, plan.ttl);
    let audit = Audit::default();
    let reading = audit.clone().read(world.clone(), observer.clone(), layout.clone(), holds.clone());
    let reading = tokio::spawn(reading);
    // Lets the observer begin before anything is written.
    tokio::task::yield_now().await;
    let session = Session::options()
        .clock(world.process("observer").clock())
        .open(observer.clone())
        .expect("a valid TTL");
    let context = WorkloadContext {
        processes: processes.clone(),
        layout: layout.clone(),
        observer: observer.clone(),
        tenure: Tenure::on_session(&session, namespace()).expect("a valid name"),
        over: CancellationToken::new(),
        actors: TaskTracker::new(),
    };
    let latency = rng.ms(0, 30);
    for number in 0..plan.processes {
        let process = processes.enter(&format!("p{number}"), latency);
        join(&context, &plan, &process, &mut rng);
    }
    if plan.works.contains(&WorkloadKind::Tasks) {
        workload::tasks::begin_submitting(&context, &mut rng);
        if rng.percent(30) {
            workload::node_commands::begin(&context, &mut rng, plan.storm);
        }
    }
    let views: Vec<_> = processes
        .processes()
        .iter()
        .map(|process| {
            let cluster = Members::new(process.store.clone(), &namespace()).clock(process.clock.clone());
            (process.name.clone(), cluster.view())
        })
        .collect();

    let scenes = fault::script(&mut rng, plan.faults, plan.storm, plan.ttl);
    let (incarnations, heirs) = (AtomicU64::new(rng.number()), Mutex::new(rng.split()));
    fault::inject(&processes, scenes, &observer, &layout, |life| {
        let process = processes.enter(&format!("q{life}"), latency);
        incarnations.fetch_add(1, Ordering::Relaxed);
        let mut rng = heirs.lock().unwrap_or_else(PoisonError::into_inner);
        join(&context, &plan, &process, &mut rng);
    })
    .await;
    let rest = plan.storm.saturating_sub(world.elapsed());
    tokio::time::sleep(rest).await;
    fault::calm(&processes, latency);

    let settling = plan.ttl * 2 + Duration::from_secs(2);
    tokio::time::sleep(settling).await;
    if plan.works.contains(&WorkloadKind::Tasks) {
        finish_tasks(&context, &plan).await;
    }
    tokio::time::sleep(SETTLES_WITHIN).await;
    check_views(&context, &views, &history, &observer, &layout).await;
    history.note(Fact::Over);
    context.over.cancel();
    context.actors.close();
    context.actors.wait().await;
    drop(views);
    tokio::time::sleep(SETTLES_WITHIN).await;
    history.note(Fact::Compared { living: processes.living().into_iter().collect() });
    // So that nothing of what follows happens in the same moment.
    tokio::time::sleep(Duration::from_millis(1)).await;
    check_locks_are_free(&context, &plan).await;
    for process in processes.processes() {
        if let Err(left) = process.session.close().await {
            history.remark(format!("the session of {} left something behind: {left}", process.name));
        }
    }
    tokio::time::sleep(settling).await;
    check_what_is_left(&context).await;
    assert!(!reading.is_finished(), "the observer has stopped reading along");
    reading.abort();
    let lasted = world.elapsed();
    RunRecord { plan, facts: history.facts(), log: audit.log(), layout, lasted }
}

/// A process begins its work.
fn join(context: &WorkloadContext, plan: &RunPlan, process: &SimProcess, rng: &mut SimRng) {
    for work in &plan.works {
        match work {
            WorkloadKind::Locks => workload::lock::begin(context, process, rng),
            WorkloadKind::Election => workload::election::begin(context, process, rng),
            WorkloadKind::Ttl => workload::ttl::begin(context, process, rng),
            WorkloadKind::Registry => workload::registry::begin(context, process, rng),
            WorkloadKind::Tasks => {
                workload::tasks::begin_node(context, process, rng);
                if rng.percent(40) {
                    workload::task_commands::begin(context, process, rng);
                }
            }
        }
    }
}

/// Once faults have ended every task runs: paused tasks are resumed, and then each one is awaited.
async fn finish_tasks(context: &WorkloadContext, plan: &RunPlan) {
    let within = plan.ttl * 3 + Duration::from_secs(90);
    let deadline = tokio::time::Instant::now() + within;
    loop {
        let listing = context.tenure.tasks().list().await.expect("the observer reaches the store");
        if listing.tasks.is_empty() {
            break;
        }
        if tokio::time::Instant::now() > deadline {
            for task in &listing.tasks {
                let what = format!("{} is still {:?}", task.id, task.state());
                context.processes.history.note(Fact::Overdue(what));
            }
            break;
        }
        workload::node_commands::thaw(context).await;
        for task in &listing.tasks {
            if task.state() == Some(tenure_core::task::TaskState::Paused) {
                workload::task_commands::send(
                    context,
                    "observer",
                    &context.tenure,
                    &task.id,
                    TaskMessage::Run,
                )
                .await;
            }
        }
        tokio::time::sleep(Duration::from_millis(1_500)).await;
    }
    let submitted: BTreeSet<String> = context
        .processes
        .history
        .facts()
        .into_iter()
        .filter_map(|(_, fact)| if let Fact::Submitted { task } = fact { Some(task) } else { None })
        .collect();
    for task in submitted {
        let id = TaskId::parse(&task).expect("it was submitted");
        let summary = context.tenure.task(&id).summary().await.expect("the observer reaches the store");
        let state = summary.and_then(|task| task.state());
        context.processes.history.note(Fact::Final { task, state });
    }
}

async fn check_views(
    context: &WorkloadContext,
    views: &[(String, tenure::member::MemberView)],
    history: &RunHistory,
    observer: &tenure::store::Store,
    layout: &Layout,
) {
    let page = observer.list(layout.nodes()).await.expect("the observer reaches the store");
    let is_node = |key: &[u8]| match layout.parse(key) {
        Some(Key::Node(node)) => Some(node.to_string()),
        _ => None,
    };
    let truth: BTreeSet<String> = page.pairs.iter().filter_map(|pair| is_node(&pair.key)).collect();
    for (name, view) in views.iter().filter(|(name, _)| context.processes.is_alive(name)) {
        let shows = match view.snapshot() {
            Some(members) => members.members().iter().map(|member| member.id.to_string()).collect(),
            None => BTreeSet::from(["nothing yet".to_owned()]),
        };
        history.note(Fact::View { of: format!("{name}'s view of the nodes"), shows, truth: truth.clone() });
    }
}

/// When all processes have left, locks are free.
async fn check_locks_are_free(context: &WorkloadContext, plan: &RunPlan) {
    if !plan.works.contains(&WorkloadKind::Locks) {
        return;
    }
    let process = context.processes.enter("last", Duration::ZERO);
    let locks = Locks::new(&process.session, &namespace());
    for name in workload::lock::NAMES {
        let within = plan.ttl * 2 + Duration::from_secs(2);
        match locks.lock(name).timeout(within).await {
            Ok(guard) => drop(guard.release().await),
            Err(error) => {
                context.processes.history.note(Fact::Overdue(format!("lock {name} is not free: {error}")));
            }
        }
    }
}

async fn check_what_is_left(context: &WorkloadContext) {
    let page = context.observer.list(tenure::store::Selection::everything()).await;
    let page = page.expect("the observer reaches the store");
    for pair in page.pairs {
        let is_kept = match context.layout.parse(&pair.key) {
            Some(
                Key::TaskState(_)
                | Key::EndedTask(..)
                | Key::CommandResult(_)
                | Key::TaskCommand(_)
                | Key::Frozen(_)
                | Key::Audit(_),
            ) => true,
            // A node that comes back finds them.
            Some(Key::NodeCommand(node, _)) => !context.processes.is_alive(node.as_str()),
            Some(_) => false,
            None => pair.key.starts_with(workload::REGISTERS.as_bytes()),
        };
        if !is_kept {
            let key = String::from_utf8_lossy(&pair.key).into_owned();
            context.processes.history.note(Fact::Left(format!("key {key} of {}", pair.modified)));
        }
    }
    for lease in context.observer.leases().await.expect("the observer reaches the store") {
        context.processes.history.note(Fact::Left(format!("lease {lease}")));
    }
}

/// Plays many seeds on all cores, and hands each run to `each`, in no particular order.
pub fn run_seeds(
    seeds: std::ops::Range<u64>,
    broken: Option<SabotageRule>,
    each: impl Fn(RunRecord) -> bool + Sync,
) {
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
                    if seed >= seeds.end || !each(run_seed(seed, broken)) {
                        next.store(seeds.end, Ordering::Relaxed);
                        return;
                    }
                }
            });
        }
    });
}
