//! The flags that select which tasks a worker claims, and how many.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use tenure::Tenure;
use tenure::worker::{WorkerBuilder, memory};
use tenure_core::balance::{AcceptAll, Capacity, Fair, Rendezvous, Weighted};
use tenure_core::id::check_text;
use tenure_core::worker::AcceptedTasks;

use crate::failure::Failure;
use crate::output::Output;

/// The number of kinds that one message names.
const KINDS_NAMED_MAX: usize = 10;

/// The balancer of the worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(super) enum BalancerName {
    /// An equal number of tasks on every node.
    #[default]
    Fair,
    /// Claim every task.
    All,
    /// As many tasks as the memory of this host allows.
    Capacity,
    /// Each task on the node that rendezvous hashing chooses for its id: the fewest moves when nodes join and leave.
    Rendezvous,
    /// As fair, by the tasks' label `weight`.
    Weighted,
}

/// The limits of [`BalancerName::Capacity`], in percent of the memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryLimits {
    pub(super) claim_below: Option<u64>,
    pub(super) release_above: Option<u64>,
}

/// Below the first, a host has memory for another task; above the second, it is close to swapping.
const CLAIM_BELOW: u64 = 80;
const RELEASE_ABOVE: u64 = 90;

/// The interval of the balancer, that of the memory measurement. A worker with full memory would swap long before the default of a quarter of an hour.
const RELIEF_EVERY: Duration = Duration::from_secs(5);

/// Configures a worker before its start.
pub(super) type Configure = Box<dyn FnOnce(WorkerBuilder) -> WorkerBuilder + Send>;

impl BalancerName {
    /// Returns the change that sets this balancer.
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
                let capacity = Capacity::new(claim, release).map_err(|error| {
                    Failure::usage(error.to_string()).hint(
                        "use a --claim-below smaller than --release-above, as in --claim-below 80 --release-above 90",
                    )
                })?;
                if memory().is_none() {
                    return Err(Failure::usage(
                        "--balance capacity needs /proc/meminfo, which does not exist",
                    )
                    .hint("use --capacity N with another balancer"));
                }
                Box::new(|builder| builder.balancer(capacity).resource(memory).rebalance_every(RELIEF_EVERY))
            }
        })
    }
}

/// One `--match`: a kind or a label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TaskMatch {
    name: String,
    value: String,
}

impl TaskMatch {
    pub(super) fn parse(text: &str) -> Result<TaskMatch, String> {
        check_text(text).map_err(|error| format!("{text:?} {error}; no task has such a kind or label"))?;
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                Ok(TaskMatch { name: name.to_owned(), value: value.to_owned() })
            }
            Some(_) => {
                Err("the name before '=' is missing; write it as kind=mail, or LABEL=VALUE".to_owned())
            }
            None => Err(format!("{text:?} has no '='; write it as kind={text}, or LABEL=VALUE")),
        }
    }
}

impl fmt::Display for TaskMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

/// Combines all `--match` flags: one of the kinds and all of the labels must match.
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

/// Prints a note if no present task matches: most often a name was mistyped. That is no failure, because matching tasks may be submitted later.
pub(super) async fn warn_if_none_match(matches: &[TaskMatch], tenure: &Tenure, output: &Output) {
    let Ok(wanted) = wanted(matches) else { return };
    // A failed listing proves nothing, and the worker itself reports an unreachable store.
    let Ok(listing) = tenure.tasks().list().await else { return };
    let records: Vec<_> = listing.tasks.iter().filter_map(|task| task.record()).collect();
    if records.iter().any(|record| wanted.accepts(record)) {
        return;
    }
    let flags: Vec<String> = matches.iter().map(|wanted| format!("--match {wanted}")).collect();
    let flags = flags.join(" ");
    if records.is_empty() {
        output.note(&format!("{flags} matches no task, because there are none; waiting for some"));
        return;
    }
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for record in &records {
        *kinds.entry(record.kind.as_deref().unwrap_or("")).or_default() += 1;
    }
    let count = records.len();
    output.note(&format!(
        "{flags} matches none of the {count} tasks ({}); waiting for one that matches",
        described(&kinds)
    ));
}

fn described(kinds: &BTreeMap<&str, usize>) -> String {
    let mut parts: Vec<String> = kinds
        .iter()
        .take(KINDS_NAMED_MAX)
        .map(|(kind, count)| match *kind {
            "" => format!("{count} without a kind"),
            kind => format!("{count} of kind {kind}"),
        })
        .collect();
    if kinds.len() > KINDS_NAMED_MAX {
        parts.push("…".to_owned());
    }
    parts.join(", ")
}

/// Parses a label of the worker.
pub(super) fn parse_label(text: &str) -> Result<(String, String), String> {
    check_text(text).map_err(|error| format!("{text:?} {error}"))?;
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) => Err("the name before '=' is missing".to_owned()),
        None => Err(format!("{text:?} has no '='; write it as {text}=VALUE")),
    }
}

/// Refuses a label that is given twice.
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
    fn any_kind_and_all_labels_must_match() {
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
    fn contradicting_matches_are_refused() {
        let refused = wanted(&all(&["zone=eu", "zone=us"])).unwrap_err();
        assert!(refused.message.contains("zone=eu") && refused.message.contains("zone=us"), "{refused:?}");
        assert!(wanted(&all(&["zone=eu", "zone=eu"])).is_ok());
        assert!(TaskMatch::parse("mail").unwrap_err().contains("kind=mail"));
        assert!(TaskMatch::parse("=mail").is_err());
        assert!(TaskMatch::parse("kind=a\nb").unwrap_err().contains("control characters"));
    }

    #[test]
    fn present_kinds_are_counted() {
        let kinds = BTreeMap::from([("", 2), ("mail", 5)]);
        assert_eq!(described(&kinds), "2 without a kind, 5 of kind mail");
    }
}
