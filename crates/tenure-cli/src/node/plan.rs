//! `node balance --dry-run`: which tasks nodes would release.
//!
//! A node that publishes the name of its balancer computes the plan itself. Only the node knows its recent releases, its resource use and the age of its
//! claims, and its balancer may be a user's own.
//! For any other node, and for `--balance`, this process computes the plan from a snapshot by the same rules. The tokens of claims then replace
//! their age, and no command is sent.

use std::time::Duration;

use clap::ValueEnum;
use futures_util::future::join_all;
use serde::Serialize;
use tenure::Tenure;
use tenure::snapshot::{ClusterPart, ClusterSnapshot, SnapshotRequest};
use tenure::worker::RebalancePlan;
use tenure_core::balance::{
    AcceptAll, Balancer, ClusterLoad, Cooldowns, Demand, Fair, OwnedTask, OwnedTasks, Release, Rendezvous,
    Weighted, WorkerLoads, WorkerTerms, planned_releases,
};
use tenure_core::board::Board;
use tenure_core::command::{BalanceMode, NodeCommand as Command};
use tenure_core::id::{Namespace, NodeId};
use tenure_core::time::Moment;

use super::command::{no_reply, send};
use super::{SCHEMA, not_alive, state_of};
use crate::failure::{Code, Failure};
use crate::output::Output;
use crate::task::acknowledged;

/// A balancer that this process can run for another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum PlanBalancer {
    /// An equal number of tasks on every node.
    #[default]
    Fair,
    /// An equal weight of tasks on every node.
    Weighted,
    /// Each task on the node that rendezvous hashing chooses for its id.
    Rendezvous,
    /// No task is ever released.
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
    /// The balancer of all nodes; null if they differ.
    balancer: Option<String>,
    nodes: Vec<NodePlan>,
    revision: String,
}

#[derive(Serialize)]
struct NodePlan {
    id: String,
    tasks: u64,
    balancer: String,
    /// Whether the node computed the plan itself.
    asked: bool,
    /// How many tasks it would release; of very many it names only the first.
    planned: usize,
    gives: Vec<PlannedRelease>,
}

#[derive(Serialize)]
struct PlannedRelease {
    task: String,
    why: String,
}

