//! Leader election on an own storage, and the suite that checks it.
//!
//! This storage is a map behind a mutex. A database table or a vendor's service looks the same from outside. Run it with
//! `cargo run -p tenure --example own_ttl_storage --features conformance`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure::ttl::{StorageError, TtlElections, TtlStorage, TtlTerm, conformance};

/// Each key with its value and expiry.
type Table = HashMap<String, (String, Instant)>;

#[derive(Default)]
struct Rows(Mutex<Table>);

impl Rows {
    /// The table without the key if that has expired. One step, as a transaction would be.
    fn live(&self, key: &str) -> MutexGuard<'_, Table> {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if rows.get(key).is_some_and(|(_, until)| *until <= Instant::now()) {
            rows.remove(key);
        }
        rows
    }
}

impl TtlStorage for Rows {
    type Key = String;
    type Value = String;

    async fn insert_if_absent(
        &self,
        key: &String,
        value: &String,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        let mut rows = self.live(key);
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
        let mut rows = self.live(key);
        let is_equal = rows.get(key).is_some_and(|(stored, _)| stored == old);
        if is_equal {
            rows.insert(key.clone(), (new.clone(), Instant::now() + ttl));
        }
        Ok(is_equal)
    }

    async fn compare_and_delete(&self, key: &String, value: &String) -> Result<bool, StorageError> {
        let mut rows = self.live(key);
        let is_equal = rows.get(key).is_some_and(|(stored, _)| stored == value);
        if is_equal {
            rows.remove(key);
        }
        Ok(is_equal)
    }
}

/// Work of the leader: dropped by `lead` if the term is lost.
async fn report(term: TtlTerm) -> u32 {
    if term.is_valid() { 42 } else { 0 }
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example prints its result")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let checked = conformance::run(|| async { Rows::default() }).await;
    checked.assert_passed();
    println!("{checked}");

    let elections = TtlElections::builder(Rows::default()).ttl(Duration::from_secs(15)).build()?;
    let pages = elections.election("reports").lead("web-1", report).await?;
    println!("{pages} pages, written by the leader");
    elections.close().await?;
    Ok(())
}
