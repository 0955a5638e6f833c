//! `cargo xtask bench`: the engines side by side, with a real etcd that lives as long as the run.

use std::process::Command;

use crate::shell::{Failure, cargo, run, target};

/// Builds for release and hands over; more arguments go to `tenure bench store`.
pub(crate) fn bench(more: &[&str]) -> Result<(), Failure> {
    let packages = ["--package", "tenure-cli", "--package", "tenure-fixture"];
    run(cargo(&["build", "--release", "--locked"]).args(packages))?;
    let release = target().join("release");
    let mut command = Command::new(release.join("with-etcd"));
    run(command.arg("--").arg(release.join("tenure")).args(["bench", "store"]).args(more))
}
