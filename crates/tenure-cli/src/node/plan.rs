//! `node balance --dry-run`: what nodes would give away.
//!
//! A node that says by which balancer it works is asked, because only it knows what it has just given away, how much of a resource it uses and since when it has
//! what; and its balancer may be its user's own. What is computed here, from the same picture by the same rules, is for nodes that do not say, and for those
//! who want to know what another balancer would do: the tokens of claims stand for their age then, and nothing is sent to anybody.

use std::time::Duration;

use clap::ValueEnum;
use futures_util::future::join_all;
use serde::Serialize;
use serde_json::Value;
use tenure::client::Client;
use tenure::snapshot::{ClusterPart, ClusterSnapshot, SnapshotRequest};
use tenure_core::balance::{
    AcceptAll, Balancer, ClusterLoad, Cooldowns, Demand, Fair, OwnedTask, OwnedTasks, Release, Rendezvous,
    Weighted, WorkerLoads, WorkerTerms, planned_releases,
};
use tenure_core::board::Board;
use tenure_core::command::{BalanceMode, NodeCommand as Command};
use tenure_core::id::{Namespace, NodeId};
use tenure_core::time::Moment;

use super::command::{no_reply, send};
use super::{SCHEMA, not_there, state_of};
use crate::failure::{Code, Failure};
use crate::output::Output;
use crate::task::acknowledged;

/// A balancer that can be computed with from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum PlanBalancer {
    /// As many tasks for each node as for any other.
    #[default]
    Fair,
    /// As much weight for each node as for any other.
    Weighted,
    /// Each task where it is meant to be.
    Rendezvous,
    /// Nobody gives anything away.
    All,
}

impl PlanBalancer {
    fn balancer(self) -> Box<dyn Balancer> {
        match self {
            PlanBalancer::Fair => Box::new(Fair::default()),
            PlanBalancer::Weighted => Box::new(Weighted::default()),
            PlanBalancer::Rendezvous => Box::new(Rendezvous::default()),
            PlanBalancer::All => Box::new(AcceptAll),
        }
    }
}

#[derive(Serialize)]
struct PlanReport {
    schema: &'static str,
    dry_run: bool,
    /// The one that all of them go by; none if they differ.
    balancer: Option<String>,
    nodes: Vec<NodePlan>,
    revision: String,
}

#[derive(Serialize)]
struct NodePlan {
    id: String,
    tasks: u64,
    balancer: String,
    /// Whether the node has said so itself.
    asked: bool,
    /// How many it would give away; of very many it names only the first.
    planned: usize,
    gives: Vec<PlannedRelease>,
}

#[derive(Serialize)]
struct PlannedRelease {
    task: String,
    why: String,
}

/// Says what a node, or each of them, would give away: by the balancer that was chosen, or else by its own.
pub(super) async fn plan(
    node: Option<&NodeId>,
    (choice, within): (Option<PlanBalancer>, Duration),
    client: &Client,
    namespace: &Namespace,
    output: &Output,
) -> Result<(), Failure> {
    let parts = [ClusterPart::Members, ClusterPart::Tasks];
    let mut snapshot = SnapshotRequest::new(client.store(), namespace).parts(parts).await?;
    if let Some(id) = node {
        let member = snapshot.members.get(id).ok_or_else(|| not_there(id))?;
        if !snapshot.takes_tasks(id) {
            let message = format!(
                "node '{id}' is {}: it takes no tasks, so it does not balance",
                state_of(&snapshot, member)
            );
            return Err(Failure::new(Code::Conflict, message).hint(format!("see `tenure node show {id}`")));
        }
    }
    let loads = worker_loads(&mut snapshot);
    let (board, revision) = (&snapshot.tasks, snapshot.revision);
    let chosen = loads.iter().filter(|(id, _)| node.is_none_or(|node| node == *id));
    let planned = chosen.map(async |(id, load)| {
        let answers = snapshot.members.get(id).is_some_and(|member| member.record.balancer.is_some());
        match choice {
            None if answers => request_plan(id, load.tasks, within, client).await,
            choice => Ok(compute_plan(id, load.tasks, choice.unwrap_or_default(), board, &loads)),
        }
    });
    let (mut nodes, mut failed) = (Vec::new(), None);
    for planned in join_all(planned).await {
        match planned {
            Ok(planned) => nodes.push(planned),
            Err(failure) if node.is_some() => return Err(failure),
            // What the others say is worth knowing all the same.
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }
    let answer = PlanReport {
        schema: SCHEMA,
        dry_run: true,
        balancer: common_balancer(&nodes),
        nodes,
        revision: revision.to_string(),
    };
    show(answer, output)?;
    failed.map_or(Ok(()), Err)
}

/// Asks a node.
async fn request_plan(
    id: &NodeId,
    tasks: u64,
    within: Duration,
    client: &Client,
) -> Result<NodePlan, Failure> {
    let word = "a dry run";
    let instead = |failure: Failure| {
        failure
            .hint(format!("compute it from outside with `tenure node balance {id} --dry-run --balance fair`"))
    };
    let sent = send(id, Command::Balance(BalanceMode::DryRun), client).await?;
    let handled = sent.wait(within).await.map_err(|error| instead(no_reply(id, word, error)))?;
    let handled = acknowledged(&format!("{word} of node '{id}'"), handled).map_err(instead)?;
    let told = &handled.record.unknown;
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or("-").to_owned();
    let partings = told.get("plan").and_then(Value::as_array);
    let gives: Vec<PlannedRelease> = partings
        .into_iter()
        .flatten()
        .map(|parting| PlannedRelease { task: text(parting, "task"), why: text(parting, "why") })
        .collect();
    let planned = told.get("planned").and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok());
    let balancer = told.get("balancer").and_then(Value::as_str).unwrap_or("-").to_owned();
    Ok(NodePlan {
        id: id.to_string(),
        tasks,
        balancer,
        asked: true,
        planned: planned.unwrap_or(gives.len()),
        gives,
    })
}

