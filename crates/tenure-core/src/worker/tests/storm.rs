//! A world with faults of every kind at any time: no task is lost, none runs twice, every sender
//! gets a reply.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::events::{ms, seconds, task};
use super::process::HandlerScript;
use super::world::{FEEDS, WorkerWorld};
use crate::command::NodeCommand;
use crate::id::TaskId;
use crate::kv::Get;
use crate::layout::Key;
use crate::task::{Checkpoint, TaskMessage, TaskStatus};
use crate::worker::WorkerInput;

const TASKS: usize = 12;

/// Injects faults for some minutes, then ends them, and checks the final state.
fn weather(nodes: usize, seed: u64, steps: usize) -> WorkerWorld {
    let mut world = WorkerWorld::new(nodes, seed);
    world.is_stormy = true;
    world.faults_one_in = 8;
    world.handling = HandlerScript::Random;
    for _ in 0..steps {
        world.mishap();
        let span = ms(world.rng.below(1_500));
        world.pass(span);
    }
    world.clear_up();
    world
}

impl WorkerWorld {
    fn mishap(&mut self) {
        let n = self.rng.index(self.processes.len());
        let name = format!("t{}", self.rng.index(TASKS));
        match self.rng.below(26) {
            0..=5 => {
                for _ in 0..3 {
                    let name = format!("t{}", self.rng.index(TASKS));
                    self.resubmit(&name);
                }
            }
            6 if self.rng.one_in(3) => self.delete(&name),
            7..=12 => self.random_command(&name),
            13 => self.processes[n].is_cut = true,
            14..=16 => self.processes[n].is_cut = false,
            17 if self.rng.one_in(3) => self.crash(n),
            18 => {
                let feed = FEEDS[self.rng.index(FEEDS.len())];
                self.break_feed(n, feed);
            }
            19 if self.rng.one_in(3) => self.revoke(n),
            20 => {
                let order =
                    [NodeCommand::Freeze, NodeCommand::Unfreeze, NodeCommand::ReleaseTask(task(&name))];
                let order = order[self.rng.index(3)].clone();
                self.order(n, order);
            }
            21 => {
                let order = [
                    NodeCommand::StopTask(task(&name)),
                    NodeCommand::Balance(crate::command::BalanceMode::Act),
                ];
                let order = order[self.rng.index(2)].clone();
                self.order(n, order);
            }
            22 if self.rng.one_in(4) => {
                let deadline = self.now + seconds(1) + ms(self.rng.below(9_000));
                self.deliver(n, WorkerInput::Shutdown { deadline });
            }
            23..=25 => self.keep_progress(n),
            _ => {}
        }
        // A process that has shut down is started again after a while.
        for n in 0..self.processes.len() {
            if self.processes[n].finished.is_some() && self.rng.one_in(4) {
                self.crash(n);
            }
        }
    }

    /// A handler wants its progress kept.
    fn keep_progress(&mut self, n: usize) {
        let (at, ask) = (self.rng.random(), self.rng.random());
        let len = self.processes[n].handlers.len();
        let Some((task, run)) = self.processes[n].handlers.iter().nth(self.rng.index(len)) else { return };
        let blob = Checkpoint::new(at.to_le_bytes().to_vec()).unwrap();
        let event = WorkerInput::Checkpoint { task: task.clone(), token: run.token, ask, blob };
        self.deliver(n, event);
    }

    /// Submits a task as clients do: a task with a terminal state is forgotten first.
    fn resubmit(&mut self, name: &str) {
        let has_ended = self.status_of(name).is_some_and(TaskStatus::is_terminal);
        if has_ended && !self.exists(name) {
            let key = self.layout.encode(&Key::TaskState(task(name)));
            self.apply(&crate::txn::Txn::new().then(crate::txn::Op::delete(key)));
            self.done.remove(&task(name));
        }
        self.submit(name);
    }

    fn random_command(&mut self, name: &str) {
        let sleep = self.rng.below(20_000);
        let until = self.in_ms(sleep);
        let messages = [
            TaskMessage::Run,
            TaskMessage::Run,
            TaskMessage::Pause,
            TaskMessage::Sleep { until },
            TaskMessage::Kill { reason: None },
            TaskMessage::Release,
            TaskMessage::Complete,
            TaskMessage::Error { message: "from outside".to_owned() },
            TaskMessage::Checkpoint { blob: None },
        ];
        let message = messages[self.rng.index(messages.len())].clone();
        match message {
            TaskMessage::Complete => drop(self.done.insert(task(name))),
            TaskMessage::Kill { .. } => drop(self.killed.insert(task(name))),
            _ => {}
        }
        self.try_command(name, message);
    }

