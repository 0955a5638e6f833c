//! The layout of the store: every key, encoded and parsed side by side.
//!
//! Names are escaped so that they cannot collide: `/` and `%` inside a name become `%2F` and `%25`.
//! So a name is always exactly one segment, `t1` never matches `t10`, and `a` never blocks `a/b`. A
//! key that this module would not have written is foreign: it is reported as such and changes
//! nothing.
//!
//! **Invariant**: `parse` reads exactly what `encode` writes, and nothing else.

mod catalog;

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

use crate::id::{
    ClaimId, CommandId, ElectionName, InstanceId, InvalidName, LockName, Namespace, NodeId, RegistryKey,
    ServiceName, TaskId,
};
use crate::kv::Selection;
use crate::lease::LeaseId;
use crate::record::Timestamp;

pub use catalog::{AUDIT_KEEP, COMMAND_EXPIRES_AFTER, KeyLifetime, RESULT_EXPIRES_AFTER};

/// The prefix of services inside the registry.
const SERVICES: &str = "services/";

/// A key of the layout, inside a namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// `nodes/<node>`: a node is alive. Leased.
    Node(NodeId),
    /// `nodes/<node>/commands/<command>`: a command to a node. Expires after a week.
    NodeCommand(NodeId, CommandId),
    /// `tasks/<task>`: a task was submitted.
    Task(TaskId),
    /// `tasks/<task>/props`: the properties from its submitter.
    TaskProps(TaskId),
    /// `tasks/<task>/owner`: its owner. Leased.
    TaskOwner(TaskId),
    /// `tasks/<task>/attempts/<claim>`: a claim began, and no outcome is stored for it.
    TaskAttempt(TaskId, ClaimId),
    /// `state/<task>`: its state, also after it has ended.
    TaskState(TaskId),
    /// `ended/<time>/<task>`: a task ended at this time, by the clock of its worker. Kept as long
    /// as the final state.
    EndedTask(Timestamp, TaskId),
    /// `commands/<task>`: a command to a task. Expires after a week.
    TaskCommand(TaskId),
    /// `results/<command>`: the result of a command. Expires after a day.
    CommandResult(CommandId),
    /// `frozen/<node>`: a node takes no new tasks.
    Frozen(NodeId),
    /// `elections/<election>/<queue-key>`: a candidate. Leased.
    Candidate(ElectionName, QueueKey),
    /// `resigned/<election>/<lease>`: the last term of this session ended by a request of its
    /// leader. Leased.
    Resignation(ElectionName, LeaseId),
    /// `locks/<lock>/<queue-key>`: a holder or a waiter. Leased.
    Waiter(LockName, QueueKey),
    /// `guards/<lease>-<nonce>`: the enter guard of one queue driver and lease, which every enter
    /// of that driver requires unchanged. Leased.
    EnterGuard(QueueKey),
    /// `ttl/<election>`: the leader of a TTL election. Leased.
    Ttl(ElectionName),
    /// `once/<name>`: the last run of a command that runs once per period. Permanent.
    Run(LockName),
    /// `audit/<uuid-v7>`: a destructive command, its sender and the reason. Kept for a week.
    Audit(CommandId),
    /// `registry/<key…>`: a registration under a shared lease. Leased.
    Registration(RegistryKey),
}

/// A key in a queue: the lease it ends with, and a nonce, so that two waiters on one lease have two
/// keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueKey {
    /// The lease of the session.
    pub lease: LeaseId,
    /// Random, one for each key. The upper half of the numbers is for keys with
    /// [`PriorityClass::Preferred`].
    pub nonce: u64,
}

/// Whether a candidate may lead before older ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PriorityClass {
    /// It may not.
    Ordinary,
    /// It may. Its key shows that, so that preferred candidates alone can be read from a long
    /// queue.
    Preferred,
}

/// The beginning of the keys of preferred candidates: after all hexadecimal digits, so they are
/// together at the end of their queue.
pub const PREFERRED: &str = "p";

/// The first nonce of preferred candidates.
const PREFERRED_FROM: u64 = 1 << 63;

/// The number of digits of a nonce in a key.
const NONCE_LEN: usize = 16;

fn extend_with_hex(key: &mut Vec<u8>, number: u64, digits: usize) {
    let digit = |n: usize| b"0123456789abcdef"[(number >> (4 * n) & 0xf) as usize];
    key.extend((0..digits).rev().map(digit));
}

impl fmt::Display for QueueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}-{:016x}", self.mark(), self.lease, self.nonce)
    }
}

