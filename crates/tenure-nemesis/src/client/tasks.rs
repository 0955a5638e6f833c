//! Tasks: every client is a node that runs them, submits some, and sends commands to any.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tenure::task::{CommandError, Handler, RawProps};
use tenure::worker::ShutdownError;
use tenure::{NewTask, Outcome as Ending, SubmitError, Task, TaskError, Tenure};
use tenure_core::id::{NodeId, TaskId};
use tenure_core::task::TaskMessage;
use tokio::task::JoinHandle;

use super::holder::{HolderContext, RecordedHold};
use super::lock::{count, thinking};
use super::namespace;
use crate::history::{HistoryEvent, HoldEnd, OperationKind, OperationOutcome};
use crate::ledger::LedgerClient;

/// How long a sender waits for the result of its command. What comes later is in the store.
const REPLY_WAIT: Duration = Duration::from_secs(10);

/// For handlers to stop.
const GRACE: Duration = Duration::from_millis(800);

/// For a node to put down its tasks and leave.
const LEAVING: Duration = Duration::from_secs(10);

/// Begins all of it. The result is done when the node has left.
pub(super) fn begin(context: &HolderContext) -> impl Future<Output = Result<(), ShutdownError>> + use<> {
    let tenure = Tenure::on_session(&context.session, namespace()).expect("a valid name");
    let (own_context, submitting) = (context.clone(), tenure.clone());
    context.act(async move { submit(own_context, submitting).await });
    let (own_context, commanding) = (context.clone(), tenure.clone());
    context.act(async move { command(own_context, commanding).await });
    let own_context = context.clone();
    let node: JoinHandle<Result<(), ShutdownError>> = tokio::spawn(be_a_node(own_context));
    async move { node.await.expect("a node does not panic") }
}

async fn be_a_node(context: HolderContext) -> Result<(), ShutdownError> {
    let id = NodeId::parse(&context.name).expect("names of clients are good names");
    let tenure = Tenure::on_session(&context.session, namespace()).expect("a good name");
    loop {
        let worker = TaskHandler { context: context.clone(), ledger: context.ledger };
        let builder = tenure
            .worker(&id)
            .handle_any(worker)
            // The rig kills workers, and no task is to blame for it.
            .lost_claims_max(None)
            .grace(GRACE)
            .cooldown(Duration::from_secs(2))
            .rebalance_every(Duration::from_secs(5));
        let joined = tokio::select! {
            biased;
            () = context.over.cancelled() => return Ok(()),
            joined = builder.start().try_now() => joined,
        };
        let Ok(node) = joined else {
            // The key of the earlier incarnation is still there, or the store cannot be reached.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        tokio::select! {
            biased;
            () = context.over.cancelled() => return node.shutdown().timeout(LEAVING).await,
            // Displaced, for example by an earlier incarnation of this client: join again.
            _ = node.finished() => {}
        }
    }
}

struct TaskHandler {
    context: HolderContext,
    ledger: SocketAddr,
}

impl Handler<RawProps> for TaskHandler {
    async fn run(&self, task: Task<RawProps>) -> Result<Ending, TaskError> {
        Ok(work(&self.context, self.ledger, task).await)
    }
}

/// Works in steps, as users write it: saves checkpoints, and stops between two steps when
/// requested.
async fn work(context: &HolderContext, ledger: SocketAddr, task: Task<RawProps>) -> Ending {
    let (line, token) = (format!("task:{}", task.id()), task.token().0.0);
    let belief = RecordedHold::new(&context.history, &line, token);
    let op = context.history.begin(OperationKind::Run, &line, None);
    let mut rng = context.rng();
    let Ok(mut ledger_client) = LedgerClient::to(ledger).await else { return Ending::Release };
    let steps = serde_json::from_slice::<u8>(&task.props.0).unwrap_or(1);
    let done = task.checkpoint_bytes().and_then(|progress| progress.first().copied()).unwrap_or(0);
    let mut ending = if belief.look(&task) { Ending::Complete } else { Ending::Release };
    for step in done..steps {
        if !matches!(ending, Ending::Complete)
            || !count(context, &belief, &task, &mut ledger_client, thinking(&mut rng)).await
        {
            ending = Ending::Release;
            break;
        }
        tokio::select! {
            biased;
            _ = task.stopped() => ending = Ending::Release,
            () = tokio::time::sleep(rng.ms(5, 150)) => {}
        }
        // What is not kept is done again.
        let _ = task.save_checkpoint_bytes(vec![step + 1]).await;
    }
    // A hold that is valid until the end is released by the handler's return.
    if belief.look(&task) {
        belief.ended(HoldEnd::GivenUp);
    }
    context.history.end(op, OperationOutcome::Ok, Some(token), None);
    ending
}

async fn submit(context: HolderContext, tenure: Tenure) {
    let mut rng = context.rng();
    let life = std::process::id();
    let mut number = 0_u64;
    while context.rest(rng.ms(300, 2_500)).await {
        number += 1;
        let id = TaskId::parse(&format!("{}-{life}-{number}", context.name)).expect("a good name");
        let steps = u8::try_from(1 + rng.below(5)).unwrap_or(1);
        let task = NewTask::new("").id(&id).props(&steps);
        let op = context.history.begin(OperationKind::Submit, id.as_str(), None);
        let (outcome, why) = match tenure.submit(task).await {
            Ok(_) => (OperationOutcome::Ok, None),
            Err(error @ SubmitError::Ambiguous(_)) => (OperationOutcome::Unknown, Some(error.to_string())),
            Err(error) => (OperationOutcome::No, Some(error.to_string())),
        };
        context.history.end(op, outcome, None, why);
    }
}

async fn command(context: HolderContext, tenure: Tenure) {
    let mut rng = context.rng();
    while context.rest(rng.ms(200, 1_500)).await {
        let Ok(listing) = tenure.tasks().list().await else { continue };
        if listing.tasks.is_empty() {
            continue;
        }
        let task = rng.pick(&listing.tasks).id.clone();
        let messages = match rng.below(3) {
            // The client that pauses a task lets it run again; the rig does so if the client is
            // killed in between.
            0 => vec![TaskMessage::Pause, TaskMessage::Run],
            1 => vec![TaskMessage::Checkpoint { blob: None }],
            _ => vec![TaskMessage::Release],
        };
        for message in messages {
            send(&context, &tenure, &task, message).await;
        }
    }
}

async fn send(context: &HolderContext, tenure: &Tenure, task: &TaskId, message: TaskMessage) {
    let op =
        context.history.begin(OperationKind::Command, task.as_str(), Some(format!("{:?}", message.kind())));
    let sent = match tenure.task(task).command(message).no_reply().await {
        Ok(sent) => sent,
        Err(error) => {
            context.history.end(op, OperationOutcome::No, None, Some(error.to_string()));
            return;
        }
    };
    let command = sent.id().to_string();
    context.history.record(HistoryEvent::Sent { command: command.clone() });
    context.history.end(op, OperationOutcome::Ok, None, Some(command.clone()));
    let history = Arc::clone(&context.history);
    context.act(async move {
        let outcome = match sent.reply().timeout(REPLY_WAIT).await {
            Ok(handled) => handled.outcome.as_str().to_owned(),
            Err(CommandError::Deleted) => "gone".to_owned(),
            Err(error) => format!("unknown: {error}"),
        };
        history.record(HistoryEvent::Told { command, outcome });
    });
}
