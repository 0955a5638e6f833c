//! A storage of your own, and the kit that tells whether elections may stand on it.
//!
//! This one is a map behind a mutex. Real ones have a table of a database or a vendor's service behind them; the trait and
//! the lines of `main` stay the same. Run it with `cargo run -p tenure --example own_ttl_storage --features conformance`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure::clock::BootClock;
use tenure::ttl::{Capabilities, Elections, StorageError, TtlStorage, conformance, refuse_zero};

/// What is stored under each key, and until when.
#[derive(Default)]
struct MyStorage {
    rows: Mutex<HashMap<String, (String, Instant)>>,
}

impl MyStorage {
    /// The rows without the one that may be over: one step, as a transaction would be.
    fn rows(&self, key: &str) -> MutexGuard<'_, HashMap<String, (String, Instant)>> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        if rows.get(key).is_some_and(|(_, until)| *until <= Instant::now()) {
            rows.remove(key);
        }
        rows
    }
}

impl TtlStorage<String, String> for MyStorage {
    fn capabilities(&self) -> Capabilities {
        Capabilities { fencing: false, watch: false, durable: false }
    }

    async fn insert_if_absent(
        &self,
        key: &String,
        value: &String,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        refuse_zero(ttl)?;
        let mut rows = self.rows(key);
        let is_absent = !rows.contains_key(key);
        if is_absent {
            rows.insert(key.clone(), (value.clone(), Instant::now() + ttl));
        }
        Ok(is_absent)
    }

    async fn compare_and_swap(
        &self,
        key: &String,
        old: &String,
        new: &String,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        refuse_zero(ttl)?;
        let mut rows = self.rows(key);
        let is_equal = rows.get(key).is_some_and(|(stored, _)| stored == old);
        if is_equal {
            rows.insert(key.clone(), (new.clone(), Instant::now() + ttl));
        }
        Ok(is_equal)
    }

    async fn compare_and_delete(&self, key: &String, value: &String) -> Result<bool, StorageError> {
        let mut rows = self.rows(key);
        let is_equal = rows.get(key).is_some_and(|(stored, _)| stored == value);
        if is_equal {
            rows.remove(key);
        }
        Ok(is_equal)
    }
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example shows what it found")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let report = conformance::run(|| async { MyStorage::default() }).await;
    report.assert_passed();
    println!("{report}");

    let elections = Elections::new(MyStorage::default(), BootClock);
    let boss = elections.acquire("reports".to_owned(), "web-1".to_owned(), Duration::from_secs(15)).await?;
    let pages = boss.run(async { 42 }).await?;
    boss.release().await?;
    println!("{pages} pages, written by the leader");
    Ok(())
}
