//! A queue by create revision, with the fewest requests there can be: what locks and elections are measured against.
//!
//! Entering reads the predecessor in the same transaction. The read comes before the put, so the
//! reply for an empty queue contains no key.

use bytes::Bytes;

use super::{BoxError, Raw, message, put_op, revision};

/// A new key in a queue.
#[derive(Clone, Debug)]
pub(crate) struct EnteredKey {
    /// The create revision of its key.
    pub(crate) revision: i64,
    /// The key that was created last before it; none if it is the first.
    pub(crate) before: Option<Bytes>,
}

impl Raw {
    /// Puts a key below a prefix that ends in `/`, under a lease, and reads which key there is the nearest before it.
    pub(crate) async fn enter(
        &self,
        prefix: &Bytes,
        key: Bytes,
        value: Bytes,
        lease: i64,
    ) -> Result<EnteredKey, BoxError> {
        let read = message::RequestOp { request: Some(message::RequestKind::Range(newest(prefix))) };
        let request = message::TxnRequest {
            success: vec![read, put_op(key, value, lease)],
            ..message::TxnRequest::default()
        };
        let answer: message::TxnResponse = self.unary("/etcdserverpb.KV/Txn", request).await?;
        let before = match answer.responses.into_iter().next().and_then(|op| op.response) {
            Some(message::ResponseKind::Range(range)) => range.kvs.into_iter().next().map(|kv| kv.key),
            Some(_) | None => return Err("a transaction was answered without its read".into()),
        };
        Ok(EnteredKey { revision: revision(answer.header), before })
    }

    /// The newest key below a prefix that was created before a revision.
    pub(crate) async fn nearest_before(
        &self,
        prefix: &Bytes,
        revision: i64,
    ) -> Result<Option<Bytes>, BoxError> {
        let request = message::RangeRequest { max_create_revision: revision - 1, ..newest(prefix) };
        let answer: message::RangeResponse = self.unary("/etcdserverpb.KV/Range", request).await?;
        Ok(answer.kvs.into_iter().next().map(|kv| kv.key))
    }

    /// Deletes one key; returns whether it existed.
    pub(crate) async fn delete(&self, key: Bytes) -> Result<bool, BoxError> {
        let request = message::DeleteRangeRequest { key };
        let answer: message::DeleteRangeResponse =
            self.unary("/etcdserverpb.KV/DeleteRange", request).await?;
        Ok(answer.deleted > 0)
    }
}

/// A read of the key that was created last below a prefix.
fn newest(prefix: &Bytes) -> message::RangeRequest {
    let mut end = prefix.to_vec();
    // A prefix ends in `/`, and the next byte is `0`.
    end.pop();
    end.push(b'0');
    message::RangeRequest {
        key: prefix.clone(),
        range_end: end.into(),
        limit: 1,
        // Descending by create revision.
        sort_order: 2,
        sort_target: 2,
        keys_only: true,
        ..message::RangeRequest::default()
    }
}
