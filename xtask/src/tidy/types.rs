//! A type name is defined once per crate: a reader cannot distinguish two types of one name.

use std::collections::BTreeMap;

use super::Breach;
use super::rust::{SourceItem, Within, items, tokens};
use super::tree::Tree;

/// Names that each module may define for itself: its error, and what the compiler or the test framework requires.
const ALLOWED: [&str; 1] = ["Error"];

/// Messages of a protocol, under the names it gives them.
const PROTOCOLS: [&str; 2] = ["crates/tenure-etcd/src/message", "crates/tenure-bench/src/raw/message"];

const KEYWORDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

/// Every definition of a name that its crate defines more than once.
pub(super) fn once_per_crate(tree: &Tree) -> Vec<Breach> {
    let mut defined: BTreeMap<(&str, &str), Vec<(&str, usize)>> = BTreeMap::new();
    for (path, text) in tree.ending(".rs") {
        if let Some(krate) = crate_of(path) {
            for SourceItem { name, line, .. } in types(path, text) {
                defined.entry((krate, name)).or_default().push((path, line));
            }
        }
    }
    let mut breaches = Vec::new();
    for ((_, name), places) in defined.into_iter().filter(|(_, places)| places.len() > 1) {
        let files = places.len();
        let why = format!("`{name}` is defined {files} times in this crate: give each its own name");
        breaches.extend(places.iter().map(|(path, line)| Breach::at(path, *line, why.clone())));
    }
    breaches
}

/// How many names are defined three or more times in the sources of all crates together.
pub(super) fn defined_three_times(tree: &Tree) -> usize {
    let mut defined: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, text) in tree.ending(".rs").filter(|(path, _)| crate_of(path).is_some()) {
        for item in types(path, text) {
            *defined.entry(item.name).or_default() += 1;
        }
    }
    defined.values().filter(|count| **count >= 3).count()
}

fn types<'a>(path: &str, text: &'a str) -> Vec<SourceItem<'a>> {
    if PROTOCOLS.iter().any(|folder| path.starts_with(folder)) {
        return Vec::new();
    }
    let mut found = items(&tokens(text));
    found.retain(|item| {
        KEYWORDS.contains(&item.keyword) && item.within == Within::Module && !ALLOWED.contains(&item.name)
    });
    found
}

/// `crates/tenure` of `crates/tenure/src/lock.rs`; tests and examples outside of `src` are programs of their own.
fn crate_of(path: &str) -> Option<&str> {
    path.find("/src/").map(|at| &path[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_definition_is_found_with_the_first() {
        let tree = Tree::of(&[
            ("crates/a/src/x.rs", "struct Held;\nstruct Lost;\n"),
            ("crates/a/src/y.rs", "\nmod m { enum Held {} }\n"),
            ("crates/b/src/x.rs", "struct Held;\n"),
        ]);
        let found: Vec<_> =
            once_per_crate(&tree).into_iter().map(|breach| (breach.path, breach.line)).collect();
        assert_eq!(
            found,
            [("crates/a/src/x.rs".to_owned(), Some(1)), ("crates/a/src/y.rs".to_owned(), Some(2))]
        );
        assert_eq!(defined_three_times(&tree), 1);
    }

    #[test]
    fn local_associated_and_protocol_types_pass() {
        let tree = Tree::of(&[
            ("crates/a/src/x.rs", "struct SourceItem;\nstruct Error;\n"),
            (
                "crates/a/src/y.rs",
                "struct Error;\nimpl I for A { type SourceItem = u8; }\nfn f() { struct SourceItem; }\n",
            ),
            ("crates/a/tests/it/x.rs", "struct SourceItem;\n"),
            ("crates/tenure-etcd/src/message/kv.rs", "struct KeyValue;\n"),
            ("crates/tenure-etcd/src/kv.rs", "struct KeyValue;\n"),
        ]);
        assert_eq!(once_per_crate(&tree), []);
        assert_eq!(defined_three_times(&tree), 0);
    }
}
