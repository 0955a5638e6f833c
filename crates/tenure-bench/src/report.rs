//! The output of the benchmark: one row for each measurement, one line for each goal.

use std::borrow::Cow;
use std::io::Write;

use serde::Serialize;

use super::sample::Sample;
use crate::failure::BenchFailure;

/// One measurement.
#[derive(Serialize, Clone, Debug)]
pub(super) struct ResultRow {
    pub(super) workload: Cow<'static, str>,
    pub(super) engine: &'static str,
    pub(super) n: usize,
    pub(super) unit: &'static str,
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) total_s: f64,
    pub(super) ops_s: f64,
    /// As the server itself counted them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) requests: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) errors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) min: Option<f64>,
    /// How many leases the keys of one round are attached to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) leases: Option<usize>,
    /// How many claims were sent for each task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tries: Option<f64>,
}

impl ResultRow {
    pub(super) fn new(
        workload: impl Into<Cow<'static, str>>,
        engine: &'static str,
        sample: &Sample,
    ) -> ResultRow {
        ResultRow {
            workload: workload.into(),
            engine,
            n: sample.count,
            unit: "ms",
            p50: sample.p50_ms().map(round),
            p99: sample.p99_ms().map(round),
            total_s: round(sample.total.as_secs_f64()),
            ops_s: round(sample.ops_s()),
            requests: None,
            errors: None,
            max: None,
            min: None,
            leases: None,
            tries: None,
        }
    }
}

/// A goal, and whether it was met.
#[derive(Serialize, Clone, Debug)]
pub(super) struct GoalResult {
    pub(super) workload: Cow<'static, str>,
    pub(super) engine: &'static str,
    /// What it is measured against: `raw` calls, another way, or the figure of the store's contract.
    pub(super) reference: &'static str,
    /// What is compared: `ops_s`, `p50`, ...
    pub(super) of: &'static str,
    #[serde(flatten)]
    pub(super) found: Found,
    pub(super) goal: String,
    pub(super) met: bool,
}

/// The figure: Tenure's divided by the reference's, or a figure by itself.
#[derive(Serialize, Clone, Copy, Debug)]
#[serde(rename_all = "snake_case")]
pub(super) enum Found {
    Ratio(f64),
    Figure(f64),
}

/// Which side of a figure is the good one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl GoalResult {
    pub(super) fn new(
        (workload, engine, reference): (impl Into<Cow<'static, str>>, &'static str, &'static str),
        of: &'static str,
        found: Found,
        goal: Goal,
    ) -> GoalResult {
        let (Found::Ratio(figure) | Found::Figure(figure)) = found;
        let found = match found {
            Found::Ratio(ratio) => Found::Ratio(round(ratio)),
            Found::Figure(figure) => Found::Figure(round(figure)),
        };
        let (goal, met) = match goal {
            Goal::AtLeast(least) => (format!(">= {least}"), figure >= least),
            Goal::AtMost(most) => (format!("<= {most}"), figure <= most),
        };
        GoalResult { workload: workload.into(), engine, reference, of, found, goal, met }
    }
}

/// Everything measured so far; printed as it comes.
#[derive(Default)]
pub(super) struct BenchReport {
    /// How many goals were missed.
    missed: usize,
}

impl BenchReport {
    pub(super) fn row(&self, row: &ResultRow) -> Result<(), BenchFailure> {
        let ResultRow { p50, max, min, tries, .. } = *row;
        print(&ResultRow {
            p50: p50.map(round),
            max: max.map(round),
            min: min.map(round),
            tries: tries.map(round),
            ..row.clone()
        })
    }

    pub(super) fn goal(&mut self, verdict: &GoalResult) -> Result<(), BenchFailure> {
        self.missed += usize::from(!verdict.met);
        print(verdict)
    }

    /// Prints how many goals were missed, if any were.
    pub(super) fn close(&self) {
        if self.missed > 0 {
            note(&format!("{} goals were not met", self.missed));
        }
    }
}

/// One JSON object on a line of its own, flushed, so that a reader at the other end of a pipe need not wait.
pub(super) fn print(object: &impl Serialize) -> Result<(), BenchFailure> {
    let mut line = serde_json::to_vec(object).map_err(std::io::Error::from)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&line)?;
    Ok(stdout.flush()?)
}

/// A line for people, on stderr.
pub(super) fn note(text: &str) {
    // A closed stderr is no reason to stop measuring.
    let _ = writeln!(std::io::stderr(), "tenure-bench: {text}");
}

/// The note about a debug build, where there is one to give.
pub(super) fn note_debug_build() {
    if cfg!(debug_assertions) {
        note("this is a debug build; figures of a release build are several times better");
    }
}

/// Four digits after the point are more than any of this is good for.
fn round(figure: f64) -> f64 {
    (figure * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn row_has_documented_field_order() {
        let sample = Sample::new(vec![Duration::from_micros(1500)], Duration::from_millis(2), 1);
        let json = serde_json::to_string(&ResultRow::new("put", "memory", &sample)).unwrap();
        assert_eq!(
            json,
            r#"{"workload":"put","engine":"memory","n":1,"unit":"ms","p50":1.5,"p99":1.5,"total_s":0.002,"ops_s":500.0}"#
        );
    }

    #[test]
    fn goal_needs_figure_on_its_good_side() {
        let verdict =
            |ratio, goal| GoalResult::new(("put", "etcd", "raw"), "ops_s", Found::Ratio(ratio), goal).met;
        assert!(verdict(0.95, Goal::AtLeast(0.95)));
        assert!(!verdict(0.94, Goal::AtLeast(0.95)));
        assert!(verdict(1.2, Goal::AtMost(1.2)));
        assert!(!verdict(1.21, Goal::AtMost(1.2)));
        assert!(!verdict(f64::NAN, Goal::AtLeast(0.0)));
        assert!(!verdict(f64::NAN, Goal::AtMost(9.0)));
    }
}
