//! `tenure node`: lists nodes and their tasks, and sends them commands.

mod command;
mod drain;
mod list;
mod plan;

use clap::{Args, Subcommand};
use tenure::Tenure;
use tenure::member::Member;
use tenure::snapshot::ClusterSnapshot;
use tenure_core::command::{BalanceMode, NodeCommand as Command};
use tenure_core::id::{Namespace, NodeId, TaskId};
use tenure_core::layout::Layout;
use tenure_core::record::{MemberState, Timestamp};

use crate::failure::{Code, Failure};
use crate::output::Output;
use crate::task::{TimeoutArgs, parse, parse_node};

/// The `schema` of JSON output about nodes.
const SCHEMA: &str = "tenure.node/v1";

/// The verbs. A node handles its commands in the order in which they were sent. Each verb waits until the node acknowledges.
#[derive(Subcommand, Debug)]
pub(crate) enum NodeCommand {
    /// List the live nodes, all at one revision.
    #[command(alias = "list")]
    Ls,
    /// Show a live node and its tasks; exit 3 if the node is not alive.
    #[command(aliases = ["get", "describe"])]
    Show(NodeArgs),
    /// Stop a node from claiming tasks, also after a restart. It keeps the tasks that it owns.
    Freeze(NodeCommandArgs),
    /// Let a node claim tasks again, also one that is not alive.
    Unfreeze(NodeCommandArgs),
    /// Run a node's balancer now, which may release tasks to other nodes.
    Balance(BalanceArgs),
    /// Make a node release all its tasks and leave; prints how many are left, and ends when the node has left. A node that later starts with
    /// this id claims tasks again, unless --stay-frozen is given.
    Drain(drain::DrainArgs),
    /// Make a node release one of its tasks to another node.
    ReleaseTask(TaskOfArgs),
    /// Make a node stop one of its tasks; any node may claim it next.
    StopTask(TaskOfArgs),
}

#[derive(Args, Debug)]
pub(crate) struct NodeArgs {
    /// The node's id.
    id: String,
}

#[derive(Args, Debug)]
pub(crate) struct NodeCommandArgs {
    /// The node's id.
    id: String,
    #[command(flatten)]
    timeout: TimeoutArgs,
}

#[derive(Args, Debug)]
pub(crate) struct TaskOfArgs {
    /// The node's id.
    id: String,
    /// The task's id.
    task: String,
    #[command(flatten)]
    timeout: TimeoutArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BalanceArgs {
    /// The node's id; with --dry-run, every node if it is left out.
    #[arg(required_unless_present = "dry_run")]
    id: Option<String>,
    /// Print which tasks would be released, and why, and release none. Each node computes this with its own balancer.
    #[arg(long, conflicts_with = "no_wait")]
    dry_run: bool,
    /// Compute the dry run in this process with this balancer, instead of sending it to the nodes.
    #[arg(long, value_enum, value_name = "NAME", requires = "dry_run")]
    balance: Option<plan::PlanBalancer>,
    #[command(flatten)]
    timeout: TimeoutArgs,
}

/// Checks the arguments before a store is opened.
pub(crate) fn check(command: &NodeCommand) -> Result<(), Failure> {
    match command {
        NodeCommand::Ls => Ok(()),
        NodeCommand::Show(args) => parse_node(&args.id).map(drop),
        NodeCommand::Freeze(args) | NodeCommand::Unfreeze(args) => parse_node(&args.id).map(drop),
        NodeCommand::Balance(args) => args.id.iter().try_for_each(|id| parse_node(id).map(drop)),
        NodeCommand::Drain(args) => parse_node(&args.id).map(drop),
        NodeCommand::ReleaseTask(args) | NodeCommand::StopTask(args) => args.names().map(drop),
    }
}

impl TaskOfArgs {
    fn names(&self) -> Result<(NodeId, TaskId), Failure> {
        Ok((parse_node(&self.id)?, parse(&self.task)?))
    }
}

/// Runs a verb.
pub(crate) async fn run(
    command: &NodeCommand,
    tenure: &Tenure,
    namespace: &Namespace,
    output: &Output,
) -> Result<(), Failure> {
    let layout = Layout::new(namespace);
    let store = tenure.store();
    let send = async |id: &str, command: Command, timeout: &TimeoutArgs| {
        command::send_and_wait(&parse_node(id)?, command, timeout.within(), tenure, output).await
    };
    match command {
        NodeCommand::Ls => list::list(store, namespace, output).await,
        NodeCommand::Show(args) => list::show(&parse_node(&args.id)?, store, namespace, output).await,
        NodeCommand::Freeze(args) => send(&args.id, Command::Freeze, &args.timeout).await,
        NodeCommand::Unfreeze(args) => {
            command::unfreeze(&parse_node(&args.id)?, args.timeout.within(), tenure, output).await
        }
        NodeCommand::Balance(args) => match &args.id {
            Some(id) if !args.dry_run => send(id, Command::Balance(BalanceMode::Act), &args.timeout).await,
            id => {
                let node = id.as_deref().map(parse_node).transpose()?;
                let within = args.timeout.within().unwrap_or_default();
                plan::plan(node.as_ref(), (args.balance, within), tenure, namespace, output).await
            }
        },
        NodeCommand::Drain(args) => drain::drain(&parse_node(&args.id)?, args, tenure, &layout, output).await,
        NodeCommand::ReleaseTask(args) => {
            let (_, task) = args.names()?;
            send(&args.id, Command::ReleaseTask(task), &args.timeout).await
        }
        NodeCommand::StopTask(args) => {
            let (_, task) = args.names()?;
            send(&args.id, Command::StopTask(task), &args.timeout).await
        }
    }
}

/// A stored time as text. `None` for a record without one, as other writers of this layout leave it.
pub(crate) fn format_time(time: Timestamp) -> Option<String> {
    (time != Timestamp::default()).then(|| time.to_string())
}

/// The state of a node as tables show it: a frozen node is shown as frozen, not as ready.
fn state_of(snapshot: &ClusterSnapshot, node: &Member) -> String {
    match (node.record.state, snapshot.frozen.get(&node.id)) {
        (MemberState::Ready, Some(frozen)) => frozen.to_string(),
        (state, _) => state.as_str().to_owned(),
    }
}

/// The failure for a node that is not alive.
fn not_alive(id: &NodeId) -> Failure {
    Failure::new(Code::NotFound, format!("node '{id}' is not alive"))
        .hint("list the live nodes with `tenure node ls`")
}
