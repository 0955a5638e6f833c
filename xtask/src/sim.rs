//! `cargo xtask sim`: simulated days full of faults, each from one seed.

use std::process::Command;

use crate::sabotage;
use crate::shell::{XtaskError, build_as_for_tests, cargo, run, target};

/// The number of seeds in every check.
const CHECKED: &str = "2000";

/// Runs seeds in an optimised build with backtraces, because a long run has a hundred thousand of them.
pub(crate) fn sim(args: &[&str]) -> Result<(), XtaskError> {
    let cargo = if args.contains(&"--broken") { sabotage::cargo } else { cargo };
    run(cargo(&["run", "--quiet", "--locked", "--profile", "traced", "--package", "tenure-sim", "--"])
        .args(args))
}

/// Runs the seeds of every check with the build of the tests.
pub(crate) fn check() -> Result<(), XtaskError> {
    build_as_for_tests(&["--bin", "tenure-sim", "--example", "task_states"])?;
    run(Command::new(target().join("debug/tenure-sim")).args(["--seeds", CHECKED]))
}
