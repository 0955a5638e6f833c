//! The figures of the file engine on this machine: how fast, how fair, how late, how idle.
//!
//! `cargo run --release -p tenure --example file_figures` prints one line for each. Other processes are this program
//! again, in another role. Run it on a quiet machine, and more than once.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tenure::clock::{BootClock, Clock};
use tenure::store::file::FileEngine;
use tenure::store::{
    Change, Durability, Get, Limits, Op, PreviousValues, Selection, Store, Txn, WatchItem, WatchStart,
};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const VALUE: [u8; 128] = [b'v'; 128];
const WRITERS: usize = 16;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("write"), Some(path)) => write_flat_out(Path::new(&path)).await,
        (Some("notify"), Some(path)) => put_times(Path::new(&path)).await,
        (Some("idle"), Some(path)) => stay_idle(Path::new(&path)).await,
        (only, _) => all(only).await,
    }
}

/// Measures everything, or only what is named.
async fn all(only: Option<&str>) -> Outcome {
    let wanted = |name: &str| only.is_none_or(|only| only == name);
    if wanted("alone") {
        alone("normal", Durability::Machine, 20_000).await?;
        alone("full", Durability::PowerLoss, 2_000).await?;
    }
    if wanted("events") {
        events().await?;
    }
    if wanted("writers") {
        writers().await?;
    }
    if wanted("expiry") {
        expiry().await?;
    }
    if wanted("idle") {
        idle().await?;
    }
    Ok(())
}

async fn open(path: &Path, durability: Durability) -> Outcome<Store> {
    let limits = Limits { ttl_min: Duration::from_millis(1), ..Limits::EMBEDDED };
    Ok(Store::new(FileEngine::options().limits(limits).durability(durability).open(path).await?))
}

/// One process: puts one after the other, reads, and groups of 64.
async fn alone(name: &str, durability: Durability, puts: usize) -> Outcome {
    let folder = tempfile::tempdir()?;
    let store = open(&folder.path().join("store.db"), durability).await?;
    let began = Instant::now();
    let mut took = Vec::with_capacity(puts);
    for n in 0..puts {
        let before = Instant::now();
        store.put(format!("/k/{}", n % 1_000), &VALUE[..]).await?;
        took.push(before.elapsed());
    }
    let rate = per_second(puts, began);
    print(&format!("{name}: put alone {rate:.0}/s, {}", spread(&mut took)))?;

    let began = Instant::now();
    for group in 0..puts / 64 {
        let txns = (0..64).map(|n| Txn::new().then(Op::put(format!("/g/{group}/{n}"), &VALUE[..])));
        for reply in store.batch(txns.collect()).await {
            reply?;
        }
    }
    print(&format!("{name}: groups of 64 {:.0} txns/s", per_second(puts / 64 * 64, began)))?;

    let began = Instant::now();
    for n in 0..puts {
        store.get_key(format!("/k/{}", n % 1_000)).await?;
    }
    print(&format!("{name}: get alone {:.0}/s", per_second(puts, began)))?;
    store.close().await;
    Ok(())
}

/// Two processes: how long from before a put in one to its event in the other.
async fn events() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("store.db");
    let store = open(&path, Durability::Machine).await?;
    let mut watch =
        store.watch(Selection::prefix("/events/"), WatchStart::Now, PreviousValues::Omitted).await?;
    let mut writer = another("notify", &path)?;
    let mut took = Vec::new();
    while took.len() < EVENTS {
        let Some(item) = watch.next().await else { return Err("the watch ended".into()) };
        let now = BootClock.now().since_origin();
        let WatchItem::Batch { changes, .. } = item? else { continue };
        for change in changes {
            let Change::Put { pair, .. } = change else { continue };
            let sent: u64 = std::str::from_utf8(&pair.value)?.parse()?;
            took.push(now.saturating_sub(Duration::from_nanos(sent)));
        }
    }
    writer.wait().await?;
    print(&format!("put to event across processes, {} events: {}", EVENTS, spread(&mut took)))
}

/// How many puts the other process makes, five milliseconds apart.
const EVENTS: usize = 600;

async fn put_times(path: &Path) -> Outcome {
    let store = open(path, Durability::Machine).await?;
    for _ in 0..EVENTS {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let now = BootClock.now().since_origin().as_nanos();
        store.put("/events/time", now.to_string()).await?;
    }
    Ok(())
}

