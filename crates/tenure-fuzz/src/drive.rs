//! A run: kept inputs as they are, hostile names as they are, and then changed ones until the bounds are reached.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use crate::bounds::{self, Bounds};
use crate::corpus::Corpus;
use crate::dictionary::HOSTILE_NAMES;
use crate::mutate::Mutator;
use crate::report::{self, FuzzReport};
use crate::shrink::shrink;
use crate::trial;

/// What is tried: it asserts what must hold for every input, and returns a short description of
/// what it saw.
pub type FuzzTarget = fn(&[u8]) -> String;

/// How many inputs are changed further at most. Words of a target that hold pieces of the input would fill any list.
const POOL_LEN_MAX: usize = 2_000;

/// How long an input may be that is changed further: large ones are tried, but cost too much to be tried often.
const POOL_BYTES_MAX: usize = 16 * 1024;

/// How much of an input is shown.
const SHOWN_MAX: usize = 600;

/// An input that broke a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The input, as small as it could be made.
    pub input: Vec<u8>,
    /// The message of the panic.
    pub why: String,
    /// The name of the kept input; none if it was made.
    pub name: Option<String>,
    /// Where the run began.
    pub seed: u64,
    /// How many inputs it took.
    pub executions: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.input[..self.input.len().min(SHOWN_MAX)];
        let name = self.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        write!(
            f,
            "{}\ninput{name} of {} bytes: b\"{}\"\nfound by execution {} from seed {}",
            self.why,
            self.input.len(),
            shown.escape_ascii(),
            self.executions,
            self.seed
        )
    }
}

/// A run to be made.
pub struct FuzzRun<'a> {
    /// What is tried.
    pub target: &'a dyn Fn(&[u8]) -> String,
    /// The kept inputs, with their names.
    pub inputs: Vec<(String, Vec<u8>)>,
    /// Where to begin.
    pub seed: u64,
    /// When to end.
    pub bounds: Bounds,
}

impl FuzzRun<'_> {
    /// Tries everything.
    ///
    /// # Errors
    ///
    /// The first input that broke the target, made small.
    pub fn go(self) -> Result<FuzzReport, Finding> {
        let mut state = FuzzState {
            target: self.target,
            mutator: Mutator::new(self.seed),
            pool: Vec::new(),
            outputs: BTreeSet::new(),
            slowest: Duration::ZERO,
            executions: 0,
            seed: self.seed,
        };
        let (begin, kept) = (Instant::now(), self.inputs.len());
        for (name, input) in self.inputs {
            state.try_one(&input, Some(&name))?;
            if input.len() <= POOL_BYTES_MAX {
                state.pool.push(input);
            }
        }
        for name in HOSTILE_NAMES {
            state.try_one(name.as_bytes(), None)?;
        }
        if state.pool.is_empty() {
            state.pool.push(Vec::new());
        }
        let mut changed = 0;
        let is_over = |changed: u64| match self.bounds {
            Bounds::Executions(executions) => changed >= executions,
            Bounds::Time(time) => begin.elapsed() >= time,
        };
        while !is_over(changed) {
            changed += 1;
            let (a, b) = (state.mutator.below(state.pool.len()), state.mutator.below(state.pool.len()));
            let input = state.mutator.change(&state.pool[a], &state.pool[b]);
            state.try_one(&input, None)?;
        }
        Ok(FuzzReport {
            seed: self.seed,
            kept,
            executions: state.executions,
            outputs: state.outputs.len(),
            slowest: state.slowest,
            took: begin.elapsed(),
        })
    }
}

struct FuzzState<'a> {
    target: &'a dyn Fn(&[u8]) -> String,
    mutator: Mutator,
    /// What is changed further: the kept inputs, and one for each different output of the target.
    pool: Vec<Vec<u8>>,
    outputs: BTreeSet<String>,
    slowest: Duration,
    executions: u64,
    seed: u64,
}

impl FuzzState<'_> {
    fn try_one(&mut self, input: &[u8], name: Option<&str>) -> Result<(), Finding> {
        let begin = Instant::now();
        let outcome = trial::run(self.target, input);
        self.slowest = self.slowest.max(begin.elapsed());
        self.executions += 1;
        match outcome {
            Ok(answer) => {
                let has_room = self.outputs.len() < POOL_LEN_MAX;
                if has_room && self.outputs.insert(answer) && input.len() <= POOL_BYTES_MAX {
                    self.pool.push(input.to_vec());
                }
                Ok(())
            }
            Err(_) => Err(self.finding(input, name)),
        }
    }

    fn finding(&self, input: &[u8], name: Option<&str>) -> Finding {
        let small = shrink(input, &mut |bytes| trial::run(self.target, bytes).is_err());
        let why = trial::run(self.target, &small).err();
        Finding {
            input: small,
            why: why.unwrap_or_else(|| "it fails once and then not again".to_owned()),
            name: name.map(str::to_owned),
            seed: self.seed,
            executions: self.executions,
        }
    }
}

