//! `cargo xtask sim`: days in worlds full of faults, each from one seed.

use crate::shell::{Failure, cargo, run};

/// How many seeds every check plays.
const CHECKED: &str = "2000";

/// Plays seeds, built for release: a hundred thousand of them are wanted at times.
pub(crate) fn sim(args: &[&str]) -> Result<(), Failure> {
    run(cargo(&["run", "--quiet", "--locked", "--release", "--package", "tenure-sim", "--"]).args(args))
}

/// What every check plays, with what is built already.
pub(crate) fn check() -> Result<(), Failure> {
    run(&mut cargo(&["run", "--quiet", "--locked", "--package", "tenure-sim", "--", "--seeds", CHECKED]))
}
