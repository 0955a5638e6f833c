//! The tasks that one node has.

use std::collections::{BTreeMap, BTreeSet};

use super::class::Class;
use super::worker_loads::Load;
use crate::id::TaskId;
use crate::record::TaskRecord;
use crate::time::Moment;

/// The most that one task may weigh: enough for any proportion, and ten billion such tasks can still be added up.
const WEIGHT_MAX: u64 = 1_000_000_000;

/// A task that a node has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedTask {
    /// What kind of work it is.
    pub kind: Option<String>,
    /// What it weighs; see [`weight_of`].
    pub weight: u64,
    /// Which nodes accept it.
    pub class: Class,
    /// What it would cost to run it elsewhere, in whatever the node counts; 0 if it does not know.
    pub cost: u64,
    /// Since when the node has it.
    pub since: Moment,
}

/// What a task weighs: its label `weight`, 1 without one.
///
/// # Errors
///
/// The text of the label, if it is not a whole number from 1 to a billion: then take 1, and say so.
pub fn weight_of(record: &TaskRecord) -> Result<u64, &str> {
    let Some(text) = record.labels.get("weight") else { return Ok(1) };
    match text.parse() {
        Ok(weight @ 1..=WEIGHT_MAX) => Ok(weight),
        Ok(_) | Err(_) => Err(text),
    }
}

/// The tasks that one node has, those that it is just claiming among them.
#[derive(Clone, Debug, Default)]
pub struct OwnedTasks {
    tasks: BTreeMap<TaskId, OwnedTask>,
    by_age: BTreeSet<(Moment, TaskId)>,
    weight: u64,
}

impl OwnedTasks {
    /// None.
    pub fn new() -> OwnedTasks {
        OwnedTasks::default()
    }

    /// The node has this task, new or not.
    pub fn insert(&mut self, task: TaskId, held: OwnedTask) {
        self.remove(&task);
        self.weight = self.weight.saturating_add(held.weight);
        self.by_age.insert((held.since, task.clone()));
        self.tasks.insert(task, held);
    }

    /// The node does not have this task any more.
    pub fn remove(&mut self, task: &TaskId) -> Option<OwnedTask> {
        let held = self.tasks.remove(task)?;
        self.by_age.remove(&(held.since, task.clone()));
        self.weight = self.weight.saturating_sub(held.weight);
        Some(held)
    }

    /// Whether the node has it.
    pub fn contains(&self, task: &TaskId) -> bool {
        self.tasks.contains_key(task)
    }

    /// Classifies the tasks again.
    pub fn classify(&mut self, class_of: impl Fn(&TaskId) -> Option<Class>) {
        for (task, held) in &mut self.tasks {
            if let Some(class) = class_of(task) {
                held.class = class;
            }
        }
    }

    /// What is known of a task that the node has.
    pub fn get(&self, task: &TaskId) -> Option<&OwnedTask> {
        self.tasks.get(task)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether the node has none.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// How much work that is.
    pub fn load(&self) -> Load {
        Load { tasks: self.tasks.len() as u64, weight: self.weight }
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl Iterator<Item = (&TaskId, &OwnedTask)> {
        self.tasks.iter()
    }

    /// All of them, the newest first: it has the least to lose.
    pub fn newest(&self) -> impl Iterator<Item = (&TaskId, &OwnedTask)> {
        self.by_age.iter().rev().filter_map(|(_, task)| self.tasks.get_key_value(task))
    }

    /// All of them, the cheapest to move first, of those the newest.
    pub fn cheapest(&self) -> Vec<(&TaskId, &OwnedTask)> {
        let mut tasks: Vec<_> = self.newest().collect();
        tasks.sort_by_key(|(_, held)| held.cost);
        tasks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(text: &str) -> TaskId {
        TaskId::parse(text).unwrap()
    }

    fn held(ms: u64, weight: u64, cost: u64) -> OwnedTask {
        OwnedTask { kind: None, weight, class: Class::ANY, cost, since: Moment::from_ms(ms) }
    }

    fn names<'a>(tasks: impl IntoIterator<Item = (&'a TaskId, &'a OwnedTask)>) -> Vec<&'a str> {
        tasks.into_iter().map(|(task, _)| task.as_str()).collect()
    }

    #[test]
    fn tasks_are_seen_newest_first_or_cheapest_first() {
        let mut own = OwnedTasks::new();
        own.insert(task("old"), held(1, 5, 1));
        own.insert(task("dear"), held(3, 1, 9));
        own.insert(task("new"), held(2, 1, 1));
        assert_eq!(names(own.newest()), ["dear", "new", "old"]);
        assert_eq!(names(own.cheapest()), ["new", "old", "dear"]);
        assert_eq!(own.load(), Load { tasks: 3, weight: 7 });
    }

    #[test]
    fn a_task_is_there_once_however_often_it_comes() {
        let mut own = OwnedTasks::new();
        own.insert(task("a"), held(1, 5, 0));
        own.insert(task("a"), held(2, 3, 0));
        assert_eq!((own.load(), own.newest().count()), (Load { tasks: 1, weight: 3 }, 1));
        assert!(own.remove(&task("a")).is_some());
        assert!(own.remove(&task("a")).is_none());
        assert_eq!((own.load(), own.newest().count()), (Load::default(), 0));
    }

    #[test]
    fn a_weight_is_a_label_and_otherwise_one() {
        let with = |text: &str| {
            let mut record = TaskRecord::default();
            record.labels.insert("weight".to_owned(), text.to_owned());
            weight_of(&record).map_err(str::to_owned)
        };
        assert_eq!(weight_of(&TaskRecord::default()), Ok(1));
        assert_eq!(with("40"), Ok(40));
        for text in ["", "0", "-1", "1.5", "heavy", "1000000001", "99999999999999999999"] {
            assert_eq!(with(text), Err(text.to_owned()));
        }
    }
}
