//! What is stored under our keys: JSON with a version, read with patience.
//!
//! Anybody with access to the store can write anything there, so nothing read is trusted: what cannot be read is an error value with the
//! reason, never a panic. Fields that we do not know are kept when a record is written back, so that an older program does not
//! erase what a newer one wrote. A record without `"v"` is read as version 1: that is what other writers of this layout put.

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

/// How large a stored record may be before it is not even looked at: far above any we write.
pub const RECORD_BYTES_MAX: usize = 512 * 1024;

/// Why a stored value is not the record that should be there.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InvalidRecord {
    /// Too large to be one of ours.
    #[error("a record of {0} bytes, at most {RECORD_BYTES_MAX} are read")]
    TooLarge(usize),
    /// Not JSON, or not of this shape.
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
    /// Why, in words that never show what was stored: values may be secret, and serde quotes them.
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

/// Milliseconds since 1970, UTC: for people and across reboots, never for deciding who holds what.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

/// A value that is stored under one of our keys.
pub trait Record: Serialize + DeserializeOwned {
    /// The bytes to store, with their version.
    fn encode(&self) -> Bytes {
        let versioned = Versioned { record: self, v: RECORD_VERSION };
        serde_json::to_vec(&versioned).expect("records hold nothing that JSON cannot").into()
    }

    /// The record that an empty value stands for; none if it stands for none.
    fn of_empty() -> Option<Self> {
        None
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    ///
    /// Why they are not this record.
    fn decode(bytes: &[u8]) -> Result<Self, InvalidRecord> {
        Self::decode_patiently(bytes)
    }

    /// Reads stored bytes, whatever else is in them. Records that a node reads by the hundred thousand try something quicker first.
    ///
    /// # Errors
    ///
    /// Why they are not this record.
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

/// A record as it is written: its own fields, and then the version. Of two fields of one name the last counts, so nothing that was kept of a
/// newer program can say another version than ours.
#[derive(Serialize)]
struct Versioned<'a, R> {
    #[serde(flatten)]
    record: &'a R,
    v: u64,
}

/// Fields that this program does not know, kept for those who do.
pub type UnknownFields = Map<String, Value>;

/// A node that is alive, under `nodes/<node>`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MemberRecord {
    /// Where it can be reached, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The store's revision just before this life began, so it grows with every restart.
    ///
    /// For those who see the value alone. Whoever sees the key takes its create revision, which grows with every new lease too.
    #[serde(default)]
    pub incarnation: u64,
    /// When this life began.
    #[serde(default)]
    pub started: Timestamp,
    /// Random, one for each life: by it a writer knows its own record again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nonce: String,
    /// The version of the program it runs.
    #[serde(default)]
    pub version: String,
    /// What its operator says of it.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Whether it takes work.
    #[serde(default)]
    pub state: MemberState,
    /// By which balancer it takes tasks and gives them away; none if it has none, or does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balancer: Option<String>,
    /// Which tasks it accepts; none if it does not publish that: then any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepts: Option<AcceptedTasks>,
    /// How many tasks it runs at a time; none for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// How busy it is; none if it does not publish that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<NodeLoad>,
    /// What newer programs wrote.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// An instance of a service, under `registry/services/<name>/<instance>`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct InstanceRecord {
    /// Where it can be reached, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What the service's users want to know of it; null if nothing.
    #[serde(default)]
    pub metadata: Value,
    /// When it was registered.
    #[serde(default)]
    pub started: Timestamp,
    /// Random, one for each registration: by it a writer knows its own record again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nonce: String,
    /// What newer programs wrote.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// What is stored for an instance: our record, or what somebody else put there.
#[derive(Clone, PartialEq)]
pub enum InstanceValue {
    /// A record.
    Record(InstanceRecord),
    /// Anything else, taken as it is: `tenure register services/web/a=10.0.0.1:80` puts an address.
    Plain(Bytes),
}

impl InstanceValue {
    /// Reads a stored value. An object with a version or an address is a record; only a record can be wrong.
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

    /// Where the instance can be reached; of a plain value the whole text.
    pub fn address(&self) -> Option<&str> {
        match self {
            InstanceValue::Record(record) => record.address.as_deref(),
            InstanceValue::Plain(value) => std::str::from_utf8(value).ok(),
        }
    }

