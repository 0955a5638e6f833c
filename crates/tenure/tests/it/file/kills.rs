//! Processes that are killed at random points while they write: nothing that was acknowledged is lost, nothing is torn, and
//! no revision is missing or used twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tenure::store::{Change, Get, Revision, Store, WatchStart};

use super::child::ChildProcess;
use super::sharing::{next, watch_all};
use super::{Home, PATIENCE};

const WRITERS: usize = 16;

/// An acknowledged write that a child reported: revision, process, number.
type Acked = (Revision, u32, u64);

#[tokio::test]
async fn sixty_kills_under_sixteen_writers_lose_nothing() {
    storm(60).await;
}

/// The full size only when it is asked for: `TENURE_SOAK=1`.
#[tokio::test]
async fn soak_kills_under_writers_lose_nothing() {
    storm(if std::env::var_os("TENURE_SOAK").is_some() { 500 } else { 20 }).await;
}

/// Kills `kills` processes, one at a time and every so often all at once, while sixteen write.
async fn storm(kills: usize) {
    let home = Home::new();
    // The test itself keeps the file closed, so that sometimes every process with the file open is killed.
    let first = first_revision(&home).await;
    let mut acked: Vec<Acked> = Vec::new();
    let mut writers: Vec<ChildProcess> = Vec::new();
    let mut killed = 0;
    let mut random = SeededRandom(0x9E37_79B9_7F4A_7C15);
    while killed < kills {
        while writers.len() < WRITERS {
            writers.push(ChildProcess::start("pairs", &home.path()));
        }
        let all_at_once = random.roll(10) == 0;
        // Long enough that some have opened the store and write, and some are still at it.
        tokio::time::sleep(Duration::from_micros(20_000 + random.roll(150_000))).await;
        let victims = if all_at_once { writers.len() } else { 1 + usize::try_from(random.roll(3)).unwrap() };
        for _ in 0..victims.min(kills - killed) {
            let mut victim = writers.swap_remove(usize::try_from(random.roll(writers.len() as u64)).unwrap());
            let pid = victim.pid();
            victim.kill().await;
            collect(&mut victim, pid, &mut acked).await;
            killed += 1;
        }
    }
    for mut writer in writers {
        let pid = writer.pid();
        writer.kill().await;
        collect(&mut writer, pid, &mut acked).await;
    }
    let began = Instant::now();
    let store = home.store().await;
    let reopened_in = began.elapsed();
    assert!(reopened_in < Duration::from_secs(5), "{reopened_in:?}");
    assert!(acked.len() > kills, "only {} writes were acknowledged, so nothing was tried", acked.len());
    verify(&store, first, &acked).await;
    println!("{killed} kills, {} acknowledged, reopened in {reopened_in:?}", acked.len());
}

async fn collect(victim: &mut ChildProcess, pid: u32, acked: &mut Vec<Acked>) {
    while let Some(line) = victim.next_report().await {
        // The last line may have been cut by the kill.
        let Some((revision, n)) = line.split_once(' ') else { continue };
        let (Ok(revision), Ok(n)) = (revision.parse(), n.parse()) else { continue };
        acked.push((Revision(revision), pid, n));
    }
}

/// The revision of a new store.
async fn first_revision(home: &Home) -> Revision {
    home.store().await.get(Get::key("/none")).await.unwrap().revision
}

async fn verify(store: &Store, first: Revision, acked: &[Acked]) {
    let current = store.get(Get::key("/none")).await.unwrap().revision;
    let mut watch = watch_all(store, WatchStart::After(first)).await;
    let mut history: BTreeMap<Revision, (u32, u64)> = BTreeMap::new();
    let mut expected = first.next();
    while expected <= current {
        let (revision, changes) = next(&mut watch).await.unwrap();
        assert_eq!(revision, expected, "revisions are contiguous");
        let [Change::Put { pair: left, .. }, Change::Put { pair: right, .. }] = &changes[..] else {
            panic!("a torn pair at {revision}: {changes:?}");
        };
        assert_eq!(left.value, right.value);
        let pid = std::str::from_utf8(&left.key).unwrap().rsplit('/').next().unwrap().parse().unwrap();
        let n = std::str::from_utf8(&left.value).unwrap().parse().unwrap();
        history.insert(revision, (pid, n));
        expected = expected.next();
    }
    for (revision, pid, n) in acked {
        assert_eq!(history.get(revision), Some(&(*pid, *n)), "an acknowledged write was lost");
    }
    // The current keys are the last puts of the history.
    let last: BTreeMap<u32, u64> = history.values().copied().collect();
    let page = store.get(Get::prefix("/left/")).await.unwrap();
    let held: BTreeMap<u32, u64> = page
        .pairs
        .iter()
        .map(|pair| {
            let pid = std::str::from_utf8(&pair.key).unwrap().rsplit('/').next().unwrap().parse().unwrap();
            (pid, std::str::from_utf8(&pair.value).unwrap().parse().unwrap())
        })
        .collect();
    assert_eq!(held, last);
    let distinct: BTreeSet<Revision> = acked.iter().map(|acked| acked.0).collect();
    assert_eq!(distinct.len(), acked.len(), "no revision was acknowledged twice");
}

/// X06, as far as a machine that is busy with other tests shows it; an example measures the figures.
#[tokio::test]
async fn sixteen_processes_write_without_starvation() {
    let home = Home::new();
    let first = first_revision(&home).await;
    let store = home.store().await;
    let mut writers: Vec<ChildProcess> =
        (0..WRITERS).map(|_| ChildProcess::start("pairs", &home.path())).collect();
    // Every process has written once, so all of them write now.
    for writer in &mut writers {
        assert!(writer.next_report().await.is_some());
    }
    let before = store.get(Get::prefix("/left/")).await.unwrap();
    let began = Instant::now();
    loop {
        let page = store.get(Get::prefix("/left/")).await.unwrap();
        let has_moved = |pair: &tenure::store::KeyValue| {
            before.pairs.iter().any(|old| old.key == pair.key && old.version + 20 <= pair.version)
        };
        if page.pairs.len() == WRITERS && page.pairs.iter().all(has_moved) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "a process starves: {:?}", page.pairs);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut acked = Vec::new();
    for mut writer in writers {
        let pid = writer.pid();
        writer.kill().await;
        collect(&mut writer, pid, &mut acked).await;
    }
    verify(&store, first, &acked).await;
}

/// The same numbers in each run.
struct SeededRandom(u64);

impl SeededRandom {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}
