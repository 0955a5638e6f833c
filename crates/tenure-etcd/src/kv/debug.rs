//! How keys and values look in logs and errors: values may be secret, so only their size is shown.

use std::fmt;

use crate::kv::{CompareValue, KeyValue, Put};

impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue")
            .field("key", &self.key)
            .field("value_bytes", &self.value.len())
            .field("create_revision", &self.create_revision)
            .field("mod_revision", &self.mod_revision)
            .field("version", &self.version)
            .field("lease", &self.lease)
            .finish()
    }
}

impl fmt::Debug for Put {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Put")
            .field("key", &self.key)
            .field("value_bytes", &self.value.len())
            .field("lease", &self.lease)
            .field("keep_lease", &self.keep_lease)
            .field("with_previous", &self.with_previous)
            .finish()
    }
}

impl fmt::Debug for CompareValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompareValue::Version(version) => write!(f, "Version({version})"),
            CompareValue::CreateRevision(revision) => write!(f, "CreateRevision({revision})"),
            CompareValue::ModRevision(revision) => write!(f, "ModRevision({revision})"),
            CompareValue::Value(value) => write!(f, "Value({} bytes)", value.len()),
            CompareValue::Lease(lease) => write!(f, "Lease({lease})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use crate::kv::{Compare, CompareValue, KeyValue, Op, Put, Relation, Txn};

    #[test]
    fn debug_output_hides_values() {
        let canary = Bytes::from_static(b"canary");
        let put = Put { key: "k".into(), value: canary.clone(), ..Put::default() };
        let when = vec![Compare {
            key: "k".into(),
            relation: Relation::Equal,
            target: CompareValue::Value(canary.clone()),
        }];
        let txn = Txn { when, then: vec![Op::Put(put)], otherwise: Vec::new() };
        let kv = KeyValue {
            key: "k".into(),
            value: canary,
            create_revision: 1,
            mod_revision: 1,
            version: 1,
            lease: 0,
        };
        let shown = format!("{txn:?} {txn:#?} {kv:?}");
        assert!(!shown.contains("canary") && !shown.contains("99, 97"), "{shown}");
    }
}
