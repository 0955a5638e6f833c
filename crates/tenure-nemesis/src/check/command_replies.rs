//! The sender of a command never learns that it vanished: a command is handled, replaced, refused
//! or expired, and the reply reports which.

use super::{Evidence, Violation};
use crate::history::HistoryEvent;

/// Finds senders that received an untrue result.
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    let mut violations = Vec::new();
    for life in &evidence.lives {
        for line in &life.lines {
            if let HistoryEvent::Told { command, outcome } = &line.event
                && outcome == "gone"
            {
                violations.push(Violation {
                    promise: "commands are answered",
                    what: format!("{command} is gone without a reply, in {}", life.file),
                });
            }
        }
    }
    violations
}

/// What the store keeps of commands, against those that were sent.
pub fn against(sent: &[(String, String)], results: &[(String, bool)], waiting: &[String]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut broken = |what: String| violations.push(Violation { promise: "commands are answered", what });
    for (command, file) in sent {
        match results.iter().filter(|(id, _)| id == command).count() {
            1 => {}
            count => broken(format!("{command} of {file} has {count} answers")),
        }
    }
    for (id, _) in results.iter().filter(|(_, is_first)| !is_first) {
        broken(format!("{id} was answered twice"));
    }
    for command in waiting {
        broken(format!("{command} still waits, and its task has ended"));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::made::evidence;
    use super::*;
    use crate::history::HistoryLine;

    #[test]
    fn vanished_command_is_found() {
        let told = |outcome: &str| {
            let event = HistoryEvent::Told { command: "c".to_owned(), outcome: outcome.to_owned() };
            check(&evidence(vec![vec![HistoryLine { at: 1, event }]])).len()
        };
        assert_eq!(told("done"), 0);
        assert_eq!(told("unknown: not handled within 10s"), 0);
        assert_eq!(told("gone"), 1);
    }

    #[test]
    fn missing_or_double_command_reply_is_found() {
        let sent = [("c".to_owned(), "c0.1".to_owned())];
        assert_eq!(against(&sent, &[("c".to_owned(), true)], &[]), []);
        assert_eq!(against(&sent, &[], &[]).len(), 1);
        assert_eq!(against(&sent, &[("c".to_owned(), false)], &[]).len(), 1);
        assert_eq!(against(&[], &[], &["c".to_owned()]).len(), 1);
    }
}
