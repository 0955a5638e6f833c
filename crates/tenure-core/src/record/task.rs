//! Records of tasks, owners, commands and results.
//!
//! The state of a task is a record too. It is defined next to its state machine, in
//! [`crate::task`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{InvalidRecord, RECORD_BYTES_MAX, RECORD_VERSION, Record, Timestamp, UnknownFields, is_false};
use crate::id::{CommandId, NodeId};
use crate::layout::RESULT_EXPIRES_AFTER;
use crate::task::TaskState;

/// A task that was submitted, under `tasks/<task>`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct TaskRecord {
    /// When it was submitted.
    #[serde(default)]
    pub submitted_at: Timestamp,
    /// The kind of work, which selects the workers that can run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Labels from its submitter.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Submitted again although its stored state is terminal: no worker claims it until that state
    /// is forgotten.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ended: bool,
    /// Random, one for each submission: a submitter with a lost reply recognises its own task by
    /// it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nonce: String,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// The owner of a task, under `tasks/<task>/owner`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct OwnerRecord {
    /// The node.
    pub node: NodeId,
    /// Its incarnation: the token of the node's own key.
    #[serde(default)]
    pub incarnation: u64,
    /// Random, one for each claim: a worker with a lost reply recognises its own claim by it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nonce: String,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A command to a node or to a task.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CommandRecord {
    /// The action.
    pub command: String,
    /// Its parameters.
    #[serde(default)]
    pub parameters: UnknownFields,
    /// The id of its result. A command to a node has its id in the key; a command to a task without
    /// an id gets no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<CommandId>,
    /// When it was sent, by the sender's clock.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub sent_at: Timestamp,
    /// The sender, in its own words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// For a command to a node: the incarnation that it was sent to, which is the create revision
    /// of the node's key. It expires with that incarnation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// When it expires, by the sender's clock:
    /// [`COMMAND_EXPIRES_AFTER`](crate::layout::COMMAND_EXPIRES_AFTER) after it was sent. None:
    /// never.
    ///
    /// A worker compares it with its own clock when it reads the command, and refuses it from then
    /// on. So a worker with a clock ahead of the sender's refuses it that much earlier, and one
    /// with a clock behind that much later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

impl CommandRecord {
    /// Whether it has expired at this time.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }
}

/// The result of a command, under `results/<command>`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ResultRecord {
    /// The node that handled it, or the sender that replaced it.
    pub handled_by: NodeId,
    /// The outcome.
    pub outcome: CommandOutcome,
    /// The time.
    #[serde(default)]
    pub at: Timestamp,
    /// The state of the task before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<TaskState>,
    /// The state of the task after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<TaskState>,
    /// Why the command had no effect, or a remark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When it may be deleted: [`RESULT_EXPIRES_AFTER`](crate::layout::RESULT_EXPIRES_AFTER) after
    /// `at`, by the same clock.
    ///
    /// The sweeping worker compares it with its own clock: with a clock ahead it deletes the result
    /// that much earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

impl ResultRecord {
    /// Creates a result without details, which expires a day later.
    pub fn new(handled_by: NodeId, outcome: CommandOutcome, at: Timestamp) -> ResultRecord {
        ResultRecord {
            handled_by,
            outcome,
            at,
            from: None,
            to: None,
            why: None,
            expires_at: Some(at.after(RESULT_EXPIRES_AFTER)),
            unknown: UnknownFields::new(),
        }
    }

    /// Adds a reason.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> ResultRecord {
        self.why = Some(why.into());
        self
    }

    /// Adds the states of the task before and after.
    #[must_use]
    pub fn step(mut self, from: TaskState, to: TaskState) -> ResultRecord {
        (self.from, self.to) = (Some(from), Some(to));
        self
    }
}

/// The outcome of a command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CommandOutcome {
    /// The command was carried out.
    Done,
    /// The command was read and refused; nothing changed.
    Refused,
    /// A later command was sent before this one was handled.
    Replaced,
    /// No worker handled it before it expired.
    Expired,
    /// The command is invalid.
    Malformed,
    /// An outcome of a newer program.
    #[serde(other)]
    Other,
}

impl CommandOutcome {
    /// The stored and displayed name.
    pub const fn as_str(self) -> &'static str {
        match self {
            CommandOutcome::Done => "done",
            CommandOutcome::Refused => "refused",
            CommandOutcome::Replaced => "replaced",
            CommandOutcome::Expired => "expired",
            CommandOutcome::Malformed => "malformed",
            CommandOutcome::Other => "other",
        }
    }
}

impl fmt::Display for CommandOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn is_unset(time: &Timestamp) -> bool {
    *time == Timestamp::default()
}

/// Decodes a record without unknown fields; none if that fails for any reason. A JSON list is no
/// record.
fn plain<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    let is_object = bytes.len() <= RECORD_BYTES_MAX && bytes.trim_ascii_start().starts_with(b"{");
    if is_object { serde_json::from_slice(bytes).ok() } else { None }
}

/// A task's record without unknown fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainTask {
    #[serde(default)]
    v: u64,
    #[serde(default)]
    submitted_at: Timestamp,
    kind: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    ended: bool,
    #[serde(default)]
    nonce: String,
}

impl Record for TaskRecord {
    /// A task needs no more than its key: other clients of this layout put it without a value.
    fn of_empty() -> Option<TaskRecord> {
        Some(TaskRecord::default())
    }

    fn decode(bytes: &[u8]) -> Result<TaskRecord, InvalidRecord> {
        match plain(bytes) {
            Some(PlainTask { v: 0..=RECORD_VERSION, submitted_at, kind, labels, ended, nonce }) => {
                Ok(TaskRecord { submitted_at, kind, labels, ended, nonce, unknown: UnknownFields::new() })
            }
            Some(_) | None => TaskRecord::decode_patiently(bytes),
        }
    }
}

/// An owner's record without unknown fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainOwner<'a> {
    #[serde(default)]
    v: u64,
    #[serde(borrow)]
    node: Cow<'a, str>,
    #[serde(default)]
    incarnation: u64,
    #[serde(default, borrow)]
    nonce: Cow<'a, str>,
}

impl Record for OwnerRecord {
    fn decode(bytes: &[u8]) -> Result<OwnerRecord, InvalidRecord> {
        match plain(bytes) {
            Some(PlainOwner { v: 0..=RECORD_VERSION, node, incarnation, nonce }) => {
                match NodeId::parse(&node) {
                    Ok(node) => {
                        let nonce = nonce.into_owned();
                        Ok(OwnerRecord { node, incarnation, nonce, unknown: UnknownFields::new() })
                    }
                    Err(_) => OwnerRecord::decode_patiently(bytes),
                }
            }
            Some(_) | None => OwnerRecord::decode_patiently(bytes),
        }
    }
}

/// Marks a node that takes no new tasks, under `frozen/<node>`. Only its existence counts.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct FrozenRecord {
    /// The time, by the node's clock.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub since: Timestamp,
    /// The sender of the command.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

impl fmt::Display for FrozenRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("frozen")?;
        if !is_unset(&self.since) {
            write!(f, " since {}", self.since)?;
        }
        if !self.by.is_empty() {
            write!(f, " by {}", self.by)?;
        }
        Ok(())
    }
}

impl Record for FrozenRecord {}
impl Record for CommandRecord {}
impl Record for ResultRecord {}
