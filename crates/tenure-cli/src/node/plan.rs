//! `node balance --dry-run`: what nodes would give away, computed here from the same picture by the same rules.
//!
//! Nothing is sent to anybody, so it also works while nodes do not answer. What only a node knows is missing: what it has just given away, how much of
//! a resource it uses, and since when it has what; the tokens of its claims are in the same order.

use clap::ValueEnum;
use serde::Serialize;
use tenure::core::balance::{
    AcceptAll, Balancer, Cooling, Crowd, Fair, Held, Holdings, Loads, Parting, Rendezvous, Weighted, partings,
};
use tenure::core::board::Board;
use tenure::core::layout::Layout;
use tenure::core::name::NodeId;
use tenure::core::time::Moment;
use tenure::store::Store;

use super::{SCHEMA, not_there};
use crate::company::{Company, Picture};
use crate::failure::{Code, Failure};
use crate::output::Output;

/// A balancer that can be computed with from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Choice {
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

impl Choice {
    fn balancer(self) -> Box<dyn Balancer> {
        match self {
            Choice::Fair => Box::new(Fair::default()),
            Choice::Weighted => Box::new(Weighted::default()),
            Choice::Rendezvous => Box::new(Rendezvous::default()),
            Choice::All => Box::new(AcceptAll),
        }
    }
}

#[derive(Serialize)]
struct Answer {
    schema: &'static str,
    dry_run: bool,
    balancer: &'static str,
    nodes: Vec<Planned>,
    revision: String,
}

#[derive(Serialize)]
struct Planned {
    id: String,
    tasks: u64,
    gives: Vec<Given>,
}

#[derive(Serialize)]
struct Given {
    task: String,
    why: String,
}

pub(super) async fn plan(
    node: Option<&NodeId>,
    choice: Choice,
    store: &Store,
    layout: &Layout,
    output: &Output,
) -> Result<(), Failure> {
    let Picture { board, company, revision } = Picture::take(store, layout).await?;
    if let Some(id) = node {
        let member = company.members.get(id).ok_or_else(|| not_there(id))?;
        if !company.is_willing(member) {
            let message = format!(
                "node '{id}' is {}: it takes no tasks, so it does not balance",
                company.state_of(member)
            );
            return Err(Failure::new(Code::Conflict, message).hint(format!("see `tenure node show {id}`")));
        }
    }
    let willing = willing(&board, &company);
    let chosen = willing.iter().filter(|(id, _)| node.is_none_or(|node| node == *id));
    let planned = chosen.map(|(id, load)| {
        let gives = partings_of(id, choice, &board, &willing).into_iter();
        let gives =
            gives.map(|parting| Given { task: parting.task.to_string(), why: parting.why.to_string() });
        Planned { id: id.to_string(), tasks: load.tasks, gives: gives.collect() }
    });
    let nodes: Vec<Planned> = planned.collect();
    let balancer = choice.balancer().name();
    if output.is_json {
        let revision = revision.to_string();
        return output.object(&Answer { schema: SCHEMA, dry_run: true, balancer, nodes, revision });
    }
    let count: usize = nodes.iter().map(|node| node.gives.len()).sum();
    output.note(&format!(
        "by the balancer '{balancer}' {count} tasks would be given away; nodes do that a few at a time, and nothing was done now"
    ));
    let rows: Vec<Vec<String>> = nodes
        .into_iter()
        .flat_map(|node| {
            let Planned { id, gives, .. } = node;
            gives.into_iter().map(move |given| vec![id.clone(), given.task, given.why])
        })
        .collect();
    output.table(&["node", "gives", "why"], &rows)
}

/// Those who take tasks, with what they have.
fn willing(board: &Board, company: &Company) -> Crowd {
    let mut crowd = Crowd::new();
    for node in company.members.members().iter().filter(|node| company.is_willing(node)) {
        crowd.set(&node.id, board.load_of(&node.id), Moment::ORIGIN);
    }
    crowd
}

fn partings_of(me: &NodeId, choice: Choice, board: &Board, willing: &Crowd) -> Vec<Parting> {
    let mut own = Holdings::new();
    for (task, card) in board.tasks() {
        let Some(owner) = card.owner.as_ref().filter(|owner| owner.node() == Some(me)) else { continue };
        let kind = card.record.as_ref().ok().and_then(|record| record.kind.clone());
        let since = Moment::from_ms(u64::try_from(owner.token.0.0).unwrap_or_default());
        own.insert(task.clone(), Held { kind, weight: card.weight(), cost: 0, since });
    }
    let cooling = Cooling::new();
    let loads = Loads {
        me,
        willing,
        unowned: board.unowned_load(),
        own: &own,
        cooling: &cooling,
        resource: None,
        is_giving: false,
        now: Moment::ORIGIN,
    };
    partings(choice.balancer().as_mut(), &loads)
}
