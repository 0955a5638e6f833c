//! `kv put`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure::store::{Condition, Grant, LeaseChoice, LeaseId, Op, Revision, Store, Txn};

use super::input::InputSource;
use super::key::{KeyArg, parse_lease, parse_revision_or_zero};
use super::rows::KvKey;
use crate::duration;
use crate::failure::{Code, Failure};
use crate::output::{Output, escape};

#[derive(Args, Debug)]
pub(crate) struct PutArgs {
    /// The key, literally; left out with --key-b64.
    #[arg(value_name = "KEY", required_unless_present = "raw_key_b64")]
    first: Option<OsString>,
    /// The value; - reads stdin.
    #[arg(value_name = "VALUE", allow_negative_numbers = true)]
    second: Option<OsString>,
    /// The key in base64: for keys with control characters or bytes that are not text.
    #[arg(long, id = "raw_key_b64", value_name = "BASE64")]
    key_b64: Option<String>,
    /// A file with the value.
    #[arg(long, value_name = "FILE")]
    value_file: Option<PathBuf>,
    /// The lease of the key, which is deleted with it.
    #[arg(long, value_name = "HEX", value_parser = parse_lease, conflicts_with = "ttl")]
    lease: Option<LeaseId>,
    /// Grant a lease with this TTL for the key, and print its id. No process renews it.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// Put only if the key does not exist; exit 4 if it does.
    #[arg(long, conflicts_with = "if_mod")]
    create: bool,
    /// Put only if the key was last put at this revision (0: does not exist); exit 4 if not.
    #[arg(long, value_name = "REV", value_parser = parse_revision_or_zero)]
    if_mod: Option<Revision>,
}

impl PutArgs {
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.ttl.is_some_and(|ttl| ttl.is_zero()) {
            return Err(Failure::usage("--ttl must be greater than zero")
                .hint("leave --ttl out for a key without a lease"));
        }
        self.key_and_value().map(drop)
    }

    /// With `--key-b64` the first argument is the value, because the key is given already.
    fn key_and_value(&self) -> Result<(Vec<u8>, PutValue<'_>), Failure> {
        let (key, value) = match (&self.key_b64, &self.first, &self.second) {
            (Some(_), Some(_), Some(_)) => {
                return Err(Failure::usage("KEY and --key-b64 both name a key").hint("leave one of them out"));
            }
            (Some(b64), value, None) | (Some(b64), None, value) => (KeyArg::from_b64(b64), value),
            (None, Some(key), value) => (KeyArg::from_text(key)?, value),
            (None, None, _) => return Err(Failure::usage("no key is given")),
        };
        let value = match (value, &self.value_file) {
            (Some(_), Some(_)) => {
                return Err(
                    Failure::usage("VALUE and --value-file both give a value").hint("leave one of them out")
                );
            }
            (Some(value), None) if value == "-" => PutValue::Read(InputSource::Stdin),
            (Some(value), None) => PutValue::Given(value),
            (None, Some(path)) => PutValue::Read(InputSource::File(path.clone())),
            (None, None) => {
                return Err(Failure::usage("no value is given")
                    .hint("give it as VALUE, --value-file FILE, or - for stdin"));
            }
        };
        Ok((key.bytes()?, value))
    }
}

pub(super) async fn put(args: &PutArgs, store: &Store, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct PutReport {
        schema: &'static str,
        #[serde(flatten)]
        key: KvKey,
        revision: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        lease: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        ttl_seconds: Option<f64>,
    }
    let (key, value) = args.key_and_value()?;
    let value = value.bytes().await?;
    let granted = match args.ttl {
        Some(ttl) => Some(grant(ttl, store, output).await?),
        None => None,
    };
    let lease = granted.map(|grant| grant.id).or(args.lease);
    let choice = lease.map_or(LeaseChoice::Detach, LeaseChoice::Attach);
    let mut txn = Txn::new().then(Op::Put { key: key.clone().into(), value: value.into(), lease: choice });
    if args.create {
        txn = txn.when(Condition::absent(key.clone()));
    }
    if let Some(revision) = args.if_mod {
        txn = txn.when(Condition::modified_at(key.clone(), revision));
    }
    let done = store
        .txn(txn)
        .await
        .map_err(Failure::from)
        .and_then(|reply| if reply.succeeded { Ok(reply.revision) } else { Err(conflict(args, &key)) });
    let revision = match done {
        Ok(revision) => revision,
        Err(failure) => {
            // The key was not put, so its lease is useless. After an ambiguous put the key may exist, so the lease stays.
            if let Some(grant) = granted
                && failure.code != Code::Ambiguous
                && let Err(error) = store.revoke(grant.id).await
            {
                output.note(&format!("the unused lease {} stays until it expires: {error}", grant.id));
            }
            return Err(failure);
        }
    };
    if output.is_json {
        return output.object(&PutReport {
            schema: super::SCHEMA,
            key: KvKey::new(&key),
            revision: revision.to_string(),
            lease: lease.map(|lease| lease.to_string()),
            ttl_seconds: granted.map(|grant| grant.ttl.as_secs_f64()),
        });
    }
    match granted {
        Some(grant) => output.record([revision.to_string(), grant.id.to_string()]),
        None => output.record([revision.to_string()]),
    }
}

async fn grant(ttl: Duration, store: &Store, output: &Output) -> Result<Grant, Failure> {
    let grant = store.grant(ttl, None).await?;
    if grant.ttl > ttl {
        output.note(&format!("the store raised the TTL from {ttl:?} to {:?}", grant.ttl));
    }
    Ok(grant)
}

fn conflict(args: &PutArgs, key: &[u8]) -> Failure {
    let key = escape(key);
    let message = match args.if_mod {
        Some(Revision::ZERO) | None => format!("the key {key} exists already"),
        Some(revision) => format!("the key {key} was not last put at revision {revision}"),
    };
    Failure::new(Code::Conflict, message).hint("see its value and revision with `tenure kv get KEY --json`")
}

/// The source of the value.
enum PutValue<'a> {
    Given(&'a OsStr),
    Read(InputSource),
}

impl PutValue<'_> {
    async fn bytes(self) -> Result<Vec<u8>, Failure> {
        match self {
            PutValue::Given(value) => Ok(value.as_bytes().to_vec()),
            PutValue::Read(input) => input.read().await,
        }
    }
}
