//! `cargo xtask check`: everything a change must pass, in the order in which failures are cheapest to find.
//!
//! **Invariant**: it never writes to the tree. Everything runs `--locked`, and the end compares git's view
//! of the tree with the one from the beginning.

use std::time::{Duration, Instant};

use crate::runner::{self, TestSelection};
use crate::shell::{XtaskError, cargo, output, root, run, succeeds};
use crate::{etcd, generated, redis, sabotage, sim, tidy};

/// The oldest line we promise to work with; `etcd-matrix` runs the others.
const OLDEST: &str = "3.4";

/// Whether the tests on Redis are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redis {
    /// Yes, and without a Redis the check fails.
    Needed,
    /// No: `--without redis` was given.
    LeftOut,
}

/// Runs every step and stops at the first that fails.
pub(crate) fn check(redis: Redis) -> Result<(), XtaskError> {
    let begun = Instant::now();
    let before = git_state();
    let mut steps = Steps::default();
    steps.step("tidy rules", tidy::check)?;
    steps.step("redis-server", || match redis {
        Redis::Needed => redis::ensure(),
        Redis::LeftOut => {
            println!("   LEFT OUT: the tests on Redis were not run, as asked");
            Ok(())
        }
    })?;
    steps.step("format", || run(&mut cargo(&["fmt", "--all", "--check"])))?;
    steps.step("clippy", || {
        let scope = ["clippy", "--workspace", "--all-targets", "--all-features", "--locked"];
        run(cargo(&scope).args(["--", "-D", "warnings"]))
    })?;
    steps.step("documentation", documentation)?;
    steps.step("generated documents", generated::check)?;
    steps.step("each feature alone", each_feature_alone)?;
    steps.step("licences and advisories", deny)?;
    steps.tests("tests", || {
        if !runner::has_nextest() {
            println!(
                "   cargo-nextest is not installed: `cargo test` runs the same tests, without time limits"
            );
        }
        runner::run(TestSelection::All, None, runner::without_redis(redis))
    })?;
    steps.step("simulation", sim::check)?;
    steps.tests("broken rules are found", sabotage::check)?;
    steps.step("examples in the documentation", || {
        run(&mut cargo(&["test", "--doc", "--workspace", "--all-features", "--locked"]))
    })?;
    steps.tests("tests on the oldest etcd", || {
        let binary = etcd::binary(OLDEST)?;
        println!("   TENURE_ETCD_BIN: etcd {}", etcd::version(&binary)?);
        runner::run(TestSelection::Etcd, Some(&binary), &[])
    })?;
    steps.step("nothing was written to the tree", || match (&before, git_state()) {
        (Some(before), Some(after)) if *before != after => Err(XtaskError(format!(
            "the check wrote to the tree; git status before:\n{before}\nand after:\n{after}"
        ))),
        (Some(_), Some(_)) => Ok(()),
        _ => {
            println!("   not a git checkout: not compared");
            Ok(())
        }
    })?;
    steps.close(begun.elapsed());
    Ok(())
}

/// The steps so far, for the table at the end.
#[derive(Default)]
struct Steps {
    done: Vec<(&'static str, Duration)>,
    closing: Vec<String>,
}

impl Steps {
    fn step(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<(), XtaskError>,
    ) -> Result<(), XtaskError> {
        println!("\n── {name}");
        let begun = Instant::now();
        work().map_err(|failure| XtaskError(format!("{name}: {failure}")))?;
        println!("   ok, {:.1} s", begun.elapsed().as_secs_f64());
        self.done.push((name, begun.elapsed()));
        Ok(())
    }

    fn tests(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<runner::TestRun, XtaskError>,
    ) -> Result<(), XtaskError> {
        let mut closing = Vec::new();
        self.step(name, || {
            let run = work()?;
            closing.push(format!("{name}: {}", run.counts));
            closing.extend(run.closing.iter().map(|line| format!("  {line}")));
            run.result()
        })?;
        self.closing.extend(closing);
        Ok(())
    }

    /// Prints the summary: the steps with their durations, and the closing lines of the test runner.
    fn close(&self, total: Duration) {
        println!("\n── all passed");
        for (name, duration) in &self.done {
            println!("   {:>7.1} s  {name}", duration.as_secs_f64());
        }
        println!("   {:>7.1} s  in all", total.as_secs_f64());
        for line in &self.closing {
            println!("   {line}");
        }
    }
}

/// Checks the documentation. The command and the library are both called `tenure`, so cargo warns when one run documents both;
/// the libraries come last, because the last run decides what is in the folder.
fn documentation() -> Result<(), XtaskError> {
    for kind in ["--bins", "--lib"] {
        let scope = ["doc", "--workspace", "--no-deps", "--all-features", "--locked", kind];
        run(cargo(&scope).env("RUSTDOCFLAGS", "-D warnings"))?;
    }
    Ok(())
}

/// Each feature of `tenure` must build without the others, because a user may enable only one.
fn each_feature_alone() -> Result<(), XtaskError> {
    let scope = ["clippy", "--package", "tenure", "--no-default-features", "--locked"];
    run(cargo(&scope).args(["--", "-D", "warnings"]))?;
    for feature in tidy::features_of_tenure() {
        run(cargo(&scope).args(["--features", &feature, "--", "-D", "warnings"]))?;
    }
    Ok(())
}

/// Applies deny.toml. The advisories come from the network; without it the step prints that it leaves them out.
fn deny() -> Result<(), XtaskError> {
    if !succeeds(&mut cargo(&["deny", "--version"])) {
        println!("   LEFT OUT: cargo-deny is not installed, so deny.toml was not applied");
        return Ok(());
    }
    run(&mut cargo(&["deny", "--locked", "check", "bans", "licenses", "sources"]))?;
    if !succeeds(&mut cargo(&["deny", "--locked", "fetch", "db"])) {
        println!("   LEFT OUT: the advisory database cannot be fetched, so advisories were not checked");
        return Ok(());
    }
    run(&mut cargo(&["deny", "--locked", "check", "advisories"]))
}

/// The state of the tree in git, untracked files included; `None` outside of a checkout.
fn git_state() -> Option<String> {
    let mut git = std::process::Command::new("git");
    git.current_dir(root()).args(["status", "--porcelain"]);
    if !succeeds(std::process::Command::new("git").current_dir(root()).args(["rev-parse", "--git-dir"])) {
        return None;
    }
    let status = output(&mut git).ok()?;
    // The status alone does not change when a changed file changes again.
    let diff = output(std::process::Command::new("git").current_dir(root()).args(["diff", "HEAD", "--stat"]))
        .ok()?;
    Some(status + &diff)
}