/// Tries a target of a crate as long as the environment asks for. In a soak what is found is kept in the corpus, where every check meets it
/// from then on; a check shows it, and writes nothing.
///
/// # Panics
///
/// If something is found, or if there is no corpus.
pub fn fuzz(manifest_folder: &str, name: &str, target: FuzzTarget) {
    let corpus = Corpus::of(manifest_folder, name);
    let inputs = corpus.read().unwrap_or_else(|error| panic!("the inputs of {name} cannot be read: {error}"));
    let seed = bounds::seed();
    let note = |line: &str| {
        if bounds::is_soak() {
            report::note(name, line)
                .unwrap_or_else(|error| panic!("{name}: no report can be written: {error}"));
        }
    };
    note(&format!("did not end, seed {seed}"));
    let run = FuzzRun { target: &target, inputs, seed, bounds: Bounds::of_environment() };
    match run.go() {
        Ok(report) => note(&report.to_string()),
        Err(finding) => {
            note(&format!("found something, seed {seed}"));
            let kept = match (&finding.name, bounds::is_soak()) {
                (None, true) => match corpus.keep(&finding.input) {
                    Ok(path) => format!("kept as {}", path.display()),
                    Err(error) => format!("not kept: {error}"),
                },
                (None, false) => "with TENURE_SOAK=1 it is kept in the corpus".to_owned(),
                (Some(name), _) => format!("{name} is in the corpus already"),
            };
            panic!("{name}: {finding}\n{kept}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn go(target: &dyn Fn(&[u8]) -> String, input: &str) -> Result<FuzzReport, Finding> {
        let inputs = vec![("kept".to_owned(), input.as_bytes().to_vec())];
        FuzzRun { target, inputs, seed: 1, bounds: Bounds::of_environment() }.go()
    }

    /// A decoder that reads a number into too small a type, behind a name that must be there.
    fn breaks_at_a_limit(bytes: &[u8]) -> String {
        let text = String::from_utf8_lossy(bytes);
        let Some((_, rest)) = text.split_once("\"count\":") else { return "no count".to_owned() };
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        match digits.parse::<u64>() {
            Ok(number) => u32::try_from(number).expect("counts are small").to_string().len().to_string(),
            Err(_) => "no number".to_owned(),
        }
    }

    #[test]
    fn broken_limit_is_found_and_shrunk() {
        let finding = go(&breaks_at_a_limit, r#"{"name":"web-1","count":3,"labels":{"a":"b"}}"#).unwrap_err();
        assert!(finding.why.contains("counts are small"), "{finding}");
        assert_eq!(finding.input.len(), "\"count\":4294967296".len(), "{finding}");
    }

    #[test]
    fn seed_reproduces_finding() {
        let once = || go(&breaks_at_a_limit, r#"{"count":3}"#).unwrap_err();
        assert_eq!(once(), once());
    }

    /// Four doors behind each other. Chance alone does not pass them within the bounds; one after the other they are passed.
    #[test]
    fn new_output_extends_input_pool() {
        let passed = |bytes: &[u8]| {
            let passed =
                ["[", "[:", "[:null", "[:null}"].iter().filter(|doors| bytes.starts_with(doors.as_bytes()));
            let passed = passed.count();
            assert!(passed < 4, "all doors are open");
            passed.to_string()
        };
        let silent = |bytes: &[u8]| {
            passed(bytes);
            String::new()
        };
        let run = |target: &dyn Fn(&[u8]) -> String| {
            let inputs = vec![("kept".to_owned(), Vec::new())];
            FuzzRun { target, inputs, seed: 1, bounds: Bounds::Executions(20_000) }.go()
        };
        assert!(run(&passed).unwrap_err().why.contains("all doors are open"));
        assert!(run(&silent).is_ok(), "it passes them without knowing any");
    }

    #[test]
    fn broken_corpus_input_is_named() {
        let finding = go(&|_: &[u8]| panic!("always"), "x").unwrap_err();
        assert_eq!(finding.name.as_deref(), Some("kept"));
        assert!(finding.to_string().contains("always"));
    }

    #[test]
    fn sound_target_runs_all_executions() {
        let bounds = Bounds::Executions(500);
        let target = |bytes: &[u8]| bytes.len().to_string();
        let report = FuzzRun { target: &target, inputs: Vec::new(), seed: 1, bounds }.go().unwrap();
        let given = u64::try_from(HOSTILE_NAMES.len()).unwrap();
        assert_eq!(report.executions, 500 + given);
        assert!(report.outputs > 10, "{report}");
    }
}
