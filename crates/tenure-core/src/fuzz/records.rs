//! Stored records: any value under a key of the layout is read or refused, and a record that was
//! read survives being written back.

use std::fmt::Debug;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::record::{
    CandidateRecord, HolderRecord, InstanceRecord, InstanceValue, InvalidRecord, MemberRecord, OnceRecord,
    OwnerRecord, RECORD_BYTES_MAX, Record, ResultRecord, TaskRecord,
};
use crate::task::{Checkpoint, StateRecord};

pub(super) fn node(bytes: &[u8]) -> String {
    record::<MemberRecord>(bytes)
}

pub(super) fn holder(bytes: &[u8]) -> String {
    record::<HolderRecord>(bytes)
}

pub(super) fn run(bytes: &[u8]) -> String {
    record::<OnceRecord>(bytes)
}

pub(super) fn task(bytes: &[u8]) -> String {
    record::<TaskRecord>(bytes)
}

pub(super) fn owner(bytes: &[u8]) -> String {
    record::<OwnerRecord>(bytes)
}

pub(super) fn result(bytes: &[u8]) -> String {
    record::<ResultRecord>(bytes)
}

/// The fast way to read a record never contradicts the full one.
pub(super) fn candidate(bytes: &[u8]) -> String {
    if let (Some(fast), Ok(whole)) = (CandidateRecord::priority_of(bytes), CandidateRecord::decode(bytes)) {
        assert_eq!(fast, whole.priority, "the fast decoder reads another priority");
    }
    record::<CandidateRecord>(bytes)
}

/// A plain value stays as it is, and its address is its text.
pub(super) fn instance(bytes: &[u8]) -> String {
    let stored = Bytes::copy_from_slice(bytes);
    match InstanceValue::read(&stored) {
        Ok(InstanceValue::Plain(plain)) => {
            assert_eq!(plain, stored);
            let _ = InstanceValue::Plain(plain).metadata::<Option<Value>>();
            format!("plain; {}", record::<InstanceRecord>(bytes))
        }
        Ok(InstanceValue::Record(read)) => {
            assert_eq!(Some(read), InstanceRecord::decode(bytes).ok());
            record::<InstanceRecord>(bytes)
        }
        Err(bad) => {
            bad.reason();
            record::<InstanceRecord>(bytes)
        }
    }
}

/// A checkpoint is written as it was read.
pub(super) fn state(bytes: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(checkpoint) = Checkpoint::try_from(text.to_owned())
    {
        assert_eq!(String::from(checkpoint), text, "a checkpoint has one spelling");
    }
    if let Ok(record) = StateRecord::decode(bytes) {
        record.attempt();
    }
    record::<StateRecord>(bytes)
}

/// What holds for every kind of record.
pub(super) fn record<R: Record + PartialEq + Debug>(bytes: &[u8]) -> String {
    let quick = R::decode(bytes);
    match (&quick, R::decode_patiently(bytes)) {
        (Ok(quick), Ok(patient)) => assert_eq!(*quick, patient, "two ways to read it, and two records"),
        (Err(quick), Err(patient)) => assert_eq!(quick.reason(), patient.reason()),
        (quick, patient) => panic!("one way reads it and the other does not: {quick:?}, {patient:?}"),
    }
    match quick {
        Ok(record) => {
            let again = record.encode();
            // Escapes may be longer than their characters, and a record at the limit then exceeds
            // it.
            if again.len() <= RECORD_BYTES_MAX {
                assert_eq!(R::decode(&again).expect("what was read can be written"), record);
                assert_eq!(R::decode(&again).expect("as before").encode(), again, "it has one spelling");
                keeps_what_it_does_not_know::<R>(bytes);
            }
            shape(&again)
        }
        Err(bad) => {
            assert!(!bad.reason().contains("canary"), "a reason never shows what was stored");
            error_kind(&bad)
        }
    }
}

