//! The test runner: cargo-nextest where it is installed, `cargo test` otherwise, and what it counted.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::check::Redis;
use crate::sabotage;
use crate::shell::{self, XtaskError, cargo, succeeds, target, tee};

/// Which tests to run. All are chosen from one build of the whole workspace, so a selection costs no rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestSelection {
    /// Every test.
    All,
    /// What depends on the line of etcd: the conformance suite on it, the client's own tests, and those of locks, elections and TTL
    /// elections.
    Etcd,
    /// The tests of the command, on etcd servers with authentication and one user with one grant.
    LeastPrivilege,
    /// Those that break a rule, in a build in which rules can be broken.
    BrokenRules,
    /// The long ones.
    Soak,
}

impl TestSelection {
    /// Whether tests of the command are among them.
    fn runs_the_command(self) -> bool {
        match self {
            TestSelection::All | TestSelection::LeastPrivilege | TestSelection::Soak => true,
            TestSelection::Etcd | TestSelection::BrokenRules => false,
        }
    }
}

/// Passed and failed tests of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestCounts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

/// A finished run, failed or not.
#[derive(Debug)]
pub(crate) struct TestRun {
    pub(crate) counts: TestCounts,
    /// The closing lines of the runner.
    pub(crate) closing: Vec<String>,
    has_succeeded: bool,
}

impl TestRun {
    /// An error unless all tests passed and at least one was run.
    pub(crate) fn result(&self) -> Result<(), XtaskError> {
        match self.counts {
            TestCounts { failed: 1.., .. } => Err(XtaskError(format!("tests failed: {}", self.counts))),
            TestCounts { passed: 0, .. } => {
                Err(XtaskError("no test was run: the names have changed, or the build failed".into()))
            }
            TestCounts { .. } if !self.has_succeeded => Err(XtaskError("the test runner failed".into())),
            TestCounts { .. } => Ok(()),
        }
    }
}

impl fmt::Display for TestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// Runs the chosen tests, on another etcd if one is given, with more arguments for the runner.
pub(crate) fn run(
    selection: TestSelection,
    etcd: Option<&Path>,
    more: &[&str],
) -> Result<TestRun, XtaskError> {
    let shipped = if selection.runs_the_command() { Some(shipped()?) } else { None };
    let mut run = TestRun { counts: TestCounts::default(), closing: Vec::new(), has_succeeded: true };
    for args in commands(selection, has_nextest()) {
        let mut command =
            if selection == TestSelection::BrokenRules { sabotage::cargo(&args) } else { cargo(&args) };
        if has_nextest() && selection != TestSelection::Soak {
            command.args(["--test-threads", &threads()]);
        }
        command.args(more);
        if let Some(etcd) = etcd {
            command.env("TENURE_ETCD_BIN", etcd);
        }
        if selection == TestSelection::Soak {
            command.env("TENURE_SOAK", "1");
        }
        if selection == TestSelection::LeastPrivilege {
            command.env("TENURE_ETCD_GRANT", "/tenure/");
        }
        if let Some(shipped) = &shipped {
            command.env("TENURE_BIN", shipped);
        }
        let (has_succeeded, text) = tee(&mut command)?;
        run.has_succeeded &= has_succeeded;
        for line in text.lines().filter(|line| is_closing(line)) {
            let counts = count(line);
            run.counts.passed += counts.passed;
            run.counts.failed += counts.failed;
            // `cargo test` prints a line per binary, most of them with no test at all.
            if counts != TestCounts::default() {
                run.closing.push(line.trim().to_owned());
            }
        }
    }
    Ok(run)
}

/// The command as users get it: with its own features, and without those that other crates of the workspace and all tests turn on in
/// the build of the tests (`testing`, `conformance` and `redis` of tenure, `test-util` of tokio, which replaces its clock).
pub(crate) fn shipped() -> Result<PathBuf, XtaskError> {
    let mut command = cargo(&["build", "--package", "tenure-cli", "--locked"]);
    shell::apart(&mut command, "ship");
    shell::run(&mut command)?;
    let path = target().join("ship/debug/tenure");
    if path.is_file() {
        Ok(path)
    } else {
        Err(XtaskError(format!("the command is not at {}", path.display())))
    }
}

/// What leaves out the tests with `redis` in their names, or nothing.
pub(crate) fn without_redis(redis: Redis) -> &'static [&'static str] {
    match (redis, has_nextest()) {
        (Redis::Needed, _) => &[],
        (Redis::LeftOut, true) => &["-E", "not test(redis)"],
        (Redis::LeftOut, false) => &["--", "--skip", "redis"],
    }
}

/// Whether cargo-nextest is installed.
pub(crate) fn has_nextest() -> bool {
    succeeds(&mut cargo(&["nextest", "--version"]))
}

/// The tests for every line of etcd. Those on the embedded engines and on Redis do not depend on it.
const ON_ETCD: &str = "test(etcd_conformance) | package(tenure-etcd) \
    | package(tenure) & test(/^(lock|election|faults|ttl)::/) & not test(/::on_memory$|on_(a_)?file$|redis/)";

