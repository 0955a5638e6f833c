//! Keys and values as `--json` shows them.
//!
//! 64-bit numbers are strings, because a JavaScript number cannot represent them. A value is `value` if it is text, and `value_b64` otherwise.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use tenure::store::KeyValue;

/// One key with its value.
#[derive(Serialize)]
pub(super) struct KvPair {
    #[serde(flatten)]
    key: KvKey,
    #[serde(flatten)]
    value: Option<KvValue>,
    created_revision: String,
    modified_revision: String,
    version: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
}

impl KvPair {
    pub(super) fn new(pair: &KeyValue) -> KvPair {
        KvPair { value: Some(KvValue::new(&pair.value)), ..KvPair::without_value(pair) }
    }

    /// For replies without values: a missing value must not look like an empty one.
    pub(super) fn without_value(pair: &KeyValue) -> KvPair {
        KvPair {
            key: KvKey::new(&pair.key),
            value: None,
            created_revision: pair.created.to_string(),
            modified_revision: pair.modified.to_string(),
            version: pair.version,
            lease: pair.lease.map(|lease| lease.to_string()),
        }
    }
}

/// A key without its value.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum KvKey {
    Text { key: String },
    Bytes { key_b64: String },
}

impl KvKey {
    pub(crate) fn new(key: &[u8]) -> KvKey {
        match std::str::from_utf8(key) {
            Ok(text) => KvKey::Text { key: text.to_owned() },
            Err(_) => KvKey::Bytes { key_b64: STANDARD.encode(key) },
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum KvValue {
    Text { value: String },
    Bytes { value_b64: String },
}

impl KvValue {
    fn new(value: &[u8]) -> KvValue {
        match std::str::from_utf8(value) {
            Ok(text) => KvValue::Text { value: text.to_owned() },
            Err(_) => KvValue::Bytes { value_b64: STANDARD.encode(value) },
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure::store::{LeaseId, Revision};

    use super::*;

    #[test]
    fn pair_shows_text_bytes_and_large_numbers() {
        let mut pair = KeyValue {
            key: "/a".into(),
            value: "x".into(),
            created: Revision(3),
            modified: Revision(i64::MAX),
            version: 2,
            lease: LeaseId::new(0x1f),
        };
        let json = serde_json::to_string(&KvPair::new(&pair)).unwrap();
        assert_eq!(
            json,
            r#"{"key":"/a","value":"x","created_revision":"3","modified_revision":"9223372036854775807","version":2,"lease":"1f"}"#
        );
        pair.key = vec![0xff].into();
        pair.value = vec![0xfe].into();
        pair.lease = None;
        let json = serde_json::to_string(&KvPair::new(&pair)).unwrap();
        assert!(json.starts_with(r#"{"key_b64":"/w==","value_b64":"/g==","#), "{json}");
        let json = serde_json::to_string(&KvPair::without_value(&pair)).unwrap();
        assert!(!json.contains("value"), "{json}");
    }
}
