//! After all faults have ended, exactly the registered keys are there, and when all clients have
//! left, none is.

use std::collections::BTreeMap;

use super::{ClientLife, Violation};
use crate::history::HistoryEvent;

/// Every key that a living client has registered, with its value.
pub fn wanted(lives: &[&ClientLife]) -> BTreeMap<String, String> {
    let mut wanted = BTreeMap::new();
    for life in lives {
        for line in &life.lines {
            match &line.event {
                HistoryEvent::Wanted { key, value: Some(value) } => {
                    wanted.insert(key.clone(), value.clone());
                }
                HistoryEvent::Wanted { key, value: None } => {
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
    let mut broken = |what: String| violations.push(Violation { promise: "registrations match", what });
    for (key, value) in wanted {
        match found.get(key) {
            Some(there) if there == value => {}
            Some(there) => broken(format!("{key} is {there}, and {value} is wanted")),
            None => broken(format!("{key} is missing")),
        }
    }
    for key in found.keys().filter(|key| !wanted.contains_key(*key)) {
        broken(format!("{key} is there, and no client wants it"));
    }
    violations
}

/// What a client left behind in its own process.
pub fn left(life: &ClientLife) -> Vec<Violation> {
    let broken =
        |what: String| vec![Violation { promise: "nothing leaks", what: format!("{}: {what}", life.file) }];
    let left = life.lines.iter().rev().find_map(|line| match &line.event {
        HistoryEvent::Left { tasks, fds_before, fds_after, trouble } => {
            Some((*tasks, *fds_before, *fds_after, trouble))
        }
        _ => None,
    });
    match left {
        Some((0, before, after, None)) if after <= before => Vec::new(),
        Some((tasks, before, after, trouble)) => broken(format!(
            "{tasks} tasks alive, {before} files open before and {after} after, trouble: {trouble:?}"
        )),
        None => broken("it did not record its end".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::made::evidence;
    use super::*;
    use crate::history::HistoryLine;

    #[test]
    fn missing_wrong_and_foreign_keys_are_found() {
        let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(registrations(&of(&[("a", "1")]), &of(&[("a", "1")])), []);
        assert_eq!(registrations(&of(&[("a", "1")]), &of(&[])).len(), 1);
        assert_eq!(registrations(&of(&[("a", "1")]), &of(&[("a", "2")])).len(), 1);
        assert_eq!(registrations(&of(&[]), &of(&[("a", "1")])).len(), 1);
    }

    #[test]
    fn last_registration_counts() {
        let want = |key: &str, value: Option<&str>| HistoryLine {
            at: 0,
            event: HistoryEvent::Wanted { key: key.to_owned(), value: value.map(str::to_owned) },
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
    fn leaked_tasks_and_files_are_found() {
        let left = |tasks, fds_after, trouble: Option<&str>| {
            let trouble = trouble.map(str::to_owned);
            let event = HistoryEvent::Left { tasks, fds_before: 5, fds_after, trouble };
            left(&evidence(vec![vec![HistoryLine { at: 0, event }]]).lives[0]).len()
        };
        assert_eq!(left(0, 5, None), 0);
        assert_eq!((left(1, 5, None), left(0, 6, None), left(0, 5, Some("x"))), (1, 1, 1));
        assert_eq!(super::left(&evidence(vec![vec![]]).lives[0]).len(), 1);
    }
}