/// Sixteen processes that write flat out for five seconds.
async fn writers() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("store.db");
    let store = open(&path, Durability::Machine).await?;
    let children = (0..WRITERS).map(|_| another("write", &path)).collect::<Outcome<Vec<_>>>()?;
    let mut reports = Vec::new();
    for mut child in children {
        let output = child.stdout.take().ok_or("a child has an output")?;
        let line = BufReader::new(output).lines().next_line().await?.ok_or("a child prints a line")?;
        child.wait().await?;
        let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        reports.push((numbers[0], Duration::from_micros(numbers[1])));
    }
    let total: u64 = reports.iter().map(|report| report.0).sum();
    let least = reports.iter().map(|report| report.0).min().unwrap_or(0);
    let most = reports.iter().map(|report| report.0).max().unwrap_or(1);
    let slowest = reports.iter().map(|report| report.1).max().unwrap_or_default();
    let revisions = store.get(Get::key("/none")).await?.revision.0 - 1;
    assert_eq!(u64::try_from(revisions)?, total, "each acknowledged write is one revision");
    print(&format!(
        "{WRITERS} writers for 5 s: {} txns/s, slowest {slowest:.1?}, least/most {least}/{most} = {:.2}",
        total / 5,
        least as f64 / most as f64
    ))
}

async fn write_flat_out(path: &Path) -> Outcome {
    let store = open(path, Durability::Machine).await?;
    let key = format!("/w/{}", std::process::id());
    // All begin about together.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let began = Instant::now();
    let (mut count, mut slowest) = (0_u64, Duration::ZERO);
    while began.elapsed() < Duration::from_secs(5) {
        let before = Instant::now();
        store.put(key.clone(), &VALUE[..]).await?;
        slowest = slowest.max(before.elapsed());
        count += 1;
    }
    print(&format!("{count} {}", slowest.as_micros()))
}

/// How late the keys of leases go, while two processes watch.
async fn expiry() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("store.db");
    let store = open(&path, Durability::Machine).await?;
    let mut other = another("idle", &path)?;
    let mut watch = store.watch(Selection::prefix("/l/"), WatchStart::Now, PreviousValues::Omitted).await?;
    let mut due = std::collections::BTreeMap::new();
    for n in 0..400_u64 {
        let grant = store.grant(Duration::from_millis(1_000 + n * 7), None).await?;
        let key = format!("/l/{n}");
        store.put_leased(key.clone(), "", grant.id).await?;
        due.insert(key, grant.asked_at + grant.ttl);
    }
    let mut late = Vec::new();
    let mut early = 0;
    while late.len() < due.len() {
        let Some(item) = watch.next().await else { return Err("the watch ended".into()) };
        let now = BootClock.now();
        let WatchItem::Batch { changes, .. } = item? else { continue };
        for change in changes {
            let Change::Delete { key, .. } = change else { continue };
            let deadline = due[std::str::from_utf8(&key)?];
            early += usize::from(now < deadline);
            late.push(now.since(deadline));
        }
    }
    other.kill().await?;
    print(&format!("expiry of {} leases: early {early}, late {}", due.len(), spread(&mut late)))
}

/// What a process costs that only watches.
async fn idle() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("store.db");
    let store = open(&path, Durability::Machine).await?;
    let lease = store.grant(Duration::from_secs(3_600), None).await?;
    store.put_leased("/held", "", lease.id).await?;
    let mut child = another("idle", &path)?;
    let output = child.stdout.take().ok_or("a child has an output")?;
    let line = BufReader::new(output).lines().next_line().await?.ok_or("a child prints a line")?;
    child.wait().await?;
    print(&format!("idle with a watcher and a lease: {line} % of one processor"))
}

async fn stay_idle(path: &Path) -> Outcome {
    let store = open(path, Durability::Machine).await?;
    let mut watch = store.watch(Selection::everything(), WatchStart::Now, PreviousValues::Omitted).await?;
    let span = Duration::from_secs(10);
    let before = processor_time()?;
    // In the measured case no process writes; in the other case this process is killed.
    let _ = tokio::time::timeout(span, async { while watch.next().await.is_some() {} }).await;
    let used = processor_time()?.saturating_sub(before);
    print(&format!("{:.3}", used.as_secs_f64() / span.as_secs_f64() * 100.0))
}

/// The time that all threads of this process have run.
fn processor_time() -> Outcome<Duration> {
    let mut total = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let line = std::fs::read_to_string(task?.path().join("schedstat"))?;
        total += line.split(' ').next().ok_or("schedstat has three numbers")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(total))
}

fn another(role: &str, path: &Path) -> Outcome<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    Ok(command.arg(role).arg(path).stdout(Stdio::piped()).kill_on_drop(true).spawn()?)
}

fn per_second(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}

fn spread(took: &mut [Duration]) -> String {
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    format!("p50 {:.1?}, p99 {:.1?}, max {:.1?}", at(50), at(99), at(100))
}

fn print(line: &str) -> Outcome {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