    /// What it says of itself, read as the type that the service's users agreed upon. A plain value says nothing.
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

/// Whether a node takes work.
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
    /// As it is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            MemberState::Starting => "starting",
            MemberState::Ready => "ready",
            MemberState::Draining => "draining",
        }
    }
}

/// Who holds a lock or waits for it, under `locks/<lock>/<place>`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct HolderRecord {
    /// The node it says it is.
    #[serde(default)]
    pub node: String,
    /// Its process.
    #[serde(default)]
    pub pid: u32,
    /// Its machine.
    #[serde(default)]
    pub host: String,
    /// Its user.
    #[serde(default)]
    pub user: String,
    /// What it runs under the lock.
    #[serde(default)]
    pub command: String,
    /// Why, in the user's words.
    #[serde(default)]
    pub reason: String,
    /// When it entered the queue.
    #[serde(default, alias = "since")]
    pub queued: Timestamp,
    /// When it acquired the lock; none while it waits, and until a hold has lasted long enough to be recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquired: Option<Timestamp>,
    /// Beside whom it can hold.
    #[serde(default, skip_serializing_if = "is_exclusive")]
    pub mode: LockMode,
    /// At a barrier: that its place has passed, together with everybody up to this token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed: Option<Token>,
    /// What newer programs wrote.
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

/// Who leads or wants to, under `elections/<election>/<place>`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CandidateRecord {
    /// The name it goes by.
    #[serde(default)]
    pub candidate: String,
    /// What it tells everybody, such as where it can be reached.
    #[serde(default)]
    pub value: String,
    /// Its machine.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Its process; 0 if that is not known.
    #[serde(default, skip_serializing_if = "is_no_pid")]
    pub pid: u32,
    /// Its user.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Who is higher leads before those who came earlier. Above 0 it counts in a place of [`PriorityClass::Preferred`](crate::layout::PriorityClass) alone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// When it entered the queue.
    #[serde(default, alias = "since")]
    pub queued: Timestamp,
    /// When its term began; none while it waits, and until the term has lasted long enough to be recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquired: Option<Timestamp>,
    /// The TTL of its lease in milliseconds, written with `acquired`: bounds how long no process led if the lease expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Whether it says of itself that it leads; who does not say so may lead all the same. Whoever is next has less to read by it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub leads: bool,
    /// What somebody else has asked of it, if it leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<StepDownRecord>,
    /// What newer programs wrote.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

impl CandidateRecord {
    /// The process of the candidate, which goes by its candidate name. Its program is not stored.
    pub fn identity(&self) -> Identity {
        Identity {
            node: self.candidate.clone(),
            host: self.host.clone(),
            pid: self.pid,
            user: self.user.clone(),
            program: String::new(),
        }
    }

    /// The priority that stored bytes speak of, without reading the rest; none if that is not plain to see.
    pub fn priority_of(bytes: &[u8]) -> Option<i32> {
        #[derive(Deserialize)]
        struct Glance {
            #[serde(default)]
            priority: i32,
        }
        serde_json::from_slice(bytes).ok().map(|Glance { priority }| priority)
    }

    /// Whether stored bytes say that their candidate leads, without reading the rest.
    pub fn leads_by(bytes: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Glance {
            #[serde(default)]
            leads: bool,
        }
        serde_json::from_slice(bytes).is_ok_and(|Glance { leads }| leads)
    }
}

/// That somebody asks a leader to go.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StepDownRecord {
    /// Who asks.
    #[serde(default)]
    pub by: String,
    /// The place that is to lead instead; none for whoever is next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heir: Option<String>,
    /// What newer programs wrote.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// When a command that runs once per period was last run, under `once/<name>`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct OnceRecord {
    /// When it was started, by the clock of the machine that ran it.
    #[serde(default)]
    pub started: Timestamp,
    /// The code it ended with; none while it runs, and if nobody could say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// The node that ran it.
    #[serde(default)]
    pub node: String,
    /// The process there.
    #[serde(default)]
    pub pid: u32,
    /// What was run.
    #[serde(default)]
    pub command: String,
    /// The token of the hold that it ran under; none in a record of an older program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// What newer programs wrote.
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
