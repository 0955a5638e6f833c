//! Time as tests want it: stepped wall clocks, reboots, and power loss, which no test can do to a real machine.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tenure_core::time::Moment;

use super::time::Time;
use super::{FileEngine, FileOptions};
use crate::clock::{BootClock, Clock};
use crate::store::{Durability, Get, LeaseId, Limits, Renewal, Revision, Store, StoreError};

const HOUR: Duration = Duration::from_secs(3_600);
const HOUR_MS: i64 = 3_600_000;

/// A machine with clocks that the test sets.
#[derive(Clone)]
struct Machine(Arc<Mutex<Clocks>>);

struct Clocks {
    boot: Moment,
    wall_ms: i64,
    boot_id: &'static str,
}

impl Machine {
    fn new() -> Machine {
        let boot = Moment::after_origin(5 * HOUR);
        Machine(Arc::new(Mutex::new(Clocks { boot, wall_ms: 1_700_000_000_000, boot_id: "first" })))
    }

    fn set(&self, change: impl FnOnce(&mut Clocks)) {
        change(&mut self.0.lock().unwrap());
    }

    /// Time goes by, for both clocks.
    fn pass(&self, duration: Duration) {
        self.set(|clocks| {
            clocks.boot = clocks.boot + duration;
            clocks.wall_ms += i64::try_from(duration.as_millis()).unwrap();
        });
    }
}

impl Time for Machine {
    fn boot(&self) -> Moment {
        self.0.lock().unwrap().boot
    }

    fn wall_ms(&self) -> i64 {
        self.0.lock().unwrap().wall_ms
    }

    fn boot_id(&self) -> Result<String, StoreError> {
        Ok(self.0.lock().unwrap().boot_id.to_owned())
    }
}

struct Home {
    folder: TempDir,
    machine: Machine,
}

