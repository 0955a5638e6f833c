//! Fuzz target: a transaction in JSON is read completely or refused, never in part.

use serde_json::{Map, Value};

use super::TxnRequest;

fn request(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "no text".to_owned() };
    match TxnRequest::parse(text).and_then(TxnRequest::into_txn) {
        Ok(txn) => {
            let mut fields: Map<String, Value> =
                serde_json::from_str(text).expect("it was read as an object");
            let count = |name: &str| fields.get(name).and_then(Value::as_array).map_or(0, Vec::len);
            let written = [count("when"), count("then"), count("otherwise")];
            assert_eq!([txn.when.len(), txn.then.len(), txn.otherwise.len()], written, "a part was left out");
            fields.insert("wehn".to_owned(), Value::Array(Vec::new()));
            let misspelt = Value::Object(fields).to_string();
            assert!(TxnRequest::parse(&misspelt).is_err(), "a misspelt part is skipped");
            format!("{written:?}")
        }
        Err(failure) => failure
            .message
            .split(|c: char| c.is_ascii_digit() || c == '"')
            .next()
            .unwrap_or_default()
            .to_owned(),
    }
}

#[test]
fn requests_soak() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "txn", request);
}
