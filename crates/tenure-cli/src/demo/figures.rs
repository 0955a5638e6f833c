//! The figures of the demo, computed from the runs of its tasks: overlapping runs, lost tasks and the tasks of each worker.
//!
//! **Invariant**: a run lasts until its end was written, or until its worker process was reaped. So no overlap is missed; a false one
//! would be shorter than the end of a killed process.

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::{LedgerEntry, LedgerMark};

/// The largest allowed difference between the workers with the most and the fewest tasks.
pub(super) const SPREAD_MAX: usize = 2;

/// One run of one task.
#[derive(Clone, PartialEq, Eq, Debug)]
struct TaskRun {
    worker: usize,
    token: i64,
    begin_ns: u64,
    /// `None` while it lasts.
    end_ns: Option<u64>,
}

/// All recorded runs, by task.
#[derive(Clone, Debug, Default)]
pub(super) struct RunLedger {
    runs: BTreeMap<String, Vec<TaskRun>>,
}

impl RunLedger {
    /// Adds an entry of a worker's ledger.
    pub(super) fn note(&mut self, worker: usize, entry: LedgerEntry) {
        let runs = self.runs.entry(entry.task).or_default();
        match entry.mark {
            LedgerMark::Begin => {
                runs.push(TaskRun { worker, token: entry.token, begin_ns: entry.at_ns, end_ns: None });
            }
            LedgerMark::End => {
                let is_open = |run: &&mut TaskRun| {
                    run.worker == worker && run.token == entry.token && run.end_ns.is_none()
                };
                if let Some(run) = runs.iter_mut().rev().find(is_open) {
                    run.end_ns = Some(entry.at_ns);
                }
            }
        }
    }

    /// Ends all runs of a worker that was killed.
    pub(super) fn died(&mut self, worker: usize, at_ns: u64) {
        for run in self.runs.values_mut().flatten().filter(|run| run.worker == worker) {
            run.end_ns.get_or_insert(at_ns);
        }
    }

    /// How many tasks run on each worker.
    pub(super) fn running(&self) -> BTreeMap<usize, usize> {
        let mut counts = BTreeMap::new();
        for run in self.runs.values().flatten().filter(|run| run.end_ns.is_none()) {
            *counts.entry(run.worker).or_default() += 1;
        }
        counts
    }

    /// The tasks that run on a worker.
    pub(super) fn tasks_of(&self, worker: usize) -> BTreeSet<String> {
        let runs_there =
            |runs: &Vec<TaskRun>| runs.iter().any(|run| run.worker == worker && run.end_ns.is_none());
        self.runs.iter().filter(|(_, runs)| runs_there(runs)).map(|(task, _)| task.clone()).collect()
    }

    /// The tasks that run somewhere.
    pub(super) fn running_tasks(&self) -> BTreeSet<&str> {
        let runs_now = |runs: &Vec<TaskRun>| runs.iter().any(|run| run.end_ns.is_none());
        self.runs.iter().filter(|(_, runs)| runs_now(runs)).map(|(task, _)| task.as_str()).collect()
    }

    /// When the last of these tasks began again after a moment; `None` if one of them has not.
    pub(super) fn all_began_after(&self, tasks: &BTreeSet<String>, after_ns: u64) -> Option<u64> {
        let began = |task: &String| {
            let runs = self.runs.get(task)?;
            runs.iter().map(|run| run.begin_ns).filter(|begin_ns| *begin_ns > after_ns).min()
        };
        tasks.iter().map(began).try_fold(after_ns, |last, began| Some(last.max(began?)))
    }

    /// Tasks with two overlapping runs, or with a later run that has a smaller token.
    pub(super) fn ran_twice_at_once(&self) -> Vec<String> {
        let overlaps = |runs: &Vec<TaskRun>| {
            let mut runs = runs.clone();
            runs.sort_by_key(|run| run.begin_ns);
            runs.windows(2).any(|pair| {
                pair[0].end_ns.is_none_or(|end_ns| pair[1].begin_ns < end_ns) || pair[1].token < pair[0].token
            })
        };
        self.runs.iter().filter(|(_, runs)| overlaps(runs)).map(|(task, _)| task.clone()).collect()
    }
}

