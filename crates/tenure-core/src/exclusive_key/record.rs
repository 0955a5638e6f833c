//! What the stored record of an exclusive key contributes: the nonce that identifies its owner.

use serde::Deserialize;

use crate::record::{InstanceRecord, MemberRecord, Record};
use crate::revision::Revision;

/// A record with a nonce that identifies its owner.
pub trait IdentifiedRecord: Record + Clone {
    /// The nonce. No other owner ever writes it.
    fn nonce(&self) -> &str;

    /// Takes what identifies the owner from an earlier record of the same owner.
    fn keep_identity(&mut self, before: &Self);

    /// Notes the revision of the store just before the key is created.
    fn created_after(&mut self, revision: Revision);
}

impl IdentifiedRecord for MemberRecord {
    fn nonce(&self) -> &str {
        &self.nonce
    }

    fn keep_identity(&mut self, before: &MemberRecord) {
        self.nonce.clone_from(&before.nonce);
        (self.incarnation, self.started) = (before.incarnation, before.started);
    }

    fn created_after(&mut self, revision: Revision) {
        self.incarnation = u64::try_from(revision.0).unwrap_or(0);
    }
}

impl IdentifiedRecord for InstanceRecord {
    fn nonce(&self) -> &str {
        &self.nonce
    }

    fn keep_identity(&mut self, before: &InstanceRecord) {
        self.nonce.clone_from(&before.nonce);
        self.started = before.started;
    }

    /// An instance's record does not contain it.
    fn created_after(&mut self, _: Revision) {}
}

/// The nonce in a stored value; none if it has none. Other programs put values of any shape.
pub(super) fn nonce_of(value: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Marked {
        nonce: String,
    }
    serde_json::from_slice::<Marked>(value).ok().map(|marked| marked.nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonce_is_read_from_any_record() {
        assert_eq!(nonce_of(br#"{"v":1,"nonce":"a","state":"ready"}"#).as_deref(), Some("a"));
        for value in [&b"10.0.0.1:80"[..], b"{}", br#"{"nonce":1}"#, b"\xff"] {
            assert_eq!(nonce_of(value), None);
        }
    }
}
