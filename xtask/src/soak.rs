//! `cargo xtask soak`: the long versions of the tests, which meet rare interleavings.
//!
//! A test with `soak` in its name runs a short version in every check, and the long one when
//! `TENURE_SOAK=1` is set. Each fuzz target leaves a line with its figures, which is printed at the end.

use std::path::PathBuf;

use crate::runner::{self, TestSelection};
use crate::shell::{XtaskError, cargo, run};

/// Lists the tests, then runs them; more arguments go to the runner.
pub(crate) fn soak(more: &[&str]) -> Result<(), XtaskError> {
    if runner::has_nextest() {
        let scope = ["nextest", "list", "--workspace", "--all-features", "--locked"];
        run(cargo(&scope).args(["-E", "test(soak)"]).args(more))?;
    }
    let run = runner::run(TestSelection::Soak, None, more)?;
    for line in fuzzed() {
        println!("   {line}");
    }
    run.closing.iter().for_each(|line| println!("   {line}"));
    run.result()
}

/// The figures of the last run of each fuzz target, from the folder of this program, where the tests are built too.
fn fuzzed() -> Vec<String> {
    let folder = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join("fuzz")));
    let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok());
    let mut paths: Vec<PathBuf> = entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let texts = paths.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    texts.map(|text| text.trim_end().to_owned()).collect()
}