/// The most and the fewest tasks of a live worker.
pub(super) fn spread(counts: &BTreeMap<usize, usize>, alive: &BTreeSet<usize>) -> (usize, usize) {
    let count = |worker: &usize| counts.get(worker).copied().unwrap_or(0);
    (alive.iter().map(count).max().unwrap_or(0), alive.iter().map(count).min().unwrap_or(0))
}

/// The figures of a whole demo.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct DemoFigures {
    pub(super) tasks: usize,
    /// `None` if the tasks were never balanced.
    pub(super) balanced_seconds: Option<f64>,
    /// The most and the fewest tasks per worker before the kill.
    pub(super) spread_before: (usize, usize),
    pub(super) killed_tasks: usize,
    pub(super) reclaimed_seconds: Option<f64>,
    pub(super) ran_twice: Vec<String>,
    pub(super) lost: Vec<String>,
    /// The most and the fewest tasks per worker at the end.
    pub(super) spread: (usize, usize),
    pub(super) leader_before: Option<String>,
    pub(super) leader_after: Option<String>,
}

impl DemoFigures {
    /// The broken promises; empty if there are none.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.balanced_seconds.is_none() {
            problems.push("the tasks were never balanced over all workers".to_owned());
        }
        if self.killed_tasks == 0 {
            problems.push("the killed worker had no task".to_owned());
        }
        if self.reclaimed_seconds.is_none() {
            problems.push("not all tasks of the killed worker ran elsewhere".to_owned());
        }
        if !self.ran_twice.is_empty() {
            problems.push(format!("{} ran twice at once: {}", self.ran_twice.len(), some(&self.ran_twice)));
        }
        if !self.lost.is_empty() {
            problems.push(format!("{} were lost: {}", self.lost.len(), some(&self.lost)));
        }
        for (when, (max, min)) in [("before the kill", self.spread_before), ("at the end", self.spread)] {
            if max - min > SPREAD_MAX {
                problems.push(format!("{when} one worker had {max} tasks and another {min}"));
            }
        }
        match (&self.leader_before, &self.leader_after) {
            (None, _) => problems.push("no worker was elected".to_owned()),
            (Some(_), None) => problems.push("no worker was elected after the leader was killed".to_owned()),
            (Some(before), Some(after)) if before == after => {
                problems.push(format!("{before} was killed and still leads"));
            }
            (Some(_), Some(_)) => {}
        }
        problems
    }

    /// The result as one line.
    pub(super) fn line(&self) -> String {
        let seconds = |seconds: Option<f64>| seconds.map_or("never".to_owned(), |s| format!("in {s:.1} s"));
        format!(
            "balanced {} · node killed · {} tasks reclaimed {} · {} ran twice at once · {} lost · max/min per node {}/{}",
            seconds(self.balanced_seconds),
            self.killed_tasks,
            seconds(self.reclaimed_seconds),
            self.ran_twice.len(),
            self.lost.len(),
            self.spread.0,
            self.spread.1
        )
    }
}

