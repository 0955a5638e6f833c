//! Storages with one defect each, such as real ones have had.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tenure::clock::Clock;
use tenure::ttl::{Capabilities, KeyFreed, StorageError, TtlStorage};
use tenure_core::revision::{Revision, Token};
use tenure_core::time::Moment;

use crate::tokio_clock::TokioClock;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flaw {
    None,
    InsertOverwrites,
    RefusedInsertStores,
    InsertsInTwoSteps,
    FoldsKeys,
    SwapStoresOld,
    SwapsBlindly,
    SwapInserts,
    SwapsInTwoSteps,
    ComparesBeginnings,
    DeletesNothing,
    DeletesByName,
    DeletesTwice,
    CutsTtlToSeconds,
    NeverEnds,
    SwapKeepsTtl,
    RefusalRenews,
    SwapRevives,
    TokenStands,
    TokenGrowsWithSwaps,
    WatchIsDeaf,
    Hangs,
}

pub(super) struct Flawed {
    clock: TokioClock,
    flaw: Flaw,
    rows: Mutex<BTreeMap<String, Row>>,
    writes: Mutex<i64>,
}

#[derive(Clone)]
struct Row {
    value: String,
    until: Moment,
    token: i64,
}

impl Flawed {
    pub(super) fn new(clock: TokioClock, flaw: Flaw) -> Flawed {
        Flawed { clock, flaw, rows: Mutex::new(BTreeMap::new()), writes: Mutex::new(0) }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn rows(&self) -> MutexGuard<'_, BTreeMap<String, Row>> {
        self.rows.lock().unwrap()
    }

    fn key(&self, key: &str) -> String {
        if self.has(Flaw::FoldsKeys) { key.to_lowercase() } else { key.to_owned() }
    }

    fn row(&self, key: &str) -> Option<Row> {
        let now = self.clock.now();
        self.rows().get(&self.key(key)).filter(|row| now < row.until).cloned()
    }

    fn is(&self, stored: &str, value: &str) -> bool {
        if self.has(Flaw::ComparesBeginnings) {
            let beginning = |text: &str| text.split('\0').next().unwrap_or_default().to_owned();
            return beginning(stored) == beginning(value);
        }
        stored == value
    }

    fn until(&self, ttl: Duration) -> Moment {
        match self.flaw {
            Flaw::NeverEnds => self.clock.now() + Duration::from_secs(1_000_000),
            Flaw::CutsTtlToSeconds => self.clock.now() + Duration::from_secs(ttl.as_secs()),
            _ => self.clock.now() + ttl,
        }
    }

    fn next_token(&self) -> i64 {
        let mut writes = self.writes.lock().unwrap();
        *writes += i64::from(!self.has(Flaw::TokenStands));
        *writes
    }

    fn put(&self, key: &str, value: &str, until: Moment, token: i64) {
        self.rows().insert(self.key(key), Row { value: value.to_owned(), until, token });
    }
}

impl TtlStorage for Flawed {
    type Key = String;
    type Value = String;

    fn capabilities(&self) -> Capabilities {
        Capabilities { fencing: true, watch: true, durable: false }
    }

    async fn insert_if_absent(
        &self,
        key: &String,
        value: &String,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        let is_there = self.row(key).is_some();
        if self.has(Flaw::InsertsInTwoSteps) {
            tokio::task::yield_now().await;
        }
        if is_there && !self.has(Flaw::InsertOverwrites) {
            if self.has(Flaw::RefusedInsertStores) {
                let token = self.next_token();
                self.put(key, value, self.until(ttl), token);
            }
            return Ok(false);
        }
        let token = self.next_token();
        self.put(key, value, self.until(ttl), token);
        Ok(true)
    }

    async fn compare_and_swap(
        &self,
        key: &String,
        old: &String,
        new: &String,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        let mut row = self.row(key);
        if self.has(Flaw::SwapRevives) {
            row = self.rows().get(&self.key(key)).cloned();
        }
        if self.has(Flaw::SwapsInTwoSteps) {
            tokio::task::yield_now().await;
        }
        let Some(row) = row else {
            if self.has(Flaw::SwapInserts) {
                let token = self.next_token();
                self.put(key, new, self.until(ttl), token);
            }
            return Ok(self.has(Flaw::SwapInserts));
        };
        if !self.is(&row.value, old) && !self.has(Flaw::SwapsBlindly) {
            if self.has(Flaw::RefusalRenews) {
                self.put(key, &row.value, self.until(ttl), row.token);
            }
            return Ok(false);
        }
        let stored = if self.has(Flaw::SwapStoresOld) { old } else { new };
        let until = if self.has(Flaw::SwapKeepsTtl) { row.until } else { self.until(ttl) };
        let token = if self.has(Flaw::TokenGrowsWithSwaps) { self.next_token() } else { row.token };
        self.put(key, stored, until, token);
        Ok(true)
    }

    async fn compare_and_delete(&self, key: &String, value: &String) -> Result<bool, StorageError> {
        if self.has(Flaw::Hangs) {
            std::future::pending::<()>().await;
        }
        let Some(row) = self.row(key) else { return Ok(self.has(Flaw::DeletesTwice)) };
        if !self.is(&row.value, value) && !self.has(Flaw::DeletesByName) {
            return Ok(false);
        }
        if !self.has(Flaw::DeletesNothing) {
            self.rows().remove(&self.key(key));
        }
        Ok(true)
    }

    async fn token(&self, key: &String, value: &String) -> Result<Option<Token>, StorageError> {
        Ok(self.row(key).filter(|row| self.is(&row.value, value)).map(|row| Token(Revision(row.token))))
    }

    async fn watch(&self, _key: &String) -> Result<KeyFreed, StorageError> {
        if self.has(Flaw::WatchIsDeaf) {
            return Ok(Box::pin(std::future::pending()));
        }
        // An early completion is allowed: it only costs a request.
        Ok(Box::pin(tokio::time::sleep(Duration::from_millis(50))))
    }
}
