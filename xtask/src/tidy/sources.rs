//! Rules about the text of a source file.

use super::Breach;
use super::tree::Tree;

const LINES_MAX: usize = 500;

/// Put together from halves, so that this file obeys its own rule.
const BANNED: [(&str, &str); 7] = [
    (concat!("#[ign", "ore"), "a test that is not run is not a test: delete it or let it run"),
    (concat!("#[should", "_panic"), "assert on the error instead: any panic would pass"),
    (concat!("to", "do!("), "finish it, or leave it out"),
    (concat!("unimple", "mented!("), "finish it, or leave it out"),
    (concat!("FIX", "ME"), "fix it now, or open an issue"),
    (concat!("TO", "DO"), "do it now, or open an issue"),
    (concat!("XX", "X"), "describe the problem, or fix it"),
];

const PRINTING: [&str; 4] = ["println!(", "print!(", "eprintln!(", "eprint!("];

/// Crates that may print.
const PRINTERS: [&str; 4] = [
    "crates/tenure-cli/src/",
    "crates/tenure-fixture/src/bin/with-etcd.rs",
    "crates/tenure-sim/src/main.rs",
    "crates/tenure-nemesis/src/main.rs",
];

/// The first line of a file must state its purpose.
pub(super) fn opening(tree: &Tree) -> Vec<Breach> {
    let silent = tree.ending(".rs").filter(|(_, text)| !text.starts_with("//! "));
    silent.map(|(path, _)| Breach::at(path, 1, "does not open with `//!` and what the file is")).collect()
}

/// A longer file has two subjects.
pub(super) fn length(tree: &Tree) -> Vec<Breach> {
    let counted = tree.ending(".rs").map(|(path, text)| (path, text.lines().count()));
    let long = counted.filter(|(_, lines)| *lines > LINES_MAX);
    long.map(|(path, lines)| Breach::in_file(path, format!("{lines} lines, at most {LINES_MAX}: split it")))
        .collect()
}

/// Markers of unfinished work tend to stay.
pub(super) fn markers(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (path, text) in tree.ending(".rs") {
        for (index, line) in text.lines().enumerate() {
            let found = BANNED.iter().filter(|(word, _)| contains_identifier(line, word));
            breaches.extend(found.map(|(word, why)| Breach::at(path, index + 1, format!("`{word}`: {why}"))));
        }
    }
    breaches
}

/// A library that prints mixes its output with its caller's.
pub(super) fn printing(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let libraries = tree.ending(".rs").filter(|(path, _)| {
        path.starts_with("crates/")
            && path.contains("/src/")
            && !PRINTERS.iter().any(|place| path.starts_with(place))
    });
    for (path, text) in libraries {
        for (index, line) in text.lines().enumerate() {
            // An example in a comment may print.
            let is_code = !line.trim_start().starts_with("//");
            if let Some(word) = PRINTING.iter().find(|word| is_code && contains_identifier(line, word)) {
                breaches.push(Breach::at(
                    path,
                    index + 1,
                    format!("`{word}…)`: only commands print, libraries trace"),
                ));
            }
        }
    }
    breaches
}

/// Whether a line has the word, not as a part of a longer one.
pub(super) fn contains_identifier(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let is_part = |neighbour: Option<char>| neighbour.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let has_open_end = word.ends_with(char::is_alphanumeric);
        !(is_part(before) || has_open_end && is_part(after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_opens_with_its_purpose() {
        let good = ("a.rs", "//! What it is.\nfn main() {}\n");
        assert_eq!(opening(&Tree::of(&[good])), []);
        let bad = Tree::of(&[good, ("b.rs", "fn main() {}\n"), ("c.rs", "\n//! Late.\n"), ("d.rs", "//!\n")]);
        let paths: Vec<String> = opening(&bad).into_iter().map(|breach| breach.path).collect();
        assert_eq!(paths, ["b.rs", "c.rs", "d.rs"]);
    }

    #[test]
    fn five_hundred_lines_are_the_limit() {
        let (fits, long) = ("x\n".repeat(500), "x\n".repeat(501));
        assert_eq!(length(&Tree::of(&[("a.rs", &fits), ("long.md", &long)])), []);
        assert_eq!(length(&Tree::of(&[("a.rs", &long)])).len(), 1);
    }

    #[test]
    fn each_marker_is_found_with_its_line() {
        for (word, _) in BANNED {
            let text = format!("//! A.\n// {word}: later\n");
            let found = markers(&Tree::of(&[("a.rs", &text)]));
            assert_eq!(found.len(), 1, "{word}");
            assert_eq!(found[0].line, Some(2));
        }
        let near = concat!("//! A mastodon's auto", "do!(x), PRE", "TO", "DO, TO", "DOS\n");
        assert_eq!(markers(&Tree::of(&[("a.rs", near)])), []);
    }

    #[test]
    fn only_commands_print() {
        let print = "//! A.\nfn f() { println!(\"x\"); }\n";
        let allowed = [
            ("crates/tenure-cli/src/main.rs", print),
            ("crates/tenure-fixture/src/bin/with-etcd.rs", print),
            ("crates/tenure/examples/a.rs", print),
            ("xtask/src/main.rs", print),
            (
                "crates/tenure/src/lib.rs",
                "//! A.\n/// println!(\"x\");\nfn f() { writeln!(x); my_println!(); }\n",
            ),
        ];
        assert_eq!(printing(&Tree::of(&allowed)), []);
        for path in ["crates/tenure/src/lib.rs", "crates/tenure-fixture/src/proxy.rs"] {
            assert_eq!(printing(&Tree::of(&[(path, print)])).len(), 1, "{path}");
        }
        assert_eq!(printing(&Tree::of(&[("crates/a/src/b.rs", "    eprint!(\"x\");\n")])).len(), 1);
    }
}
