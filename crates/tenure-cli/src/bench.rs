//! `tenure bench`: programs that measure, one JSON object a line.

use clap::Subcommand;

/// What can be measured.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {}
