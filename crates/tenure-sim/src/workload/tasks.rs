//! Tasks: nodes that claim and run them, and somebody who submits and deletes them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::client::{Client, NewTask, SubmitError, Submitted};
use tenure::store::{Op, Txn};
use tenure::task::Handler;
use tenure::{Outcome, Task, TaskError, Tenure};
use tenure_core::id::{NodeId, TaskId};
use tenure_core::queue::LockMode;
use tenure_core::record::Timestamp;
use tenure_core::task::StateRecord;
use tenure_core::task::retry::RetryDecision;

use super::{REGISTERS, Stage};
use crate::audit::task_line;
use crate::cast::{Player, namespace};
use crate::dice::Dice;
use crate::history::Fact;

/// The tasks of a day: few, so that each goes through a lot. The first is the beginning of the next two, which must not go with it.
const NAMES: [&str; 8] = ["t1", "t10", "t11", "t2", "t3", "t4", "t5", "t6"];
const TASKS_MAX: u64 = 9;

/// How long a failed task sleeps: no day here is long enough for ten minutes.
const SLEEP_MS: u64 = 1_200;

/// Somebody is a node all day.
pub fn begin_node(stage: &Stage, player: &Player, dice: &mut Dice) {
    let (stage_of_one, player, dice) = (stage.clone(), player.clone(), dice.split());
    stage.act(async move { be_a_node(stage_of_one, player, dice).await });
}

async fn be_a_node(stage: Stage, player: Player, mut dice: Dice) {
    let id = NodeId::parse(&player.name).expect("names of players are good names");
    loop {
        player.rest(dice.ms(1, 500)).await;
        let worker = Worker { stage: stage.clone(), player: player.clone() };
        let tenure = Tenure::on_session(&player.session, namespace()).expect("a good name");
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
                stage.cast.history.remark(format!("node {} has ended: {end:?}", player.name));
            }
            Err(error) => stage.cast.history.remark(format!("{} did not join: {error}", player.name)),
        }
    }
}

/// Runs tasks as people write them: in steps, with progress kept, and told to stop between two steps.
struct Worker {
    stage: Stage,
    player: Player,
}

impl Handler<Props> for Worker {
    async fn run(&self, task: Task<Props>) -> Result<Outcome, TaskError> {
        work(&self.stage, &self.player, task).await
    }
}

async fn work(stage: &Stage, player: &Player, context: Task<Props>) -> Result<Outcome, TaskError> {
    player.awake().await;
    let line = task_line(context.id().as_str());
    let believed = context.context();
    let is_valid = move || believed.is_valid();
    let _believing = stage.believe(player, &line, context.token(), LockMode::Exclusive, is_valid);
    let (steps, weakness, keeps_progress) = context.props;
    let done = context.checkpoint_bytes().and_then(|progress| progress.first().copied()).unwrap_or(0);
    for step in done..steps {
        let mut step_done = std::pin::pin!(player.rest(Duration::from_millis(700)));
        loop {
            tokio::select! {
                biased;
                _ = context.stopped() => {
                    // What was done so far is worth keeping; if that fails it is done again.
                    let _ = context.save_checkpoint_bytes(vec![step]).await;
                    return Ok(Outcome::Release);
                }
                () = context.checkpoint_requested() => {
                    // It may take until the claim is lost, so look again before going on.
                    let _ = context.save_checkpoint_bytes(vec![step]).await;
                }
                () = &mut step_done => break,
            }
        }
        stage.acted(player, &line, context.token(), context.is_valid());
        if keeps_progress {
            let _ = context.save_checkpoint_bytes(vec![step]).await;
        }
        let value = context.token().to_string();
        let txn = Txn::new().then(Op::put(format!("{REGISTERS}{line}"), value));
        // The store's own record says what came of it.
        let _ = context.tenure().store().txn(context.fenced(txn)).await;
    }
    player.awake().await;
    match weakness {
        Weakness::Fails if context.attempt() == 1 => Err("weak at first".into()),
        // A panic, without the words on standard error.
        Weakness::Panics if context.attempt() == 1 => std::panic::resume_unwind(Box::new("weak at first")),
        Weakness::None | Weakness::Fails | Weakness::Panics => Ok(Outcome::Complete),
    }
}

/// How many steps, how it goes wrong the first time, and whether it stores its progress.
type Props = (u8, Weakness, bool);

/// How a task goes wrong the first time.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Weakness {
    None,
    Fails,
    Panics,
}

/// Somebody whom no fault hits submits tasks, and deletes some. Says which are in the store for good.
pub fn begin_submitting(stage: &Stage, dice: &mut Dice) {
    let (stage_of_one, dice) = (stage.clone(), dice.split());
    stage.act(async move { submit(stage_of_one, dice).await });
}

async fn submit(stage: Stage, mut dice: Dice) {
    let client = Client::new(stage.onlooker.clone(), &namespace());
    let deletes_first = dice.percent(40);
    let count = usize::try_from(dice.between(3, TASKS_MAX)).unwrap_or(3);
    for (number, name) in NAMES.into_iter().take(count).enumerate() {
        tokio::time::sleep(dice.ms(1, 2_500)).await;
        let id = TaskId::parse(name).expect("a good name");
        let steps = u8::try_from(dice.between(1, 6)).unwrap_or(1);
        let weakness = match dice.below(100) {
            0..15 => Weakness::Fails,
            15..30 => Weakness::Panics,
            _ => Weakness::None,
        };
        let props =
            NewTask::new(id.clone()).props(&(steps, weakness, dice.percent(60))).expect("props are small");
        match client.submit(props).await {
            Ok(Submitted::Accepted) => {
                stage.cast.history.note(Fact::Submitted { task: id.to_string() });
            }
            Ok(Submitted::Ended(_)) | Err(SubmitError::Exists) => {}
            Err(error) => stage.cast.history.remark(format!("{id} was not submitted: {error}")),
        }
        if number == 2 && deletes_first {
            let id = TaskId::parse(NAMES[0]).expect("a good name");
            stage.cast.beliefs.withdrawn(&task_line(id.as_str()));
            match client.delete(&id).await {
                Ok(_) => stage.cast.history.note(Fact::Deleted { task: id.to_string() }),
                Err(error) => stage.cast.history.remark(format!("{id} was not deleted: {error}")),
            }
        }
    }
}
