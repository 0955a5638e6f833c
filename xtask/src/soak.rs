//! `cargo xtask soak`: the same tests, for as long as it takes to meet what is rare.
//!
//! A test with `soak` in its name runs a short version in every check, and the long one when
//! `TENURE_SOAK=1` is set.

use crate::runner::{self, Choice};
use crate::shell::{Failure, cargo, run};

/// Says which tests will run, then runs them; more arguments go to the runner.
pub(crate) fn soak(more: &[&str]) -> Result<(), Failure> {
    if runner::has_nextest() {
        let scope = ["nextest", "list", "--workspace", "--all-features", "--locked"];
        run(cargo(&scope).args(["-E", "test(soak)"]).args(more))?;
    }
    let run = runner::run(Choice::Soak, None, more)?;
    run.closing.iter().for_each(|line| println!("   {line}"));
    run.verdict()
}