/// The same for `cargo test`, which selects by parts of names.
const ON_ETCD_PLAIN: &[&str] = &[
    "--",
    "etcd_conformance",
    "lock::",
    "election::",
    "faults::",
    "ttl::",
    "--skip=::on_memory",
    "--skip=on_a_file",
    "--skip=on_file",
    "--skip=redis",
];

/// The packages that break rules, with as few features and test programs as they need.
const BREAKING: [&str; 7] =
    ["--package", "tenure-sim", "--package", "tenure-nemesis", "--test", "it", "--locked"];

/// How many tests run at once. Most wait for a server, a TTL or another process and leave the processors idle; one test per processor, which
/// is what nextest does by itself, made two thirds of a check on two cores waiting. Tests with a bound in seconds run alone anyway.
fn threads() -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (2 * processors).to_string()
}

fn commands(selection: TestSelection, has_nextest: bool) -> Vec<Vec<&'static str>> {
    let scope = ["--workspace", "--all-features", "--locked"];
    let with = |command: &[&'static str], more: &[&'static str]| [command, &scope, more].concat();
    if has_nextest {
        let command = ["nextest", "run"];
        return vec![match selection {
            TestSelection::All => with(&command, &[]),
            TestSelection::Etcd => with(&command, &["-E", ON_ETCD]),
            TestSelection::LeastPrivilege => with(&command, &["-E", "package(tenure-cli) & binary(it)"]),
            TestSelection::BrokenRules => {
                [&command[..], &BREAKING, &["-E", "test(/^broken_rules::/)"]].concat()
            }
            TestSelection::Soak => with(&command, &["--profile", "soak", "-E", "test(soak)"]),
        }];
    }
    // `--tests` leaves the examples in the documentation to a step of their own.
    let command = ["test", "--tests", "--no-fail-fast"];
    match selection {
        // Some tests run the example programs, which `--tests` does not build.
        TestSelection::All => vec![with(&["build", "--examples"], &[]), with(&command, &[])],
        TestSelection::Etcd => vec![
            [&command[..], &["--package", "tenure", "--all-features", "--locked"], ON_ETCD_PLAIN].concat(),
            vec![
                "test",
                "--tests",
                "--no-fail-fast",
                "--package",
                "tenure-etcd",
                "--all-features",
                "--locked",
            ],
        ],
        TestSelection::LeastPrivilege => vec![vec![
            "test",
            "--no-fail-fast",
            "--package",
            "tenure-cli",
            "--test",
            "it",
            "--all-features",
            "--locked",
        ]],
        TestSelection::BrokenRules => {
            vec![[&command[..1], &command[2..], &BREAKING, &["--", "broken_rules::"]].concat()]
        }
        TestSelection::Soak => vec![with(&command, &["--", "soak"])],
    }
}

/// `Summary [  7.0s] 37 tests run: …` of nextest, `test result: …` of cargo test. Where nextest shows the output of a test, that is
/// indented, and already counted.
fn is_closing(line: &str) -> bool {
    line.trim_start().starts_with("Summary [") || line.starts_with("test result:")
}

fn count(line: &str) -> TestCounts {
    let words: Vec<&str> = line.split([' ', ',', ';', '.']).filter(|word| !word.is_empty()).collect();
    let mut counts = TestCounts::default();
    for pair in words.windows(2) {
        let Ok(number) = pair[0].parse::<u64>() else { continue };
        match pair[1] {
            "passed" => counts.passed += number,
            // nextest also prints `timed out` and `exec failed`.
            "failed" | "timed" | "exec" => counts.failed += number,
            _ => {}
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(line: &str) -> (u64, u64) {
        assert!(is_closing(line), "{line}");
        let counts = count(line);
        (counts.passed, counts.failed)
    }

    #[test]
    fn closing_lines_of_both_runners_are_counted() {
        assert_eq!(counted("     Summary [   7.081s] 37 tests run: 37 passed, 0 skipped"), (37, 0));
        assert_eq!(
            counted("Summary [ 1.6s] 12/37 tests run: 11 passed (2 slow, 1 leaky), 1 failed, 0 skipped"),
            (11, 1)
        );
        assert_eq!(
            counted("Summary [ 180s] 9 tests run: 7 passed, 1 timed out, 1 exec failed, 3 skipped"),
            (7, 2)
        );
        assert_eq!(
            counted("test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out"),
            (5, 0)
        );
        assert_eq!(counted("test result: FAILED. 5 passed; 2 failed; 0 ignored"), (5, 2));
        assert!(!is_closing("    running 3 tests"));
        assert!(
            !is_closing("    test result: FAILED. 0 passed; 1 failed; 0 ignored"),
            "counted by the summary"
        );
    }

    #[test]
    fn run_without_tests_fails() {
        let run = |passed, failed, has_succeeded| TestRun {
            counts: TestCounts { passed, failed },
            closing: Vec::new(),
            has_succeeded,
        };
        assert!(run(0, 0, true).result().is_err());
        assert!(run(5, 1, false).result().is_err());
        assert!(run(5, 0, false).result().is_err());
        assert!(run(5, 0, true).result().is_ok());
    }
}
