//! `cargo xtask mutants`: small wrong changes, one at a time, each of which a named test must detect.
//!
//! The list is `xtask/mutants.toml`. For each entry the runner applies one text replacement to a scratch copy of the tree and runs the
//! named tests there. The tests must fail: a mutant that they do not detect has survived. The copy has its own target folder, so
//! the tree and its build output stay as they are; the folder is kept between mutants, so each one builds only what it changed.

mod list;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::shell::{XtaskError, cargo, root, target};
use list::Mutant;
pub(crate) use list::parse;

/// The list, beside this program.
pub(crate) const LIST: &str = "xtask/mutants.toml";

/// How long one mutant may build and test. A build of the workspace on two cores takes about three minutes; a mutant that makes a test
/// hang is detected by this limit.
const ONE_MAX: Duration = Duration::from_secs(600);

/// How often the runner polls a running mutant.
const POLL: Duration = Duration::from_millis(200);

/// The result of a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
enum MutantResult {
    /// A named test failed.
    Killed,
    /// The named tests did not end in time.
    TimedOut,
    /// All named tests passed.
    Survived,
    /// The list states why no test can detect it.
    Equivalent,
    /// It does not build, or its filter selects no test: the entry is wrong.
    Broken(String),
    /// The time was over before it was its turn.
    Skipped,
}

/// What to run.
#[derive(Default, Debug, PartialEq, Eq)]
struct Options {
    only: Vec<String>,
    minutes: Option<u64>,
}

/// Runs the listed mutants and prints their results.
pub(crate) fn mutants(args: &[&str]) -> Result<(), XtaskError> {
    let options = options(args)?;
    let root = root();
    let text =
        std::fs::read_to_string(root.join(LIST)).map_err(|error| XtaskError(format!("{LIST}: {error}")))?;
    let mut mutants = parse(&text).map_err(|error| XtaskError(format!("{LIST}: {error}")))?;
    if let Some(missing) = options.only.iter().find(|id| mutants.iter().all(|mutant| mutant.id != **id)) {
        return Err(XtaskError(format!("{LIST} has no mutant '{missing}'")));
    }
    mutants.retain(|mutant| options.only.is_empty() || options.only.contains(&mutant.id));
    let scratch = Scratch::new(&root, &target().join("mutants"))?;
    let until = options.minutes.map(|minutes| Instant::now() + Duration::from_secs(minutes * 60));
    let mut verdicts = Vec::new();
    for mutant in &mutants {
        let verdict = if mutant.equivalent.is_some() {
            scratch.check(mutant)?;
            MutantResult::Equivalent
        } else if until.is_some_and(|until| Instant::now() >= until) {
            MutantResult::Skipped
        } else {
            println!("   {} {}", mutant.id, mutant.about);
            scratch.judge(mutant, until.map_or(ONE_MAX, |until| ONE_MAX.min(until - Instant::now())))?
        };
        verdicts.push((mutant, verdict));
    }
    print!("\n{}", table(&verdicts));
    let is_bad = |verdict: &MutantResult| matches!(verdict, MutantResult::Survived | MutantResult::Broken(_));
    let bad = verdicts.iter().filter(|(_, verdict)| is_bad(verdict)).count();
    if bad == 0 { Ok(()) } else { Err(XtaskError(format!("{bad} mutants survived or are broken"))) }
}

fn options(args: &[&str]) -> Result<Options, XtaskError> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = args.next().ok_or_else(|| XtaskError(format!("`{arg}` needs a value")))?;
        match *arg {
            "--only" => options.only.push((*value).to_owned()),
            "--minutes" => {
                let minutes =
                    value.parse().map_err(|_| XtaskError(format!("`{value}` is no number of minutes")))?;
                options.minutes = Some(minutes);
            }
            _ => {
                return Err(XtaskError(format!(
                    "unknown option `{arg}`; there are --only ID and --minutes N"
                )));
            }
        }
    }
    Ok(options)
}

/// A copy of the tree in which mutants are tried.
struct Scratch {
    tree: PathBuf,
    target: PathBuf,
}

impl Scratch {
    /// Copies the files that git tracks, as they are in the working tree.
    fn new(root: &Path, folder: &Path) -> Result<Scratch, XtaskError> {
        let tree = folder.join("tree");
        let _ = std::fs::remove_dir_all(&tree);
        let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output();
        let listed = listed.map_err(|error| XtaskError(format!("git ls-files: {error}")))?;
        for name in String::from_utf8_lossy(&listed.stdout).split_terminator('\0') {
            let (from, to) = (root.join(name), tree.join(name));
            // A file that was deleted and not committed is not part of the tree.
            if from.is_file() {
                copy(&from, &to)?;
            }
        }
        Ok(Scratch { tree, target: folder.join("target") })
    }

    /// The text of a mutant's file, and the same with the change.
    fn check(&self, mutant: &Mutant) -> Result<(String, String), XtaskError> {
        let path = self.tree.join(&mutant.file);
        let wrong = |why: String| XtaskError(format!("mutant {}: {}: {why}", mutant.id, mutant.file));
        let text = std::fs::read_to_string(&path).map_err(|error| wrong(error.to_string()))?;
        let changed = mutant.apply(&text).map_err(wrong)?;
        Ok((text, changed))
    }

    /// Applies a mutant, runs its tests, and undoes it.
    fn judge(&self, mutant: &Mutant, within: Duration) -> Result<MutantResult, XtaskError> {
        let path = self.tree.join(&mutant.file);
        let (text, changed) = self.check(mutant)?;
        write(&path, &changed)?;
        let verdict = self.run(mutant, within);
        write(&path, &text)?;
        verdict
    }

