//! Commands to nodes: sent by somebody whom no fault hits, and waited for.

use std::time::Duration;

use tenure::client::{Client, TaskFilter};
use tenure_core::command::{AfterDrain, BalanceMode, NodeCommand};
use tenure_core::id::NodeId;
use tenure_core::layout::Key;

use super::Stage;
use crate::cast::namespace;
use crate::dice::Dice;
use crate::history::Fact;

/// How long a sender waits: longer than any day here.
const WAIT: Duration = Duration::from_secs(3_600);

/// Somebody orders nodes about for this long: what is sent last has to be answered before the day ends.
pub fn begin(stage: &Stage, dice: &mut Dice, within: Duration) {
    let (stage_of_one, dice) = (stage.clone(), dice.split());
    stage.act(async move { order(stage_of_one, dice, within).await });
}

async fn order(stage: Stage, mut dice: Dice, within: Duration) {
    let client = Client::new(stage.onlooker.clone(), &namespace());
    while stage.cast.world.elapsed() < within {
        tokio::time::sleep(dice.ms(500, 6_000)).await;
        let nodes = client.nodes().await.expect("the onlooker reaches the store");
        if nodes.members().is_empty() {
            continue;
        }
        let node = dice.pick(nodes.members()).id.clone();
        let listing = client.tasks(&TaskFilter::new().node(node.clone())).await;
        let tasks = listing.expect("the onlooker reaches the store").tasks;
        let command = match dice.below(10) {
            0..2 => NodeCommand::Freeze,
            2..4 => NodeCommand::Unfreeze,
            4 => NodeCommand::Balance(BalanceMode::Act),
            5 => NodeCommand::Drain(AfterDrain::TakeTasks),
            6..8 if !tasks.is_empty() => NodeCommand::StopTask(dice.pick(&tasks).id.clone()),
            8.. if !tasks.is_empty() => NodeCommand::ReleaseTask(dice.pick(&tasks).id.clone()),
            _ => NodeCommand::Balance(BalanceMode::DryRun),
        };
        send(&stage, &client, &node, command).await;
    }
}

/// Sends a command, and waits for what comes of it beside everything else.
async fn send(stage: &Stage, client: &Client, node: &NodeId, command: NodeCommand) {
    let what = format!("{} to {node}", command.as_str());
    let sent = match client.command_node(node, command).await {
        Ok(sent) => sent,
        Err(error) => {
            stage.cast.history.remark(format!("{what} was not sent: {error}"));
            return;
        }
    };
    let command = sent.id().to_string();
    // Whoever lives at the end has to have answered: the node.
    stage.cast.history.note(Fact::Sent { command: command.clone(), who: node.to_string(), what });
    let history = stage.cast.history.clone();
    stage.act(async move {
        let outcome = match sent.wait(WAIT).await {
            Ok(handled) => handled.outcome.as_str().to_owned(),
            Err(error) => format!("nothing: {error}"),
        };
        history.note(Fact::Handled { command, outcome });
    });
}

/// Lets all nodes take tasks again.
pub async fn thaw(stage: &Stage, client: &Client) {
    let page = stage.onlooker.list(stage.layout.everything()).await.expect("the onlooker reaches the store");
    let nodes = client.nodes().await.expect("the onlooker reaches the store");
    for pair in page.pairs {
        if let Some(Key::Frozen(node)) = stage.layout.parse(&pair.key)
            && nodes.members().iter().any(|member| member.id == node)
        {
            send(stage, client, &node, NodeCommand::Unfreeze).await;
        }
    }
}
