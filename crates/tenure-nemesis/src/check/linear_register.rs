//! The history of the register is linearizable, and only leaders write it, each after the one before.
//!
//! Every write has a value of its own, so there is nothing to search (Gibbons and Korach, 1997): all operations of one value lie together, and its *zone* is
//! the time from the first answer to the last question among them. If the answer came first, the value must have been there all that time, and
//! no two values can; if the question came last, there is a moment between in which all of them happen, and that must not lie
//! inside of the time of another value.
//!
//! A write with a lost reply may take effect at any later time; one that was never read need not
//! have happened at all.

use std::collections::BTreeMap;

use super::{Evidence, Violation};
use crate::history::{HistoryEvent, OperationKind, OperationOutcome, Stamp};

/// A write or a read, from its question to its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Operation {
    is_write: bool,
    /// `None` before the first write.
    value: Option<String>,
    asked: Stamp,
    /// The maximum if the operation was never answered.
    answered: Stamp,
    /// The revision that the store reported for it.
    revision: Option<i64>,
}

/// Finds registers without a linear order, and leaders that wrote after their successors.
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    let mut lines: BTreeMap<String, Vec<Operation>> = BTreeMap::new();
    for life in &evidence.lives {
        let mut open = BTreeMap::new();
        for line in &life.lines {
            match &line.event {
                HistoryEvent::Asked {
                    op,
                    work: work @ (OperationKind::Write | OperationKind::Read),
                    line: name,
                    value,
                } => {
                    open.insert(*op, (*work, name.clone(), value.clone(), line.at));
                }
                HistoryEvent::Answered { op, outcome, token, value } => {
                    let Some((work, name, wrote, asked)) = open.remove(op) else { continue };
                    let is_write = work == OperationKind::Write;
                    let answered = if *outcome == OperationOutcome::Unknown { Stamp::MAX } else { line.at };
                    let value = if is_write { wrote } else { value.clone() };
                    if *outcome == OperationOutcome::Ok || (is_write && *outcome == OperationOutcome::Unknown)
                    {
                        let operation = Operation { is_write, value, asked, answered, revision: *token };
                        lines.entry(name).or_default().push(operation);
                    }
                }
                _ => {}
            }
        }
        // Killed before the answer.
        for (work, name, value, asked) in
            open.into_values().filter(|(work, ..)| *work == OperationKind::Write)
        {
            let is_write = work == OperationKind::Write;
            let operation = Operation { is_write, value, asked, answered: Stamp::MAX, revision: None };
            lines.entry(name).or_default().push(operation);
        }
    }
    let mut violations = Vec::new();
    for (name, operations) in lines {
        let found = linear(&operations).err().into_iter().chain(in_order(&operations));
        violations.extend(
            found.map(|what| Violation { promise: "linearizable register", what: format!("{name}: {what}") }),
        );
    }
    violations
}

/// The time in which a value was there, or could have been.
#[derive(Debug)]
struct ValueInterval {
    value: Option<String>,
    first_answer: Stamp,
    last_question: Stamp,
}

fn linear(operations: &[Operation]) -> Result<(), String> {
    let mut zones: BTreeMap<Option<&String>, ValueInterval> = BTreeMap::new();
    let mut written: BTreeMap<Option<&String>, Stamp> = BTreeMap::from([(None, 0)]);
    let read = |value: &Option<String>| operations.iter().any(|one| !one.is_write && one.value == *value);
    for write in operations.iter().filter(|one| one.is_write) {
        let needless = write.answered == Stamp::MAX && !read(&write.value);
        if !needless && written.insert(write.value.as_ref(), write.asked).is_some() {
            return Err(format!("{:?} was written twice", write.value));
        }
    }
    for one in operations {
        let Some(asked) = written.get(&one.value.as_ref()) else {
            if one.is_write {
                continue;
            }
            return Err(format!("{:?} was read at {} and never written", one.value, one.answered));
        };
        if !one.is_write && one.answered < *asked {
            return Err(format!("{:?} was read at {} before it was written", one.value, one.answered));
        }
        let zone = zones.entry(one.value.as_ref()).or_insert_with(|| ValueInterval {
            value: one.value.clone(),
            // The initial absence counts as written at time 0.
            first_answer: if one.value.is_none() { 0 } else { Stamp::MAX },
            last_question: 0,
        });
        zone.first_answer = zone.first_answer.min(one.answered);
        zone.last_question = zone.last_question.max(one.asked);
    }
    let (mut spans, points): (Vec<ValueInterval>, Vec<ValueInterval>) =
        zones.into_values().partition(|zone| zone.first_answer < zone.last_question);
    spans.sort_by_key(|zone| zone.first_answer);
    for pair in spans.windows(2) {
        if pair[0].last_question > pair[1].first_answer {
            return Err(format!("{:?} and {:?} were there at once", pair[0].value, pair[1].value));
        }
    }
    for point in points {
        let around = spans.partition_point(|span| span.first_answer < point.last_question);
        let around = around.checked_sub(1).map(|index| &spans[index]);
        if let Some(span) = around.filter(|span| point.first_answer < span.last_question) {
            return Err(format!("{:?} was there only while {:?} was", point.value, span.value));
        }
    }
    Ok(())
}

/// By revision, tokens of writers do not go back: a write is guarded by its term.
fn in_order(operations: &[Operation]) -> Option<String> {
    let token = |one: &Operation| one.value.as_ref()?.split(':').next()?.parse::<i64>().ok();
    let mut writes: Vec<(i64, i64)> = operations
        .iter()
        .filter(|one| one.is_write)
        .filter_map(|one| Some((one.revision?, token(one)?)))
        .collect();
    writes.sort_unstable();
    let back = writes.windows(2).find(|pair| pair[0].1 > pair[1].1)?;
    Some(format!("token {} wrote revision {} after token {}", back[1].1, back[1].0, back[0].1))
}

#[cfg(test)]
mod tests;