impl QueueKey {
    /// The stored key in the queue with this prefix: the prefix and what `Display` writes. Each
    /// lock needs two of these, so no formatter is used.
    pub fn key_in(self, queue: &[u8]) -> Bytes {
        let (mark, lease) = (self.mark().as_bytes(), self.lease.get().cast_unsigned());
        let lease_len = lease.checked_ilog(16).unwrap_or_default() as usize + 1;
        let mut key = Vec::with_capacity(queue.len() + mark.len() + lease_len + 1 + NONCE_LEN);
        key.extend_from_slice(queue);
        key.extend_from_slice(mark);
        extend_with_hex(&mut key, lease, lease_len);
        key.push(b'-');
        extend_with_hex(&mut key, self.nonce, NONCE_LEN);
        key.into()
    }

    fn mark(self) -> &'static str {
        match self.rank() {
            PriorityClass::Ordinary => "",
            PriorityClass::Preferred => PREFERRED,
        }
    }

    /// Returns the key of this class, with a nonce from the lower half of the numbers.
    #[must_use]
    pub fn ranked(lease: LeaseId, nonce: u64, rank: PriorityClass) -> QueueKey {
        let lower = nonce & !PREFERRED_FROM;
        match rank {
            PriorityClass::Ordinary => QueueKey { lease, nonce: lower },
            PriorityClass::Preferred => QueueKey { lease, nonce: lower | PREFERRED_FROM },
        }
    }

    /// The priority class of the key.
    pub fn rank(self) -> PriorityClass {
        if self.nonce < PREFERRED_FROM { PriorityClass::Ordinary } else { PriorityClass::Preferred }
    }

    /// Reads what `Display` writes, and nothing else.
    pub fn parse(text: &str) -> Option<QueueKey> {
        let (lease, nonce) = text.strip_prefix(PREFERRED).unwrap_or(text).split_once('-')?;
        let key = QueueKey { lease: LeaseId::parse_hex(lease)?, nonce: u64::from_str_radix(nonce, 16).ok()? };
        (key.to_string() == text).then_some(key)
    }
}

/// The keys of one namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// `/<namespace>/`.
    root: String,
}

impl Layout {
    /// Creates the layout of a namespace.
    pub fn new(namespace: &Namespace) -> Layout {
        Layout { root: format!("/{namespace}/") }
    }

    /// Encodes a key.
    pub fn encode(&self, key: &Key) -> Bytes {
        let root = self.root.as_str();
        let text = match key {
            Key::Node(node) => [root, "nodes/", &segment(node.as_str())].concat(),
            Key::NodeCommand(node, command) => {
                let (node, command) = (segment(node.as_str()), segment(command.as_str()));
                [root, "nodes/", &node, "/commands/", &command].concat()
            }
            Key::Task(task) => [root, "tasks/", &segment(task.as_str())].concat(),
            Key::TaskProps(task) => [root, "tasks/", &segment(task.as_str()), "/props"].concat(),
            Key::TaskOwner(task) => [root, "tasks/", &segment(task.as_str()), "/owner"].concat(),
            Key::TaskAttempt(task, claim) => {
                let (task, claim) = (segment(task.as_str()), segment(claim.as_str()));
                [root, "tasks/", &task, "/attempts/", &claim].concat()
            }
            Key::TaskState(task) => [root, "state/", &segment(task.as_str())].concat(),
            Key::EndedTask(Timestamp(ms), task) => {
                [root, "ended/", &format!("{ms:016x}"), "/", &segment(task.as_str())].concat()
            }
            Key::TaskCommand(task) => [root, "commands/", &segment(task.as_str())].concat(),
            Key::CommandResult(command) => [root, "results/", &segment(command.as_str())].concat(),
            Key::Frozen(node) => [root, "frozen/", &segment(node.as_str())].concat(),
            Key::Candidate(election, place) => {
                [root, "elections/", &segment(election.as_str()), "/", &place.to_string()].concat()
            }
            Key::Resignation(election, lease) => {
                [root, "resigned/", &segment(election.as_str()), "/", &lease.to_string()].concat()
            }
            Key::Waiter(lock, place) => {
                [root, "locks/", &segment(lock.as_str()), "/", &place.to_string()].concat()
            }
            Key::EnterGuard(guard) => [root, "guards/", &guard.to_string()].concat(),
            Key::Ttl(election) => [root, "ttl/", &segment(election.as_str())].concat(),
            Key::Run(name) => [root, "once/", &segment(name.as_str())].concat(),
            Key::Audit(id) => [root, "audit/", &segment(id.as_str())].concat(),
            Key::Registration(key) => [root, "registry/", key.as_str()].concat(),
        };
        text.into()
    }

