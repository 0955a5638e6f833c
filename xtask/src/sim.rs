//! `cargo xtask sim`: days in worlds full of faults, each from one seed.

use std::process::Command;

use crate::sabotage;
use crate::shell::{XtaskError, build_as_for_tests, cargo, run, target};

/// How many seeds every check plays.
const CHECKED: &str = "2000";

/// Plays seeds, optimised and with backtraces: a hundred thousand of them are wanted at times.
pub(crate) fn sim(args: &[&str]) -> Result<(), XtaskError> {
    let cargo = if args.contains(&"--broken") { sabotage::cargo } else { cargo };
    run(cargo(&["run", "--quiet", "--locked", "--profile", "traced", "--package", "tenure-sim", "--"])
        .args(args))
}

/// What every check plays, with what is built already.
pub(crate) fn check() -> Result<(), XtaskError> {
    build_as_for_tests(&["--bin", "tenure-sim", "--example", "task_states"])?;
    run(Command::new(target().join("debug/tenure-sim")).args(["--seeds", CHECKED]))
}
