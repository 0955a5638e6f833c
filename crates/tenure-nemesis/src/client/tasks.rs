//! Tasks: every client is a node that runs them, submits some, and sends commands to any.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tenure::client::{Client, NewTask, SubmitError, TaskFilter};
use tenure::task::{Handler, RawProps};
use tenure::worker::ShutdownError;
use tenure::{Outcome as Ending, Task, TaskError, Tenure};
use tenure_core::id::{NodeId, TaskId};
use tenure_core::task::TaskMessage;
use tokio::task::JoinHandle;

use super::lock::{count, thinking};
use super::namespace;
use super::stage::{Belief, Stage};
use crate::history::{End, Event, Outcome, Work};
use crate::ledger::Link;

/// How long a sender waits to be told what came of its command. What comes later is in the store.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// For handlers to stop.
const GRACE: Duration = Duration::from_millis(800);

/// For a node to put down its tasks and leave.
const LEAVING: Duration = Duration::from_secs(10);

/// Begins all of it. The result is done when the node has left.
pub(super) fn begin(stage: &Stage) -> impl Future<Output = Result<(), ShutdownError>> + use<> {
    let client = Client::new(stage.store.clone(), &namespace());
    let (stage_of_one, submitting) = (stage.clone(), client.clone());
    stage.act(async move { submit(stage_of_one, submitting).await });
    let (stage_of_one, commanding) = (stage.clone(), client.clone());
    stage.act(async move { command(stage_of_one, commanding).await });
    let stage_of_one = stage.clone();
    let node: JoinHandle<Result<(), ShutdownError>> = tokio::spawn(be_a_node(stage_of_one));
    async move { node.await.expect("a node does not panic") }
}

async fn be_a_node(stage: Stage) -> Result<(), ShutdownError> {
    let id = NodeId::parse(&stage.name).expect("names of clients are good names");
    let tenure = Tenure::on_session(&stage.session, namespace()).expect("a good name");
    loop {
        let worker = Worker { stage: stage.clone(), ledger: stage.ledger };
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
            () = stage.over.cancelled() => return Ok(()),
            joined = builder.start().try_now() => joined,
        };
        let Ok(node) = joined else {
            // The former life's key is still there, or the store is away.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        tokio::select! {
            biased;
            () = stage.over.cancelled() => return node.shutdown().timeout(LEAVING).await,
            // Displaced, for example by nobody but our former life: join again.
            _ = node.finished() => {}
        }
    }
}

struct Worker {
    stage: Stage,
    ledger: SocketAddr,
}

impl Handler<RawProps> for Worker {
    async fn run(&self, task: Task<RawProps>) -> Result<Ending, TaskError> {
        Ok(work(&self.stage, self.ledger, task).await)
    }
}

/// Works in steps, as people write it: keeps its progress, and stops between two steps when it is told to.
async fn work(stage: &Stage, ledger: SocketAddr, context: Task<RawProps>) -> Ending {
    let (line, token) = (format!("task:{}", context.id()), context.token().0.0);
    let belief = Belief::new(&stage.history, &line, token);
    let op = stage.history.ask(Work::Run, &line, None);
    let mut dice = stage.dice();
    let Ok(mut link) = Link::to(ledger).await else { return Ending::Release };
    let steps = serde_json::from_slice::<u8>(&context.props.0).unwrap_or(1);
    let done = context.checkpoint_bytes().and_then(|progress| progress.first().copied()).unwrap_or(0);
    let mut ending = if belief.look(&context) { Ending::Complete } else { Ending::Release };
    for step in done..steps {
        if !matches!(ending, Ending::Complete)
            || !count(stage, &belief, &context, &mut link, thinking(&mut dice)).await
        {
            ending = Ending::Release;
            break;
        }
        tokio::select! {
            biased;
            _ = context.stopped() => ending = Ending::Release,
            () = tokio::time::sleep(dice.ms(5, 150)) => {}
        }
        // What is not kept is done again.
        let _ = context.save_checkpoint_bytes(vec![step + 1]).await;
    }
    // Whoever believes until the end gives it up with its answer.
    if belief.look(&context) {
        belief.ended(End::GivenUp);
    }
    stage.history.answer(op, Outcome::Ok, Some(token), None);
    ending
}

async fn submit(stage: Stage, client: Client) {
    let mut dice = stage.dice();
    let life = std::process::id();
    let mut number = 0_u64;
    while stage.rest(dice.ms(300, 2_500)).await {
        number += 1;
        let id = TaskId::parse(&format!("{}-{life}-{number}", stage.name)).expect("a good name");
        let steps = u8::try_from(1 + dice.below(5)).unwrap_or(1);
        let task = NewTask::new(id.clone()).props(&steps).expect("props are small");
        let op = stage.history.ask(Work::Submit, id.as_str(), None);
        let (outcome, why) = match client.submit(task).await {
            Ok(_) => (Outcome::Ok, None),
            Err(error @ SubmitError::Unknown(_)) => (Outcome::Unknown, Some(error.to_string())),
            Err(error) => (Outcome::No, Some(error.to_string())),
        };
        stage.history.answer(op, outcome, None, why);
    }
}

async fn command(stage: Stage, client: Client) {
    let mut dice = stage.dice();
    while stage.rest(dice.ms(200, 1_500)).await {
        let Ok(listing) = client.tasks(&TaskFilter::new()).await else { continue };
        if listing.tasks.is_empty() {
            continue;
        }
        let task = dice.pick(&listing.tasks).id.clone();
        let messages = match dice.below(3) {
            // Whoever pauses a task lets it run again; the rig does it for those who are killed in between.
            0 => vec![TaskMessage::Pause, TaskMessage::Run],
            1 => vec![TaskMessage::Checkpoint { blob: None }],
            _ => vec![TaskMessage::Release],
        };
        for message in messages {
            send(&stage, &client, &task, message).await;
        }
    }
}

async fn send(stage: &Stage, client: &Client, task: &TaskId, message: TaskMessage) {
    let op = stage.history.ask(Work::Command, task.as_str(), Some(format!("{:?}", message.kind())));
    let sent = match client.command(task, message).await {
        Ok(sent) => sent,
        Err(error) => {
            stage.history.answer(op, Outcome::No, None, Some(error.to_string()));
            return;
        }
    };
    let command = sent.id().to_string();
    stage.history.tell(Event::Sent { command: command.clone() });
    stage.history.answer(op, Outcome::Ok, None, Some(command.clone()));
    let history = Arc::clone(&stage.history);
    stage.act(async move {
        let outcome = match sent.wait(ANSWER_WAIT).await {
            Ok(handled) => handled.outcome.as_str().to_owned(),
            Err(tenure::client::WaitCommandError::Gone) => "gone".to_owned(),
            Err(error) => format!("unknown: {error}"),
        };
        history.tell(Event::Told { command, outcome });
    });
}
