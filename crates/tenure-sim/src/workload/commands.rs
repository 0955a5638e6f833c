//! Commands to tasks: sent by one whom faults hit too, and waited for.

use std::time::Duration;

use tenure::client::{Client, TaskFilter};
use tenure::clock::wall_time;
use tenure_core::id::TaskId;
use tenure_core::record::Timestamp;
use tenure_core::task::TaskMessage;

use super::Stage;
use crate::cast::{Player, namespace};
use crate::dice::Dice;
use crate::history::Fact;

/// How long a sender waits: longer than any day here.
const WAIT: Duration = Duration::from_secs(3_600);

/// Somebody commands all day.
pub fn begin(stage: &Stage, player: &Player, dice: &mut Dice) {
    let (stage_of_one, player, dice) = (stage.clone(), player.clone(), dice.split());
    stage.act(async move { command(stage_of_one, player, dice).await });
}

async fn command(stage: Stage, player: Player, mut dice: Dice) {
    let client = Client::new(player.store.clone(), &namespace());
    loop {
        player.rest(dice.ms(500, 4_000)).await;
        let Ok(listing) = client.tasks(&TaskFilter::new()).await else { continue };
        player.awake().await;
        if listing.tasks.is_empty() {
            continue;
        }
        let task = dice.pick(&listing.tasks).id.clone();
        let message = match dice.below(10) {
            0..3 => TaskMessage::Pause,
            3..6 => TaskMessage::Run,
            6 => TaskMessage::Sleep { until: Timestamp(wall_time().0 + dice.between(1, 3_000)) },
            7 => TaskMessage::Kill { reason: None },
            8 => TaskMessage::Checkpoint { blob: None },
            _ => TaskMessage::Release,
        };
        send(&stage, &player.name, &client, &task, message).await;
    }
}

/// Sends a command, and waits for what comes of it beside everything else.
pub async fn send(stage: &Stage, who: &str, client: &Client, task: &TaskId, message: TaskMessage) {
    let what = format!("{:?} to {task}", message.kind());
    let sent = match client.command(task, message).await {
        Ok(sent) => sent,
        Err(error) => {
            stage.cast.history.remark(format!("{what} was not sent: {error}"));
            return;
        }
    };
    let command = sent.id().to_string();
    stage.cast.history.note(Fact::Sent { command: command.clone(), who: who.to_owned(), what });
    let history = stage.cast.history.clone();
    stage.act(async move {
        let outcome = match sent.wait(WAIT).await {
            Ok(handled) => handled.outcome.as_str().to_owned(),
            Err(error) => format!("unknown: {error}"),
        };
        history.note(Fact::Handled { command, outcome });
    });
}
