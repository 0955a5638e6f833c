//! A storage in memory with injected faults.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::clock::Clock;
use tenure::ttl::{Capabilities, KeyFreed, MemoryStorage, StorageError, TtlStorage};
use tenure_core::revision::Token;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Insert,
    Swap,
    Delete,
}

/// The fault of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    None,
    /// Refused, and certainly not applied.
    Refuse,
    /// Never arrives, and is reported as ambiguous.
    LoseRequest,
    /// Applied, but the reply is lost.
    LoseReply,
    /// Applied, without a reply.
    HangAfter,
    /// Never arrives, without a reply.
    Hang,
    Panic,
    /// The reply takes this many milliseconds.
    Slow(u64),
}

type Rule = Box<dyn FnMut(Verb) -> Fault + Send>;

pub(super) struct Faulty {
    pub(super) memory: MemoryStorage,
    capabilities: Capabilities,
    rule: Mutex<Rule>,
    requests: AtomicUsize,
}

impl Faulty {
    pub(super) fn new(clock: impl Clock) -> Faulty {
        let memory = MemoryStorage::new(clock);
        let capabilities = memory.capabilities();
        Faulty {
            memory,
            capabilities,
            rule: Mutex::new(Box::new(|_| Fault::None)),
            requests: AtomicUsize::new(0),
        }
    }

    /// One without capabilities.
    pub(super) fn plain(clock: impl Clock) -> Faulty {
        Faulty { capabilities: Capabilities::default(), ..Faulty::new(clock) }
    }

    pub(super) fn rule(&self, rule: impl FnMut(Verb) -> Fault + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    pub(super) fn always(&self, verb: Verb, fault: Fault) {
        self.rule(move |sent| if sent == verb { fault } else { Fault::None });
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    async fn call(
        &self,
        verb: Verb,
        apply: impl Future<Output = Result<bool, StorageError>>,
    ) -> Result<bool, StorageError> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let fault = (self.rule.lock().unwrap())(verb);
        match fault {
            Fault::None => apply.await,
            Fault::Refuse => Err(StorageError::not_applied("refused")),
            Fault::LoseRequest => Err(StorageError::ambiguous("lost")),
            Fault::LoseReply => {
                apply.await?;
                Err(StorageError::ambiguous("lost"))
            }
            Fault::HangAfter => {
                apply.await?;
                std::future::pending().await
            }
            Fault::Hang => std::future::pending().await,
            Fault::Panic => panic!("as a storage may"),
            Fault::Slow(ms) => {
                let reply = apply.await;
                tokio::time::sleep(Duration::from_millis(ms)).await;
                reply
            }
        }
    }
}

impl TtlStorage for Faulty {
    type Key = String;
    type Value = String;

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn insert_if_absent(
        &self,
        key: &String,
        value: &String,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        self.call(Verb::Insert, self.memory.insert_if_absent(key, value, ttl)).await
    }

    async fn compare_and_swap(
        &self,
        key: &String,
        old: &String,
        new: &String,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        self.call(Verb::Swap, self.memory.compare_and_swap(key, old, new, ttl)).await
    }

    async fn compare_and_delete(&self, key: &String, value: &String) -> Result<bool, StorageError> {
        self.call(Verb::Delete, self.memory.compare_and_delete(key, value)).await
    }

    async fn token(&self, key: &String, value: &String) -> Result<Option<Token>, StorageError> {
        self.memory.token(key, value).await
    }

    async fn watch(&self, key: &String) -> Result<KeyFreed, StorageError> {
        self.memory.watch(key).await
    }
}
