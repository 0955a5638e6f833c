//! A transaction in JSON. Unknown or unclear elements are refused: to skip a misspelt condition would commit
//! without it.

use serde::Deserialize;
use tenure::store::{
    Comparison, Condition, Field, Get, LeaseChoice, LeaseId, Op, Revision, Selection, Txn, ValueMode,
};

use super::super::key::{decode, parse_lease};
use crate::failure::Failure;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TxnRequest {
    #[serde(default)]
    when: Vec<When>,
    #[serde(default)]
    then: Vec<TxnStep>,
    #[serde(default)]
    otherwise: Vec<TxnStep>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct When {
    key: Option<String>,
    key_b64: Option<String>,
    #[serde(default)]
    is: Is,
    version: Option<Number>,
    created_revision: Option<Number>,
    modified_revision: Option<Number>,
    lease: Option<String>,
    value: Option<String>,
    value_b64: Option<String>,
    absent: Option<bool>,
    exists: Option<bool>,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Is {
    #[default]
    Equal,
    NotEqual,
    Less,
    Greater,
}

/// A number, or a string with a number, as JSON output has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Number(i64),
    Text(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum TxnStep {
    Put(Put),
    Delete(Which),
    Get(ReadStep),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Put {
    key: Option<String>,
    key_b64: Option<String>,
    value: Option<String>,
    value_b64: Option<String>,
    lease: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    key: Option<String>,
    key_b64: Option<String>,
    prefix: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadStep {
    key: Option<String>,
    key_b64: Option<String>,
    prefix: Option<String>,
    limit: Option<u32>,
    at: Option<Number>,
    #[serde(default)]
    keys_only: bool,
}

impl TxnRequest {
    /// Parses the JSON. Without the check, serde would accept `[]` as an empty transaction.
    pub(super) fn parse(text: &str) -> Result<TxnRequest, Failure> {
        let expected = |why: String| {
            Failure::usage(format!("invalid transaction: {why}"))
                .hint("`tenure kv txn --help` shows a transaction with every element")
        };
        if !text.trim_start().starts_with('{') {
            return Err(expected("it is not a JSON object".to_owned()));
        }
        serde_json::from_str(text).map_err(|error| expected(error.to_string()))
    }

    pub(super) fn into_txn(self) -> Result<Txn, Failure> {
        Ok(Txn {
            when: self.when.into_iter().map(When::into_condition).collect::<Result<_, _>>()?,
            then: self.then.into_iter().map(TxnStep::into_op).collect::<Result<_, _>>()?,
            otherwise: self.otherwise.into_iter().map(TxnStep::into_op).collect::<Result<_, _>>()?,
        })
    }
}

impl When {
    fn into_condition(self) -> Result<Condition, Failure> {
        let key = key(self.key, self.key_b64)?;
        let mut found = Vec::new();
        let revision = |number: Number| number.parse().map(Revision);
        if let Some(version) = self.version {
            found.push(Field::Version(version.parse()?));
        }
        if let Some(number) = self.created_revision {
            found.push(Field::Created(revision(number)?));
        }
        if let Some(number) = self.modified_revision {
            found.push(Field::Modified(revision(number)?));
        }
        if let Some(text) = self.lease {
            found.push(Field::Lease(if text.is_empty() { None } else { Some(lease(&text)?) }));
        }
        if self.value.is_some() || self.value_b64.is_some() {
            found.push(Field::Value(bytes("value", self.value, self.value_b64)?.into()));
        }
        let presence = match (self.absent, self.exists) {
            (None, None) => None,
            (Some(true), None) | (None, Some(false)) => Some(Condition::absent(key.clone())),
            (Some(false), None) | (None, Some(true)) => Some(Condition::exists(key.clone())),
            (Some(_), Some(_)) => return Err(Failure::usage("a condition has both absent and exists")),
        };
        let is = match self.is {
            Is::Equal => Comparison::Equal,
            Is::NotEqual => Comparison::NotEqual,
            Is::Less => Comparison::Less,
            Is::Greater => Comparison::Greater,
        };
        match (presence, found.pop(), found.is_empty()) {
            (Some(condition), None, true) => Ok(condition),
            (None, Some(field), true) => Ok(Condition { key: key.into(), is, field }),
            _ => Err(Failure::usage(
                "a condition compares exactly one of version, created_revision, modified_revision, lease, value, value_b64, absent, exists",
            )),
        }
    }
}

impl TxnStep {
    fn into_op(self) -> Result<Op, Failure> {
        Ok(match self {
            TxnStep::Put(put) => Op::Put {
                key: key(put.key, put.key_b64)?.into(),
                value: bytes("value", put.value, put.value_b64)?.into(),
                lease: match put.lease.as_deref() {
                    None | Some("") => LeaseChoice::Detach,
                    Some("keep") => LeaseChoice::Keep,
                    Some(text) => LeaseChoice::Attach(lease(text)?),
                },
            },
            TxnStep::Delete(which) => Op::Delete(selection(which.key, which.key_b64, which.prefix)?),
            TxnStep::Get(read) => Op::Get(Get {
                limit: read.limit,
                at: read.at.map(|at| at.parse().map(Revision)).transpose()?,
                values: if read.keys_only { ValueMode::Omitted } else { ValueMode::Whole },
                ..Get::new(selection(read.key, read.key_b64, read.prefix)?)
            }),
        })
    }
}

impl Number {
    fn parse(self) -> Result<i64, Failure> {
        match self {
            Number::Number(number) => Ok(number),
            Number::Text(text) => {
                text.parse().map_err(|_| Failure::usage(format!("{text:?} is not a whole number")))
            }
        }
    }
}

fn selection(
    text: Option<String>,
    b64: Option<String>,
    prefix: Option<String>,
) -> Result<Selection, Failure> {
    match prefix {
        Some(_) if text.is_some() || b64.is_some() => {
            Err(Failure::usage("an operation has both a key and a prefix"))
        }
        Some(prefix) => Ok(Selection::prefix(prefix)),
        None => Ok(Selection::key(key(text, b64)?)),
    }
}

fn key(text: Option<String>, b64: Option<String>) -> Result<Vec<u8>, Failure> {
    bytes("key", text, b64)
}

fn bytes(what: &str, text: Option<String>, b64: Option<String>) -> Result<Vec<u8>, Failure> {
    match (text, b64) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(b64)) => decode(&b64),
        (None, None) => Err(Failure::usage(format!("a {what} is missing"))),
        (Some(_), Some(_)) => Err(Failure::usage(format!("{what} and {what}_b64 both give a {what}"))),
    }
}

fn lease(text: &str) -> Result<LeaseId, Failure> {
    parse_lease(text).map_err(Failure::usage)
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Txn, String> {
        TxnRequest::parse(json).and_then(TxnRequest::into_txn).map_err(|failure| failure.message)
    }

    #[test]
    fn transaction_is_parsed_as_written() {
        let txn = parse(
            r#"{"when":[{"key":"/a","modified_revision":"7"},{"key":"/b","absent":true},{"key":"/c","is":"greater","version":2},
                {"key_b64":"/w==","is":"not_equal","value":"x"},{"key":"/e","lease":"1f"},{"key":"/f","lease":""}],
                "then":[{"put":{"key":"/a","value":"1","lease":"1f"}},{"put":{"key":"/k","value_b64":"/w==","lease":"keep"}},{"delete":{"prefix":"/o/"}}],
                "otherwise":[{"get":{"key":"/a","at":3,"keys_only":true,"limit":9}}]}"#,
        );
        let lease = LeaseId::new(0x1f).unwrap();
        let expected = Txn::new()
            .when(Condition::modified_at("/a", Revision(7)))
            .when(Condition::absent("/b"))
            .when(Condition { key: "/c".into(), is: Comparison::Greater, field: Field::Version(2) })
            .when(Condition {
                key: vec![0xff].into(),
                is: Comparison::NotEqual,
                field: Field::Value("x".into()),
            })
            .when(Condition { key: "/e".into(), is: Comparison::Equal, field: Field::Lease(Some(lease)) })
            .when(Condition { key: "/f".into(), is: Comparison::Equal, field: Field::Lease(None) })
            .then(Op::put_leased("/a", "1", lease))
            .then(Op::Put { key: "/k".into(), value: vec![0xff].into(), lease: LeaseChoice::Keep })
            .then(Op::Delete(Selection::prefix("/o/")))
            .otherwise(Op::Get(Get::key("/a").at(Revision(3)).keys_only().limit(9)));
        assert_eq!(txn, Ok(expected));
        assert_eq!(parse("{}"), Ok(Txn::new()));
    }

    #[test]
    fn unclear_transaction_is_refused() {
        for json in [
            "",
            "[]",
            r#"{"if":[]}"#,
            r#"{"when":[{"key":"/a"}]}"#,
            r#"{"when":[{"absent":true}]}"#,
            r#"{"when":[{"key":"/a","absent":true,"exists":true}]}"#,
            r#"{"when":[{"key":"/a","version":1,"value":"x"}]}"#,
            r#"{"when":[{"key":"/a","absent":true,"value":"x"}]}"#,
            r#"{"when":[{"key":"/a","mod":"7"}]}"#,
            r#"{"when":[{"key":"/a","is":"like","value":"x"}]}"#,
            r#"{"when":[{"key":"/a","version":"many"}]}"#,
            r#"{"then":[{"put":{"key":"/a"}}]}"#,
            r#"{"then":[{"put":{"key":"/a","value":"x","value_b64":"eA=="}}]}"#,
            r#"{"then":[{"put":{"key":"/a","value":"x","lease":"zz"}}]}"#,
            r#"{"then":[{"delete":{"key":"/a","prefix":"/a/"}}]}"#,
            r#"{"then":[{"delete":{}}]}"#,
            r#"{"then":[{"increment":{"key":"/a"}}]}"#,
        ] {
            assert!(parse(json).is_err(), "{json}");
        }
    }
}