    /// Parses a key; none if it is foreign.
    pub fn parse(&self, bytes: &[u8]) -> Option<Key> {
        let text = std::str::from_utf8(bytes).ok()?.strip_prefix(&self.root)?;
        let (kind, rest) = text.split_once('/')?;
        if kind == "registry" {
            return RegistryKey::parse(rest).ok().map(Key::Registration);
        }
        // No key of the layout has more parts, so a fourth contains all that follow.
        let mut parts = rest.splitn(4, '/');
        let segments: [Option<&str>; 4] = std::array::from_fn(|_| parts.next());
        let count = segments.iter().flatten().count();
        let segments = segments.map(Option::unwrap_or_default);
        match (kind, &segments[..count]) {
            ("nodes", [node]) => Some(Key::Node(NodeId::parse(&unescape(node)?).ok()?)),
            ("nodes", [node, "commands", command]) => {
                Some(Key::NodeCommand(NodeId::parse(&unescape(node)?).ok()?, command_id(command)?))
            }
            ("tasks", [task]) => Some(Key::Task(task_id(task)?)),
            ("tasks", [task, "props"]) => Some(Key::TaskProps(task_id(task)?)),
            ("tasks", [task, "owner"]) => Some(Key::TaskOwner(task_id(task)?)),
            ("tasks", [task, "attempts", claim]) => {
                Some(Key::TaskAttempt(task_id(task)?, ClaimId::parse(&unescape(claim)?).ok()?))
            }
            ("state", [task]) => Some(Key::TaskState(task_id(task)?)),
            ("ended", [time, task]) => Some(Key::EndedTask(ended_at(time)?, task_id(task)?)),
            ("commands", [task]) => Some(Key::TaskCommand(task_id(task)?)),
            ("results", [command]) => Some(Key::CommandResult(command_id(command)?)),
            ("audit", [id]) => Some(Key::Audit(command_id(id)?)),
            ("frozen", [node]) => Some(Key::Frozen(NodeId::parse(&unescape(node)?).ok()?)),
            ("elections", [election, place]) => {
                Some(Key::Candidate(ElectionName::parse(&unescape(election)?).ok()?, QueueKey::parse(place)?))
            }
            ("resigned", [election, lease]) => {
                let election = ElectionName::parse(&unescape(election)?).ok()?;
                let key = LeaseId::parse_hex(lease)?;
                // Only the form that `encode` writes.
                (key.to_string() == *lease).then_some(Key::Resignation(election, key))
            }
            ("once", [name]) => Some(Key::Run(LockName::parse(&unescape(name)?).ok()?)),
            ("locks", [lock, place]) => {
                Some(Key::Waiter(LockName::parse(&unescape(lock)?).ok()?, QueueKey::parse(place)?))
            }
            ("guards", [guard]) => Some(Key::EnterGuard(QueueKey::parse(guard)?)),
            ("ttl", [election]) => Some(Key::Ttl(ElectionName::parse(&unescape(election)?).ok()?)),
            _ => None,
        }
    }

    /// All nodes and the commands to them.
    pub fn nodes(&self) -> Selection {
        self.under(&["nodes/"])
    }

    /// The commands to one node.
    pub fn node_commands(&self, node: &NodeId) -> Selection {
        self.under(&["nodes/", &segment(node.as_str()), "/commands/"])
    }

    /// All tasks with their props, owners and attempts.
    pub fn tasks(&self) -> Selection {
        self.under(&["tasks/"])
    }

    /// The claims of one task without a stored outcome.
    pub fn task_attempts(&self, task: &TaskId) -> Selection {
        self.under(&["tasks/", &segment(task.as_str()), "/attempts/"])
    }

    /// The props, the owner and the attempts of one task; the task itself is a key of its own.
    pub fn task_parts(&self, task: &TaskId) -> Selection {
        self.under(&["tasks/", &segment(task.as_str()), "/"])
    }

    /// The states of all tasks.
    pub fn states(&self) -> Selection {
        self.under(&["state/"])
    }

    /// The tasks that have ended, the oldest end first.
    pub fn ended(&self) -> Selection {
        self.under(&["ended/"])
    }

    /// The commands to all tasks.
    pub fn task_commands(&self) -> Selection {
        self.under(&["commands/"])
    }

    /// The results of all commands.
    pub fn results(&self) -> Selection {
        self.under(&["results/"])
    }

    /// The nodes that take no new tasks.
    pub fn frozen(&self) -> Selection {
        self.under(&["frozen/"])
    }

