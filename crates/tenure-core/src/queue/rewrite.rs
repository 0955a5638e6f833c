//! Changes the record in a queue key: reads it, changes it, and puts it if no other client has put
//! it since.
//!
//! **Invariant** (G4): a put requires the create revision of the key and the modify revision of
//! what was changed. So it never brings back a key that was deleted, and never drops what another
//! client wrote.
//!
//! Applying the same change twice does no harm, so a request with a lost reply is sent again.

use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use super::QueueKind;
use crate::error::StoreError;
use crate::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use crate::kv::Get;
use crate::record::{
    CandidateRecord, HolderRecord, InvalidRecord, RECORD_BYTES_MAX, Record, StepDownRecord, Timestamp,
};
use crate::revision::{Revision, Token};
use crate::txn::{Condition, LeaseChoice, Op, Txn};

/// A change of a stored record.
pub trait RecordChange {
    /// Returns the record to put; none if the stored one needs no change.
    ///
    /// # Errors
    ///
    /// The stored record cannot be read, and must not be replaced.
    fn apply(&self, stored: &[u8]) -> Result<Option<Bytes>, InvalidRecord>;
}

/// A change of a candidate's record.
#[derive(Clone, Debug)]
pub struct CandidateUpdate {
    /// What changes.
    pub change: CandidateChange,
    /// The record that replaces one that cannot be read. Only the candidate itself knows it.
    pub own: Option<CandidateRecord>,
}

/// What changes in a candidate's record.
#[derive(Clone, Debug)]
pub enum CandidateChange {
    /// The value that observers see.
    Value(String),
    /// A request to the leader; none to withdraw it.
    Request(Option<StepDownRecord>),
}

impl RecordChange for CandidateUpdate {
    fn apply(&self, stored: &[u8]) -> Result<Option<Bytes>, InvalidRecord> {
        let (mut record, is_stored) = match (CandidateRecord::decode(stored), &self.own) {
            (Ok(record), _) => (record, true),
            (Err(_), Some(own)) => (own.clone(), false),
            (Err(bad), None) => return Err(bad),
        };
        let before = record.clone();
        match &self.change {
            CandidateChange::Value(value) => record.value.clone_from(value),
            CandidateChange::Request(request) => record.asked.clone_from(request),
        }
        Ok((!is_stored || record != before).then(|| record.encode()))
    }
}

/// Writes when a hold began.
#[derive(Clone, Copy, Debug)]
pub struct AcquiredMark {
    /// Whether it is a lock or a term.
    pub kind: QueueKind,
    /// When the hold began.
    pub at: Timestamp,
    /// The TTL of its lease.
    pub ttl: Duration,
}

impl RecordChange for AcquiredMark {
    /// A record that has the time already, cannot be read, or would become too long to be read,
    /// stays as it is.
    fn apply(&self, stored: &[u8]) -> Result<Option<Bytes>, InvalidRecord> {
        let acquired = Some(self.at);
        let value = match self.kind {
            QueueKind::Lock => HolderRecord::decode(stored)
                .ok()
                .filter(|record| record.acquired.is_none())
                .map(|record| HolderRecord { acquired, ..record }.encode()),
            // The mark that it leads saves the next candidate from reading a long queue.
            QueueKind::Election => CandidateRecord::decode(stored)
                .ok()
                .filter(|record| record.acquired.is_none())
                .map(|record| {
                    let ttl_ms = u64::try_from(self.ttl.as_millis()).ok();
                    CandidateRecord { acquired, ttl_ms, leads: true, ..record }.encode()
                }),
        };
        Ok(value.filter(|value| value.len() <= RECORD_BYTES_MAX))
    }
}

/// Writes that a party has passed a barrier.
#[derive(Clone, Debug)]
pub struct PassedMark {
    /// The token of the round.
    pub round: Token,
    /// The record that replaces one that cannot be read.
    pub own: HolderRecord,
}

