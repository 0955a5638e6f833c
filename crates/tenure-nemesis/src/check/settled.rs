//! After all faults have ended, exactly what is wanted is there, and when everybody has gone, nothing is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure::core::layout::{COMMAND_RESULT_TTL, RESULTS_LEASE_TTL, TASK_COMMAND_TTL};

use super::{Life, Violation};
use crate::history::{Event, Work};

/// Every key that is wanted by those who live, with its value.
pub fn wanted(lives: &[&Life]) -> BTreeMap<String, String> {
    let mut wanted = BTreeMap::new();
    for life in lives {
        for line in &life.lines {
            match &line.event {
                Event::Wanted { key, value: Some(value) } => {
                    wanted.insert(key.clone(), value.clone());
                }
                Event::Wanted { key, value: None } => {
                    wanted.remove(key);
                }
                _ => {}
            }
        }
    }
    wanted
}

/// Compares what is wanted with what is there.
pub fn registrations(wanted: &BTreeMap<String, String>, found: &BTreeMap<String, String>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut broken = |what: String| violations.push(Violation { promise: "keys as wanted", what });
    for (key, value) in wanted {
        match found.get(key) {
            Some(there) if there == value => {}
            Some(there) => broken(format!("{key} is {there}, and {value} is wanted")),
            None => broken(format!("{key} is missing")),
        }
    }
    for key in found.keys().filter(|key| !wanted.contains_key(*key)) {
        broken(format!("{key} is there, and nobody wants it"));
    }
    violations
}

/// What a client left behind in its own process.
pub fn left(life: &Life) -> Vec<Violation> {
    let broken =
        |what: String| vec![Violation { promise: "nothing leaks", what: format!("{}: {what}", life.file) }];
    let left = life.lines.iter().rev().find_map(|line| match &line.event {
        Event::Left { tasks, fds_before, fds_after, trouble } => {
            Some((*tasks, *fds_before, *fds_after, trouble))
        }
        _ => None,
    });
    match left {
        Some((0, before, after, None)) if after <= before => Vec::new(),
        Some((tasks, before, after, trouble)) => broken(format!(
            "{tasks} tasks alive, {before} files open before and {after} after, trouble: {trouble:?}"
        )),
        None => broken("it did not say that it goes".to_owned()),
    }
}

/// Those who were killed at a moment at which a lease may be left empty: etcd has no request that grants one and puts something on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutShort {
    /// Commands that were being sent: each may have been granted its lease, and one for what the sender of the command before it is told.
    pub senders: usize,
    /// Clients, each a node: it may have been granted the lease for its results, and none of them have come to lie there.
    pub nodes: usize,
}

impl CutShort {
    /// What the histories of the killed show.
    pub fn count(lives: &[Life]) -> CutShort {
        let open = |life: &Life| {
            let mut open = BTreeSet::new();
            for line in &life.lines {
                match line.event {
                    Event::Asked { op, work: Work::Command, .. } => drop(open.insert(op)),
                    Event::Answered { op, .. } => drop(open.remove(&op)),
                    _ => {}
                }
            }
            open.len()
        };
        let killed = || lives.iter().filter(|life| life.killed_at.is_some());
        CutShort { senders: killed().map(open).sum(), nodes: killed().count() }
    }

    /// Whether leases that nothing hangs on, by the TTLs they were granted, are no more than these may have left.
    pub fn excuse(self, granted: &[Duration]) -> bool {
        let excused = [
            (TASK_COMMAND_TTL, self.senders),
            (COMMAND_RESULT_TTL, self.senders),
            (RESULTS_LEASE_TTL, self.nodes),
        ];
        let of = |ttl: Duration| granted.iter().filter(|granted| **granted == ttl).count();
        excused.iter().all(|&(ttl, may_leave)| of(ttl) <= may_leave)
            && granted.iter().all(|ttl| excused.iter().any(|(known, _)| known == ttl))
    }
}

#[cfg(test)]
mod tests {
    use super::super::made::evidence;
    use super::*;
    use crate::history::{Line, Outcome};

    #[test]
    fn only_who_was_killed_excuses_a_lease_and_only_one_that_it_may_have_asked_for() {
        let ask =
            |op, work| Line { at: 0, event: Event::Asked { op, work, line: "t".to_owned(), value: None } };
        let answer = |op| Line {
            at: 0,
            event: Event::Answered { op, outcome: Outcome::Ok, token: None, value: None },
        };
        let mut lives = evidence(vec![
            vec![ask(1, Work::Command), answer(1), ask(2, Work::Command)],
            vec![ask(1, Work::Command)],
            vec![ask(1, Work::Lock)],
        ])
        .lives;
        assert_eq!(CutShort::count(&lives), CutShort { senders: 0, nodes: 0 }, "nobody was killed");
        for n in [0, 2] {
            lives[n].killed_at = Some(1);
        }
        let cut_short = CutShort::count(&lives);
        assert_eq!(cut_short, CutShort { senders: 1, nodes: 2 });
        let (week, day, node) = (TASK_COMMAND_TTL, COMMAND_RESULT_TTL, RESULTS_LEASE_TTL);
        assert!(cut_short.excuse(&[week, day, node, node]));
        for too_much in [vec![week, week], vec![day, day], vec![node; 3], vec![Duration::from_secs(60)]] {
            assert!(!cut_short.excuse(&too_much), "{too_much:?}");
        }
    }

    #[test]
    fn a_missing_a_wrong_and_a_foreign_key_are_found() {
        let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(registrations(&of(&[("a", "1")]), &of(&[("a", "1")])), []);
        assert_eq!(registrations(&of(&[("a", "1")]), &of(&[])).len(), 1);
        assert_eq!(registrations(&of(&[("a", "1")]), &of(&[("a", "2")])).len(), 1);
        assert_eq!(registrations(&of(&[]), &of(&[("a", "1")])).len(), 1);
    }

    #[test]
    fn the_last_word_counts() {
        let want = |key: &str, value: Option<&str>| Line {
            at: 0,
            event: Event::Wanted { key: key.to_owned(), value: value.map(str::to_owned) },
        };
        let told = evidence(vec![vec![
            want("a", Some("1")),
            want("b", Some("1")),
            want("a", None),
            want("b", Some("2")),
        ]]);
        let wanted = wanted(&told.lives.iter().collect::<Vec<_>>());
        assert_eq!(wanted, BTreeMap::from([("b".to_owned(), "2".to_owned())]));
    }

    #[test]
    fn a_task_a_file_and_a_silent_end_are_found() {
        let left = |tasks, fds_after, trouble: Option<&str>| {
            let trouble = trouble.map(str::to_owned);
            let event = Event::Left { tasks, fds_before: 5, fds_after, trouble };
            left(&evidence(vec![vec![Line { at: 0, event }]]).lives[0]).len()
        };
        assert_eq!(left(0, 5, None), 0);
        assert_eq!((left(1, 5, None), left(0, 6, None), left(0, 5, Some("x"))), (1, 1, 1));
        assert_eq!(super::left(&evidence(vec![vec![]]).lives[0]).len(), 1);
    }
}
