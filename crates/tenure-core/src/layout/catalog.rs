//! What is documented of each key beside its layout: how long it stays, what is stored there, and
//! what for.
//!
//! docs/key-layout.md is written from this and from the layout itself.

use std::fmt;
use std::time::Duration;

use super::{Key, QueueKey};
use crate::id::{ClaimId, CommandId, ElectionName, LockName, NodeId, RegistryKey, TaskId};
use crate::lease::LeaseId;
use crate::record::Timestamp;

/// How long after it was sent a command expires. A worker that was away for longer does not handle
/// old commands. Halved, a command of Friday may expire before a worker that is started on Monday
/// reads it.
pub const COMMAND_EXPIRES_AFTER: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How long the result of a command is kept. Halved, a sender that is away over night does not find
/// it; doubled, twice as many are stored.
pub const RESULT_EXPIRES_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// How long audit records are kept. Halved, a weekend hides a command of Friday; doubled, twice as
/// many records are kept.
pub const AUDIT_KEEP: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How long a key stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyLifetime {
    /// Until it is deleted.
    Permanent,
    /// While the client that put it renews its lease.
    Leased,
    /// Until it is deleted, or a worker sweeps it this long after it was put.
    ExpiresAfter(Duration),
    /// This long, and then until the next key of its kind is put.
    KeptFor(Duration),
}

impl fmt::Display for KeyLifetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY_S: u64 = 24 * 60 * 60;
        match self {
            KeyLifetime::Permanent => f.write_str("permanent"),
            KeyLifetime::Leased => f.write_str("leased"),
            KeyLifetime::ExpiresAfter(time) if time.as_secs() == DAY_S => f.write_str("expires, 1 day"),
            KeyLifetime::ExpiresAfter(time) => write!(f, "expires, {} days", time.as_secs() / DAY_S),
            KeyLifetime::KeptFor(time) => write!(f, "kept, {} days", time.as_secs() / DAY_S),
        }
    }
}

impl Key {
    /// How long the key stays.
    pub const fn life(&self) -> KeyLifetime {
        match self {
            Key::Task(_)
            | Key::TaskProps(_)
            | Key::TaskAttempt(..)
            | Key::TaskState(_)
            | Key::EndedTask(..)
            | Key::Frozen(_)
            | Key::Run(_) => KeyLifetime::Permanent,
            Key::Node(_)
            | Key::TaskOwner(_)
            | Key::Candidate(..)
            | Key::Resignation(..)
            | Key::Waiter(..)
            | Key::EnterGuard(_)
            | Key::Ttl(_)
            | Key::Registration(_) => KeyLifetime::Leased,
            Key::TaskCommand(_) | Key::NodeCommand(..) => KeyLifetime::ExpiresAfter(COMMAND_EXPIRES_AFTER),
            Key::CommandResult(_) => KeyLifetime::ExpiresAfter(RESULT_EXPIRES_AFTER),
            Key::Audit(_) => KeyLifetime::KeptFor(AUDIT_KEEP),
        }
    }

