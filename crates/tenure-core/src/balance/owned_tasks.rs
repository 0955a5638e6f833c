//! The tasks of one worker.

use std::collections::{BTreeMap, BTreeSet};

use super::class::Class;
use super::worker_loads::Load;
use crate::id::TaskId;
use crate::record::TaskRecord;
use crate::time::Moment;

/// The largest weight of a task: enough for any proportion, and the sum of ten billion such tasks
/// does not overflow.
const WEIGHT_MAX: u64 = 1_000_000_000;

/// A task of this worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedTask {
    /// The kind of work.
    pub kind: Option<String>,
    /// Its weight; see [`weight_of`].
    pub weight: u64,
    /// The workers that accept it, as a class.
    pub class: Class,
    /// The cost of moving it to another worker, in any unit that the worker uses. Zero if it is
    /// unknown.
    pub cost: u64,
    /// Since when the worker has owned it.
    pub since: Moment,
}

/// The weight of a task: its label `weight`, or 1 without one.
///
/// # Errors
///
/// The text of the label, if it is not a whole number from 1 to a billion. The caller then takes 1
/// and logs it.
pub fn weight_of(record: &TaskRecord) -> Result<u64, &str> {
    let Some(text) = record.labels.get("weight") else { return Ok(1) };
    match text.parse() {
        Ok(weight @ 1..=WEIGHT_MAX) => Ok(weight),
        Ok(_) | Err(_) => Err(text),
    }
}

/// The tasks that one worker owns or is claiming.
#[derive(Clone, Debug, Default)]
pub struct OwnedTasks {
    tasks: BTreeMap<TaskId, OwnedTask>,
    by_age: BTreeSet<(Moment, TaskId)>,
    weight: u64,
}

impl OwnedTasks {
    /// No tasks.
    pub fn new() -> OwnedTasks {
        OwnedTasks::default()
    }

    /// Adds or replaces a task.
    pub fn insert(&mut self, task: TaskId, held: OwnedTask) {
        self.remove(&task);
        self.weight = self.weight.saturating_add(held.weight);
        self.by_age.insert((held.since, task.clone()));
        self.tasks.insert(task, held);
    }

    /// Removes a task.
    pub fn remove(&mut self, task: &TaskId) -> Option<OwnedTask> {
        let held = self.tasks.remove(task)?;
        self.by_age.remove(&(held.since, task.clone()));
        self.weight = self.weight.saturating_sub(held.weight);
        Some(held)
    }

    /// Whether the worker owns a task.
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

    /// A task of this worker.
    pub fn get(&self, task: &TaskId) -> Option<&OwnedTask> {
        self.tasks.get(task)
    }

    /// How many tasks there are.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Their load.
    pub fn load(&self) -> Load {
        Load { tasks: self.tasks.len() as u64, weight: self.weight }
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl Iterator<Item = (&TaskId, &OwnedTask)> {
        self.tasks.iter()
    }

    /// All of them, the newest first: it has the least progress to lose.
    pub fn newest(&self) -> impl Iterator<Item = (&TaskId, &OwnedTask)> {
        self.by_age.iter().rev().filter_map(|(_, task)| self.tasks.get_key_value(task))
    }

    /// All of them, the cheapest to move first; of equal cost the newest first.
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
    fn inserted_task_is_counted_once() {
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
