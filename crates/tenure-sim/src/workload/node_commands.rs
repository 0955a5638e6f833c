//! Commands to nodes: sent by a client that no fault hits, and awaited.

use std::time::Duration;

use tenure_core::command::{AfterDrain, BalanceMode, NodeCommand};
use tenure_core::id::NodeId;
use tenure_core::layout::Key;

use super::WorkloadContext;
use crate::history::Fact;
use crate::rng::SimRng;

/// How long a sender waits: longer than any run.
const WAIT: Duration = Duration::from_secs(3_600);

/// Sends commands to nodes for this long: the last one has to be answered before the run ends.
pub fn begin(context: &WorkloadContext, rng: &mut SimRng, within: Duration) {
    let (own_context, rng) = (context.clone(), rng.split());
    context.act(async move { order(own_context, rng, within).await });
}

async fn order(context: WorkloadContext, mut rng: SimRng, within: Duration) {
    let tenure = context.tenure.clone();
    while context.processes.world.elapsed() < within {
        tokio::time::sleep(rng.ms(500, 6_000)).await;
        let nodes = tenure.members().list().await.expect("the observer reaches the store");
        if nodes.members().is_empty() {
            continue;
        }
        let node = rng.pick(nodes.members()).id.clone();
        let listing = tenure.tasks().owner(node.clone()).list().await;
        let tasks = listing.expect("the observer reaches the store").tasks;
        let command = match rng.below(10) {
            0..2 => NodeCommand::Freeze,
            2..4 => NodeCommand::Unfreeze,
            4 => NodeCommand::Balance(BalanceMode::Act),
            5 => NodeCommand::Drain(AfterDrain::TakeTasks),
            6..8 if !tasks.is_empty() => NodeCommand::StopTask(rng.pick(&tasks).id.clone()),
            8.. if !tasks.is_empty() => NodeCommand::ReleaseTask(rng.pick(&tasks).id.clone()),
            _ => NodeCommand::Balance(BalanceMode::DryRun),
        };
        send(&context, &node, command).await;
    }
}

/// Sends a command, and waits for its result in the background.
async fn send(context: &WorkloadContext, node: &NodeId, command: NodeCommand) {
    let what = format!("{} to {node}", command.as_str());
    let sent = match context.tenure.node(node).command(command).no_reply().await {
        Ok(sent) => sent,
        Err(error) => {
            context.processes.history.remark(format!("{what} was not sent: {error}"));
            return;
        }
    };
    let command = sent.id().to_string();
    // The node that is alive at the end must have answered.
    context.processes.history.note(Fact::Sent { command: command.clone(), process: node.to_string(), what });
    let history = context.processes.history.clone();
    context.act(async move {
        let outcome = match sent.reply().timeout(WAIT).await {
            Ok(handled) => handled.outcome.as_str().to_owned(),
            Err(error) => format!("nothing: {error}"),
        };
        history.note(Fact::Handled { command, outcome });
    });
}

/// Lets all nodes take tasks again.
pub async fn thaw(context: &WorkloadContext) {
    let page =
        context.observer.list(context.layout.everything()).await.expect("the observer reaches the store");
    let nodes = context.tenure.members().list().await.expect("the observer reaches the store");
    for pair in page.pairs {
        if let Some(Key::Frozen(node)) = context.layout.parse(&pair.key)
            && nodes.members().iter().any(|member| member.id == node)
        {
            send(context, &node, NodeCommand::Unfreeze).await;
        }
    }
}
