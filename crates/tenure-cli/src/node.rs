//! `tenure node`: which nodes are alive, what they have, and telling them something.

mod command;
mod drain;
mod list;
mod plan;

use clap::{Args, Subcommand};
use tenure::client::Client;
use tenure::member::Member;
use tenure::snapshot::ClusterSnapshot;
use tenure_core::command::{BalanceMode, NodeCommand as Command};
use tenure_core::id::{Namespace, NodeId, TaskId};
use tenure_core::layout::Layout;
use tenure_core::record::{MemberState, Timestamp};

use crate::failure::{Code, Failure};
use crate::output::Output;
use crate::task::{TimeoutArgs, parse, parse_node};

/// What `--json` answers to these verbs carry as `schema`.
const SCHEMA: &str = "tenure.node/v1";

/// The verbs. Commands go to the node itself, which handles them one after the other, and wait until it has acknowledged them.
#[derive(Subcommand, Debug)]
pub(crate) enum NodeCommand {
    /// List the nodes that are alive, all at one revision.
    #[command(alias = "list")]
    Ls,
    /// Show a node and its tasks; exit 3 if it is not alive.
    #[command(aliases = ["get", "describe"])]
    Show(NodeArgs),
    /// Let a node take no new tasks, also after a restart. What it has it keeps.
    Freeze(NodeCommandArgs),
    /// Let a node take new tasks again, also one that is not alive.
    Unfreeze(NodeCommandArgs),
    /// Have a node look now whether others should have some of its tasks.
    Balance(BalanceArgs),
    /// Have a node give all its tasks away and leave; shows how many are left, and ends when the node is empty and gone. A node that starts with
    /// this id later takes tasks again, unless --stay-frozen.
    Drain(drain::DrainArgs),
    /// Have a node give one of its tasks to another.
    ReleaseTask(TaskOfArgs),
    /// Have a node stop running one of its tasks; who runs it next is open.
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
    /// The node's id; with --dry-run all nodes if none is given.
    #[arg(required_unless_present = "dry_run")]
    id: Option<String>,
    /// Say what would be given away, and why, and give nothing away. Each node is asked, and answers by its own balancer.
    #[arg(long, conflicts_with = "no_wait")]
    dry_run: bool,
    /// Compute a dry run here, by this balancer, instead of asking the nodes.
    #[arg(long, value_enum, value_name = "NAME", requires = "dry_run")]
    balance: Option<plan::PlanBalancer>,
    #[command(flatten)]
    timeout: TimeoutArgs,
}

/// Refuses what is wrong whatever the store holds.
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
    client: &Client,
    namespace: &Namespace,
    output: &Output,
) -> Result<(), Failure> {
    let layout = Layout::new(namespace);
    let store = client.store();
    let send = async |id: &str, order: Command, timeout: &TimeoutArgs| {
        command::send_and_wait(&parse_node(id)?, order, timeout.within(), client, output).await
    };
    match command {
        NodeCommand::Ls => list::list(store, namespace, output).await,
        NodeCommand::Show(args) => list::show(&parse_node(&args.id)?, store, namespace, output).await,
        NodeCommand::Freeze(args) => send(&args.id, Command::Freeze, &args.timeout).await,
        NodeCommand::Unfreeze(args) => {
            command::unfreeze(&parse_node(&args.id)?, args.timeout.within(), client, output).await
        }
        NodeCommand::Balance(args) => match &args.id {
            Some(id) if !args.dry_run => send(id, Command::Balance(BalanceMode::Act), &args.timeout).await,
            id => {
                let node = id.as_deref().map(parse_node).transpose()?;
                let within = args.timeout.within().unwrap_or_default();
                plan::plan(node.as_ref(), (args.balance, within), client, namespace, output).await
            }
        },
        NodeCommand::Drain(args) => drain::drain(&parse_node(&args.id)?, args, client, &layout, output).await,
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

/// A time, if there is one: other writers of this layout say none.
pub(crate) fn format_time(time: Timestamp) -> Option<String> {
    (time != Timestamp::default()).then(|| time.to_string())
}

/// The state of a node, for people: one that is frozen says so.
fn state_of(snapshot: &ClusterSnapshot, node: &Member) -> String {
    match (node.record.state, snapshot.frozen.get(&node.id)) {
        (MemberState::Ready, Some(frozen)) => frozen.to_string(),
        (state, _) => state.as_str().to_owned(),
    }
}

/// The node is not alive.
fn not_there(id: &NodeId) -> Failure {
    Failure::new(Code::NotFound, format!("no node '{id}' is alive"))
        .hint("list those that are with `tenure node ls`")
}