impl RecordChange for PassedMark {
    fn apply(&self, stored: &[u8]) -> Result<Option<Bytes>, InvalidRecord> {
        let record = HolderRecord::decode(stored).unwrap_or_else(|_| self.own.clone());
        let passed = Some(self.round);
        Ok((record.passed != passed).then(|| HolderRecord { passed, ..record }.encode()))
    }
}

/// The bounds of a rewrite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RewriteLimit {
    /// None: it runs until it is applied or cannot be. The owner of the key bounds it by its lease.
    UntilApplied,
    /// Limits for conflicts and lost replies. Any other error ends the rewrite.
    Bounded {
        /// How often another client may write the record first.
        conflicts_max: u32,
        /// How often a reply may be lost.
        lost_max: u32,
    },
}

/// The result of a rewrite.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rewritten {
    /// This is stored now, since that revision.
    Stored(Bytes, Revision),
    /// The key was deleted, or put again as a later incarnation.
    Gone,
    /// Other clients wrote the record too often.
    Contended,
}

/// Why a record was not changed.
#[derive(Debug, Error)]
pub enum RewriteError {
    /// The store refused it, or did not reply.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stored record cannot be read, and was left as it is.
    #[error("the stored record cannot be read")]
    Unreadable(#[source] InvalidRecord),
}

/// A rewrite of the record in one queue key.
#[derive(Clone, Debug)]
pub struct Rewrite<C> {
    key: Bytes,
    token: Token,
    change: C,
    effort: RewriteLimit,
    state: RewriteState,
}

#[derive(Clone, Debug)]
enum RewriteState {
    /// The stored record must be read.
    Reading,
    /// This record must be put over the one of that revision.
    Writing(Bytes, Revision),
}

impl<C: RecordChange> Rewrite<C> {
    /// A rewrite of the key with this create revision, which is read first.
    pub fn new(key: Bytes, token: Token, change: C, effort: RewriteLimit) -> Rewrite<C> {
        Rewrite { key, token, change, effort, state: RewriteState::Reading }
    }

    /// The same, if the stored record and its modify revision are known already.
    ///
    /// # Errors
    ///
    /// There is nothing to send: the result.
    pub fn known(
        mut self,
        value: &Bytes,
        modified: Revision,
    ) -> Result<Self, Result<Rewritten, RewriteError>> {
        match self.learn(value, modified) {
            ExchangeStep::Done(result) => Err(result),
            ExchangeStep::Send | ExchangeStep::Retry(_) => Ok(self),
        }
    }

    fn learn(&mut self, value: &Bytes, modified: Revision) -> ExchangeStep<Result<Rewritten, RewriteError>> {
        match self.change.apply(value) {
            Ok(Some(changed)) => {
                self.state = RewriteState::Writing(changed, modified);
                ExchangeStep::Send
            }
            Ok(None) => ExchangeStep::Done(Ok(Rewritten::Stored(value.clone(), modified))),
            Err(bad) => ExchangeStep::Done(Err(RewriteError::Unreadable(bad))),
        }
    }

    fn fail(&mut self, error: StoreError) -> ExchangeStep<Result<Rewritten, RewriteError>> {
        let is_retried = match &mut self.effort {
            RewriteLimit::UntilApplied => !error.is_fatal() && !matches!(error, StoreError::Invalid(_)),
            RewriteLimit::Bounded { lost_max, .. } => error.is_ambiguous() && count_down(lost_max),
        };
        if !is_retried {
            return ExchangeStep::Done(Err(error.into()));
        }
        self.state = RewriteState::Reading;
        ExchangeStep::Retry(error)
    }
}

/// Counts down. Returns `false` at zero.
fn count_down(left: &mut u32) -> bool {
    let is_left = *left > 0;
    *left = left.saturating_sub(1);
    is_left
}

impl<C: RecordChange> Exchange for Rewrite<C> {
    type Output = Result<Rewritten, RewriteError>;

