//! Keys and values as `--json` shows them: numbers that do not fit into a JavaScript number as texts, values as
//! text where they are text, and as `value_b64` where they are not.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use tenure::store::KeyValue;

/// One key with its value.
#[derive(Serialize)]
pub(super) struct Pair {
    #[serde(flatten)]
    key: Key,
    #[serde(flatten)]
    value: Option<Value>,
    created_revision: String,
    modified_revision: String,
    version: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
}

impl Pair {
    pub(super) fn new(pair: &KeyValue) -> Pair {
        Pair { value: Some(Value::new(&pair.value)), ..Pair::without_value(pair) }
    }

    /// For answers that carry no values: an absent one must not look like an empty one.
    pub(super) fn without_value(pair: &KeyValue) -> Pair {
        Pair {
            key: Key::new(&pair.key),
            value: None,
            created_revision: pair.created.to_string(),
            modified_revision: pair.modified.to_string(),
            version: pair.version,
            lease: pair.lease.map(|lease| lease.to_string()),
        }
    }
}

/// A key by itself.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Key {
    Text { key: String },
    Bytes { key_b64: String },
}

impl Key {
    pub(crate) fn new(key: &[u8]) -> Key {
        match std::str::from_utf8(key) {
            Ok(text) => Key::Text { key: text.to_owned() },
            Err(_) => Key::Bytes { key_b64: STANDARD.encode(key) },
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Value {
    Text { value: String },
    Bytes { value_b64: String },
}

impl Value {
    fn new(value: &[u8]) -> Value {
        match std::str::from_utf8(value) {
            Ok(text) => Value::Text { value: text.to_owned() },
            Err(_) => Value::Bytes { value_b64: STANDARD.encode(value) },
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure::store::{LeaseId, Revision};

    use super::*;

    #[test]
    fn a_pair_shows_text_as_text_bytes_as_base64_and_large_numbers_as_texts() {
        let mut pair = KeyValue {
            key: "/a".into(),
            value: "x".into(),
            created: Revision(3),
            modified: Revision(i64::MAX),
            version: 2,
            lease: LeaseId::new(0x1f),
        };
        let json = serde_json::to_string(&Pair::new(&pair)).unwrap();
        assert_eq!(
            json,
            r#"{"key":"/a","value":"x","created_revision":"3","modified_revision":"9223372036854775807","version":2,"lease":"1f"}"#
        );
        pair.key = vec![0xff].into();
        pair.value = vec![0xfe].into();
        pair.lease = None;
        let json = serde_json::to_string(&Pair::new(&pair)).unwrap();
        assert!(json.starts_with(r#"{"key_b64":"/w==","value_b64":"/g==","#), "{json}");
        let json = serde_json::to_string(&Pair::without_value(&pair)).unwrap();
        assert!(!json.contains("value"), "{json}");
    }
}