/// Prints which tasks a node, or every node, would release: by the chosen balancer, or else by its own.
pub(super) async fn plan(
    node: Option<&NodeId>,
    (choice, within): (Option<PlanBalancer>, Duration),
    tenure: &Tenure,
    namespace: &Namespace,
    output: &Output,
) -> Result<(), Failure> {
    let parts = [ClusterPart::Members, ClusterPart::Tasks];
    let mut snapshot = SnapshotRequest::new(tenure.store(), namespace).parts(parts).await?;
    if let Some(id) = node {
        let member = snapshot.members.get(id).ok_or_else(|| not_alive(id))?;
        if !snapshot.takes_tasks(id) {
            let message = format!(
                "node '{id}' is {}: it claims no tasks, so it does not balance",
                state_of(&snapshot, member)
            );
            return Err(Failure::new(Code::Conflict, message).hint(format!("see `tenure node show {id}`")));
        }
    }
    let loads = worker_loads(&mut snapshot);
    let (board, revision) = (&snapshot.tasks, snapshot.revision);
    let chosen = loads.iter().filter(|(id, _)| node.is_none_or(|node| node == *id));
    let planned = chosen.map(async |(id, load)| {
        let publishes = snapshot.members.get(id).is_some_and(|member| member.record.balancer.is_some());
        match choice {
            None if publishes => request_plan(id, load.tasks, within, tenure).await,
            choice => Ok(compute_plan(id, load.tasks, choice.unwrap_or_default(), board, &loads)),
        }
    });
    let (mut nodes, mut failed) = (Vec::new(), None);
    for planned in join_all(planned).await {
        match planned {
            Ok(planned) => nodes.push(planned),
            Err(failure) if node.is_some() => return Err(failure),
            // The plans of the other nodes are printed before the failure.
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }
    let report = PlanReport {
        schema: SCHEMA,
        dry_run: true,
        balancer: common_balancer(&nodes),
        nodes,
        revision: revision.to_string(),
    };
    show(report, output)?;
    failed.map_or(Ok(()), Err)
}

/// Requests the plan from a node.
async fn request_plan(
    id: &NodeId,
    tasks: u64,
    within: Duration,
    tenure: &Tenure,
) -> Result<NodePlan, Failure> {
    let name = "a dry run";
    let instead = |failure: Failure| {
        failure.hint(format!(
            "compute the plan in this process with `tenure node balance {id} --dry-run --balance fair`"
        ))
    };
    let sent = send(id, Command::Balance(BalanceMode::DryRun), tenure).await?;
    let handled = sent.reply().timeout(within).await.map_err(|error| instead(no_reply(id, name, error)))?;
    let handled = acknowledged(&format!("{name} of node '{id}'"), handled).map_err(instead)?;
    let RebalancePlan { balancer, planned, releases, .. } = RebalancePlan::read(&handled);
    let gives =
        releases.into_iter().map(|release| PlannedRelease { task: release.task, why: release.reason });
    let gives: Vec<PlannedRelease> = gives.collect();
    Ok(NodePlan { id: id.to_string(), tasks, balancer, asked: true, planned, gives })
}

/// Computes the plan in this process.
fn compute_plan(
    id: &NodeId,
    tasks: u64,
    choice: PlanBalancer,
    board: &Board,
    loads: &WorkerLoads,
) -> NodePlan {
    let gives: Vec<PlannedRelease> = releases_of(id, choice, board, loads)
        .into_iter()
        .map(|release| PlannedRelease { task: release.task.to_string(), why: release.reason.to_string() })
        .collect();
    let balancer = choice.balancer().name().to_owned();
    NodePlan { id: id.to_string(), tasks, balancer, asked: false, planned: gives.len(), gives }
}

/// The balancer of all nodes, if they have the same.
fn common_balancer(nodes: &[NodePlan]) -> Option<String> {
    let first = &nodes.first()?.balancer;
    nodes.iter().all(|node| node.balancer == *first).then(|| first.clone())
}

fn show(report: PlanReport, output: &Output) -> Result<(), Failure> {
    if output.is_json {
        return output.object(&report);
    }
    let count: usize = report.nodes.iter().map(|node| node.planned).sum();
    let by = match &report.balancer {
        Some(balancer) => format!("the balancer '{balancer}'"),
        None => "their own balancers".to_owned(),
    };
    output.note(&format!("by {by}, {count} tasks would be released, a few at a time; none was released now"));
    for node in report.nodes.iter().filter(|node| node.planned > node.gives.len()) {
        output.note(&format!(
            "node '{}' names only the first {} of {}",
            node.id,
            node.gives.len(),
            node.planned
        ));
    }
    let rows: Vec<Vec<String>> = report
        .nodes
        .into_iter()
        .flat_map(|node| {
            let NodePlan { id, gives, .. } = node;
            gives.into_iter().map(move |given| vec![id.clone(), given.task, given.why])
        })
        .collect();
    output.table(&["node", "gives", "why"], &rows)
}

/// The load of every node that claims tasks, with the kinds and labels that it accepts. Classifies the tasks of the board by these.
fn worker_loads(snapshot: &mut ClusterSnapshot) -> WorkerLoads {
    let mut loads = WorkerLoads::new();
    for node in snapshot.members.members().iter().filter(|node| snapshot.takes_tasks(&node.id)) {
        loads.set(&node.id, snapshot.tasks.load_of(&node.id), Moment::ORIGIN);
        loads.set_terms(&node.id, &WorkerTerms::of(&node.record));
    }
    snapshot.tasks.classify(loads.profiles());
    loads
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
