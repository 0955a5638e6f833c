//! What a node has just given away, and does not take back for a while.
//!
//! Without it a node that releases a task is the first to see it free, and takes it again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::name::TaskId;
use crate::time::Moment;

/// How long a node leaves a task alone that it has given away: long enough that everybody else has seen it and had their turn.
pub const COOL_DOWN: Duration = Duration::from_secs(60);

/// Tasks that a node has given away, until it may take them again.
#[derive(Clone, Debug, Default)]
pub struct Cooling {
    until: BTreeMap<TaskId, Moment>,
    by_end: BTreeSet<(Moment, TaskId)>,
}

impl Cooling {
    /// Nothing.
    pub fn new() -> Cooling {
        Cooling::default()
    }

    /// The node has given this task away. What is over is forgotten on the way.
    pub fn note(&mut self, task: &TaskId, cool_down: Duration, now: Moment) {
        self.forget_until(now);
        self.forget(task);
        let until = now + cool_down;
        self.until.insert(task.clone(), until);
        self.by_end.insert((until, task.clone()));
    }

    /// The task may be taken at once, as when it was submitted anew.
    pub fn forget(&mut self, task: &TaskId) {
        if let Some(until) = self.until.remove(task) {
            self.by_end.remove(&(until, task.clone()));
        }
    }

    /// How long the node must leave it alone; none if it may take it.
    pub fn remaining(&self, task: &TaskId, now: Moment) -> Option<Duration> {
        self.until.get(task).map(|until| until.remaining(now)).filter(|rest| !rest.is_zero())
    }

    /// How many tasks are known.
    pub fn len(&self) -> usize {
        self.until.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.until.is_empty()
    }

    fn forget_until(&mut self, now: Moment) {
        while let Some((until, task)) = self.by_end.first()
            && *until <= now
        {
            self.until.remove(task);
            self.by_end.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_left_alone_until_its_cool_down_is_over() {
        let (a, b) = (TaskId::parse("a").unwrap(), TaskId::parse("b").unwrap());
        let mut cooling = Cooling::new();
        cooling.note(&a, COOL_DOWN, Moment::from_ms(0));
        assert_eq!(cooling.remaining(&a, Moment::from_ms(59_999)), Some(Duration::from_millis(1)));
        assert_eq!(cooling.remaining(&a, Moment::from_ms(60_000)), None);
        assert_eq!(cooling.remaining(&b, Moment::from_ms(0)), None);
    }

    #[test]
    fn given_away_twice_it_is_left_alone_from_the_second_time_on() {
        let a = TaskId::parse("a").unwrap();
        let mut cooling = Cooling::new();
        cooling.note(&a, COOL_DOWN, Moment::from_ms(0));
        cooling.note(&a, COOL_DOWN, Moment::from_ms(30_000));
        assert_eq!(cooling.remaining(&a, Moment::from_ms(60_000)), Some(Duration::from_secs(30)));
        cooling.forget(&a);
        assert_eq!(cooling.remaining(&a, Moment::from_ms(30_000)), None);
        assert!(cooling.is_empty() && cooling.by_end.is_empty());
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let mut cooling = Cooling::new();
        for n in 0..10_000_u64 {
            let task = TaskId::parse(&format!("t{n}")).unwrap();
            cooling.note(&task, COOL_DOWN, Moment::from_ms(n * 1_000));
        }
        assert_eq!((cooling.len(), cooling.by_end.len()), (60, 60));
    }
}
