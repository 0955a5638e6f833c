//! At most one run per period.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tenure::lock::{Locks, Lost};
use tenure::once::{Once, OnceError, Run, lock_of};
use tenure::session::Session;
use tenure::store::{Selection, Store};
use tenure::testing::World;
use tenure_core::id::Namespace;
use tenure_core::record::Timestamp;
use tokio::task::AbortHandle;

use crate::membership::on_every_engine;

const HOUR: Duration = Duration::from_secs(3_600);

/// A period that does not end while a test runs on real time.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

fn namespace() -> Namespace {
    Namespace::parse("t").unwrap()
}

/// Work of a process of its own.
fn once(store: &Store) -> Once {
    Once::new(&Session::open(store.clone()).unwrap(), &namespace(), "backup", CENTURY)
}

async fn run<T>(once: &Once, result: Result<T, &'static str>) -> Result<Run<T>, OnceError<&'static str>> {
    once.run(|_| async { result }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_processes_runs() {
    on_every_engine(claims::one_of_many_processes_runs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_run_counts_unless_it_is_retried() {
    on_every_engine(claims::failed_run_counts_unless_it_is_retried).await;
}

mod claims {
    use super::*;

    pub(super) async fn one_of_many_processes_runs(store: Store) {
        let processes: Vec<Once> = (0..5).map(|_| once(&store)).collect();
        let running = Arc::new(AtomicUsize::new(0));
        let runs = join_all(processes.iter().map(|once| {
            let running = running.clone();
            once.run(|_| async move {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "runs never overlap");
                tokio::task::yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, &str>(7)
            })
        }))
        .await;
        let ran = runs.iter().filter(|run| matches!(run, Ok(Run::Ran(7)))).count();
        let skipped = runs.iter().filter(|run| matches!(run, Ok(Run::Skipped { .. }))).count();
        assert_eq!((ran, skipped), (1, 4), "{runs:?}");
        let Ok(Run::Skipped { last: Some(last) }) = run(&processes[0], Ok(())).await else {
            panic!("the run counts")
        };
        assert_eq!((last.exit_code, last.pid), (Some(0), std::process::id()));
        let listed = tenure::once::list(&store, &namespace()).await.unwrap();
        assert_eq!((listed.len(), listed[0].name.as_str(), &listed[0].record), (1, "backup", &last));
        assert!(!listed[0].is_in_future);
    }

    pub(super) async fn failed_run_counts_unless_it_is_retried(store: Store) {
        let once = once(&store);
        assert!(matches!(run::<()>(&once, Err("no disk")).await, Err(OnceError::Work("no disk"))));
        let skipped = run(&once, Ok(())).await.unwrap();
        assert!(matches!(skipped, Run::Skipped { last: Some(last) } if last.exit_code == Some(1)));
        let retried = once.retry_failed();
        assert_eq!(run(&retried, Ok(1)).await.unwrap(), Run::Ran(1));
        assert!(matches!(run(&retried, Ok(1)).await.unwrap(), Run::Skipped { .. }));
        let keys = store.list(Selection::prefix("/t/locks/")).await.unwrap().pairs;
        assert!(keys.is_empty(), "the lock is released: {keys:?}");
    }
}

#[tokio::test]
async fn invalid_calls_send_nothing() {
    let store = Store::memory();
    let session = Session::open(store.clone()).unwrap();
    let empty = Once::new(&session, &namespace(), "", HOUR);
    assert!(matches!(run(&empty, Ok(())).await, Err(OnceError::InvalidName(_))));
    let short = Once::new(&session, &namespace(), "x", Duration::from_millis(999));
    assert!(matches!(run(&short, Ok(())).await, Err(OnceError::PeriodTooShort { .. })));
    store.put("/t/once/x", "s3cret").await.unwrap();
    let unreadable = run(&Once::new(&session, &namespace(), "x", HOUR), Ok(())).await;
    assert!(matches!(unreadable, Err(OnceError::Unreadable { .. })), "{unreadable:?}");
    assert!(!format!("{unreadable:?}").contains("s3cret"));
    assert_eq!(store.leases().await.unwrap().len(), 0);
}

/// A process with its own clock and its own way to the store.
struct Process {
    once: Once,
    _session: Session,
}

impl Process {
    fn new(world: &World, who: &str, every: Duration) -> Process {
        let options = Session::options().ttl(Duration::from_secs(10)).clock(world.process(who).clock());
        let session = options.open(world.process(who).store()).unwrap();
        Process { once: Once::new(&session, &namespace(), "backup", every), _session: session }
    }
}

/// The periods in which each process has run, counted from the first one.
type Runs = Arc<std::sync::Mutex<Vec<(u64, &'static str)>>>;

/// Runs the work for ever: each run takes `takes`, and the first `failures` runs fail.
fn start(
    world: &World,
    who: &'static str,
    once: Once,
    runs: &Runs,
    takes: Duration,
    failures: &Arc<AtomicU64>,
) -> AbortOnDrop {
    let (world, runs, failures) = (world.clone(), runs.clone(), failures.clone());
    let running = tokio::spawn(async move {
        let work = |_| {
            let (world, runs, failures) = (world.clone(), runs.clone(), failures.clone());
            async move {
                runs.lock().unwrap().push((world.elapsed().as_secs() / HOUR.as_secs(), who));
                tokio::time::sleep(takes).await;
                let left =
                    failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                if left.is_ok() { Err("it fails") } else { Ok(()) }
            }
        };
        once.run_forever(work).await
    });
    AbortOnDrop(running.abort_handle())
}

/// A task that ends with its test.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn periods(runs: &Runs) -> Vec<u64> {
    runs.lock().unwrap().iter().map(|(period, _)| *period).collect()
}

/// Two processes, one run in each period; also while the one that would run is cut off, and when its work fails.
#[tokio::test(start_paused = true)]
async fn exactly_one_process_runs_in_each_period() {
    for seed in 0..5 {
        let world = World::seeded(seed);
        let runs = Runs::default();
        let failures = Arc::new(AtomicU64::new(1));
        let processes = ["a", "b"].map(|who| (who, Process::new(&world, who, HOUR)));
        let running: Vec<_> = processes
            .iter()
            .map(|(who, process)| {
                start(&world, who, process.once.clone(), &runs, Duration::from_secs(5), &failures)
            })
            .collect();
        world.advance(Duration::from_secs(5 * 3_600 - 60)).await;
        assert_eq!(periods(&runs), [0, 1, 2, 3, 4], "seed {seed}");
        // The process that ran last is cut off over the next period's begin: the other one runs.
        let (_, last) = *runs.lock().unwrap().last().unwrap();
        world.process(last).partition();
        world.advance(HOUR).await;
        assert_eq!(periods(&runs), [0, 1, 2, 3, 4, 5], "seed {seed}");
        assert_ne!(runs.lock().unwrap()[5].1, last);
        world.process(last).heal();
        world.advance(2 * HOUR).await;
        assert_eq!(periods(&runs), [0, 1, 2, 3, 4, 5, 6, 7], "seed {seed}");
        // The tasks keep their world alive, and a thread has one seeded world at a time.
        drop(running);
        world.run_until_idle().await;
    }
}

/// Only successes count: work that fails is tried again in its period, by whichever process.
#[tokio::test(start_paused = true)]
async fn failed_work_is_retried_in_its_period() {
    let world = World::seeded(3);
    let (runs, failures) = (Runs::default(), Arc::new(AtomicU64::new(2)));
    let processes = ["a", "b"].map(|who| (who, Process::new(&world, who, HOUR)));
    let _running: Vec<_> = processes
        .iter()
        .map(|(who, process)| {
            start(&world, who, process.once.clone().retry_failed(), &runs, Duration::from_secs(5), &failures)
        })
        .collect();
    world.advance(2 * HOUR - Duration::from_secs(60)).await;
    assert_eq!(periods(&runs), [0, 0, 0, 1]);
}

/// A run that is longer than a period: the next one begins when it has ended, and they do not overlap.
#[tokio::test(start_paused = true)]
async fn long_run_delays_the_next_one() {
    let world = World::seeded(4);
    let (runs, failures) = (Runs::default(), Arc::default());
    let processes = ["a", "b"].map(|who| (who, Process::new(&world, who, HOUR)));
    let _running: Vec<_> = processes
        .iter()
        .map(|(who, process)| {
            start(&world, who, process.once.clone(), &runs, Duration::from_secs(90 * 60), &failures)
        })
        .collect();
    world.advance(Duration::from_secs(7 * 3_600)).await;
    // From 0:00 to 1:30, 1:30 to 3:00, 3:00 to 4:30 and so on.
    assert_eq!(periods(&runs), [0, 1, 3, 4, 6]);
}

/// The lock is broken while the work runs: the work is dropped, and the run counts.
#[tokio::test(start_paused = true)]
async fn work_is_dropped_when_the_lock_is_lost() {
    let world = World::seeded(5);
    let process = Process::new(&world, "a", HOUR);
    let once = process.once.clone();
    let running = tokio::spawn(async move { once.run(|_| std::future::pending::<Result<(), &str>>()).await });
    world.advance(Duration::from_secs(1)).await;
    let operator = Session::open(world.process("operator").store()).unwrap();
    let locks = Locks::new(&operator, &namespace());
    let name = lock_of(&"backup".parse().unwrap());
    let holder = locks.get(&name).await.unwrap().holders.remove(0);
    assert!(locks.break_hold(&name, &holder, "stuck").await.unwrap());
    let lost = running.await.unwrap();
    assert!(
        matches!(lost, Err(OnceError::Lost(Lost { reason: tenure::LossReason::Deleted, .. }))),
        "{lost:?}"
    );
    let Run::Skipped { last: Some(last) } = run(&process.once, Ok(())).await.unwrap() else {
        panic!("the run counts")
    };
    assert_eq!((last.exit_code, last.token), (None, Some(holder.token)));
    assert!(last.started > Timestamp(0));
}
