//! The tidy rules: what the house style asks for and no compiler checks.
//!
//! Each rule is a function from the tree to its breaches, so that each has tests on trees of a few lines.
//! All rules run and all breaches are shown: they are cheap to put right together.

mod documents;
mod guarantees;
mod layers;
mod manifest;
mod manifests;
mod names;
mod sources;
mod transactions;
mod tree;

use std::fmt;

pub(crate) use manifests::PUBLISHED;

use self::manifest::Manifest;
use self::tree::Tree;
use crate::shell::{Failure, root};

/// A rule: what it demands, and how it finds what does not obey.
type Rule = (&'static str, fn(&Tree) -> Vec<Breach>);

const RULES: &[Rule] = &[
    ("every .rs file opens with `//!`", sources::opening),
    ("no .rs file is longer than 500 lines", sources::length),
    ("nothing is left for later, ignored, or allowed to panic", sources::words),
    ("only commands print", sources::printing),
    ("no vague names, no mod.rs", names::names),
    ("crates depend only downwards", layers::ours),
    ("tenure-core stays small", layers::core),
    ("no protocol transaction is built outside tenure-core", transactions::built),
    ("each protocol and engine is named by one crate", layers::confined),
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
pub(crate) fn check() -> Result<(), Failure> {
    let tree = Tree::load(&root()).map_err(|error| Failure(format!("the tree cannot be read: {error}")))?;
    let mut breaches = 0;
    for (demand, rule) in RULES {
        for breach in rule(&tree) {
            eprintln!("   {breach}  [{demand}]");
            breaches += 1;
        }
    }
    println!("   {} rules on {} files", RULES.len(), tree.len());
    if breaches == 0 { Ok(()) } else { Err(Failure(format!("{breaches} places are not tidy"))) }
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