    /// An operator revokes a session's lease.
    fn revoke(&mut self, n: usize) {
        let Some(lease) = self.processes[n].lease else { return };
        // No worker can foresee that. Until it is seen, tasks under the lease, and tasks with a
        // claim in flight under it, may run elsewhere as well.
        for task in &self.submitted {
            self.interfered.insert(task.clone(), self.now);
        }
        let _ = self.store.revoke(lease, self.now);
    }

    /// Faults end; everything comes to rest; then nothing may be missing.
    fn clear_up(&mut self) {
        self.faults_one_in = 0;
        for n in 0..self.processes.len() {
            self.processes[n].is_cut = false;
            if self.processes[n].finished.is_some() {
                self.crash(n);
            }
        }
        self.pass(seconds(120));
        for n in 0..self.processes.len() {
            if self.processes[n].finished.is_some() {
                self.crash(n);
            }
        }
        // Once every node has its last incarnation: an order to an earlier one expires with it.
        self.pass(seconds(30));
        for n in 0..self.processes.len() {
            self.order(n, NodeCommand::Unfreeze);
        }
        self.handling = HandlerScript::Obedient;
        // Long enough for every cool-down, every task set aside and every deaf handler.
        self.pass(seconds(240));
        self.check_tasks();
        self.check_commands();
    }

    fn check_tasks(&mut self) {
        let page = self.store.get(&Get::new(self.layout.tasks()), self.now).unwrap();
        let there: BTreeSet<TaskId> = page
            .pairs
            .iter()
            .filter_map(|pair| match self.layout.parse(&pair.key) {
                Some(Key::Task(task)) => Some(task),
                _ => None,
            })
            .collect();
        for task in self.submitted.clone() {
            let state = self.status_of(task.as_str());
            if state == Some(TaskStatus::Completed) {
                assert!(self.done.contains(&task), "{task} is completed, but no handler completed it");
            }
            if state == Some(TaskStatus::Killed) {
                assert!(self.killed.contains(&task), "{task} is killed, but no command killed it");
            }
            if there.contains(&task) {
                let owner = self.get(&Key::TaskOwner(task.clone()));
                let owner =
                    owner.unwrap_or_else(|| panic!("{task} has no owner, and its state is {state:?}"));
                let holder = self.owner(task.as_str()).unwrap();
                let process =
                    self.processes.iter().find(|process| process.config.node.as_str() == holder).unwrap();
                assert!(process.valid_until.is_some(), "{task} is owned by {holder}, which is not a member");
                let runs = process.handlers.get(&task).map(|run| run.token.0);
                match state {
                    None | Some(TaskStatus::Runnable) => {
                        assert_eq!(runs, Some(owner.created), "{task} should run on {holder}");
                    }
                    Some(_) => assert_eq!(runs, None, "{task} should not run"),
                }
            } else {
                let has_ended = state.is_some_and(TaskStatus::is_terminal);
                assert!(
                    has_ended || self.deleted.contains(&task),
                    "{task} is lost, and its state is {state:?}"
                );
            }
        }
        for (n, process) in self.processes.iter().enumerate() {
            assert_eq!(process.machine.owned(), process.leases_of.len(), "{n} keeps leases without a task");
        }
    }

    /// Every command was answered, or replaced, or is still there.
    fn check_commands(&mut self) {
        for (id, (task, _)) in self.commands.clone() {
            if self.result(&id).is_some() {
                continue;
            }
            let waits = self
                .get(&Key::TaskCommand(task.clone()))
                .is_some_and(|pair| String::from_utf8_lossy(&pair.value).contains(id.as_str()));
            let is_order = task.as_str() == "-";
            let waits = waits || (is_order && self.waits_as_order(&id));
            assert!(waits, "the command {id} to {task} is lost");
            assert!(is_order || !self.exists(task.as_str()), "{task} lives, and its command {id} waits");
        }
    }

    fn waits_as_order(&mut self, id: &crate::id::CommandId) -> bool {
        let nodes: Vec<_> = self.processes.iter().map(|process| process.config.node.clone()).collect();
        nodes.into_iter().any(|node| self.get(&Key::NodeCommand(node, id.clone())).is_some())
    }
}

/// Few in every check, many only when it is asked for: `TENURE_SOAK=1`.
fn cases() -> u32 {
    if std::env::var_os("TENURE_SOAK").is_some() { 4_000 } else { 48 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn soak_storm_loses_no_task(
        nodes in 2..=4_usize,
        seed in any::<u64>(),
        steps in 20..120_usize,
    ) {
        weather(nodes, seed, steps);
    }
}

#[test]
fn same_seed_gives_same_run() {
    let (first, second) = (weather(3, 11, 60), weather(3, 11, 60));
    assert_eq!((first.trace, first.store.revision()), (second.trace, second.store.revision()));
    assert_ne!(first.trace, weather(3, 12, 60).trace);
}
