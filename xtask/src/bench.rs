//! `cargo xtask bench [store|session|lock|election|tasks]`: a benchmark with a real etcd that lives as long as the run.

use std::process::Command;

use crate::shell::{XtaskError, cargo, run, target};

/// Builds for release and runs the benchmark that the first argument names, `store` by default; it gets the other arguments.
pub(crate) fn bench(more: &[&str]) -> Result<(), XtaskError> {
    let packages = ["--package", "tenure-bench", "--package", "tenure-fixture"];
    run(cargo(&["build", "--release", "--locked"]).args(packages))?;
    let release = target().join("release");
    let (which, more) = match more {
        [which @ ("store" | "session" | "lock" | "election" | "tasks"), more @ ..] => (*which, more),
        _ => ("store", more),
    };
    let mut command = Command::new(release.join("with-etcd"));
    run(command.arg("--").arg(release.join("tenure-bench")).arg(which).args(more))
}
