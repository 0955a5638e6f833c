//! Which tasks a worker takes: what was typed about it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use tenure::client::{Client, TaskFilter};
use tenure::worker::{WorkerBuilder, memory};
use tenure_core::balance::{AcceptAll, Capacity, Fair, Rendezvous, Weighted};
use tenure_core::id::check_text;
use tenure_core::worker::AcceptedTasks;

use crate::failure::Failure;
use crate::output::Output;

/// How many kinds are named when none of them is wanted.
const KINDS_NAMED_MAX: usize = 10;

/// Who decides how many tasks the worker has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(super) enum BalancerName {
    /// As many for each node as for any other.
    #[default]
    Fair,
    /// Whatever comes.
    All,
    /// As many as the memory of this machine allows.
    Capacity,
    /// Each task has the node that is meant by its id: least movement when nodes come and go.
    Rendezvous,
    /// As fair, but by the tasks' label `weight`.
    Weighted,
}

/// The limits of [`BalancerName::Capacity`], in percent of the memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryLimits {
    pub(super) claim_below: Option<u64>,
    pub(super) release_above: Option<u64>,
}

/// Below this a machine has room for one more; above the other it is about to swap.
const CLAIM_BELOW: u64 = 80;
const RELEASE_ABOVE: u64 = 90;

/// How often a worker whose memory is full gives a task away: as often as the memory is measured. The usual quarter of an hour would be too late.
const RELIEF_EVERY: Duration = Duration::from_secs(5);

/// Changes a worker that is about to be started.
pub(super) type Configure = Box<dyn FnOnce(WorkerBuilder) -> WorkerBuilder + Send>;

impl BalancerName {
    /// Sets this balancer.
    pub(super) fn configure(self, limits: MemoryLimits) -> Result<Configure, Failure> {
        let has_limits = limits.claim_below.is_some() || limits.release_above.is_some();
        if has_limits && self != BalancerName::Capacity {
            return Err(Failure::usage("--claim-below and --release-above belong to --balance capacity")
                .hint("add --balance capacity, or leave them out"));
        }
        Ok(match self {
            BalancerName::Fair => Box::new(|builder| builder.balancer(Fair::new())),
            BalancerName::All => Box::new(|builder| builder.balancer(AcceptAll)),
            BalancerName::Rendezvous => Box::new(|builder| builder.balancer(Rendezvous::default())),
            BalancerName::Weighted => Box::new(|builder| builder.balancer(Weighted::new())),
            BalancerName::Capacity => {
                let claim = limits.claim_below.unwrap_or(CLAIM_BELOW);
                let release = limits.release_above.unwrap_or(RELEASE_ABOVE);
                let capacity = Capacity::new(claim, release).map_err(|bad| {
                    Failure::usage(bad.to_string()).hint(
                        "claim below less than you release above, as in --claim-below 80 --release-above 90",
                    )
                })?;
                if memory().is_none() {
                    return Err(Failure::usage("--balance capacity needs /proc/meminfo, which is not there")
                        .hint("use --capacity N with another balancer"));
                }
                Box::new(|builder| builder.balancer(capacity).resource(memory).rebalance_every(RELIEF_EVERY))
            }
        })
    }
}

/// One thing that a task must have: a kind, or a label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TaskMatch {
    name: String,
    value: String,
}

impl TaskMatch {
    pub(super) fn parse(text: &str) -> Result<TaskMatch, String> {
        check_text(text).map_err(|bad| format!("{text:?} {bad}; no task has that"))?;
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                Ok(TaskMatch { name: name.to_owned(), value: value.to_owned() })
            }
            Some(_) => {
                Err("a name is missing in front of '='; write it as kind=mail, or LABEL=VALUE".to_owned())
            }
            None => Err(format!("{text:?} matches nothing; write it as kind={text}, or LABEL=VALUE")),
        }
    }
}

impl fmt::Display for TaskMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

/// What all of them mean together: one of the kinds, and all of the labels.
pub(super) fn wanted(matches: &[TaskMatch]) -> Result<AcceptedTasks, Failure> {
    let mut wanted = AcceptedTasks::default();
    for TaskMatch { name, value } in matches {
        if name == "kind" {
            wanted.kinds.insert(value.clone());
        } else if let Some(before) = wanted.labels.insert(name.clone(), value.clone())
            && before != *value
        {
            return Err(Failure::usage(format!(
                "no task matches --match {name}={before} and --match {name}={value}: a label has one value"
            ))
            .hint("leave one of them out, or start a second worker for it"));
        }
    }
    Ok(wanted)
}

