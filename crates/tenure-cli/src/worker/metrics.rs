//! A metrics recorder that writes the text format of Prometheus.
//!
//! The libraries have about a dozen series. A recorder crate for millions of series would add a dozen dependencies.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// The upper ends of a histogram's buckets, in seconds: from a lease that is nearly over to one that was just renewed.
const BUCKETS: [f64; 10] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0];

/// All metrics of the process. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Metrics {
    families: Arc<Mutex<BTreeMap<String, MetricFamily>>>,
}

#[derive(Default)]
struct MetricFamily {
    help: String,
    /// By their labels, as the page writes them.
    series: BTreeMap<String, Series>,
}

#[derive(Clone)]
enum Series {
    Counter(Arc<AtomicU64>),
    /// The bits of a float.
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Buckets>),
}

impl Metrics {
    /// Returns the page.
    pub(super) fn page(&self) -> String {
        let mut page = String::new();
        for (name, family) in self.lock().iter() {
            let Some(kind) = family.series.values().next().map(Series::kind) else { continue };
            // Writing into a string cannot fail.
            let _ =
                writeln!(page, "# HELP {name} {}", family.help.replace('\\', "\\\\").replace('\n', "\\n"));
            let _ = writeln!(page, "# TYPE {name} {kind}");
            for (labels, series) in &family.series {
                series.write(name, labels, &mut page);
            }
        }
        page
    }

    fn describe(&self, name: &KeyName, help: &SharedString) {
        self.lock().entry(name.as_str().to_owned()).or_default().help = help.as_ref().to_owned();
    }

    fn series(&self, key: &Key, new: impl FnOnce() -> Series) -> Series {
        let mut families = self.lock();
        let family = families.entry(key.name().to_owned()).or_default();
        family.series.entry(labels_of(key)).or_insert_with(new).clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, MetricFamily>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder for Metrics {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, &description);
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, &description);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, &description);
    }

    // A name with two kinds of metrics is a bug of the library. The second kind is not counted.
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.series(key, || Series::Counter(Arc::default())) {
            Series::Counter(counter) => Counter::from_arc(counter),
            Series::Gauge(_) | Series::Histogram(_) => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.series(key, || Series::Gauge(Arc::default())) {
            Series::Gauge(gauge) => Gauge::from_arc(gauge),
            Series::Counter(_) | Series::Histogram(_) => Gauge::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match self.series(key, || Series::Histogram(Arc::default())) {
            Series::Histogram(buckets) => Histogram::from_arc(buckets),
            Series::Counter(_) | Series::Gauge(_) => Histogram::noop(),
        }
    }
}

impl Series {
    fn kind(&self) -> &'static str {
        match self {
            Series::Counter(_) => "counter",
            Series::Gauge(_) => "gauge",
            Series::Histogram(_) => "histogram",
        }
    }

    fn write(&self, name: &str, labels: &str, page: &mut String) {
        let braced = |labels: &str| if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = match self {
            Series::Counter(count) => {
                writeln!(page, "{name}{} {}", braced(labels), count.load(Ordering::Relaxed))
            }
            Series::Gauge(bits) => {
                writeln!(page, "{name}{} {}", braced(labels), f64::from_bits(bits.load(Ordering::Relaxed)))
            }
            Series::Histogram(buckets) => {
                let Filled { counts, sum } = buckets.filled();
                let comma = if labels.is_empty() { "" } else { "," };
                let ends = BUCKETS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
                let mut total = 0;
                for (end, count) in ends.zip(counts) {
                    total += count;
                    let _ = writeln!(page, "{name}_bucket{{{labels}{comma}le=\"{end}\"}} {total}");
                }
                let _ = writeln!(page, "{name}_sum{} {sum}", braced(labels));
                writeln!(page, "{name}_count{} {total}", braced(labels))
            }
        };
    }
}

/// A histogram.
#[derive(Default)]
struct Buckets {
    filled: Mutex<Filled>,
}

#[derive(Clone, Copy, Default)]
struct Filled {
    /// One count per bucket, and one for larger values.
    counts: [u64; BUCKETS.len() + 1],
    sum: f64,
}

impl Buckets {
    fn filled(&self) -> Filled {
        *self.filled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        let bucket = BUCKETS.iter().position(|end| value <= *end).unwrap_or(BUCKETS.len());
        let mut filled = self.filled.lock().unwrap_or_else(PoisonError::into_inner);
        filled.counts[bucket] += 1;
        filled.sum += value;
    }
}

fn labels_of(key: &Key) -> String {
    let label = |label: &metrics::Label| {
        let value = label.value().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{}=\"{value}\"", label.key())
    };
    let mut labels: Vec<String> = key.labels().map(label).collect();
    labels.sort();
    labels.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_prometheus_format() {
        let kept = Metrics::default();
        metrics::with_local_recorder(&kept, || {
            metrics::describe_counter!("claims_total", "Claims\nthat were won.");
            metrics::counter!("claims_total", "node" => "a\"b", "reason" => "x").increment(3);
            metrics::gauge!("tasks").set(2.5);
            metrics::histogram!("left_seconds").record(0.2);
            metrics::histogram!("left_seconds").record(99.0);
        });
        let page = kept.page();
        for line in [
            "# HELP claims_total Claims\\nthat were won.",
            "# TYPE claims_total counter",
            "claims_total{node=\"a\\\"b\",reason=\"x\"} 3",
            "# TYPE tasks gauge",
            "tasks 2.5",
            "# TYPE left_seconds histogram",
            "left_seconds_bucket{le=\"0.1\"} 0",
            "left_seconds_bucket{le=\"0.25\"} 1",
            "left_seconds_bucket{le=\"60\"} 1",
            "left_seconds_bucket{le=\"+Inf\"} 2",
            "left_seconds_sum 99.2",
            "left_seconds_count 2",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }
}
