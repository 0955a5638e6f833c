//! The lines of etcd: where their binaries are, and `cargo xtask etcd-matrix` over all of them.
//!
//! Each line is a tiny package under `fixtures/` with a lock file of its own, because cargo allows one 3.x
//! of the vendored crate per graph. They are built into the target folder: the tree stays as it is.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::runner::{self, TestCounts, TestSelection};
use crate::shell::{XtaskError, cargo, output, root, target};

/// Oldest first.
const LINES: [&str; 4] = ["3.4", "3.5", "3.6", "3.7"];

/// The binary of a line, fetched and built by cargo if need be.
pub(crate) fn binary(line: &str) -> Result<PathBuf, XtaskError> {
    let manifest = root().join("fixtures").join(format!("etcd-{line}")).join("Cargo.toml");
    let target = target().join("fixtures").join(line);
    let mut command = cargo(&["run", "--quiet", "--locked", "--manifest-path"]);
    command.arg(manifest).arg("--target-dir").arg(target);
    let path = PathBuf::from(output(&mut command)?.trim());
    if path.is_file() {
        Ok(path)
    } else {
        Err(XtaskError(format!("etcd {line} is not at {}", path.display())))
    }
}

/// The version that a binary prints.
pub(crate) fn version(binary: &Path) -> Result<String, XtaskError> {
    // 3.4 also complains about its own packages there, on stderr.
    let output = Command::new(binary).arg("--version").output();
    let output =
        output.map_err(|error| XtaskError(format!("{} cannot be run: {error}", binary.display())))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().find_map(|line| line.strip_prefix("etcd Version: "));
    version
        .map(str::to_owned)
        .ok_or_else(|| XtaskError(format!("{} does not answer like etcd", binary.display())))
}

/// Runs what depends on etcd on every line, all of them even if one fails, and shows a table.
pub(crate) fn matrix() -> Result<(), XtaskError> {
    let mut rows = Vec::new();
    for line in LINES {
        let binary = binary(line)?;
        let version = version(&binary)?;
        println!("\n── etcd {line} ({version})");
        let run = runner::run(TestSelection::Etcd, Some(&binary), &[])?;
        rows.push((line, version, run.counts, run.result()));
    }
    println!("\n{}", table(&rows));
    match rows.into_iter().find_map(|(line, _, _, result)| Some((line, result.err()?))) {
        None => Ok(()),
        Some((line, failure)) => Err(XtaskError(format!("etcd {line}: {failure}"))),
    }
}

/// Runs the tests of the command under an etcd user with one grant: `readwrite` on the prefix `/tenure/`.
pub(crate) fn least_privilege() -> Result<(), XtaskError> {
    let run = runner::run(TestSelection::LeastPrivilege, None, &[])?;
    println!("\nleast privilege: {}", run.counts);
    run.result()
}

fn table(rows: &[(&str, String, TestCounts, Result<(), XtaskError>)]) -> String {
    let mut text = format!("{:<6}{:<10}{:>8}{:>8}\n", "line", "version", "passed", "failed");
    for (line, version, counts, result) in rows {
        let remark = result.as_ref().err().map_or_else(String::new, |failure| format!("  {failure}"));
        text += &format!("{line:<6}{version:<10}{:>8}{:>8}{remark}\n", counts.passed, counts.failed);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_one_row_per_etcd_line() {
        let good = ("3.4", "3.4.45".to_owned(), TestCounts { passed: 90, failed: 0 }, Ok(()));
        let bad = (
            "3.7",
            "3.7.2".to_owned(),
            TestCounts { passed: 89, failed: 1 },
            Err(XtaskError("tests failed".to_owned())),
        );
        assert_eq!(
            table(&[good, bad]),
            "line  version     passed  failed\n\
             3.4   3.4.45          90       0\n\
             3.7   3.7.2           89       1  tests failed\n"
        );
    }

    #[test]
    fn every_etcd_line_has_a_locked_package() {
        for line in LINES {
            let folder = root().join("fixtures").join(format!("etcd-{line}"));
            assert!(folder.join("Cargo.toml").is_file() && folder.join("Cargo.lock").is_file(), "{line}");
        }
    }
}