    /// All candidates of all elections.
    pub fn elections(&self) -> Selection {
        self.under(&["elections/"])
    }

    /// The candidates of one election.
    pub fn candidates(&self, election: &ElectionName) -> Selection {
        self.under(&["elections/", &segment(election.as_str()), "/"])
    }

    /// The resignations of all elections.
    pub fn resignations(&self) -> Selection {
        self.under(&["resigned/"])
    }

    /// All holders and waiters of all locks.
    pub fn locks(&self) -> Selection {
        self.under(&["locks/"])
    }

    /// The last runs of all commands that run once per period.
    pub fn runs(&self) -> Selection {
        self.under(&["once/"])
    }

    /// The holder and the waiters of one lock.
    pub fn waiters(&self, lock: &LockName) -> Selection {
        self.under(&["locks/", &segment(lock.as_str()), "/"])
    }

    /// The enter guards of all queue drivers.
    pub fn enter_guards(&self) -> Selection {
        self.under(&["guards/"])
    }

    /// The audit records.
    pub fn audit(&self) -> Selection {
        self.under(&["audit/"])
    }

    /// All registrations.
    pub fn registry(&self) -> Selection {
        self.under(&["registry/"])
    }

    /// The instances of all services.
    pub fn services(&self) -> Selection {
        self.under(&["registry/", SERVICES])
    }

    /// The instances of one service.
    pub fn service(&self, name: &ServiceName) -> Selection {
        self.under(&["registry/", SERVICES, &segment(name.as_str()), "/"])
    }

    /// All keys of the namespace.
    pub fn everything(&self) -> Selection {
        self.under(&[""])
    }

    fn under(&self, path: &[&str]) -> Selection {
        Selection::prefix([&[self.root.as_str()], path].concat().concat())
    }
}

impl RegistryKey {
    /// Returns the key of an instance of a service: `services/<name>/<instance>`, each of them one
    /// segment.
    ///
    /// # Errors
    ///
    /// [`InvalidName::TooLong`] if both together are longer than a registration may be.
    pub fn of_instance(name: &ServiceName, instance: &InstanceId) -> Result<RegistryKey, InvalidName> {
        RegistryKey::parse(&[SERVICES, &segment(name.as_str()), "/", &segment(instance.as_str())].concat())
    }

    /// Returns the service and the instance that are registered here; none if the key is another
    /// registration.
    pub fn as_instance(&self) -> Option<(ServiceName, InstanceId)> {
        let (name, instance) = self.as_str().strip_prefix(SERVICES)?.split_once('/')?;
        if instance.contains('/') {
            return None;
        }
        Some((ServiceName::parse(&unescape(name)?).ok()?, InstanceId::parse(&unescape(instance)?).ok()?))
    }
}

/// The directory in which an embedded store keeps a namespace. It is escaped like names in keys, so
/// that no namespace lies inside another one's directory or outside its parent.
pub fn folder_name(namespace: &Namespace) -> String {
    match namespace.as_str() {
        // The only names that mean another directory than their own.
        dots @ ("." | "..") => dots.replace('.', "%2E"),
        text => segment(text).into_owned(),
    }
}

/// The time in a key: sixteen digits, so that keys sort by it.
fn ended_at(segment: &str) -> Option<Timestamp> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_time = segment.len() == 16 && segment.bytes().all(is_digit);
    is_time.then(|| u64::from_str_radix(segment, 16).ok().map(Timestamp)).flatten()
}

fn command_id(segment: &str) -> Option<CommandId> {
    CommandId::parse(&unescape(segment)?).ok()
}

fn task_id(segment: &str) -> Option<TaskId> {
    TaskId::parse(&unescape(segment)?).ok()
}

/// Encodes a name as one segment of a key.
fn segment(name: &str) -> Cow<'_, str> {
    if !name.contains(['/', '%']) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(name.replace('%', "%25").replace('/', "%2F"))
}

/// Decodes a segment; none if no name is encoded like that.
fn unescape(segment: &str) -> Option<Cow<'_, str>> {
    if !segment.contains('%') {
        return Some(Cow::Borrowed(segment));
    }
    let mut pieces = segment.split('%');
    let mut name = pieces.next()?.to_owned();
    for piece in pieces {
        let (escaped, rest) = match (piece.strip_prefix("2F"), piece.strip_prefix("25")) {
            (Some(rest), _) => ('/', rest),
            (None, Some(rest)) => ('%', rest),
            (None, None) => return None,
        };
        name.push(escaped);
        name.push_str(rest);
    }
    Some(Cow::Owned(name))
}

#[cfg(test)]
mod tests;
