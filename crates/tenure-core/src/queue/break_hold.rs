//! Deletes the queue key of another process, on behalf of an operator, with an audit record in the
//! same transaction.
//!
//! **Invariant** (G4): the key is deleted only at the create revision that the operator has read.
//!
//! **Invariant** (G6): the audit record has a key of its own, so after a lost reply it shows
//! whether the transaction was applied.

use bytes::Bytes;

use crate::audit::AuditEntry;
use crate::error::StoreError;
use crate::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use crate::kv::Get;
use crate::revision::Token;
use crate::txn::{Condition, Op, Txn};

/// How many lost replies are settled before the outcome is reported as ambiguous. One reply is lost
/// when a member stops. More than a few are an outage, which must be reported to the operator.
const LOST_MAX: u32 = 3;

/// The deletion of one queue key.
#[derive(Clone, Debug)]
pub struct BreakHold {
    key: Bytes,
    token: Token,
    audit: AuditEntry,
    lost: u32,
}

/// The result of a [`BreakHold`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The key was deleted, and the audit record put.
    Done,
    /// The key was already deleted. Nothing changed.
    Gone,
}

impl BreakHold {
    /// Deletes the key if it has this token, and puts this record.
    pub fn new(key: Bytes, token: Token, audit: AuditEntry) -> BreakHold {
        BreakHold { key, token, audit, lost: 0 }
    }
}

impl Exchange for BreakHold {
    type Output = Result<Broken, StoreError>;

    fn request(&self) -> StoreRequest {
        let txn = Txn::new()
            .when(Condition::created_at(self.key.clone(), self.token.0))
            .then(Op::delete(self.key.clone()))
            .otherwise(Op::Get(Get::key(self.audit.key().clone()).keys_only()));
        StoreRequest::Txn(self.audit.add_to(txn))
    }

    fn handle(&mut self, reply: Result<StoreReply, StoreError>) -> ExchangeStep<Self::Output> {
        match reply {
            Ok(StoreReply::Txn(reply)) if reply.succeeded => ExchangeStep::Done(Ok(Broken::Done)),
            Ok(reply) => ExchangeStep::Done(reply.into_page().map(|page| match page.pairs.is_empty() {
                true => Broken::Gone,
                // An earlier request with a lost reply was applied.
                false => Broken::Done,
            })),
            Err(error) if error.is_ambiguous() && self.lost < LOST_MAX => {
                self.lost += 1;
                ExchangeStep::Retry(error)
            }
            Err(error) => ExchangeStep::Done(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Cause;
    use crate::id::Namespace;
    use crate::keyspace::Keyspace;
    use crate::kv::Selection;
    use crate::layout::Layout;
    use crate::limits::Limits;
    use crate::record::{AuditRecord, Timestamp};
    use crate::time::Moment;

    const NOW: Moment = Moment::ORIGIN;

    fn put(store: &mut Keyspace) -> Token {
        Token(store.apply(&Txn::new().then(Op::put("k", "")), NOW).unwrap().revision)
    }

    fn break_hold(token: Token) -> BreakHold {
        let layout = Layout::new(&Namespace::parse("t").unwrap());
        let audit = AuditEntry::new(&layout, AuditRecord::default(), Timestamp(7), [1; 8]);
        BreakHold::new("k".into(), token, audit)
    }

    fn send(store: &mut Keyspace, exchange: &BreakHold) -> Result<StoreReply, StoreError> {
        let StoreRequest::Txn(txn) = exchange.request() else { panic!("it is a transaction") };
        store.apply(&txn, NOW).map(StoreReply::Txn)
    }

    fn lost() -> StoreError {
        StoreError::Ambiguous(Cause::new("the reply was lost"))
    }

    fn keys(store: &mut Keyspace) -> usize {
        store.get(&Get::new(Selection::everything()), NOW).unwrap().pairs.len()
    }

    #[test]
    fn hold_is_broken_with_one_record() {
        let mut store = Keyspace::new(Limits::EMBEDDED);
        let mut exchange = break_hold(put(&mut store));
        let reply = send(&mut store, &exchange);
        assert!(matches!(exchange.handle(reply), ExchangeStep::Done(Ok(Broken::Done))));
        assert_eq!(keys(&mut store), 1, "the record is left");
    }

    #[test]
    fn break_spares_the_next_holder() {
        let mut store = Keyspace::new(Limits::EMBEDDED);
        let mut exchange = break_hold(put(&mut store));
        store.apply(&Txn::new().then(Op::delete("k")), NOW).unwrap();
        put(&mut store);
        let reply = send(&mut store, &exchange);
        assert!(matches!(exchange.handle(reply), ExchangeStep::Done(Ok(Broken::Gone))));
        assert_eq!(keys(&mut store), 1, "the next holder is left");
    }

    #[test]
    fn lost_reply_is_settled_by_the_record() {
        for was_applied in [true, false] {
            let mut store = Keyspace::new(Limits::EMBEDDED);
            let mut exchange = break_hold(put(&mut store));
            if was_applied {
                send(&mut store, &exchange).unwrap();
            }
            assert!(matches!(exchange.handle(Err(lost())), ExchangeStep::Retry(_)));
            let reply = send(&mut store, &exchange);
            assert!(matches!(exchange.handle(reply), ExchangeStep::Done(Ok(Broken::Done))));
            assert_eq!(keys(&mut store), 1, "there is one record");
        }
    }

    #[test]
    fn outage_is_reported() {
        let mut exchange = break_hold(Token(crate::revision::Revision(1)));
        for _ in 0..LOST_MAX {
            assert!(matches!(exchange.handle(Err(lost())), ExchangeStep::Retry(_)));
        }
        assert!(matches!(exchange.handle(Err(lost())), ExchangeStep::Done(Err(_))));
        let unavailable = StoreError::Unavailable(Cause::new("no connection"));
        assert!(matches!(exchange.handle(Err(unavailable)), ExchangeStep::Done(Err(_))));
    }
}