/// Computes it here.
fn compute_plan(
    id: &NodeId,
    tasks: u64,
    choice: PlanBalancer,
    board: &Board,
    loads: &WorkerLoads,
) -> NodePlan {
    let gives: Vec<PlannedRelease> = releases_of(id, choice, board, loads)
        .into_iter()
        .map(|parting| PlannedRelease { task: parting.task.to_string(), why: parting.reason.to_string() })
        .collect();
    let balancer = choice.balancer().name().to_owned();
    NodePlan { id: id.to_string(), tasks, balancer, asked: false, planned: gives.len(), gives }
}

/// The balancer that all nodes go by.
fn common_balancer(nodes: &[NodePlan]) -> Option<String> {
    let first = &nodes.first()?.balancer;
    nodes.iter().all(|node| node.balancer == *first).then(|| first.clone())
}

fn show(answer: PlanReport, output: &Output) -> Result<(), Failure> {
    if output.is_json {
        return output.object(&answer);
    }
    let count: usize = answer.nodes.iter().map(|node| node.planned).sum();
    let by = match &answer.balancer {
        Some(balancer) => format!("the balancer '{balancer}'"),
        None => "their own balancers".to_owned(),
    };
    output.note(&format!(
        "by {by} {count} tasks would be given away; nodes do that a few at a time, and nothing was done now"
    ));
    for node in answer.nodes.iter().filter(|node| node.planned > node.gives.len()) {
        output.note(&format!(
            "node '{}' names only the first {} of {}",
            node.id,
            node.gives.len(),
            node.planned
        ));
    }
    let rows: Vec<Vec<String>> = answer
        .nodes
        .into_iter()
        .flat_map(|node| {
            let NodePlan { id, gives, .. } = node;
            gives.into_iter().map(move |given| vec![id.clone(), given.task, given.why])
        })
        .collect();
    output.table(&["node", "gives", "why"], &rows)
}

/// The nodes that take tasks, with what they have and accept. Classifies the tasks of the board by that.
fn worker_loads(snapshot: &mut ClusterSnapshot) -> WorkerLoads {
    let mut crowd = WorkerLoads::new();
    for node in snapshot.members.members().iter().filter(|node| snapshot.takes_tasks(&node.id)) {
        crowd.set(&node.id, snapshot.tasks.load_of(&node.id), Moment::ORIGIN);
        crowd.set_terms(&node.id, &WorkerTerms::of(&node.record));
    }
    snapshot.tasks.classify(crowd.profiles());
    crowd
}

fn releases_of(me: &NodeId, choice: PlanBalancer, board: &Board, loads: &WorkerLoads) -> Vec<Release> {
    let mut own = OwnedTasks::new();
    for (task, card) in board.tasks() {
        let Some(owner) = card.owner.as_ref().filter(|owner| owner.node() == Some(me)) else { continue };
        let kind = card.record.as_ref().ok().and_then(|record| record.kind.clone());
        let since = Moment::from_ms(u64::try_from(owner.token.0.0).unwrap_or_default());
        own.insert(
            task.clone(),
            OwnedTask { kind, weight: card.weight(), class: card.class, cost: 0, since },
        );
    }
    let (cooldowns, claiming) = (Cooldowns::new(), Demand::default());
    let cluster = ClusterLoad {
        me,
        workers: loads,
        unowned: board.demand(),
        claiming: &claiming,
        own: &own,
        cooldowns: &cooldowns,
        resource: None,
        is_releasing: false,
        now: Moment::ORIGIN,
    };
    planned_releases(choice.balancer().as_mut(), &cluster)
}
