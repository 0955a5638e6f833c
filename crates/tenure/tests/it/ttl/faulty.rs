//! A storage in memory that fails as it is told.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::clock::Clock;
use tenure::ttl::{Capabilities, Freed, Memory, StorageError, TtlStorage};
use tenure_core::revision::Token;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Insert,
    Swap,
    Delete,
}

/// What becomes of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    None,
    /// Refused, certainly without effect.
    Refuse,
    /// Never arrives, and nobody can tell.
    LoseRequest,
    /// Applied, but the answer is lost.
    LoseAnswer,
    /// Applied, and never answered.
    HangAfter,
    /// Never arrives, and is never answered.
    Hang,
    Panic,
    /// The answer takes this many milliseconds.
    Slow(u64),
}

type Rule = Box<dyn FnMut(Verb) -> Fault + Send>;

pub(super) struct Faulty {
    pub(super) memory: Memory<String, String>,
    capabilities: Capabilities,
    rule: Mutex<Rule>,
    requests: AtomicUsize,
}

impl Faulty {
    pub(super) fn new(clock: impl Clock) -> Faulty {
        let memory = Memory::new(clock);
        let capabilities = memory.capabilities();
        Faulty {
            memory,
            capabilities,
            rule: Mutex::new(Box::new(|_| Fault::None)),
            requests: AtomicUsize::new(0),
        }
    }

    /// One that offers nothing beyond the verbs.
    pub(super) fn plain(clock: impl Clock) -> Faulty {
        Faulty { capabilities: Capabilities::default(), ..Faulty::new(clock) }
    }

    pub(super) fn rule(&self, rule: impl FnMut(Verb) -> Fault + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    pub(super) fn always(&self, verb: Verb, fault: Fault) {
        self.rule(move |asked| if asked == verb { fault } else { Fault::None });
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    async fn suffer(
        &self,
        verb: Verb,
        apply: impl Future<Output = Result<bool, StorageError>>,
    ) -> Result<bool, StorageError> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let fault = (self.rule.lock().unwrap())(verb);
        match fault {
            Fault::None => apply.await,
            Fault::Refuse => Err(StorageError::not_applied("refused")),
            Fault::LoseRequest => Err(StorageError::unknown("lost")),
            Fault::LoseAnswer => {
                apply.await?;
                Err(StorageError::unknown("lost"))
            }
            Fault::HangAfter => {
                apply.await?;
                std::future::pending().await
            }
            Fault::Hang => std::future::pending().await,
            Fault::Panic => panic!("as a storage may"),
            Fault::Slow(ms) => {
                let answer = apply.await;
                tokio::time::sleep(Duration::from_millis(ms)).await;
                answer
            }
        }
    }
}

impl TtlStorage<String, String> for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn insert_if_absent(
        &self,
        key: &String,
        value: &String,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        self.suffer(Verb::Insert, self.memory.insert_if_absent(key, value, ttl)).await
    }

    async fn compare_and_swap(
        &self,
        key: &String,
        old: &String,
        new: &String,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        self.suffer(Verb::Swap, self.memory.compare_and_swap(key, old, new, ttl)).await
    }

    async fn compare_and_delete(&self, key: &String, value: &String) -> Result<bool, StorageError> {
        self.suffer(Verb::Delete, self.memory.compare_and_delete(key, value)).await
    }

    async fn token(&self, key: &String, value: &String) -> Result<Option<Token>, StorageError> {
        self.memory.token(key, value).await
    }

    async fn watch(&self, key: &String) -> Result<Freed, StorageError> {
        self.memory.watch(key).await
    }
}
