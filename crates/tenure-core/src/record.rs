//! Stored records: JSON with a version, read with tolerance.
//!
//! Any client of the store can write any value, so nothing read is trusted: an unreadable value is
//! an error with the reason, never a panic. Unknown fields are kept when a record is written back,
//! so that an older program does not erase the fields of a newer one. A record without `"v"` is
//! read as version 1: other writers of this layout omit it.

mod accepts;
mod audit;
mod identity;
mod resignation;
mod task;
mod timestamp;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::queue::LockMode;
use crate::revision::Token;

pub use accepts::{AcceptedTasks, NodeLoad};
pub use audit::{AuditAction, AuditRecord};
pub use identity::Identity;
pub use resignation::ResignationRecord;
pub use task::{CommandOutcome, CommandRecord, FrozenRecord, OwnerRecord, ResultRecord, TaskRecord};
pub use timestamp::InvalidTimestamp;

/// The version of all records that this program writes.
pub const RECORD_VERSION: u64 = 1;

/// The largest stored record that is read: far above any that this program writes.
pub const RECORD_BYTES_MAX: usize = 512 * 1024;

/// Why a stored value is not the expected record.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InvalidRecord {
    /// Larger than any record of this program.
    #[error("a record of {0} bytes, at most {RECORD_BYTES_MAX} are read")]
    TooLarge(usize),
    /// Not JSON, or without the required fields.
    #[error("not a record of this kind")]
    Malformed(#[source] serde_json::Error),
    /// Written by a newer program.
    #[error("a record of version {found}, this program reads up to version {RECORD_VERSION}; upgrade it")]
    Newer {
        /// Its version.
        found: u64,
    },
}

impl InvalidRecord {
    /// The reason, without the stored value: values may be secret, and serde quotes them.
    pub fn reason(&self) -> String {
        match self {
            InvalidRecord::Malformed(error) if !error.is_data() => {
                format!("not JSON from line {} column {} on", error.line(), error.column())
            }
            InvalidRecord::TooLarge(_) | InvalidRecord::Malformed(_) | InvalidRecord::Newer { .. } => {
                self.to_string()
            }
        }
    }
}

/// Milliseconds since 1970, UTC: for display and across reboots, never for deciding which process
/// holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

/// A value stored under a key of the layout.
pub trait Record: Serialize + DeserializeOwned {
    /// The bytes to store, with their version.
    fn encode(&self) -> Bytes {
        let versioned = Versioned { record: self, v: RECORD_VERSION };
        serde_json::to_vec(&versioned).expect("records hold nothing that JSON cannot").into()
    }

    /// The record that an empty value is read as; none if an empty value is invalid.
    fn of_empty() -> Option<Self> {
        None
    }

    /// Decodes stored bytes.
    ///
    /// # Errors
    ///
    /// The reason why they are not this record.
    fn decode(bytes: &[u8]) -> Result<Self, InvalidRecord> {
        Self::decode_patiently(bytes)
    }

    /// Decodes stored bytes, with all unknown fields. Records that a worker reads by the hundred
    /// thousand try a faster decoder first.
    ///
    /// # Errors
    ///
    /// The reason why they are not this record.
    fn decode_patiently(bytes: &[u8]) -> Result<Self, InvalidRecord> {
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(InvalidRecord::TooLarge(bytes.len()));
        }
        if let Some(record) = Self::of_empty().filter(|_| bytes.is_empty()) {
            return Ok(record);
        }
        let mut fields: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(InvalidRecord::Malformed)?;
        match fields.remove("v").as_ref().map(Value::as_u64) {
            None | Some(Some(0..=RECORD_VERSION)) => {}
            Some(Some(found)) => return Err(InvalidRecord::Newer { found }),
            Some(None) => {
                return Err(InvalidRecord::Malformed(serde::de::Error::custom(
                    "its version is not a number",
                )));
            }
        }
        serde_json::from_value(Value::Object(fields)).map_err(InvalidRecord::Malformed)
    }
}

/// A record as it is written: its own fields, and then the version. Of two fields of one name the
/// last counts, so an unknown field cannot replace this program's version.
#[derive(Serialize)]
struct Versioned<'a, R> {
    #[serde(flatten)]
    record: &'a R,
    v: u64,
}

/// Unknown fields, kept for the programs that know them.
pub type UnknownFields = Map<String, Value>;

