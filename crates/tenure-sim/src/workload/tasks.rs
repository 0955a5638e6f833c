//! Tasks: nodes that claim and run them, and a client that submits and deletes them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::store::{Op, Txn};
use tenure::task::Handler;
use tenure::{NewTask, Outcome, SubmitError, Task, TaskError, Tenure};
use tenure_core::id::{NodeId, TaskId};
use tenure_core::queue::LockMode;
use tenure_core::record::Timestamp;
use tenure_core::task::StateRecord;
use tenure_core::task::retry::RetryDecision;

use super::{REGISTERS, WorkloadContext};
use crate::audit::task_line;
use crate::history::Fact;
use crate::processes::{SimProcess, namespace};
use crate::rng::SimRng;

/// The tasks of a run: few, so that each meets many faults. The first name is a prefix of the next
/// two, which must not be deleted with it.
const NAMES: [&str; 8] = ["t1", "t10", "t11", "t2", "t3", "t4", "t5", "t6"];
const TASKS_MAX: u64 = 9;

/// How long a failed task sleeps: no run is long enough for ten minutes.
const SLEEP_MS: u64 = 1_200;

/// The process is a node for the whole run.
pub fn begin_node(context: &WorkloadContext, process: &SimProcess, rng: &mut SimRng) {
    let (own_context, process, rng) = (context.clone(), process.clone(), rng.split());
    context.act(async move { be_a_node(own_context, process, rng).await });
}

async fn be_a_node(context: WorkloadContext, process: SimProcess, mut rng: SimRng) {
    let id = NodeId::parse(&process.name).expect("names of processes are good names");
    loop {
        process.rest(rng.ms(1, 500)).await;
        let worker = TaskHandler { context: context.clone(), process: process.clone() };
        let tenure = Tenure::on_session(&process.session, namespace()).expect("a good name");
        let builder = tenure
            .worker(&id)
            .handle_any(worker)
            // The rig kills workers, and no task is to blame for it.
            .lost_claims_max(None)
            .grace(Duration::from_millis(800))
            .cooldown(Duration::from_secs(3))
            .rebalance_every(Duration::from_secs(7))
            .errors(|_: &StateRecord, now: Timestamp| RetryDecision::Sleep {
                until: Timestamp(now.0 + SLEEP_MS),
            });
        match builder.start().try_now().await {
            Ok(node) => {
                let end = node.finished().await;
                context.processes.history.remark(format!("node {} has ended: {end:?}", process.name));
            }
            Err(error) => context.processes.history.remark(format!("{} did not join: {error}", process.name)),
        }
    }
}

/// Runs tasks as users write them: in steps, with checkpoints, and stops between two steps when
/// requested.
struct TaskHandler {
    context: WorkloadContext,
    process: SimProcess,
}

impl Handler<Props> for TaskHandler {
    async fn run(&self, task: Task<Props>) -> Result<Outcome, TaskError> {
        work(&self.context, &self.process, task).await
    }
}

async fn work(
    context: &WorkloadContext,
    process: &SimProcess,
    task: Task<Props>,
) -> Result<Outcome, TaskError> {
    process.awake().await;
    let subject = task_line(task.id().as_str());
    let validity = task.context();
    let is_valid = move || validity.is_valid();
    let _believing = context.track_hold(process, &subject, task.token(), LockMode::Exclusive, is_valid);
    let (steps, defect, keeps_progress) = task.props;
    let done = task.checkpoint_bytes().and_then(|progress| progress.first().copied()).unwrap_or(0);
    for step in done..steps {
        let mut step_done = std::pin::pin!(process.rest(Duration::from_millis(700)));
        loop {
            tokio::select! {
                biased;
                _ = task.stopped() => {
                    // What was done so far is worth keeping; if that fails it is done again.
                    let _ = task.save_checkpoint_bytes(vec![step]).await;
                    return Ok(Outcome::Release);
                }
                () = task.checkpoint_requested() => {
                    // Saving may take until the claim is lost, so the loop checks again before it
                    // goes on.
                    let _ = task.save_checkpoint_bytes(vec![step]).await;
                }
                () = &mut step_done => break,
            }
        }
        context.acted(process, &subject, task.token(), task.is_valid());
        if keeps_progress {
            let _ = task.save_checkpoint_bytes(vec![step]).await;
        }
        let value = task.token().to_string();
        let txn = Txn::new().then(Op::put(format!("{REGISTERS}{subject}"), value));
        // The audit shows whether the write was applied.
        let _ = task.tenure().store().txn(task.fenced(txn)).await;
    }
    process.awake().await;
    match defect {
        TaskDefect::Fails if task.attempt() == 1 => Err("weak at first".into()),
        // A panic, without the words on standard error.
        TaskDefect::Panics if task.attempt() == 1 => std::panic::resume_unwind(Box::new("weak at first")),
        TaskDefect::None | TaskDefect::Fails | TaskDefect::Panics => Ok(Outcome::Complete),
    }
}

/// How many steps, how it goes wrong the first time, and whether it stores its progress.
type Props = (u8, TaskDefect, bool);

/// How a task goes wrong the first time.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum TaskDefect {
    None,
    Fails,
    Panics,
}

/// A client that no fault hits submits tasks, and deletes some. Records which are stored
/// permanently.
pub fn begin_submitting(context: &WorkloadContext, rng: &mut SimRng) {
    let (own_context, rng) = (context.clone(), rng.split());
    context.act(async move { submit(own_context, rng).await });
}

async fn submit(context: WorkloadContext, mut rng: SimRng) {
    let deletes_first = rng.percent(40);
    let count = usize::try_from(rng.between(3, TASKS_MAX)).unwrap_or(3);
    for (number, name) in NAMES.into_iter().take(count).enumerate() {
        tokio::time::sleep(rng.ms(1, 2_500)).await;
        let id = TaskId::parse(name).expect("a good name");
        let steps = u8::try_from(rng.between(1, 6)).unwrap_or(1);
        let defect = match rng.below(100) {
            0..15 => TaskDefect::Fails,
            15..30 => TaskDefect::Panics,
            _ => TaskDefect::None,
        };
        let task = NewTask::new("").id(&id).props(&(steps, defect, rng.percent(60)));
        match context.tenure.submit(task).await {
            Ok(_) => {
                context.processes.history.note(Fact::Submitted { task: id.to_string() });
            }
            Err(SubmitError::Finished { .. } | SubmitError::Exists { .. }) => {}
            Err(error) => context.processes.history.remark(format!("{id} was not submitted: {error}")),
        }
        if number == 2 && deletes_first {
            let id = TaskId::parse(NAMES[0]).expect("a good name");
            context.processes.holds.withdrawn(&task_line(id.as_str()));
            match context.tenure.task(&id).delete().await {
                Ok(_) => context.processes.history.note(Fact::Deleted { task: id.to_string() }),
                Err(error) => context.processes.history.remark(format!("{id} was not deleted: {error}")),
            }
        }
    }
}
