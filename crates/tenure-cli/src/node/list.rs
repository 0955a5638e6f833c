//! `node ls` and `node show`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tenure::member::Member;
use tenure::snapshot::{ClusterPart, ClusterSnapshot, SnapshotRequest};
use tenure::store::Store;
use tenure_core::id::{Namespace, NodeId};

use super::{SCHEMA, format_time, not_alive, state_of};
use crate::failure::Failure;
use crate::lease_remaining::{in_seconds, remaining};
use crate::output::Output;

#[derive(Serialize)]
struct NodeRow {
    id: String,
    address: Option<String>,
    state: &'static str,
    /// Whether it claims no new tasks.
    frozen: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    frozen_since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frozen_by: Option<String>,
    tasks: u64,
    lease_remaining_seconds: Option<f64>,
    incarnation: String,
    started: Option<String>,
    version: String,
    labels: BTreeMap<String, String>,
    lease: Option<String>,
    /// How many commands wait for it.
    commands: usize,
}

impl NodeRow {
    fn new(node: &Member, tasks: u64, snapshot: &ClusterSnapshot, left: Option<Duration>) -> NodeRow {
        let frozen = snapshot.frozen.get(&node.id);
        NodeRow {
            id: node.id.to_string(),
            address: node.record.address.clone(),
            state: node.record.state.as_str(),
            frozen: frozen.is_some(),
            frozen_since: frozen.and_then(|frozen| format_time(frozen.since)),
            frozen_by: frozen.map(|frozen| frozen.by.clone()).filter(|by| !by.is_empty()),
            tasks,
            lease_remaining_seconds: left.map(|left| left.as_secs_f64()),
            incarnation: node.token.to_string(),
            started: format_time(node.record.started),
            version: node.record.version.clone(),
            labels: node.record.labels.clone(),
            lease: node.lease.map(|lease| lease.to_string()),
            commands: snapshot.pending_commands.get(&node.id).copied().unwrap_or(0),
        }
    }

    fn into_row(self, state: &str) -> Vec<String> {
        let left = self.lease_remaining_seconds.map(Duration::from_secs_f64);
        let dash = || "-".to_owned();
        vec![
            self.id,
            self.address.unwrap_or_else(dash),
            state.to_owned(),
            self.tasks.to_string(),
            in_seconds(left),
            self.incarnation,
            self.started.unwrap_or_else(dash),
        ]
    }
}

const HEADING: [&str; 7] = ["id", "address", "state", "tasks", "lease s", "incarnation", "started"];

pub(super) async fn list(store: &Store, namespace: &Namespace, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct NodeListReport {
        schema: &'static str,
        nodes: Vec<NodeRow>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        set_aside: Vec<UnreadableNode>,
        revision: String,
    }
    /// A node with an unreadable record.
    #[derive(Serialize)]
    struct UnreadableNode {
        id: String,
        why: String,
    }
    // The list shows only how many tasks each node owns, so the tasks themselves are not read.
    let parts = [ClusterPart::Members, ClusterPart::Owners];
    let snapshot = SnapshotRequest::new(store, namespace).parts(parts).await?;
    let owned = snapshot.owned();
    let members = snapshot.members.members();
    let left = remaining(store, members.iter().filter_map(|node| node.lease)).await?;
    let shown = |node: &Member| {
        let left = node.lease.and_then(|lease| left.get(&lease)).copied();
        NodeRow::new(node, owned.get(&node.id).copied().unwrap_or(0), &snapshot, left)
    };
    let unreadable = snapshot.members.set_aside();
    if output.is_json {
        let nodes = members.iter().map(|node| shown(node)).collect();
        let set_aside = unreadable
            .iter()
            .map(|aside| UnreadableNode { id: aside.id.to_string(), why: aside.why.clone() });
        let (set_aside, revision) = (set_aside.collect(), snapshot.revision.to_string());
        return output.object(&NodeListReport { schema: SCHEMA, nodes, set_aside, revision });
    }
    for aside in unreadable {
        output.note(&format!("node {} is not listed: its record cannot be read: {}", aside.id, aside.why));
    }
    // A frozen id without a live node claims nothing when it starts again, which no row would show.
    let row = |node: &Member| shown(node).into_row(&state_of(&snapshot, node));
    for (id, frozen) in snapshot.frozen.iter().filter(|(id, _)| snapshot.members.get(id).is_none()) {
        output.note(&format!("node '{id}' is not alive and {frozen}; `tenure node unfreeze {id}` ends that"));
    }
    let rows: Vec<Vec<String>> = members.iter().map(|node| row(node)).collect();
    output.table(&HEADING, &rows)
}

pub(super) async fn show(
    id: &NodeId,
    store: &Store,
    namespace: &Namespace,
    output: &Output,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct NodeShowReport {
        schema: &'static str,
        #[serde(flatten)]
        shown: NodeRow,
        owned: Vec<OwnedTaskRow>,
        revision: String,
    }
    #[derive(Serialize)]
    struct OwnedTaskRow {
        id: String,
        kind: Option<String>,
        token: String,
    }
    let parts = [ClusterPart::Members, ClusterPart::Tasks];
    let snapshot = SnapshotRequest::new(store, namespace).parts(parts).await?;
    let Some(node) = snapshot.members.get(id) else {
        let failure = not_alive(id);
        return Err(match snapshot.members.set_aside().iter().find(|aside| aside.id == *id) {
            Some(aside) => {
                failure.while_doing(&format!("the record of '{id}' cannot be read ({})", aside.why))
            }
            None => failure,
        });
    };
    let left = remaining(store, node.lease).await?.into_values().next();
    let tasks = snapshot.owned().get(id).copied().unwrap_or(0);
    let shown = NodeRow::new(node, tasks, &snapshot, left);
    let owned = snapshot.tasks.tasks().filter_map(|(task, card)| {
        let owner = card.owner.as_ref().filter(|owner| owner.node() == Some(id))?;
        let kind = card.record.as_ref().ok().and_then(|record| record.kind.clone());
        Some(OwnedTaskRow { id: task.to_string(), kind, token: owner.token.to_string() })
    });
    if output.is_json {
        let (owned, revision) = (owned.collect(), snapshot.revision.to_string());
        return output.object(&NodeShowReport { schema: SCHEMA, shown, owned, revision });
    }
    let owned: Vec<OwnedTaskRow> = owned.collect();
    let (version, commands) = (shown.version.clone(), shown.commands);
    let labels = shown.labels.clone();
    let cells = HEADING.into_iter().zip(shown.into_row(&state_of(&snapshot, node)));
    let mut rows: Vec<Vec<String>> = cells.map(|(name, cell)| vec![name.to_owned(), cell]).collect();
    if !version.is_empty() {
        rows.push(vec!["version".to_owned(), version]);
    }
    rows.extend(labels.into_iter().map(|(name, value)| vec!["label".to_owned(), format!("{name}={value}")]));
    rows.push(vec!["commands".to_owned(), commands.to_string()]);
    rows.extend(owned.into_iter().map(|task| vec!["owns".to_owned(), task.id]));
    output.table(&["", ""], &rows)
}