/// The record of a live node, under `nodes/<node>`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MemberRecord {
    /// Its address, if it published one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The store's revision just before this incarnation began, so it grows with every restart.
    ///
    /// For readers of the value alone. Readers of the key use its create revision, which also grows
    /// with every new lease.
    #[serde(default)]
    pub incarnation: u64,
    /// When this incarnation began.
    #[serde(default)]
    pub started: Timestamp,
    /// Random, one for each incarnation: a writer recognises its own record by it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nonce: String,
    /// The version of the program it runs.
    #[serde(default)]
    pub version: String,
    /// Labels that its operator gave it.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Whether it accepts tasks.
    #[serde(default)]
    pub state: MemberState,
    /// The balancer that claims and releases its tasks; none if it has none, or does not publish
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balancer: Option<String>,
    /// Which tasks it accepts; none if it does not publish that: then any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepts: Option<AcceptedTasks>,
    /// The largest number of tasks it runs at a time; none for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Its load; none if it does not publish that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<NodeLoad>,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// An instance of a service, under `registry/services/<name>/<instance>`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct InstanceRecord {
    /// Its address, if it published one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Metadata for the users of the service; null if there is none.
    #[serde(default)]
    pub metadata: Value,
    /// When it was registered.
    #[serde(default)]
    pub started: Timestamp,
    /// Random, one for each registration: a writer recognises its own record by it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nonce: String,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// The stored value of an instance: a record, or any other value.
#[derive(Clone, PartialEq)]
pub enum InstanceValue {
    /// A record.
    Record(InstanceRecord),
    /// Any other text: `tenure register services/web/a=10.0.0.1:80` puts an address.
    Plain(Bytes),
}

impl InstanceValue {
    /// Decodes a stored value. An object with a version or an address is a record, and only a
    /// record can be invalid.
    pub fn read(value: &Bytes) -> Result<InstanceValue, InvalidRecord> {
        if value.len() > RECORD_BYTES_MAX {
            return Err(InvalidRecord::TooLarge(value.len()));
        }
        let fields: Option<Map<String, Value>> = serde_json::from_slice(value).ok();
        match fields {
            Some(fields) if fields.contains_key("v") || fields.contains_key("address") => {
                InstanceRecord::decode(value).map(InstanceValue::Record)
            }
            Some(_) | None => Ok(InstanceValue::Plain(value.clone())),
        }
    }

    /// The address of the instance; the whole text of a plain value.
    pub fn address(&self) -> Option<&str> {
        match self {
            InstanceValue::Record(record) => record.address.as_deref(),
            InstanceValue::Plain(value) => std::str::from_utf8(value).ok(),
        }
    }

    /// The metadata, as the type that the users of the service agreed on. A plain value has none.
    pub fn metadata<M: DeserializeOwned>(&self) -> Result<M, serde_json::Error> {
        match self {
            InstanceValue::Record(record) => M::deserialize(&record.metadata),
            InstanceValue::Plain(_) => M::deserialize(Value::Null),
        }
    }
}

/// Values may be secret, so of a plain one only the size is shown.
impl std::fmt::Debug for InstanceValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InstanceValue::Record(record) => {
                write!(f, "Record({:?}, since {})", record.address, record.started)
            }
            InstanceValue::Plain(value) => write!(f, "Plain({} bytes)", value.len()),
        }
    }
}

/// Whether a node accepts tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Not yet.
    #[default]
    Starting,
    /// Yes.
    Ready,
    /// No more.
    Draining,
}

impl MemberState {
    /// The stored and displayed name.
    pub const fn as_str(self) -> &'static str {
        match self {
            MemberState::Starting => "starting",
            MemberState::Ready => "ready",
            MemberState::Draining => "draining",
        }
    }
}

/// The holder or a waiter of a lock, under `locks/<lock>/<queue-key>`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct HolderRecord {
    /// Its node, as it reports it.
    #[serde(default)]
    pub node: String,
    /// Its process id.
    #[serde(default)]
    pub pid: u32,
    /// Its host.
    #[serde(default)]
    pub host: String,
    /// Its user.
    #[serde(default)]
    pub user: String,
    /// The command that it runs under the lock.
    #[serde(default)]
    pub command: String,
    /// The reason, in the user's words.
    #[serde(default)]
    pub reason: String,
    /// When it entered the queue.
    #[serde(default, alias = "since")]
    pub queued: Timestamp,
    /// When it acquired the lock; none while it waits, and until a hold has lasted long enough to
    /// be recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquired: Option<Timestamp>,
    /// The other holders that it accepts.
    #[serde(default, skip_serializing_if = "is_exclusive")]
    pub mode: LockMode,
    /// At a barrier: the round in which it passed, named by the round's last token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed: Option<Token>,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

