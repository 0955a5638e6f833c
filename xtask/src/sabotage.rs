//! Builds with `--cfg tenure_sabotage`, in which a rule can be broken, and the tests that need one.
//!
//! The cfg is added by a wrapper around rustc, which is this program, instead of by RUSTFLAGS: those replace the flags of a cargo
//! configuration, or are replaced by CARGO_ENCODED_RUSTFLAGS. With the wrapper all flags of the environment apply as in every other build,
//! and dependencies are not built a second time, because cargo calls it for the crates of the workspace only.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use crate::runner::{self, TestRun, TestSelection};
use crate::shell::{self, XtaskError, root};

/// Makes this program the wrapper. The value is the wrapper that the environment named before, or empty.
const INNER: &str = "TENURE_XTASK_INNER_WRAPPER";

/// The files with the tests that break rules. All are run together, and each test in them has to pass.
const TESTS: [&str; 2] =
    ["crates/tenure-sim/tests/it/broken_rules.rs", "crates/tenure-nemesis/tests/it/broken_rules.rs"];

/// Cargo with the cfg. Finished programs lie in a folder of their own, so no other build runs one of them.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = shell::cargo(args);
    command.env(INNER, std::env::var_os("RUSTC_WORKSPACE_WRAPPER").unwrap_or_default());
    // The path of a wrapper is part of what cargo identifies a build by: both kinds lie beside each other.
    command.env("RUSTC_WORKSPACE_WRAPPER", std::env::current_exe().unwrap_or_else(|_| "xtask".into()));
    shell::apart(&mut command, "sabotage");
    command
}

/// The result of the compiler, if cargo called this program as its wrapper.
pub(crate) fn compile() -> Option<ExitCode> {
    let inner = std::env::var_os(INNER)?;
    let mut words = std::env::args_os().skip(1).peekable();
    let program = if inner.is_empty() { words.next()? } else { inner };
    let with_cfg = words.chain(["--cfg", "tenure_sabotage"].map(OsString::from));
    let code = match Command::new(&program).args(with_cfg).env_remove(INNER).status() {
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(101),
        Err(error) => {
            eprintln!("xtask: {} cannot be run: {error}", program.display());
            127
        }
    };
    Some(ExitCode::from(code))
}

/// Breaks each rule, and requires that every test of that was run: without the cfg there are none, and nothing would fail.
pub(crate) fn check() -> Result<TestRun, XtaskError> {
    let expected = TESTS.iter().map(|path| tests_in(path)).sum::<Result<u64, XtaskError>>()?;
    let run = runner::run(TestSelection::BrokenRules, None, &[])?;
    let run_now = run.counts.passed + run.counts.failed;
    if run_now == expected {
        return Ok(run);
    }
    Err(XtaskError(format!("{run_now} tests of broken rules were run, and there are {expected}")))
}

/// How many tests a file has.
fn tests_in(path: &str) -> Result<u64, XtaskError> {
    let text = std::fs::read_to_string(root().join(path));
    let text = text.map_err(|error| XtaskError(format!("{path} cannot be read: {error}")))?;
    match text.lines().filter(|line| line.trim() == "#[test]").count() {
        0 => Err(XtaskError(format!("{path} has no test"))),
        count => Ok(count as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_breaking_tests_are_counted() {
        for path in TESTS {
            assert!(tests_in(path).unwrap() >= 1, "{path}");
        }
        assert!(tests_in("Cargo.toml").unwrap_err().to_string().contains("no test"));
        assert!(tests_in("missing.rs").is_err());
    }

    /// With a feature, `--all-features` would put broken rules into every build.
    #[test]
    fn manifests_have_no_rule_breaking_feature() {
        for entry in std::fs::read_dir(root().join("crates")).unwrap() {
            let path = entry.unwrap().path().join("Cargo.toml");
            let manifest = std::fs::read_to_string(&path).unwrap();
            assert!(!manifest.contains("sabotage"), "{}", path.display());
        }
    }
}
