//! The figures of a run: how much it tried.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What a run did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FuzzReport {
    /// Where it began.
    pub seed: u64,
    /// How many inputs were kept in the corpus.
    pub kept: usize,
    /// How many inputs were tried.
    pub executions: u64,
    /// How many different outputs the target had.
    pub outputs: usize,
    /// The longest that one input took.
    pub slowest: Duration,
    /// How long it all took.
    pub took: Duration,
}

impl fmt::Display for FuzzReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} executions in {} s from {} kept inputs, {} different outputs, slowest {} ms, seed {}",
            self.executions,
            self.took.as_secs(),
            self.kept,
            self.outputs,
            self.slowest.as_millis(),
            self.seed
        )
    }
}

/// Writes a line about a target beside the test programs, where `cargo xtask soak` finds it: a test that passed is not heard.
///
/// It is written before the run too, with the seed: a stack overflow ends the process without
/// another report.
pub(crate) fn note(target: &str, line: &str) -> std::io::Result<()> {
    let program = std::env::current_exe()?;
    let folder = program.parent().and_then(|folder| folder.parent()).map_or_else(PathBuf::new, PathBuf::from);
    let folder = folder.join("fuzz");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(format!("{target}.txt")), format!("{target}: {line}\n"))
}
