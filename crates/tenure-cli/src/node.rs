//! `tenure node`: which nodes are alive.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use tenure::core::layout::{Key, Layout};
use tenure::core::name::{Namespace, NodeId};
use tenure::core::record::{OwnerRecord, Record, WallTime};
use tenure::membership::{Cluster, Node};
use tenure::store::{Store, StoreError};

use crate::failure::Failure;
use crate::output::Output;
use crate::remaining::{in_seconds, remaining};

/// What `--json` answers to these verbs carry as `schema`.
const SCHEMA: &str = "tenure.node/v1";

/// The verbs.
#[derive(Subcommand, Debug)]
pub(crate) enum NodeCommand {
    /// List the nodes that are alive, all at one revision.
    Ls,
}

/// Runs a verb on an open store.
pub(crate) async fn run(
    command: &NodeCommand,
    store: &Store,
    namespace: &Namespace,
    output: &Output,
) -> Result<(), Failure> {
    match command {
        NodeCommand::Ls => ls(store, namespace, output).await,
    }
}

#[derive(Serialize)]
struct Answer {
    schema: &'static str,
    nodes: Vec<Shown>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    set_aside: Vec<SetAside>,
    revision: String,
}

#[derive(Serialize)]
struct Shown {
    id: String,
    address: Option<String>,
    state: &'static str,
    tasks: u64,
    lease_remaining_seconds: Option<f64>,
    incarnation: String,
    started: Option<String>,
    version: String,
    labels: BTreeMap<String, String>,
    lease: Option<String>,
}

/// A key that is no node's record.
#[derive(Serialize)]
struct SetAside {
    id: String,
    why: String,
}

async fn ls(store: &Store, namespace: &Namespace, output: &Output) -> Result<(), Failure> {
    let members = Cluster::new(store.clone(), namespace).members().await?;
    let left = remaining(store, members.members().iter().filter_map(|node| node.lease)).await?;
    let tasks = count_tasks(store, namespace).await?;
    let shown = |node: &Node| {
        let left = node.lease.and_then(|lease| left.get(&lease)).copied();
        shown(node, tasks.get(&node.id).copied().unwrap_or(0), left)
    };
    let nodes: Vec<Shown> = members.members().iter().map(|node| shown(node)).collect();
    if output.is_json {
        let set_aside = members
            .set_aside()
            .iter()
            .map(|aside| SetAside { id: aside.id.to_string(), why: aside.why.clone() });
        let (set_aside, revision) = (set_aside.collect(), members.revision.to_string());
        return output.object(&Answer { schema: SCHEMA, nodes, set_aside, revision });
    }
    for aside in members.set_aside() {
        output.note(&format!("node {} is set aside, its record cannot be read: {}", aside.id, aside.why));
    }
    let rows: Vec<Vec<String>> = nodes
        .into_iter()
        .map(|node| {
            let left = node.lease_remaining_seconds.map(Duration::from_secs_f64);
            vec![
                node.id,
                node.address.unwrap_or_else(|| "-".to_owned()),
                node.state.to_owned(),
                node.tasks.to_string(),
                in_seconds(left),
                node.incarnation,
                node.started.unwrap_or_else(|| "-".to_owned()),
            ]
        })
        .collect();
    output.table(&["id", "address", "state", "tasks", "lease s", "incarnation", "started"], &rows)
}

fn shown(node: &Node, tasks: u64, left: Option<Duration>) -> Shown {
    Shown {
        id: node.id.to_string(),
        address: node.record.address.clone(),
        state: node.record.state.as_str(),
        tasks,
        lease_remaining_seconds: left.map(|left| left.as_secs_f64()),
        incarnation: node.token.to_string(),
        started: said(node.record.started),
        version: node.record.version.clone(),
        labels: node.record.labels.clone(),
        lease: node.lease.map(|lease| lease.to_string()),
    }
}

/// A time, if there is one: other writers of this layout say none.
pub(crate) fn said(time: WallTime) -> Option<String> {
    (time != WallTime::default()).then(|| time.to_string())
}

/// How many tasks each node owns. An owner that cannot be read counts for nobody.
async fn count_tasks(store: &Store, namespace: &Namespace) -> Result<BTreeMap<NodeId, u64>, StoreError> {
    let layout = Layout::new(namespace);
    let mut counts = BTreeMap::new();
    for pair in store.list(layout.tasks()).await?.pairs {
        if let Some(Key::TaskOwner(_)) = layout.parse(&pair.key)
            && let Ok(owner) = OwnerRecord::decode(&pair.value)
        {
            *counts.entry(owner.node).or_default() += 1;
        }
    }
    Ok(counts)
}