impl HolderRecord {
    /// The process that holds or waits.
    pub fn identity(&self) -> Identity {
        Identity {
            node: self.node.clone(),
            host: self.host.clone(),
            pid: self.pid,
            user: self.user.clone(),
            program: self.command.clone(),
        }
    }
}

impl From<Identity> for HolderRecord {
    fn from(Identity { node, host, pid, user, program: command }: Identity) -> HolderRecord {
        HolderRecord { node, host, pid, user, command, ..HolderRecord::default() }
    }
}

/// A candidate or leader, under `elections/<election>/<queue-key>`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CandidateRecord {
    /// Its candidate name.
    #[serde(default)]
    pub candidate: String,
    /// The value it announces to observers, such as its address.
    #[serde(default)]
    pub value: String,
    /// Its host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Its process id; 0 if that is not known.
    #[serde(default, skip_serializing_if = "is_no_pid")]
    pub pid: u32,
    /// Its user.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// A higher priority leads before older candidates. Above 0 it counts only in a key of
    /// [`PriorityClass::Preferred`](crate::layout::PriorityClass).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// When it entered the queue.
    #[serde(default, alias = "since")]
    pub queued: Timestamp,
    /// When its term began; none while it waits, and until the term has lasted long enough to be
    /// recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquired: Option<Timestamp>,
    /// The TTL of its lease in milliseconds, written with `acquired`: it bounds the time without a
    /// leader if the lease expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Whether it has marked itself as leader. A leader need not have done so; with the mark, the
    /// next candidate reads less.
    #[serde(default, skip_serializing_if = "is_false")]
    pub leads: bool,
    /// The request of another process, if it leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<StepDownRecord>,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

impl CandidateRecord {
    /// The process of the candidate, named by its candidate name. Its program is not stored.
    pub fn identity(&self) -> Identity {
        Identity {
            node: self.candidate.clone(),
            host: self.host.clone(),
            pid: self.pid,
            user: self.user.clone(),
            program: String::new(),
        }
    }

    /// Reads the priority from stored bytes without decoding the rest; none if it is not found that
    /// way.
    pub fn priority_of(bytes: &[u8]) -> Option<i32> {
        #[derive(Deserialize)]
        struct Glance {
            #[serde(default)]
            priority: i32,
        }
        serde_json::from_slice(bytes).ok().map(|Glance { priority }| priority)
    }

    /// Reads from stored bytes whether the candidate has marked itself as leader, without decoding
    /// the rest.
    pub fn leads_by(bytes: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Glance {
            #[serde(default)]
            leads: bool,
        }
        serde_json::from_slice(bytes).is_ok_and(|Glance { leads }| leads)
    }
}

/// A request to a leader to step down.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StepDownRecord {
    /// The sender of the request.
    #[serde(default)]
    pub by: String,
    /// The queue key of the candidate that must lead next; none for the oldest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heir: Option<String>,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// When a command that runs once per period was last run, under `once/<name>`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct OnceRecord {
    /// When it was started, by the clock of the machine that ran it.
    #[serde(default)]
    pub started: Timestamp,
    /// Its exit code; none while it runs, or if the code is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// The node that ran it.
    #[serde(default)]
    pub node: String,
    /// The process there.
    #[serde(default)]
    pub pid: u32,
    /// The command.
    #[serde(default)]
    pub command: String,
    /// The token of the hold that it ran under; none in a record of an older program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

fn is_exclusive(mode: &LockMode) -> bool {
    *mode == LockMode::Exclusive
}

fn is_zero(priority: &i32) -> bool {
    *priority == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_no_pid(pid: &u32) -> bool {
    *pid == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl Record for MemberRecord {}
impl Record for InstanceRecord {}
impl Record for HolderRecord {}
impl Record for CandidateRecord {}
impl Record for OnceRecord {}

#[cfg(test)]
mod tests;