    fn run(&self, mutant: &Mutant, within: Duration) -> Result<MutantResult, XtaskError> {
        let deadline = Instant::now() + within;
        let log = self.target.with_extension(format!("{}.log", mutant.id));
        let nextest = |more: &[&str]| {
            let mut command = cargo(&["nextest", "run", "--all-features", "--locked"]);
            command
                .args(packages_of(&mutant.tests))
                .args(more)
                .current_dir(&self.tree)
                .env("CARGO_TARGET_DIR", &self.target);
            command
        };
        // A mutant that does not build is no mutant, so building comes first and has its own answer.
        match wait(nextest(&["--no-run"]), &log, deadline)? {
            Some(true) => {}
            Some(false) => return Ok(MutantResult::Broken(format!("does not build, see {}", log.display()))),
            None => return Ok(MutantResult::Skipped),
        }
        let run = nextest(&["--no-fail-fast", "--retries", "0", "--no-tests", "fail", "-E", &mutant.tests]);
        match wait(run, &log, deadline)? {
            None => Ok(MutantResult::TimedOut),
            Some(true) => Ok(MutantResult::Survived),
            Some(false) => {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                Ok(result_of_failure(&text, &log))
            }
        }
    }
}

/// The packages that a filter names, as options of cargo, so that a mutant of a small crate builds no large one; all if it names none.
fn packages_of(filter: &str) -> Vec<&str> {
    let names = filter.split("package(").skip(1).filter_map(|rest| rest.split_once(')'));
    let options: Vec<&str> = names.flat_map(|(name, _)| ["-p", name]).collect();
    if options.is_empty() { vec!["--workspace"] } else { options }
}

/// What a failed run means: only a test that failed kills a mutant, not a filter that selects nothing or cannot be read.
fn result_of_failure(log: &str, path: &Path) -> MutantResult {
    let has_failed_test = log.lines().any(|line| {
        ["FAIL", "TIMEOUT", "SIGABRT", "SIGSEGV"].iter().any(|word| line.trim_start().starts_with(word))
    });
    if has_failed_test {
        MutantResult::Killed
    } else {
        MutantResult::Broken(format!("no test ran, see {}", path.display()))
    }
}

/// Runs a command with its output in a file. None if it did not end in time.
fn wait(mut command: Command, log: &Path, deadline: Instant) -> Result<Option<bool>, XtaskError> {
    let cannot = |error: std::io::Error| XtaskError(format!("{}: {error}", log.display()));
    std::fs::create_dir_all(log.parent().unwrap_or(Path::new("."))).map_err(cannot)?;
    let file = std::fs::File::create(log).map_err(cannot)?;
    let other = file.try_clone().map_err(cannot)?;
    command.stdin(Stdio::null()).stdout(file).stderr(other);
    let mut child = command.spawn().map_err(cannot)?;
    loop {
        if let Some(status) = child.try_wait().map_err(cannot)? {
            return Ok(Some(status.success()));
        }
        if Instant::now() >= deadline {
            stop(&mut child);
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

/// Ends a run. Nextest ends its tests when it is interrupted, and only then.
fn stop(child: &mut Child) {
    let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    for _ in 0..100 {
        if matches!(child.try_wait(), Ok(Some(_))) {
            return;
        }
        std::thread::sleep(POLL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn copy(from: &Path, to: &Path) -> Result<(), XtaskError> {
    let cannot = |error| XtaskError(format!("{} cannot be copied: {error}", from.display()));
    std::fs::create_dir_all(to.parent().unwrap_or(Path::new("."))).map_err(cannot)?;
    std::fs::copy(from, to).map(drop).map_err(cannot)?;
    // Cargo builds what is newer than its output; a copy that keeps its age lets it build only the change.
    let modified = std::fs::metadata(from).and_then(|metadata| metadata.modified()).map_err(cannot)?;
    let file = std::fs::File::options().append(true).open(to).map_err(cannot)?;
    file.set_modified(modified).map_err(cannot)
}

fn write(path: &Path, text: &str) -> Result<(), XtaskError> {
    std::fs::write(path, text).map_err(|error| XtaskError(format!("{}: {error}", path.display())))
}

fn table(verdicts: &[(&Mutant, MutantResult)]) -> String {
    let mut table = "| mutant | verdict | change |\n|---|---|---|\n".to_owned();
    for (mutant, verdict) in verdicts {
        let shown = match verdict {
            MutantResult::Killed => "killed".to_owned(),
            MutantResult::TimedOut => "killed (time limit)".to_owned(),
            MutantResult::Survived => "SURVIVED".to_owned(),
            MutantResult::Equivalent => {
                format!("equivalent: {}", mutant.equivalent.as_deref().unwrap_or_default())
            }
            MutantResult::Broken(why) => format!("BROKEN: {why}"),
            MutantResult::Skipped => "not run".to_owned(),
        };
        // Writing into a string cannot fail.
        let _ = writeln!(table, "| {} | {shown} | {} |", mutant.id, mutant.about);
    }
    let count = |is: fn(&MutantResult) -> bool| verdicts.iter().filter(|(_, verdict)| is(verdict)).count();
    let killed = count(|verdict| matches!(verdict, MutantResult::Killed | MutantResult::TimedOut));
    let equivalent = count(|verdict| *verdict == MutantResult::Equivalent);
    let skipped = count(|verdict| *verdict == MutantResult::Skipped);
    let all = verdicts.len();
    let _ = writeln!(
        table,
        "\n{killed} killed and {equivalent} equivalent of {all}; {} survived or broken, {skipped} not run",
        all - killed - equivalent - skipped
    );
    table
}

#[cfg(test)]
mod tests;
