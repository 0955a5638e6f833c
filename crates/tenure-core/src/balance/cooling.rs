//! What a node has just given away, and does not take back for a while.
//!
//! Without it a node that releases a task is the first to see it free, and takes it again. But once somebody else has taken it and is gone, or
//! all others are, there is nobody between whom it could go back and forth.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::crowd::Crowd;
use crate::name::{NodeId, TaskId};
use crate::time::Moment;

/// How long a node leaves a task alone that it has given away: long enough that everybody else has seen it and had their turn.
pub const COOL_DOWN: Duration = Duration::from_secs(60);

/// Tasks that a node has given away, until it may take them again.
#[derive(Clone, Debug, Default)]
pub struct Cooling {
    given: BTreeMap<TaskId, Given>,
    by_end: BTreeSet<(Moment, TaskId)>,
}

/// A task that was given away.
#[derive(Clone, Debug)]
struct Given {
    until: Moment,
    /// How many others took tasks then.
    others: usize,
    /// Who was last seen to have it since.
    taker: Option<NodeId>,
}

impl Cooling {
    /// Nothing.
    pub fn new() -> Cooling {
        Cooling::default()
    }

    /// The node has given this task away, while so many others took tasks. What is over is forgotten on the way.
    pub fn note(&mut self, task: &TaskId, cool_down: Duration, others: usize, now: Moment) {
        self.forget_until(now);
        self.forget(task);
        let until = now + cool_down;
        self.given.insert(task.clone(), Given { until, others, taker: None });
        self.by_end.insert((until, task.clone()));
    }

    /// The task may be taken at once, as when it was submitted anew.
    pub fn forget(&mut self, task: &TaskId) {
        if let Some(given) = self.given.remove(task) {
            self.by_end.remove(&(given.until, task.clone()));
        }
    }

    /// Another node has taken it.
    pub fn note_taken(&mut self, task: &TaskId, by: &NodeId) {
        if let Some(given) = self.given.get_mut(task) {
            given.taker = Some(by.clone());
        }
    }

    /// How long the node must leave it alone while these nodes take tasks, itself among them; none if it may take it.
    pub fn remaining(&self, task: &TaskId, willing: &Crowd, now: Moment) -> Option<Duration> {
        let given = self.given.get(task)?;
        let is_taker_gone = given.taker.as_ref().is_some_and(|taker| !willing.contains(taker));
        let is_everybody_gone = given.others > 0 && willing.len() <= 1;
        Some(given.until.remaining(now))
            .filter(|rest| !rest.is_zero() && !is_taker_gone && !is_everybody_gone)
    }

    /// How many tasks are known.
    pub fn len(&self) -> usize {
        self.given.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    fn forget_until(&mut self, now: Moment) {
        while let Some((until, task)) = self.by_end.first()
            && *until <= now
        {
            self.given.remove(task);
            self.by_end.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::crowd::Load;
    use super::*;

    #[test]
    fn a_task_is_left_alone_until_its_cool_down_is_over() {
        let (a, b) = (TaskId::parse("a").unwrap(), TaskId::parse("b").unwrap());
        let mut cooling = Cooling::new();
        cooling.note(&a, COOL_DOWN, 0, Moment::from_ms(0));
        assert_eq!(
            cooling.remaining(&a, &Crowd::new(), Moment::from_ms(59_999)),
            Some(Duration::from_millis(1))
        );
        assert_eq!(cooling.remaining(&a, &Crowd::new(), Moment::from_ms(60_000)), None);
        assert_eq!(cooling.remaining(&b, &Crowd::new(), Moment::from_ms(0)), None);
    }

    /// Itself, and these.
    fn willing(others: &[&str]) -> Crowd {
        let mut crowd = Crowd::new();
        for node in others.iter().chain(&["me"]) {
            crowd.set(&NodeId::parse(node).unwrap(), Load::default(), Moment::ORIGIN);
        }
        crowd
    }

    #[test]
    fn what_somebody_took_who_is_gone_may_be_taken_back() {
        let (a, now) = (TaskId::parse("a").unwrap(), Moment::from_ms(1));
        let mut cooling = Cooling::new();
        cooling.note(&a, COOL_DOWN, 2, now);
        assert_eq!(cooling.remaining(&a, &willing(&["n"]), now), Some(COOL_DOWN), "nobody has taken it yet");
        cooling.note_taken(&a, &NodeId::parse("n").unwrap());
        let among = |others: &[&str]| cooling.remaining(&a, &willing(others), now);
        assert_eq!(among(&["n"]), Some(COOL_DOWN), "it would go back and forth");
        assert_eq!((among(&[]), among(&["other"])), (None, None));
        cooling.note(&a, COOL_DOWN, 2, now);
        assert_eq!(cooling.remaining(&a, &willing(&["other"]), now), Some(COOL_DOWN), "given away again");
    }

    #[test]
    fn what_nobody_took_before_all_others_went_may_be_taken_back_unless_there_never_were_any() {
        let (a, alone, now) = (TaskId::parse("a").unwrap(), willing(&[]), Moment::from_ms(1));
        let mut cooling = Cooling::new();
        cooling.note(&a, COOL_DOWN, 1, now);
        assert_eq!(cooling.remaining(&a, &alone, now), None);
        cooling.note(&a, COOL_DOWN, 0, now);
        assert_eq!(cooling.remaining(&a, &alone, now), Some(COOL_DOWN), "somebody wanted it to be released");
    }

    #[test]
    fn given_away_twice_it_is_left_alone_from_the_second_time_on() {
        let a = TaskId::parse("a").unwrap();
        let mut cooling = Cooling::new();
        cooling.note(&a, COOL_DOWN, 0, Moment::from_ms(0));
        cooling.note(&a, COOL_DOWN, 0, Moment::from_ms(30_000));
        assert_eq!(
            cooling.remaining(&a, &Crowd::new(), Moment::from_ms(60_000)),
            Some(Duration::from_secs(30))
        );
        cooling.forget(&a);
        assert_eq!(cooling.remaining(&a, &Crowd::new(), Moment::from_ms(30_000)), None);
        assert!(cooling.is_empty() && cooling.by_end.is_empty());
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let mut cooling = Cooling::new();
        for n in 0..10_000_u64 {
            let task = TaskId::parse(&format!("t{n}")).unwrap();
            cooling.note(&task, COOL_DOWN, 0, Moment::from_ms(n * 1_000));
        }
        assert_eq!((cooling.len(), cooling.by_end.len()), (60, 60));
    }
}
