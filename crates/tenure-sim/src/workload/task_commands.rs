//! Commands to tasks: sent by a process that faults hit too, and awaited.

use std::time::Duration;

use tenure::Tenure;
use tenure::clock::wall_time;
use tenure_core::id::TaskId;
use tenure_core::record::Timestamp;
use tenure_core::task::TaskMessage;

use super::WorkloadContext;
use crate::history::Fact;
use crate::processes::{SimProcess, namespace};
use crate::rng::SimRng;

/// How long a sender waits: longer than any run.
const WAIT: Duration = Duration::from_secs(3_600);

/// The process sends commands for the whole run.
pub fn begin(context: &WorkloadContext, process: &SimProcess, rng: &mut SimRng) {
    let (own_context, process, rng) = (context.clone(), process.clone(), rng.split());
    context.act(async move { command(own_context, process, rng).await });
}

async fn command(context: WorkloadContext, process: SimProcess, mut rng: SimRng) {
    let tenure = Tenure::on_session(&process.session, namespace()).expect("a valid name");
    loop {
        process.rest(rng.ms(500, 4_000)).await;
        let Ok(listing) = tenure.tasks().list().await else { continue };
        process.awake().await;
        if listing.tasks.is_empty() {
            continue;
        }
        let task = rng.pick(&listing.tasks).id.clone();
        let message = match rng.below(10) {
            0..3 => TaskMessage::Pause,
            3..6 => TaskMessage::Run,
            6 => TaskMessage::Sleep { until: Timestamp(wall_time().0 + rng.between(1, 3_000)) },
            7 => TaskMessage::Kill { reason: None },
            8 => TaskMessage::Checkpoint { blob: None },
            _ => TaskMessage::Release,
        };
        send(&context, &process.name, &tenure, &task, message).await;
    }
}

/// Sends a command, and waits for its result in the background.
pub async fn send(
    context: &WorkloadContext,
    process: &str,
    tenure: &Tenure,
    task: &TaskId,
    message: TaskMessage,
) {
    let what = format!("{:?} to {task}", message.kind());
    let sent = match tenure.task(task).command(message).no_reply().await {
        Ok(sent) => sent,
        Err(error) => {
            context.processes.history.remark(format!("{what} was not sent: {error}"));
            return;
        }
    };
    let command = sent.id().to_string();
    context.processes.history.note(Fact::Sent {
        command: command.clone(),
        process: process.to_owned(),
        what,
    });
    let history = context.processes.history.clone();
    context.act(async move {
        let outcome = match sent.reply().timeout(WAIT).await {
            Ok(handled) => handled.outcome.as_str().to_owned(),
            Err(error) => format!("unknown: {error}"),
        };
        history.note(Fact::Handled { command, outcome });
    });
}
