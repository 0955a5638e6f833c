//! The tidy rules: what the house style requires and no compiler checks.
//!
//! Each rule is a function from the tree to its breaches, so that each has tests on trees of a few lines.
//! All rules run and all breaches are shown, so that they can be fixed together.

mod baseline;
mod density;
mod documents;
mod guarantees;
mod layers;
mod manifest;
mod manifests;
mod mutants;
mod names;
mod prose;
mod rust;
mod sources;
mod test_list;
mod test_names;
mod transactions;
mod tree;
mod types;

use std::fmt;

pub(crate) use manifests::PUBLISHED;

use self::manifest::Manifest;
use self::tree::Tree;
use crate::shell::{XtaskError, root};

/// A rule: its demand, and the function that finds its breaches.
type TidyRule = (&'static str, fn(&Tree) -> Vec<Breach>);

const RULES: &[TidyRule] = &[
    ("every .rs file opens with `//!`", sources::opening),
    ("no .rs file is longer than 500 lines", sources::length),
    ("nothing is left for later, ignored, or allowed to panic", sources::markers),
    ("only commands print", sources::printing),
    ("no vague names, no mod.rs", names::names),
    ("crates depend only downwards", layers::internal_dependencies),
    ("tenure-core stays small", layers::core),
    ("no protocol transaction is built outside tenure-core", transactions::built),
    ("each protocol and engine is named by one crate", layers::confined),
    ("each mutant applies once and names its tests", mutants::entries),
    ("crates inherit from the workspace", manifests::inherited),
    ("our crates refer to each other by the workspace's version", manifests::versions),
    (
        "published crates have what crates.io and docs.rs show, others are not published",
        manifests::publishing,
    ),
    ("the documents exist", documents::present),
    ("README names the version", documents::readme_version),
    ("ARCHITECTURE.md stays short", documents::architecture_length),
    ("no machine's paths", documents::machine_paths),
    ("guarantees are numbered, and cited by code and invariants", guarantees::numbered),
    ("tests that the documents name exist", guarantees::tests),
];

/// A place where a rule is broken.
#[derive(Debug, PartialEq, Eq)]
struct Breach {
    path: String,
    /// Counted from 1; `None` for a whole file.
    line: Option<usize>,
    why: String,
}

impl Breach {
    fn in_file(path: &str, why: impl Into<String>) -> Breach {
        Breach { path: path.to_owned(), line: None, why: why.into() }
    }

    fn at(path: &str, line: usize, why: impl Into<String>) -> Breach {
        Breach { path: path.to_owned(), line: Some(line), why: why.into() }
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path, self.why),
            None => write!(f, "{}: {}", self.path, self.why),
        }
    }
}

/// Applies all rules to the working tree.
pub(crate) fn check() -> Result<(), XtaskError> {
    let tree = load()?;
    let mut breaches = 0;
    for (demand, rule) in RULES {
        for breach in rule(&tree) {
            eprintln!("   {breach}  [{demand}]");
            breaches += 1;
        }
    }
    let now = baseline::now(&tree);
    let allowed = baseline::parse(tree.text(baseline::PATH).unwrap_or_default());
    for breach in baseline::exceeded(&now, &allowed) {
        eprintln!("   {breach}");
        breaches += 1;
    }
    println!("   {} rules on {} files", RULES.len() + baseline::RATCHETS.len(), tree.len());
    print!("{}", baseline::table(&now.counts));
    println!("   type names defined 3 or more times in all crates: {}", types::defined_three_times(&tree));
    if breaches == 0 { Ok(()) } else { Err(XtaskError(format!("{breaches} breaches of the tidy rules"))) }
}

/// Lists what files with this beginning of their paths still break under the ratchets, and how dense comments are.
pub(crate) fn list(beginning: &str) -> Result<(), XtaskError> {
    let tree = load()?;
    let now = baseline::now(&tree);
    let beginning = beginning.trim_start_matches("./");
    let mut found: Vec<_> =
        now.breaches.iter().filter(|(_, breach)| breach.path.starts_with(beginning)).collect();
    found.sort_by_key(|(_, breach)| (&breach.path, breach.line));
    for (rule, breach) in &found {
        println!("{breach}  [{}]", baseline::RATCHETS[*rule].0);
    }
    println!("{} breaches", found.len());
    print!("{}", density::report(&tree, beginning));
    Ok(())
}

/// Writes the numbers of the ratchets as they are now, unless one of them has grown.
pub(crate) fn lower() -> Result<(), XtaskError> {
    let tree = load()?;
    let now = baseline::now(&tree);
    let text = match tree.text(baseline::PATH) {
        Some(text) => baseline::lowered(&now, &baseline::parse(text)).map_err(XtaskError)?,
        None => baseline::format(&now.counts),
    };
    std::fs::write(root().join(baseline::PATH), text)
        .map_err(|error| XtaskError(format!("{} cannot be written: {error}", baseline::PATH)))
}

fn load() -> Result<Tree, XtaskError> {
    Tree::load(&root()).map_err(|error| XtaskError(format!("the tree cannot be read: {error}")))
}

/// The oldest Rust that is supported.
pub(crate) fn rust_version() -> String {
    let text = std::fs::read_to_string(root().join("Cargo.toml")).unwrap_or_default();
    let workspace = Manifest::parse("Cargo.toml", &text);
    workspace.value("workspace.package", "rust-version").unwrap_or_default().to_owned()
}

/// The features of the crate `tenure`, without `default`.
pub(crate) fn features_of_tenure() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("crates/tenure/Cargo.toml")).unwrap_or_default();
    let manifest = Manifest::parse("crates/tenure/Cargo.toml", &text);
    manifest.keys("features").filter(|feature| *feature != "default").map(str::to_owned).collect()
}