/// Says it when nothing of what is there is wanted: most often a word was mistyped. It is no failure, because tasks may still come.
pub(super) async fn warn_of_nothing(matches: &[TaskMatch], client: &Client, output: &Output) {
    let Ok(wanted) = wanted(matches) else { return };
    // A listing that fails says nothing, and the node will say that the store is away.
    let Ok(listing) = client.tasks(&TaskFilter::new()).await else { return };
    let records: Vec<_> = listing.tasks.iter().filter_map(|task| task.record()).collect();
    if records.iter().any(|record| wanted.accepts(record)) {
        return;
    }
    let typed: Vec<String> = matches.iter().map(|wanted| format!("--match {wanted}")).collect();
    let typed = typed.join(" ");
    if records.is_empty() {
        output.note(&format!("{typed} matches nothing now, because there are no tasks; waiting for some"));
        return;
    }
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for record in &records {
        *kinds.entry(record.kind.as_deref().unwrap_or("")).or_default() += 1;
    }
    let count = records.len();
    output.note(&format!(
        "{typed} matches none of the {count} tasks that are there ({}); waiting for some that it does match",
        described(&kinds)
    ));
}

fn described(kinds: &BTreeMap<&str, usize>) -> String {
    let mut words: Vec<String> = kinds
        .iter()
        .take(KINDS_NAMED_MAX)
        .map(|(kind, count)| match *kind {
            "" => format!("{count} without a kind"),
            kind => format!("{count} of kind {kind}"),
        })
        .collect();
    if kinds.len() > KINDS_NAMED_MAX {
        words.push("…".to_owned());
    }
    words.join(", ")
}

/// Something that the worker's operator says of it.
pub(super) fn parse_label(text: &str) -> Result<(String, String), String> {
    check_text(text).map_err(|bad| format!("{text:?} {bad}"))?;
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) => Err("a name is missing in front of '='".to_owned()),
        None => Err(format!("{text:?} has no '='; write it as {text}=VALUE")),
    }
}

/// A label that is given twice.
pub(super) fn check_labels(labels: &[(String, String)]) -> Result<(), Failure> {
    let names: BTreeSet<&String> = labels.iter().map(|(name, _)| name).collect();
    if names.len() < labels.len() {
        return Err(Failure::usage("a label is given twice").hint("leave one of them out"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tenure_core::record::TaskRecord;

    use super::*;

    fn all(texts: &[&str]) -> Vec<TaskMatch> {
        texts.iter().map(|text| TaskMatch::parse(text).unwrap()).collect()
    }

    #[test]
    fn kinds_are_alternatives_and_labels_must_all_be_there() {
        let wanted = wanted(&all(&["kind=mail", "kind=report", "zone=eu"])).unwrap();
        let task = |kind: &str, zone: &str| {
            let mut record = TaskRecord { kind: Some(kind.to_owned()), ..TaskRecord::default() };
            record.labels.insert("zone".to_owned(), zone.to_owned());
            wanted.accepts(&record)
        };
        assert!(task("mail", "eu") && task("report", "eu"));
        assert!(!task("mail", "us") && !task("video", "eu"));
    }

    #[test]
    fn what_can_never_match_is_refused() {
        let refused = wanted(&all(&["zone=eu", "zone=us"])).unwrap_err();
        assert!(refused.message.contains("zone=eu") && refused.message.contains("zone=us"), "{refused:?}");
        assert!(wanted(&all(&["zone=eu", "zone=eu"])).is_ok());
        assert!(TaskMatch::parse("mail").unwrap_err().contains("kind=mail"));
        assert!(TaskMatch::parse("=mail").is_err());
        assert!(TaskMatch::parse("kind=a\nb").unwrap_err().contains("control characters"));
    }

    #[test]
    fn the_kinds_that_are_there_are_counted() {
        let kinds = BTreeMap::from([("", 2), ("mail", 5)]);
        assert_eq!(described(&kinds), "2 without a kind, 5 of kind mail");
    }
}
