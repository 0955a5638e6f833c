//! `tenure status`: the state of a namespace on one screen, with warnings.

mod warnings;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tenure::snapshot::{ClusterSnapshot, ElectionSnapshot, LockSnapshot, SnapshotRequest};
use tenure::store::{Get, LeaseId, Store, StoreError};
use tenure::task::TaskSummary;
use tenure_core::id::Namespace;
use tenure_core::layout::Layout;
use tenure_core::task::TaskState;

use self::warnings::StatusWarning;
use crate::failure::Failure;
use crate::output::Output;

/// The `schema` of JSON output.
const SCHEMA: &str = "tenure.status/v1";

/// The number of rows per kind, so that all kinds fit on one screen.
const LISTED_MAX: usize = 12;

#[derive(Serialize)]
struct StatusReport<'a> {
    schema: &'static str,
    backend: &'static str,
    namespace: &'a str,
    /// The number of leases with live keys of the namespace. A process has one, or a few if it has thousands of keys.
    sessions: usize,
    elections: Vec<LeaderSummary>,
    locks: Vec<LockSummary>,
    nodes: Vec<NodeSummary>,
    tasks: TaskCounts,
    warnings: Vec<StatusWarning>,
    revision: String,
}

#[derive(Serialize)]
struct LeaderSummary {
    name: String,
    leader: Option<String>,
    token: Option<String>,
    candidates: usize,
}

#[derive(Serialize)]
struct LockSummary {
    name: String,
    token: Option<String>,
    holders: usize,
    waiters: usize,
    held_by: Option<String>,
}

#[derive(Serialize)]
struct NodeSummary {
    id: String,
    address: Option<String>,
    state: &'static str,
    frozen: bool,
    tasks: u64,
    incarnation: String,
}

#[derive(Serialize)]
struct TaskCounts {
    total: usize,
    /// The tasks by state, without the final states of ended tasks.
    by_state: BTreeMap<&'static str, usize>,
    unclaimed: usize,
}

/// Prints the status.
pub(crate) async fn run(store: &Store, namespace: &Namespace, output: &Output) -> Result<(), Failure> {
    // One snapshot: with several reads, a node that joins or leaves in between would cause a false warning.
    let snapshot = SnapshotRequest::new(store, namespace).await?;
    let tasks = tasks(&snapshot);
    let leases = leases(store, &Layout::new(namespace), &snapshot).await?;
    let report = StatusReport {
        schema: SCHEMA,
        backend: store.info().kind,
        namespace: namespace.as_str(),
        sessions: leases.len(),
        elections: snapshot.elections.iter().map(shown_election).collect(),
        locks: snapshot.locks.iter().map(shown_lock).collect(),
        nodes: shown_nodes(&snapshot),
        tasks: count(&tasks),
        warnings: warnings::warnings(&tasks, &snapshot),
        revision: snapshot.revision.to_string(),
    };
    if output.is_json {
        return output.object(&report);
    }
    output.table(&["", ""], &report.into_rows())
}

/// The tasks with their states.
fn tasks(snapshot: &ClusterSnapshot) -> Vec<TaskSummary> {
    let tasks = snapshot.tasks.tasks().map(|(id, card)| TaskSummary {
        id: id.clone(),
        card: Some(card.clone()),
        state_record: snapshot.state_of(id),
    });
    tasks.collect()
}

/// The leases of live keys.
async fn leases(
    store: &Store,
    layout: &Layout,
    snapshot: &ClusterSnapshot,
) -> Result<BTreeSet<LeaseId>, StoreError> {
    let mut leases: BTreeSet<LeaseId> =
        snapshot.members.members().iter().filter_map(|node| node.lease).collect();
    leases.extend(snapshot.owners.values().filter_map(|owner| owner.lease));
    for election in &snapshot.elections {
        leases.extend(election.leader.iter().map(|leader| leader.place.lease));
        leases.extend(election.candidates.iter().map(|candidate| candidate.place.lease));
    }
    for lock in &snapshot.locks {
        leases.extend(lock.holders.iter().chain(&lock.waiters).map(|holder| holder.place.lease));
    }
    let registered = store.get(Get::new(layout.registry()).keys_only()).await?;
    leases.extend(registered.pairs.iter().filter_map(|pair| pair.lease));
    Ok(leases)
}