/// A field of a newer program is no reason to refuse a record, and is kept when it is written back.
fn keeps_what_it_does_not_know<R: Record>(bytes: &[u8]) {
    // An empty value may be a record, and has no fields.
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    let mut fields: Map<String, Value> = serde_json::from_slice(bytes).expect("a record is an object");
    fields.insert("of a newer program".to_owned(), serde_json::json!({"a": [1, null, "x"]}));
    let newer = serde_json::to_vec(&fields).expect("JSON is written");
    if newer.len() > RECORD_BYTES_MAX {
        return;
    }
    let again = R::decode(&newer).expect("a field that is not known is tolerated").encode();
    let again: Map<String, Value> = serde_json::from_slice(&again).expect("a record is an object");
    assert_eq!(again.get("of a newer program"), fields.get("of a newer program"), "an unknown field is lost");
}

/// The fields of a record and their types.
fn shape(bytes: &[u8]) -> String {
    let fields: Map<String, Value> = serde_json::from_slice(bytes).expect("a record is an object");
    let kind = |value: &Value| match value {
        Value::Null => 'n',
        Value::Bool(_) => 'b',
        Value::Number(number) if number.is_f64() => 'f',
        Value::Number(_) => 'i',
        Value::String(text) if text.is_empty() => 'e',
        Value::String(_) => 's',
        Value::Array(_) => 'a',
        Value::Object(_) => 'o',
    };
    fields
        .iter()
        .map(|(name, value)| format!("{}{}", name.chars().take(3).collect::<String>(), kind(value)))
        .collect()
}

/// The error without the numbers and texts that differ between inputs.
fn error_kind(bad: &InvalidRecord) -> String {
    let text = match bad {
        InvalidRecord::Malformed(error) => error.to_string(),
        InvalidRecord::TooLarge(_) | InvalidRecord::Newer { .. } => bad.to_string(),
    };
    text.split(|c: char| c.is_ascii_digit() || c == '"').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use tenure_fuzz::{Bounds, Finding, FuzzRun};

    use super::*;

    fn found<R: Record + PartialEq + Debug>(input: &str) -> Finding {
        let inputs = vec![("kept".to_owned(), input.as_bytes().to_vec())];
        let bounds = Bounds::Executions(2_000);
        FuzzRun { target: &record::<R>, inputs, seed: 1, bounds }
            .go()
            .expect_err("the broken record is found")
    }

    #[test]
    fn a_record_that_forgets_unknown_fields_is_found() {
        #[derive(PartialEq, Debug, Serialize, Deserialize)]
        struct Forgetful {
            node: String,
        }
        impl Record for Forgetful {}
        assert!(found::<Forgetful>(r#"{"v":1,"node":"a"}"#).why.contains("an unknown field is lost"));
    }

    #[test]
    fn a_record_that_refuses_unknown_fields_is_found() {
        #[derive(PartialEq, Debug, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Strict {
            node: String,
        }
        impl Record for Strict {}
        assert!(found::<Strict>(r#"{"node":"a"}"#).why.contains("tolerated"));
    }

    #[test]
    fn field_written_with_fewer_bits_is_found() {
        #[derive(PartialEq, Debug, Serialize, Deserialize)]
        struct Narrow {
            #[serde(serialize_with = "narrow")]
            count: u64,
            #[serde(flatten)]
            unknown: Map<String, Value>,
        }
        #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
        fn narrow<S: serde::Serializer>(count: &u64, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_u32(u32::try_from(count & 0xffff_ffff).unwrap())
        }
        impl Record for Narrow {}
        found::<Narrow>(r#"{"count":7,"zone":"eu"}"#);
    }

    #[test]
    fn differing_fast_decoder_is_found() {
        #[derive(PartialEq, Debug, Serialize, Deserialize)]
        struct Hasty {
            #[serde(default)]
            node: String,
            #[serde(flatten)]
            unknown: Map<String, Value>,
        }
        impl Record for Hasty {
            fn decode(bytes: &[u8]) -> Result<Hasty, InvalidRecord> {
                serde_json::from_slice(bytes).map_err(InvalidRecord::Malformed)
            }
        }
        found::<Hasty>(r#"{"node":"a"}"#);
    }
}