impl Home {
    fn new() -> Home {
        Home { folder: tempfile::tempdir().unwrap(), machine: Machine::new() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    async fn open(&self) -> Store {
        let options = FileEngine::options().time(self.machine.clone());
        Store::new(options.open(self.path()).await.unwrap())
    }

    /// A key under a lease of an hour.
    async fn with_lease(&self) -> (Store, LeaseId) {
        let store = self.open().await;
        let lease = store.grant(HOUR, None).await.unwrap().id;
        store.put_leased("/held", "", lease).await.unwrap();
        (store, lease)
    }
}

async fn is_held(store: &Store) -> bool {
    store.get_key("/held").await.unwrap().is_some()
}

/// X14.
#[tokio::test]
async fn wall_clock_step_changes_no_lease() {
    for step_ms in [HOUR_MS, -HOUR_MS, 1_000 * HOUR_MS] {
        let home = Home::new();
        let (store, lease) = home.with_lease().await;
        home.machine.set(|clocks| clocks.wall_ms += step_ms);
        let view = store.lease(lease).await.unwrap().unwrap();
        assert_eq!((view.granted, view.remaining), (HOUR, HOUR), "{step_ms}");
        // A process that opens the store later ignores the wall clock too.
        let later = home.open().await;
        home.machine.pass(HOUR - Duration::from_millis(1));
        assert!(is_held(&later).await && is_held(&store).await, "{step_ms}");
        home.machine.set(|clocks| clocks.wall_ms -= 2 * step_ms);
        home.machine.pass(Duration::from_millis(1));
        assert!(!is_held(&later).await && !is_held(&store).await, "{step_ms}");
        assert!(matches!(store.renew(lease).await.unwrap(), Renewal::Gone));
    }
}

#[tokio::test]
async fn lease_runs_while_store_is_closed() {
    let home = Home::new();
    let (store, lease) = home.with_lease().await;
    store.close().await;
    home.machine.pass(HOUR / 2);
    let store = home.open().await;
    assert_eq!(store.lease(lease).await.unwrap().unwrap().remaining, HOUR / 2);
    store.close().await;
    home.machine.pass(HOUR / 2);
    let store = home.open().await;
    assert!(!is_held(&store).await);
}

#[tokio::test]
async fn lease_after_reboot_ends_within_its_ttl() {
    for (away_ms, left) in [
        (HOUR_MS / 4, Some(HOUR - HOUR / 4)),
        (HOUR_MS, None),
        (50 * HOUR_MS, None),
        // The clock was set back: the most that can be left is all of it.
        (-50 * HOUR_MS, Some(HOUR)),
    ] {
        let home = Home::new();
        let (store, lease) = home.with_lease().await;
        store.close().await;
        home.machine.set(|clocks| {
            *clocks = Clocks {
                boot: Moment::from_ms(10_000),
                wall_ms: clocks.wall_ms + away_ms,
                boot_id: "second",
            };
        });
        let store = home.open().await;
        assert_eq!(is_held(&store).await, left.is_some(), "{away_ms}");
        let view = store.lease(lease).await.unwrap();
        assert_eq!(view.map(|view| view.remaining), left, "{away_ms}");
        if let Some(left) = left {
            home.machine.pass(left - Duration::from_millis(1));
            assert!(is_held(&store).await);
            home.machine.pass(Duration::from_millis(1));
            assert!(!is_held(&store).await);
        }
    }
}

/// A renewal moves both deadlines: the one in boot time, and the one by which the lease outlives a reboot.
#[tokio::test]
async fn renewed_lease_keeps_its_renewal_over_a_reboot() {
    let home = Home::new();
    let (store, lease) = home.with_lease().await;
    home.machine.pass(HOUR / 2);
    assert!(matches!(store.renew(lease).await.unwrap(), Renewal::Renewed { .. }));
    store.close().await;
    home.machine.set(|clocks| {
        let wall_ms = clocks.wall_ms + HOUR_MS / 4;
        *clocks = Clocks { boot: Moment::from_ms(10_000), wall_ms, boot_id: "second" };
    });
    let store = home.open().await;
    let left = HOUR - HOUR / 4;
    assert_eq!(store.lease(lease).await.unwrap().map(|view| view.remaining), Some(left));
    assert!(is_held(&store).await);
}

/// A power loss may have removed the last commits. Revisions continue above every one that was handed out.
#[tokio::test]
async fn revisions_continue_above_reserve_after_reboot() {
    let home = Home::new();
    let store = home.open().await;
    let last = store.put("/a", "1").await.unwrap();
    store.close().await;
    home.machine.set(|clocks| clocks.boot_id = "second");
    let store = home.open().await;
    let found = store.get(Get::key("/a")).await.unwrap();
    assert_eq!(found.revision, Revision(last.0 + super::revision_reserve::RESERVED));
    assert_eq!(found.pairs[0].modified, last);
    let past = store.get(Get::key("/a").at(last)).await;
    assert!(matches!(past, Err(StoreError::Compacted { .. })));
    assert_eq!(store.get(Get::key("/a").at(found.revision)).await.unwrap().pairs, found.pairs);
    let next = store.put("/a", "2").await.unwrap();
    assert_eq!(next, found.revision.next());
    store.close().await;
    home.machine.set(|clocks| clocks.boot_id = "third");
    let store = home.open().await;
    assert!(store.put("/a", "3").await.unwrap() > next);
}

#[tokio::test]
async fn store_info_reports_chosen_options() {
    let folder = tempfile::tempdir().unwrap();
    let open =
        async |options: FileOptions| Store::new(options.open(folder.path().join("store.db")).await.unwrap());
    let store = open(FileEngine::options()).await;
    assert_eq!((store.info().kind, store.info().durable), ("file", Durability::Machine));
    assert_eq!(store.info().limits, Limits::EMBEDDED);
    let safe = open(FileEngine::options().durability(Durability::PowerLoss)).await;
    assert_eq!(safe.info().durable, Durability::PowerLoss);
    safe.put("/a", "").await.unwrap();
    assert!(store.get_key("/a").await.unwrap().is_some());
    // A TTL below the minimum is raised to it, and the holder counts from before its request.
    let before = BootClock.now();
    let grant = store.grant(Duration::from_millis(1), None).await.unwrap();
    assert_eq!(grant.ttl, Limits::EMBEDDED.ttl_min);
    assert!(grant.asked_at >= before && grant.asked_at <= BootClock.now());
}