fn shown_election(election: &ElectionSnapshot) -> LeaderSummary {
    let leader = election.leader.as_ref();
    LeaderSummary {
        name: election.name.to_string(),
        leader: leader.map(|leader| leader.record.candidate.clone()),
        token: leader.map(|leader| leader.token.to_string()),
        candidates: election.candidates.len(),
    }
}

fn shown_lock(lock: &LockSnapshot) -> LockSummary {
    LockSummary {
        name: lock.name.to_string(),
        token: lock.holders.first().map(|holder| holder.token.to_string()),
        holders: lock.holders.len(),
        waiters: lock.waiters.len(),
        held_by: lock.holders.first().map(|holder| holder.record.identity().to_string()),
    }
}

fn shown_nodes(snapshot: &ClusterSnapshot) -> Vec<NodeSummary> {
    let owned = snapshot.owned();
    let nodes = snapshot.members.members().iter().map(|node| NodeSummary {
        id: node.id.to_string(),
        address: node.record.address.clone(),
        state: node.record.state.as_str(),
        frozen: snapshot.frozen.contains_key(&node.id),
        tasks: owned.get(&node.id).copied().unwrap_or(0),
        incarnation: node.token.to_string(),
    });
    nodes.collect()
}

fn count(tasks: &[TaskSummary]) -> TaskCounts {
    let mut by_state = BTreeMap::new();
    for task in tasks {
        *by_state.entry(task.state().map_or("unreadable", TaskState::as_str)).or_default() += 1;
    }
    TaskCounts { total: tasks.len(), by_state, unclaimed: warnings::unclaimed(tasks).count() }
}

impl StatusReport<'_> {
    fn into_rows(self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        let mut row = |name: &str, text: String| rows.push(vec![name.to_owned(), text]);
        row("backend", self.backend.to_owned());
        row("namespace", self.namespace.to_owned());
        row("sessions", self.sessions.to_string());
        let states: Vec<String> =
            self.tasks.by_state.iter().map(|(state, count)| format!("{count} {state}")).collect();
        let states = if states.is_empty() { String::new() } else { format!(": {}", states.join(", ")) };
        row("tasks", format!("{}{states}; {} unclaimed", self.tasks.total, self.tasks.unclaimed));
        let mut list = |name: &str, lines: Vec<String>| {
            let more = lines.len().saturating_sub(LISTED_MAX);
            lines.into_iter().take(LISTED_MAX).for_each(|line| row(name, line));
            if more > 0 {
                row(name, format!("and {more} more"));
            }
        };
        let nodes = self.nodes.iter().map(|node| {
            let state = if node.frozen { "frozen" } else { node.state };
            format!("{}: {state}, {} tasks", node.id, node.tasks)
        });
        list("node", nodes.collect());
        let elections = self.elections.iter().map(|election| {
            let leader = election.leader.as_deref().unwrap_or("no candidate");
            format!("{}: led by {leader}, {} wait", election.name, election.candidates)
        });
        list("election", elections.collect());
        let locks = self.locks.iter().map(|lock| {
            let by = lock.held_by.as_deref().unwrap_or("no process");
            let others = lock.holders.saturating_sub(1);
            let others = if others > 0 { format!(" and {others} more") } else { String::new() };
            format!("{}: held by {by}{others}, {} wait", lock.name, lock.waiters)
        });
        list("lock", locks.collect());
        let warnings = self.warnings.into_iter().map(|warning| match warning.hint {
            Some(hint) => format!("{} ({hint})", warning.message),
            None => warning.message,
        });
        list("warning", warnings.collect());
        rows
    }
}