    /// The stored value.
    pub const fn value(&self) -> &'static str {
        match self {
            Key::Node(_) => "node record",
            Key::NodeCommand(..) | Key::TaskCommand(_) => "command record",
            Key::Task(_) => "task record, or empty",
            Key::TaskProps(_) => "JSON of the submitter",
            Key::TaskOwner(_) => "owner record",
            Key::TaskAttempt(..) => "attempt record",
            Key::TaskState(_) => "state record",
            Key::EndedTask(..) => "its props, or empty",
            Key::CommandResult(_) => "result record",
            Key::Frozen(_) => "frozen record",
            Key::Candidate(..) => "candidate record",
            Key::Resignation(..) => "resignation record",
            Key::Waiter(..) => "holder record",
            Key::EnterGuard(_) => "empty",
            Key::Ttl(_) => "text: version, nonce, value",
            Key::Run(_) => "run record",
            Key::Audit(_) => "audit record",
            Key::Registration(_) => "the registered value",
        }
    }

    /// The meaning of the key.
    pub const fn meaning(&self) -> &'static str {
        match self {
            Key::Node(_) => "a node is alive; its create revision is the node's incarnation",
            Key::NodeCommand(..) => {
                "a command to a node, handled in the order of the ids; another writer may use any name in place of the UUID; `expires_at` as with tasks"
            }
            Key::Task(_) => "a task was submitted",
            Key::TaskProps(_) => "properties from the submitter; never changed",
            Key::TaskOwner(_) => "the owner of the task; its create revision is the claim's token",
            Key::TaskAttempt(..) => {
                "a claim began; put with the owner's key, deleted with the outcome, so a remaining one has no outcome"
            }
            Key::TaskState(_) => "the state of the task, also after it has ended; without it: runnable",
            Key::EndedTask(..) => {
                "when the task ended, in milliseconds since 1970 as hexadecimal; put with the final state, deleted with it by retention, `retry` or `forget`"
            }
            Key::TaskCommand(_) => {
                "a command to a task that no worker has handled yet; the last one sent; `expires_at` in the record, then a worker sweeps it"
            }
            Key::CommandResult(_) => {
                "the result of a command; `expires_at` in the record, then a worker sweeps it"
            }
            Key::Frozen(_) => "the node takes no new tasks, also after a restart",
            Key::Candidate(..) => {
                "a candidate; the lowest create revision leads; with a priority above 0 the last segment begins with `p`"
            }
            Key::Resignation(..) => {
                "the leader resigned or handed over; put in the transaction that deletes its candidate key, so without it the lease expired"
            }
            Key::Waiter(..) => "a holder or a waiter; the lowest create revision holds",
            Key::EnterGuard(_) => {
                "the reply to an enter of one queue driver was lost; enters of that driver that were sent before the last change cannot be applied"
            }
            Key::Ttl(_) => "the leader of a TTL election",
            Key::Run(_) => "the last run of a command that runs once per period",
            Key::Audit(_) => {
                "a destructive command with action, target, sender, time and reason; put in the same transaction, which deletes those older than a week"
            }
            Key::Registration(_) => "registered under a shared lease; instances of services among them",
        }
    }

    /// One key of each kind, with placeholders for names.
    pub fn one_of_each() -> Vec<Key> {
        let node = || NodeId::parse("<node>").expect("a name");
        let task = || TaskId::parse("<task>").expect("a name");
        let command = || CommandId::parse(COMMAND).expect("a UUID");
        let place = QueueKey { lease: LeaseId::from_random([1; 8]), nonce: 1 };
        vec![
            Key::Node(node()),
            Key::NodeCommand(node(), command()),
            Key::Task(task()),
            Key::TaskProps(task()),
            Key::TaskOwner(task()),
            Key::TaskAttempt(task(), ClaimId::parse("<claim>").expect("a name")),
            Key::TaskState(task()),
            Key::EndedTask(ENDED, task()),
            Key::TaskCommand(task()),
            Key::CommandResult(command()),
            Key::Frozen(node()),
            Key::Candidate(ElectionName::parse("<election>").expect("a name"), place),
            Key::Resignation(ElectionName::parse("<election>").expect("a name"), place.lease),
            Key::Waiter(LockName::parse("<lock>").expect("a name"), place),
            Key::EnterGuard(place),
            Key::Ttl(ElectionName::parse("<election>").expect("a name")),
            Key::Run(LockName::parse("<name>").expect("a name")),
            Key::Audit(command()),
            Key::Registration(RegistryKey::parse("<key…>").expect("a name")),
        ]
    }

    /// The parts of [`Key::one_of_each`] that are not names, and their placeholders in the
    /// documentation.
    pub fn placeholders() -> [(String, &'static str); 4] {
        let place = QueueKey { lease: LeaseId::from_random([1; 8]), nonce: 1 };
        [
            (COMMAND.to_owned(), "<uuid-v7>"),
            (format!("{:016x}", ENDED.0), "<time-hex>"),
            (place.to_string(), "<lease-hex>-<nonce>"),
            (place.lease.to_string(), "<lease-hex>"),
        ]
    }
}

/// A command id that represents all others.
const COMMAND: &str = "00000000-0000-7000-8000-000000000000";

/// The time of an end that represents all others. No other placeholder contains its digits.
const ENDED: Timestamp = Timestamp(0x00aa_00bb_00cc_00dd);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::id::Namespace;
    use crate::layout::Layout;

    /// The compiler checks that every kind of key has a lifetime and a meaning, but not that it is
    /// in the list.
    #[test]
    fn catalog_lists_every_kind_of_key() {
        let source = include_str!("../layout.rs");
        let (_, rest) = source.split_once("pub enum Key {\n").unwrap();
        let (body, _) = rest.split_once("\n}").unwrap();
        let declared: BTreeSet<&str> = body
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with("//"))
            .filter_map(|line| line.split('(').next())
            .collect();
        let debug: Vec<String> = Key::one_of_each().iter().map(|key| format!("{key:?}")).collect();
        let listed: BTreeSet<&str> = debug.iter().filter_map(|text| text.split('(').next()).collect();
        assert_eq!(listed, declared);
        assert_eq!(debug.len(), declared.len());
    }

    #[test]
    fn key_with_placeholder_parses() {
        let layout = Layout::new(&Namespace::parse("<namespace>").unwrap());
        for key in Key::one_of_each() {
            assert_eq!(layout.parse(&layout.encode(&key)), Some(key));
        }
    }

    #[test]
    fn lifetime_is_displayed_in_days() {
        let one = |key: Key| key.life().to_string();
        assert_eq!(one(Key::TaskCommand(TaskId::parse("t").unwrap())), "expires, 7 days");
        assert_eq!(one(Key::CommandResult(CommandId::parse(COMMAND).unwrap())), "expires, 1 day");
    }
}
