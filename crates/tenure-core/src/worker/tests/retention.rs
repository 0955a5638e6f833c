//! Tasks that have ended: what is kept of them, for how long, and which node deletes them.

use std::time::Duration;

use super::events::{seconds, task};
use super::world::WorkerWorld;
use crate::kv::Get;
use crate::layout::Key;
use crate::record::{Record, TaskRecord};
use crate::task::TaskStatus;
use crate::txn::{Op, Txn};
use crate::worker::{HandlerEnd, Keep, WorkerEvent};

const RECORD: &str = r#"{"submitted_at":5,"kind":"mail","labels":{"zone":"eu"}}"#;
const PROPS: &str = r#"{"to": 1}"#;

impl WorkerWorld {
    /// Lets all nodes keep ended tasks like this.
    fn keep(&mut self, keep: Keep) {
        for n in 0..self.processes.len() {
            self.processes[n].config.keep = keep;
            self.crash(n);
        }
        self.pass(seconds(30));
    }

    fn run_to_end(&mut self, name: &str) {
        self.submit_as(name, RECORD, Some(PROPS));
        self.pass(seconds(1));
        self.finish(name, HandlerEnd::Completed);
        self.pass(Duration::from_millis(100));
    }

    /// The entries of tasks that have ended, the oldest first.
    fn ended(&mut self) -> Vec<String> {
        let page = self.store.get(&Get::new(self.layout.ended()), self.now).unwrap();
        let name = |key: &[u8]| match self.layout.parse(key) {
            Some(Key::EndedTask(_, task)) => task.to_string(),
            other => panic!("{other:?}"),
        };
        page.pairs.iter().map(|pair| name(&pair.key)).collect()
    }

    fn forgotten(&self, n: usize) -> usize {
        let is_it = |notice: &&WorkerEvent| matches!(notice, WorkerEvent::Forgotten { .. });
        self.processes[n].events.iter().filter(is_it).count()
    }
}

#[test]
fn final_state_keeps_kind_labels_and_props() {
    let mut world = WorkerWorld::calm(1);
    world.run_to_end("a");
    let state = world.state("a").unwrap();
    let kept = state.task.expect("what was submitted");
    assert_eq!(kept, TaskRecord::decode(RECORD.as_bytes()).unwrap());
    assert_eq!(state.state, TaskStatus::Completed);
    let entry = world.get(&Key::EndedTask(state.updated_at, task("a"))).unwrap();
    assert_eq!(entry.value, PROPS);
    let stored = world.get(&Key::TaskState(task("a"))).unwrap();
    assert_eq!(entry.modified, stored.modified, "one transaction");
}

#[test]
fn unended_task_has_no_entry() {
    let mut world = WorkerWorld::calm(1);
    world.submit_as("a", RECORD, None);
    world.settle();
    world.finish("a", HandlerEnd::Pause);
    world.settle();
    assert_eq!(world.state("a").unwrap().task, None);
    assert_eq!(world.ended(), Vec::<String>::new());
}

#[test]
fn old_tasks_are_deleted_by_one_node() {
    let mut world = WorkerWorld::calm(3);
    world.keep(Keep { age: Some(seconds(60)), tasks_max: None });
    world.run_to_end("a");
    world.pass(seconds(40));
    world.run_to_end("b");
    assert_eq!(world.ended(), ["a", "b"]);
    world.pass(seconds(40));
    assert_eq!(world.ended(), ["b"], "only the older one");
    assert_eq!((world.state("a"), world.state("b").is_some()), (None, true));
    world.pass(seconds(60));
    assert_eq!(world.ended(), Vec::<String>::new());
    assert_eq!(world.state("b"), None);
    let mut forgotten = [world.forgotten(0), world.forgotten(1), world.forgotten(2)];
    forgotten.sort_unstable();
    assert_eq!(forgotten, [0, 0, 2], "one node has the duty");
}

#[test]
fn newest_tasks_stay_when_there_are_too_many() {
    let mut world = WorkerWorld::calm(1);
    world.keep(Keep { age: None, tasks_max: Some(100) });
    // Three hundred: more than two pages.
    for n in 0..300 {
        world.submit(&format!("t{n:03}"));
    }
    world.pass(seconds(5));
    for n in 0..300 {
        world.finish(&format!("t{n:03}"), HandlerEnd::Completed);
        world.pass(Duration::from_millis(5));
    }
    world.pass(seconds(130));
    let left = world.ended();
    assert_eq!(left.len(), 95, "a twentieth less than the limit");
    assert_eq!((left[0].as_str(), left[94].as_str()), ("t205", "t299"));
    assert!(world.state("t204").is_none() && world.state("t205").is_some());
}

#[test]
fn everything_is_kept_without_limits() {
    let mut world = WorkerWorld::calm(1);
    world.keep(Keep::ALL);
    world.run_to_end("a");
    world.pass(seconds(9 * 24 * 60 * 60));
    assert_eq!(world.ended(), ["a"]);
}

/// Without its state, a task that was submitted again would be one that no node claims and no command frees.
#[test]
fn state_of_resubmitted_task_is_not_deleted() {
    let mut world = WorkerWorld::calm(1);
    world.keep(Keep { age: Some(seconds(20)), tasks_max: None });
    world.run_to_end("a");
    world.run_to_end("b");
    world.submit_as("a", r#"{"ended":true}"#, None);
    world.pass(seconds(60));
    assert_eq!(world.ended(), ["a"], "the one behind it is reached");
    assert!(world.state("a").is_some() && world.state("b").is_none());
}

/// A program of version 0.1 forgets a state and knows nothing of entries; the task may run again since.
#[test]
fn stale_entry_goes_and_newer_state_stays() {
    let mut world = WorkerWorld::calm(1);
    world.keep(Keep { age: Some(seconds(20)), tasks_max: None });
    world.run_to_end("a");
    let key = world.layout.encode(&Key::TaskState(task("a")));
    world.apply(&Txn::new().then(Op::put(key, r#"{"state":"paused"}"#)));
    world.pass(seconds(60));
    assert_eq!(world.ended(), Vec::<String>::new());
    assert_eq!(world.status_of("a"), Some(TaskStatus::Paused));
}

#[test]
fn lost_replies_delete_nothing_twice() {
    let mut world = WorkerWorld::calm(2);
    world.keep(Keep { age: Some(seconds(20)), tasks_max: Some(1_000) });
    for n in 0..20 {
        world.run_to_end(&format!("t{n:02}"));
    }
    (world.is_stormy, world.faults_one_in) = (true, 3);
    world.pass(seconds(30));
    world.run_to_end("new");
    (world.is_stormy, world.faults_one_in) = (false, 0);
    world.pass(seconds(15));
    assert_eq!(world.ended(), ["new"]);
}
