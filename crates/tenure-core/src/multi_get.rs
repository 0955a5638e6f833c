//! Reads many single keys at one revision: the requests, and the pairs in their replies.

use bytes::Bytes;

use crate::kv::{Get, KeyValue};
use crate::revision::Revision;
use crate::txn::{Op, OpReply, Txn, TxnReply};

/// The number of keys in one request. A state with a checkpoint may be long, and this many of the
/// longest still fit into one reply.
pub const KEYS_PER_REQUEST: usize = 100;

/// Returns the requests for these keys, in order. They may be sent in any order and together.
pub fn requests(keys: &[Bytes], revision: Revision) -> Vec<Txn> {
    let get = |key: &Bytes| Op::Get(Get::key(key.clone()).at(revision));
    let request = |keys: &[Bytes]| Txn { then: keys.iter().map(get).collect(), ..Txn::default() };
    keys.chunks(KEYS_PER_REQUEST).map(request).collect()
}

/// Returns the pairs in the replies. A key that did not exist has none.
pub fn pairs(replies: impl IntoIterator<Item = TxnReply>) -> Vec<KeyValue> {
    let results = replies.into_iter().flat_map(|reply| reply.results);
    let pairs = results.flat_map(|result| match result {
        OpReply::Get(page) => page.pairs,
        OpReply::Put | OpReply::Delete { .. } => Vec::new(),
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::Keyspace;
    use crate::limits::Limits;
    use crate::time::Moment;

    #[test]
    fn keys_are_read_at_one_revision() {
        let (mut keyspace, now) = (Keyspace::new(Limits::EMBEDDED), Moment::default());
        let keys: Vec<Bytes> = (0..250).map(|n| Bytes::from(format!("/k/{n}"))).collect();
        // Every second key exists, and all of them change after the revision that is read.
        let puts = |value: &str| -> Vec<Op> {
            keys.iter().step_by(2).map(|key| Op::put(key.clone(), value.to_owned())).collect()
        };
        let old = keyspace.apply(&Txn { then: puts("old"), ..Txn::default() }, now).unwrap().revision;
        keyspace.apply(&Txn { then: puts("new"), ..Txn::default() }, now).unwrap();
        let requests = requests(&keys, old);
        assert_eq!(requests.iter().map(|txn| txn.then.len()).collect::<Vec<_>>(), [100, 100, 50]);
        let replies = requests.iter().map(|txn| keyspace.apply(txn, now).unwrap());
        let found = pairs(replies);
        assert_eq!(found.len(), 125);
        assert!(found.iter().all(|pair| pair.value == "old"));
    }
}
