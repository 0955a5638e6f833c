//! The result of a run: for people, and as `key = value` lines from which the table in
//! docs/guarantees.md is written.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::{Fault, Injected};
use crate::check::{Evidence, OutcomeCounts, Violation, count_outcomes};
use crate::options::{EngineKind, Options};

/// How many violations are shown; all are counted.
const SHOWN: usize = 20;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct NemesisReport {
    /// Which lock was tested.
    pub against: String,
    /// On which store.
    pub store: &'static str,
    /// The seed of the schedule.
    pub seed: u64,
    /// How many processes at a time, and how many incarnations they had.
    pub clients: (usize, usize),
    /// How long faults were injected, and how long all of it took.
    pub lasted: (Duration, Duration),
    /// How often each fault was done.
    pub faults: BTreeMap<Fault, u64>,
    /// How operations ended.
    pub operations: OutcomeCounts,
    /// What was broken.
    pub violations: Vec<Violation>,
    /// Findings that violate no guarantee of Tenure.
    pub notes: Vec<String>,
    /// What was not done, why, and how it could be.
    pub left_out: Vec<String>,
    /// The folder of the histories.
    pub folder: PathBuf,
}

/// The findings besides counts.
pub(super) struct ReportFindings {
    pub(super) violations: Vec<Violation>,
    pub(super) notes: Vec<String>,
    pub(super) left_out: Vec<String>,
}

impl NemesisReport {
    pub(super) fn new(
        options: &Options,
        injected: &[Injected],
        evidence: &Evidence,
        took: Duration,
        said: ReportFindings,
    ) -> NemesisReport {
        let mut faults = BTreeMap::new();
        for one in injected {
            *faults.entry(one.fault).or_default() += 1;
        }
        let store = match options.kind {
            EngineKind::Etcd if options.auth => "etcd-auth",
            EngineKind::Etcd => "etcd",
            EngineKind::File => "file",
        };
        NemesisReport {
            against: options.against.name(),
            store,
            seed: options.seed,
            clients: (options.clients, evidence.lives.len()),
            lasted: (options.faults_for, took),
            faults,
            operations: count_outcomes(evidence),
            violations: said.violations,
            notes: said.notes,
            left_out: said.left_out,
            folder: options.folder.clone(),
        }
    }

    /// How many faults were done.
    pub fn faults_done(&self) -> u64 {
        self.faults.values().sum()
    }

    /// How many operations were begun.
    pub fn operations_begun(&self) -> u64 {
        self.operations.values().sum()
    }

    /// The run in one word, by which its record is named.
    pub fn run(&self) -> String {
        if self.against == "tenure" {
            self.store.to_owned()
        } else {
            format!("{}-{}", self.store, self.against)
        }
    }

    /// As lines that need no parser.
    pub fn record(&self) -> String {
        let mut lines = vec![
            format!("run = {}", self.run()),
            format!("store = {}", self.store),
            format!("lock = {}", self.against),
            format!("seed = {}", self.seed),
            format!("clients = {}", self.clients.0),
            format!("lives = {}", self.clients.1),
            format!("minutes = {:.1}", self.lasted.0.as_secs_f64() / 60.0),
            format!("faults = {}", self.faults_done()),
            format!("operations = {}", self.operations_begun()),
            format!("violations = {}", self.violations.len()),
        ];
        lines.extend(self.faults.iter().map(|(fault, count)| format!("fault {} = {count}", fault.name())));
        lines.extend(self.operations.iter().map(|((work, outcome), count)| {
            format!("operation {work:?} {outcome:?} = {count}").to_lowercase()
        }));
        let mut promises: BTreeMap<&str, usize> = BTreeMap::new();
        for violation in &self.violations {
            *promises.entry(violation.promise).or_default() += 1;
        }
        lines.extend(promises.iter().map(|(promise, count)| format!("violated {promise} = {count}")));
        lines.extend(self.notes.iter().map(|note| format!("noted = {note}")));
        lines.push(String::new());
        lines.join("\n")
    }
}

impl fmt::Display for NemesisReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} on {}: faults for {:.1} min, {:.0} s in all, seed {}, {} clients with {} lives",
            self.against,
            self.store,
            self.lasted.0.as_secs_f64() / 60.0,
            self.lasted.1.as_secs_f64(),
            self.seed,
            self.clients.0,
            self.clients.1
        )?;
        writeln!(f, "\n{:>7} faults", self.faults_done())?;
        for (fault, count) in &self.faults {
            writeln!(f, "{count:>7}   {}", fault.name())?;
        }
        writeln!(f, "\n{:>7} operations", self.operations_begun())?;
        for ((work, outcome), count) in &self.operations {
            writeln!(f, "{count:>7}   {}", format!("{work:?} {outcome:?}").to_lowercase())?;
        }
        writeln!(f)?;
        for note in &self.notes {
            writeln!(f, "NOTED: {note}")?;
        }
        for left_out in &self.left_out {
            writeln!(f, "LEFT OUT: {left_out}")?;
        }
        writeln!(f, "\n{:>7} violations", self.violations.len())?;
        for violation in self.violations.iter().take(SHOWN) {
            writeln!(f, "   VIOLATED: {violation}")?;
        }
        if self.violations.len() > SHOWN {
            writeln!(f, "   and {} more", self.violations.len() - SHOWN)?;
        }
        writeln!(f, "histories: {}", self.folder.display())
    }
}