    fn request(&self) -> StoreRequest {
        let key = &self.key;
        match &self.state {
            RewriteState::Reading => StoreRequest::Get(Get::key(key.clone())),
            RewriteState::Writing(value, modified) => {
                let put = Op::Put { key: key.clone(), value: value.clone(), lease: LeaseChoice::Keep };
                StoreRequest::Txn(
                    Txn::new()
                        .when(Condition::created_at(key.clone(), self.token.0))
                        .when(Condition::modified_at(key.clone(), *modified))
                        .then(put)
                        .otherwise(Op::Get(Get::key(key.clone()))),
                )
            }
        }
    }

    fn handle(&mut self, reply: Result<StoreReply, StoreError>) -> ExchangeStep<Self::Output> {
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => return self.fail(error),
        };
        if let (RewriteState::Writing(value, _), StoreReply::Txn(reply)) = (&self.state, &reply) {
            if reply.succeeded {
                return ExchangeStep::Done(Ok(Rewritten::Stored(value.clone(), reply.revision)));
            }
            if let RewriteLimit::Bounded { conflicts_max, .. } = &mut self.effort
                && !count_down(conflicts_max)
            {
                return ExchangeStep::Done(Ok(Rewritten::Contended));
            }
        }
        match reply.into_page() {
            Ok(page) => match page.pairs.first().filter(|pair| pair.created == self.token.0) {
                Some(pair) => self.learn(&pair.value, pair.modified),
                None => ExchangeStep::Done(Ok(Rewritten::Gone)),
            },
            Err(error) => self.fail(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Cause;
    use crate::keyspace::Keyspace;
    use crate::limits::Limits;
    use crate::time::Moment;

    const NOW: Moment = Moment::ORIGIN;
    const BOUNDED: RewriteLimit = RewriteLimit::Bounded { conflicts_max: 1, lost_max: 1 };

    fn put(store: &mut Keyspace, value: impl Into<Bytes>) -> Token {
        Token(store.apply(&Txn::new().then(Op::put("k", value.into())), NOW).unwrap().revision)
    }

    fn candidate(name: &str) -> CandidateRecord {
        CandidateRecord { candidate: name.to_owned(), ..CandidateRecord::default() }
    }

    fn update(value: &str, own: Option<CandidateRecord>) -> CandidateUpdate {
        CandidateUpdate { change: CandidateChange::Value(value.to_owned()), own }
    }

    fn send<C: RecordChange>(store: &mut Keyspace, rewrite: &Rewrite<C>) -> Result<StoreReply, StoreError> {
        match rewrite.request() {
            StoreRequest::Get(get) => store.get(&get, NOW).map(StoreReply::Page),
            StoreRequest::Txn(txn) => store.apply(&txn, NOW).map(StoreReply::Txn),
        }
    }

    fn run<C: RecordChange>(
        store: &mut Keyspace,
        mut rewrite: Rewrite<C>,
    ) -> Result<Rewritten, RewriteError> {
        loop {
            let reply = send(store, &rewrite);
            if let ExchangeStep::Done(result) = rewrite.handle(reply) {
                return result;
            }
        }
    }

    fn stored(store: &mut Keyspace) -> CandidateRecord {
        CandidateRecord::decode(&store.get(&Get::key("k"), NOW).unwrap().pairs[0].value).unwrap()
    }

    /// The leader announces another value while an operator requests that it resigns: both are
    /// kept.
    #[test]
    fn concurrent_write_is_kept() {
        let mut store = Keyspace::new(Limits::EMBEDDED);
        let first = candidate("a").encode();
        let token = put(&mut store, first.clone());
        let rewrite = Rewrite::new("k".into(), token, update("v", None), RewriteLimit::UntilApplied);
        let rewrite = rewrite.known(&first, token.0).unwrap();
        let asked = Some(StepDownRecord { by: "op".to_owned(), ..StepDownRecord::default() });
        put(&mut store, CandidateRecord { asked: asked.clone(), ..candidate("a") }.encode());
        assert!(matches!(run(&mut store, rewrite), Ok(Rewritten::Stored(..))));
        assert_eq!(stored(&mut store), CandidateRecord { asked, value: "v".to_owned(), ..candidate("a") });
    }

    #[test]
    fn deleted_key_is_not_put_again() {
        for is_put_again in [false, true] {
            let mut store = Keyspace::new(Limits::EMBEDDED);
            let token = put(&mut store, candidate("a").encode());
            store.apply(&Txn::new().then(Op::delete("k")), NOW).unwrap();
            if is_put_again {
                put(&mut store, candidate("b").encode());
            }
            let before = store.revision();
            let rewrite = Rewrite::new("k".into(), token, update("v", None), RewriteLimit::UntilApplied);
            let known = rewrite.clone().known(&candidate("a").encode(), token.0).unwrap();
            for rewrite in [rewrite, known] {
                assert_eq!(run(&mut store, rewrite).unwrap(), Rewritten::Gone);
            }
            assert_eq!(store.revision(), before);
        }
    }

    #[test]
    fn unreadable_record_is_replaced_by_its_owner_alone() {
        let mut store = Keyspace::new(Limits::EMBEDDED);
        let token = put(&mut store, "garbage");
        let other = Rewrite::new("k".into(), token, update("v", None), BOUNDED);
        assert!(matches!(run(&mut store, other), Err(RewriteError::Unreadable(_))));
        let own =
            Rewrite::new("k".into(), token, update("v", Some(candidate("a"))), RewriteLimit::UntilApplied);
        assert!(matches!(run(&mut store, own), Ok(Rewritten::Stored(..))));
        assert_eq!(stored(&mut store).candidate, "a");
    }

    #[test]
    fn bounded_rewrite_ends_after_conflicts_and_lost_replies() {
        let lost = || StoreError::Ambiguous(Cause::new("the reply was lost"));
        let mut store = Keyspace::new(Limits::EMBEDDED);
        let first = candidate("a").encode();
        let token = put(&mut store, first.clone());
        let rewrite = Rewrite::new("k".into(), token, update("v", None), BOUNDED);
        let mut lossy = rewrite.clone();
        assert!(matches!(lossy.handle(Err(lost())), ExchangeStep::Retry(_)));
        assert!(matches!(lossy.handle(Err(lost())), ExchangeStep::Done(Err(_))));
        let mut contended = rewrite.known(&first, token.0).unwrap();
        for is_last in [false, true] {
            put(&mut store, candidate("other").encode());
            let reply = send(&mut store, &contended);
            let step = contended.handle(reply);
            assert_eq!(matches!(step, ExchangeStep::Done(Ok(Rewritten::Contended))), is_last, "{step:?}");
        }
        let mut owner = Rewrite::new("k".into(), token, update("v", None), RewriteLimit::UntilApplied);
        for _ in 0..10 {
            assert!(matches!(owner.handle(Err(lost())), ExchangeStep::Retry(_)));
        }
        assert!(matches!(owner.handle(Err(StoreError::Closed)), ExchangeStep::Done(Err(_))));
    }

    #[test]
    fn acquired_mark_is_written_once() {
        let mark = |kind| AcquiredMark { kind, at: Timestamp(7), ttl: Duration::from_secs(5) };
        let lock = mark(QueueKind::Lock).apply(&HolderRecord::default().encode()).unwrap().unwrap();
        assert_eq!(HolderRecord::decode(&lock).unwrap().acquired, Some(Timestamp(7)));
        assert_eq!(mark(QueueKind::Lock).apply(&lock).unwrap(), None);
        let term = mark(QueueKind::Election).apply(&candidate("a").encode()).unwrap().unwrap();
        let record = CandidateRecord::decode(&term).unwrap();
        assert_eq!((record.acquired, record.ttl_ms, record.leads), (Some(Timestamp(7)), Some(5_000), true));
        assert_eq!(mark(QueueKind::Election).apply(&term).unwrap(), None);
        assert_eq!(mark(QueueKind::Election).apply(b"garbage").unwrap(), None);
    }
}
