//! Logs on stderr in the format of all other lines: warnings by default, more with `-v` and `-vv`, or as set in `TENURE_LOG`.

use std::fmt::{self, Write as _};
use std::io;

use serde::Serialize;
use serde_json::{Map, Value};
use tenure::clock::wall_time;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::failure::Failure;
use crate::output::{Output, TextStyle, escape_controls, to_json};

/// Installs the logger. `TENURE_LOG` is a level, or targets with levels, as in `tenure=debug,tenure_etcd=trace`.
pub(crate) fn start(verbose: u8, output: &Output) -> Result<(), Failure> {
    let variable = std::env::var("TENURE_LOG").ok().filter(|text| !text.is_empty());
    let is_detailed = verbose > 0 || variable.is_some();
    let targets = match variable {
        Some(text) => text.parse::<Targets>().map_err(|error| {
            Failure::usage(format!("TENURE_LOG: {error}"))
                .hint("write it as debug, or as tenure=debug,tenure_etcd=trace")
        })?,
        None => own_targets(verbose),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .event_format(Lines { output: *output, is_detailed });
    tracing_subscriber::registry().with(lines).with(targets).init();
    Ok(())
}

/// Logs this project's crates. Other crates log only with `TENURE_LOG`.
fn own_targets(verbose: u8) -> Targets {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let own = ["tenure", "tenure_core", "tenure_etcd", "tenure_cli"];
    own.into_iter().fold(Targets::new(), |targets, name| targets.with_target(name, level))
}

/// One event on a line: `tenure: warning: lease lost lease=1f`, or an object with `--json`.
struct Lines {
    output: Output,
    /// Whether to print the time and the module: yes with `-v` and `TENURE_LOG`.
    is_detailed: bool,
}

/// What `--json` prints for an event.
#[derive(Serialize)]
struct Logged<'a> {
    log: Parts<'a>,
}

#[derive(Serialize)]
struct Parts<'a> {
    level: &'a str,
    time: String,
    target: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    fields: &'a Map<String, Value>,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (level, tone) = match *event.metadata().level() {
            Level::ERROR => ("error", Some(TextStyle::Bad)),
            Level::WARN => ("warning", Some(TextStyle::Doubtful)),
            Level::INFO => ("info", Some(TextStyle::Good)),
            Level::DEBUG => ("debug", None),
            Level::TRACE => ("trace", None),
        };
        let mut read = Fields::default();
        event.record(&mut read);
        let Fields { message, others } = read;
        let (time, target) = (wall_time().to_string(), event.metadata().target());
        if self.output.is_json {
            let log = Parts { level, time, target, message: &message, fields: &others };
            return writeln!(writer, "{}", to_json(&Logged { log }));
        }
        let mut line = message;
        for (name, value) in &others {
            match value {
                Value::String(text) => write!(line, " {name}={text}")?,
                value => write!(line, " {name}={value}")?,
            }
        }
        let detail = if self.is_detailed { format!("{time} {target}: ") } else { String::new() };
        let label = format!("{level}:");
        let label = tone.map_or(label.clone(), |tone| self.output.toned_stderr(tone, &label));
        writeln!(writer, "tenure: {label} {detail}{}", escape_controls(line.as_bytes()))
    }
}

/// The message and the fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn keep(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => {
                self.others.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.keep(field, Value::String(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.keep(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.keep(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.keep(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.keep(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.keep(field, value.into());
    }
}
