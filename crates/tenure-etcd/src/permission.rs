//! Which permission a refused request needs. The server replies "permission denied" and nothing
//! else, so it is derived from the request.
//!
//! This runs only after a refusal; requests that are served pay nothing for it.

use prost::Message as _;

use crate::error::{Denied, KeyRange, RequiredAccess};
use crate::message::kv::{DeleteRangeRequest, PutRequest, RangeRequest, RequestKind, RequestOp, TxnRequest};

/// The permission that a call needs, for an error that names it.
pub(crate) fn missing(path: &str, message: &[u8], user: Option<&str>) -> Denied {
    let mut needs = Needs::default();
    // Messages encoded by this crate always decode; without it the error names no key.
    match path {
        "/etcdserverpb.KV/Range" => {
            RangeRequest::decode(message).iter().for_each(|range| needs.range(range));
        }
        "/etcdserverpb.KV/Put" => PutRequest::decode(message).iter().for_each(|put| needs.put(put)),
        "/etcdserverpb.KV/DeleteRange" => {
            DeleteRangeRequest::decode(message).iter().for_each(|delete| needs.delete(delete));
        }
        "/etcdserverpb.KV/Txn" => TxnRequest::decode(message).iter().for_each(|txn| needs.txn(txn)),
        // The keys are those of the lease, which the request does not name.
        "/etcdserverpb.Lease/LeaseTimeToLive" => needs.reads = true,
        "/etcdserverpb.Lease/LeaseRevoke" => needs.writes = true,
        _ => {}
    }
    let access = match (needs.reads, needs.writes) {
        (true, false) => RequiredAccess::Read,
        (false, true) => RequiredAccess::Write,
        (true, true) => RequiredAccess::ReadWrite,
        (false, false) => RequiredAccess::Root,
    };
    Denied::Permission { user: user.map(str::to_owned), access, ranges: needs.ranges }
}

/// What the parts of a request need together.
#[derive(Default)]
struct Needs {
    reads: bool,
    writes: bool,
    ranges: Vec<KeyRange>,
}

impl Needs {
    fn range(&mut self, range: &RangeRequest) {
        self.reads = true;
        self.on(KeyRange { key: range.key.clone(), end: range.range_end.clone() });
    }

    fn put(&mut self, put: &PutRequest) {
        self.writes = true;
        self.reads |= put.prev_kv;
        self.on(KeyRange { key: put.key.clone(), end: bytes::Bytes::new() });
    }

    fn delete(&mut self, delete: &DeleteRangeRequest) {
        self.writes = true;
        self.reads |= delete.prev_kv;
        self.on(KeyRange { key: delete.key.clone(), end: delete.range_end.clone() });
    }

    fn txn(&mut self, txn: &TxnRequest) {
        for compare in &txn.compare {
            self.reads = true;
            self.on(KeyRange { key: compare.key.clone(), end: compare.range_end.clone() });
        }
        // The server checks both branches before it knows which one it takes.
        for op in txn.success.iter().chain(&txn.failure) {
            self.op(op);
        }
    }

    fn op(&mut self, op: &RequestOp) {
        match &op.request {
            Some(RequestKind::Range(range)) => self.range(range),
            Some(RequestKind::Put(put)) => self.put(put),
            Some(RequestKind::DeleteRange(delete)) => self.delete(delete),
            Some(RequestKind::Txn(txn)) => self.txn(txn),
            None => {}
        }
    }

    fn on(&mut self, range: KeyRange) {
        if !self.ranges.contains(&range) {
            self.ranges.push(range);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::kv::Compare;

    fn key(text: &'static str) -> KeyRange {
        KeyRange { key: text.into(), end: "".into() }
    }

    #[test]
    fn refused_request_names_its_keys_and_its_access() {
        let put = PutRequest { key: "/a".into(), ..PutRequest::default() };
        let denied = missing("/etcdserverpb.KV/Put", &put.encode_to_vec(), Some("ann"));
        let expected = Denied::Permission {
            user: Some("ann".to_owned()),
            access: RequiredAccess::Write,
            ranges: vec![key("/a")],
        };
        assert_eq!(denied, expected);

        let compare = Compare { key: "/b".into(), ..Compare::default() };
        let success = vec![RequestOp { request: Some(RequestKind::Put(put)) }];
        let txn = TxnRequest { compare: vec![compare.clone(), compare], success, failure: Vec::new() };
        let denied = missing("/etcdserverpb.KV/Txn", &txn.encode_to_vec(), None);
        let expected = Denied::Permission {
            user: None,
            access: RequiredAccess::ReadWrite,
            ranges: vec![key("/b"), key("/a")],
        };
        assert_eq!(denied, expected);

        let denied = missing("/etcdserverpb.KV/Compact", &[], None);
        assert!(matches!(denied, Denied::Permission { access: RequiredAccess::Root, .. }), "{denied:?}");
    }
}
