//! Changing what stands in a candidate's place, by itself or by somebody who asks something of it.

use bytes::Bytes;
use tenure_core::record::{BadRecord, CandidateRecord, Record};
use tenure_core::revision::Token;
use thiserror::Error;

use crate::store::{Condition, Get, KeyValue, LeaseChoice, Op, OpReply, Revision, Store, StoreError, Txn};

/// A candidate's record, and when it was put.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) record: CandidateRecord,
    pub(super) modified: Revision,
    /// Whether that is what the store holds; else it should be.
    pub(super) is_stored: bool,
}

/// Why a record was not changed.
#[derive(Debug, Error)]
pub(super) enum RewriteError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("what stands there cannot be read")]
    Unreadable(#[source] BadRecord),
}

/// Changes the record of one life of a place: reads, changes, and puts it if nobody else has put it since; as often as that takes.
///
/// Doing it twice does no harm, so whoever got no answer may ask again. `own` is put in the place of what cannot be read, by whoever
/// owns the place. None if that life is over.
pub(super) async fn rewrite(
    store: &Store,
    key: &Bytes,
    token: Token,
    mut seen: Option<Seen>,
    own: Option<&CandidateRecord>,
    change: impl Fn(&mut CandidateRecord),
) -> Result<Option<Seen>, RewriteError> {
    loop {
        let now = match seen {
            Some(seen) => seen,
            None => match read(store.get_key(key.clone()).await?, token, own)? {
                Some(seen) => seen,
                None => return Ok(None),
            },
        };
        let mut record = now.record.clone();
        change(&mut record);
        if record == now.record && now.is_stored {
            return Ok(Some(now));
        }
        let put = Op::Put { key: key.clone(), value: record.encode(), lease: LeaseChoice::Keep };
        let txn = Txn::new()
            .when(Condition::created_at(key.clone(), token.0))
            .when(Condition::modified_at(key.clone(), now.modified))
            .then(put)
            .otherwise(Op::Get(Get::key(key.clone())));
        let reply = store.txn(txn).await?;
        if reply.succeeded {
            return Ok(Some(Seen { record, modified: reply.revision, is_stored: true }));
        }
        let pair = match reply.results.into_iter().next() {
            Some(OpReply::Get(mut page)) => page.pairs.pop(),
            _ => return Err(StoreError::Corrupt("a read was not answered as one".into()).into()),
        };
        match read(pair, token, own)? {
            Some(newer) => seen = Some(newer),
            None => return Ok(None),
        }
    }
}

/// What stands in a place; none if this life of it is over.
fn read(
    pair: Option<KeyValue>,
    token: Token,
    own: Option<&CandidateRecord>,
) -> Result<Option<Seen>, RewriteError> {
    let Some(pair) = pair.filter(|pair| pair.created == token.0) else { return Ok(None) };
    let (record, is_stored) = match (CandidateRecord::decode(&pair.value), own) {
        (Ok(record), _) => (record, true),
        (Err(_), Some(own)) => (own.clone(), false),
        (Err(bad), None) => return Err(RewriteError::Unreadable(bad)),
    };
    Ok(Some(Seen { record, modified: pair.modified, is_stored }))
}