/// The first few names.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let more = if names.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", names[..names.len().min(SHOWN)].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worker, token, begin, and end if there was one.
    fn ledger(runs: &[(&str, usize, i64, u64, Option<u64>)]) -> RunLedger {
        let mut ledger = RunLedger::default();
        for (task, worker, token, begin, end) in runs {
            let entry = |mark, at_ns| LedgerEntry { mark, task: (*task).to_owned(), token: *token, at_ns };
            ledger.note(*worker, entry(LedgerMark::Begin, *begin));
            if let Some(end) = end {
                ledger.note(*worker, entry(LedgerMark::End, *end));
            }
        }
        ledger
    }

    fn good() -> DemoFigures {
        DemoFigures {
            tasks: 1_000,
            balanced_seconds: Some(1.44),
            spread_before: (334, 333),
            killed_tasks: 333,
            reclaimed_seconds: Some(4.06),
            spread: (500, 500),
            leader_before: Some("node-1".to_owned()),
            leader_after: Some("node-2".to_owned()),
            ..DemoFigures::default()
        }
    }

    #[test]
    fn line_is_as_documented() {
        assert_eq!(good().problems(), Vec::<String>::new());
        assert_eq!(
            good().line(),
            "balanced in 1.4 s · node killed · 333 tasks reclaimed in 4.1 s · 0 ran twice at once · 0 lost · \
             max/min per node 500/500"
        );
    }

    #[test]
    fn each_broken_promise_is_a_problem() {
        let two = || vec!["a".to_owned(), "b".to_owned()];
        for (figures, problem) in [
            (DemoFigures { balanced_seconds: None, ..good() }, "never balanced"),
            (DemoFigures { spread_before: (336, 333), ..good() }, "one worker had 336"),
            (DemoFigures { killed_tasks: 0, ..good() }, "had no task"),
            (DemoFigures { reclaimed_seconds: None, ..good() }, "not all tasks"),
            (DemoFigures { ran_twice: two(), ..good() }, "2 ran twice at once: a, b"),
            (DemoFigures { lost: two(), ..good() }, "2 were lost: a, b"),
            (DemoFigures { spread: (502, 498), ..good() }, "one worker had 502"),
            (DemoFigures { leader_before: None, ..good() }, "no worker was elected"),
            (DemoFigures { leader_after: None, ..good() }, "after the leader was killed"),
            (DemoFigures { leader_after: Some("node-1".to_owned()), ..good() }, "still leads"),
        ] {
            let problems = figures.problems();
            assert!(problems.len() == 1 && problems[0].contains(problem), "{problem}: {problems:?}");
        }
    }

    #[test]
    fn overlapping_runs_are_found_on_any_worker() {
        let twice = |runs: &[(&str, usize, i64, u64, Option<u64>)]| ledger(runs).ran_twice_at_once();
        assert_eq!(twice(&[("a", 0, 1, 10, Some(20)), ("a", 1, 2, 20, None)]), Vec::<String>::new());
        assert_eq!(twice(&[("a", 0, 1, 10, Some(20)), ("a", 1, 2, 19, None)]), ["a"]);
        assert_eq!(
            twice(&[("a", 0, 1, 10, None), ("a", 1, 2, 30, None)]),
            ["a"],
            "the first run never ended"
        );
        assert_eq!(twice(&[("a", 1, 2, 19, None), ("a", 0, 1, 10, Some(20))]), ["a"], "in any reading order");
        assert_eq!(twice(&[("a", 0, 2, 10, Some(20)), ("a", 1, 1, 30, None)]), ["a"], "with a smaller token");
    }

    #[test]
    fn killed_tasks_are_reclaimed_when_all_run_again() {
        let mut ledger = ledger(&[("a", 0, 1, 10, None), ("b", 0, 2, 11, None), ("c", 1, 3, 12, None)]);
        let killed = ledger.tasks_of(0);
        assert_eq!((killed.len(), ledger.running().get(&0)), (2, Some(&2)));
        ledger.died(0, 50);
        assert_eq!((ledger.running_tasks().len(), ledger.all_began_after(&killed, 50)), (1, None));
        let begin = |task: &str, token, at_ns| LedgerEntry {
            mark: LedgerMark::Begin,
            task: task.to_owned(),
            token,
            at_ns,
        };
        ledger.note(1, begin("a", 7, 60));
        assert_eq!(ledger.all_began_after(&killed, 50), None, "b is still missing");
        ledger.note(1, begin("b", 8, 70));
        assert_eq!(ledger.all_began_after(&killed, 50), Some(70));
        assert!(ledger.ran_twice_at_once().is_empty());
        assert_eq!(spread(&ledger.running(), &BTreeSet::from([1])), (3, 3));
        assert_eq!(spread(&ledger.running(), &BTreeSet::from([1, 2])), (3, 0), "one without tasks counts");
    }
}
