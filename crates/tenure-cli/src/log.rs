//! Logs on stderr: warnings by default, more with `-v` and `-vv`, or as `TENURE_LOG` says.

use std::io;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::failure::Failure;
use crate::output::Output;

/// Begins to log. `TENURE_LOG` is a level, or targets with levels, as in `tenure=debug,tenure_etcd=trace`.
pub(crate) fn start(verbose: u8, output: &Output) -> Result<(), Failure> {
    let variable = std::env::var("TENURE_LOG").ok().filter(|text| !text.is_empty());
    let targets = match variable {
        Some(text) => text.parse::<Targets>().map_err(|error| {
            Failure::usage(format!("TENURE_LOG: {error}"))
                .hint("write it as debug, or as tenure=debug,tenure_etcd=trace")
        })?,
        None => of_ours(verbose),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(output.colors_stderr());
    tracing_subscriber::registry().with(lines).with(targets).init();
    Ok(())
}

/// Other people's crates talk only when they are asked by name.
fn of_ours(verbose: u8) -> Targets {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let ours = ["tenure", "tenure_core", "tenure_etcd", "tenure_cli"];
    ours.into_iter().fold(Targets::new(), |targets, name| targets.with_target(name, level))
}
