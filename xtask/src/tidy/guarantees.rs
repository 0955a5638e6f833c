//! docs/guarantees.md, the code and the tests refer to each other: by the numbers of the guarantees and by the names of the tests.

use super::tree::Tree;
use super::{Breach, test_list};

/// The page with the numbered guarantees.
const PAGE: &str = "docs/guarantees.md";

/// Pages that name tests.
const PAGES_WITH_TESTS: [&str; 2] = [PAGE, "docs/testing.md"];

/// The folder in which each invariant of the simulator is one file.
const INVARIANTS: &str = "crates/tenure-sim/src/invariant/";

/// The largest number of a guarantee.
const GUARANTEES: usize = 10;

/// Numbers that are missing on the page, that no code cites, and invariants that cite none.
pub(super) fn numbered(tree: &Tree) -> Vec<Breach> {
    let page = tree.text(PAGE).unwrap_or_default();
    let mut breaches = Vec::new();
    for number in 1..=GUARANTEES {
        let id = format!("G{number}");
        if !page.lines().any(|line| line.starts_with(&format!("* **{id} "))) {
            breaches.push(Breach::in_file(PAGE, format!("has no line that begins with `* **{id} `")));
        }
        let is_cited = |text: &str| text.lines().any(|line| cited(line).any(|cited| cited == number));
        if !tree.ending(".rs").any(|(path, text)| path.starts_with("crates/") && is_cited(text)) {
            breaches.push(Breach::in_file(PAGE, format!("no code cites {id}")));
        }
    }
    for (path, text) in tree.ending(".rs").filter(|(path, _)| path.starts_with(INVARIANTS)) {
        let Some((index, line)) = text.lines().enumerate().find(|(_, line)| line.contains("guarantees: \""))
        else {
            breaches.push(Breach::in_file(path, "names no guarantee: add `guarantees: \"G…\"`"));
            continue;
        };
        let numbers: Vec<usize> = cited(line).collect();
        if numbers.is_empty() || numbers.iter().any(|number| *number > GUARANTEES) {
            breaches.push(Breach::at(path, index + 1, format!("the guarantees are G1 to G{GUARANTEES}")));
        }
    }
    breaches
}

/// Tests that a page names and that do not exist. A renamed test has to be renamed there too.
pub(super) fn tests(tree: &Tree) -> Vec<Breach> {
    let tests = test_list::tests(tree);
    let mut breaches = Vec::new();
    for page in PAGES_WITH_TESTS {
        for (index, line) in tree.text(page).unwrap_or_default().lines().enumerate() {
            // Every second piece is between backticks.
            for quoted in line.split('`').skip(1).step_by(2) {
                let Some((_, name)) = quoted.rsplit_once("::") else { continue };
                let is_test = quoted.chars().all(|c| is_part_of_name(c) || c == ':')
                    && quoted.chars().all(|c| !c.is_uppercase())
                    && name.contains('_');
                if is_test && !tests.iter().any(|(package, test)| is_named(quoted, package, test)) {
                    breaches.push(Breach::at(page, index + 1, format!("there is no test `{quoted}`")));
                }
            }
        }
    }
    breaches
}

/// Whether a page means this test or a module around it. The first segment may be the crate without `tenure-`; modules called `tests`
/// may be left out.
fn is_named(quoted: &str, package: &str, test: &str) -> bool {
    let modules = |path: &str| -> Vec<String> {
        path.split("::").filter(|module| *module != "tests").map(str::to_owned).collect()
    };
    let (quoted, test) = (modules(quoted), modules(test));
    let short = package.strip_prefix("tenure-").unwrap_or(package);
    test.starts_with(&quoted) || (quoted[0] == short && test.starts_with(&quoted[1..]))
}

fn is_part_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The numbers of the guarantees that a line cites: a `G` that begins a word, followed by digits.
fn cited(line: &str) -> impl Iterator<Item = usize> {
    line.split(|c: char| !is_part_of_name(c)).filter_map(|word| word.strip_prefix('G')?.parse().ok())
}

#[cfg(test)]
mod checks {
    use super::*;

    const INVARIANT: &str = "crates/tenure-sim/src/invariant/tokens_grow.rs";

    fn page() -> String {
        (1..=GUARANTEES).map(|number| format!("* **G{number} A guarantee.**\n")).collect()
    }

    fn citing(invariant: &str) -> Vec<Breach> {
        let all = "//! G1, G2, G3, G4, G5, G6, G7, G8, G9 and G10.\n";
        numbered(&Tree::of(&[(PAGE, &page()), ("crates/tenure/src/a.rs", all), (INVARIANT, invariant)]))
    }

    #[test]
    fn cited_numbers_pass() {
        assert_eq!(citing("Invariant { name: \"a\", guarantees: \"G3, G10\", check }\n"), []);
    }

    #[test]
    fn missing_and_unknown_numbers_are_found() {
        for wrong in ["Invariant { name: \"a\", check }\n", "guarantees: \"\"\n", "guarantees: \"G11\"\n"] {
            assert_eq!(citing(wrong).len(), 1, "{wrong}");
        }
        let found = numbered(&Tree::of(&[(PAGE, page().lines().next().unwrap())]));
        assert_eq!(found.len(), 2 * GUARANTEES - 1, "{found:?}");
    }

    #[test]
    fn renamed_test_is_found() {
        let test = "#[test]\nfn lost_reply_is_retried() {}\n";
        let file = ("crates/tenure/tests/it/lock.rs", test);
        let good = "| lost reply | `lock::lost_reply_is_retried` |, see `tenure::hold` and `Engine::txn`\n";
        assert_eq!(tests(&Tree::of(&[file, (PAGE, good)])), []);
        assert_eq!(
            tests(&Tree::of(&[file, (PAGE, "`queue::lost_reply_is_retried`\n")])).len(),
            1,
            "another file"
        );
        for page in PAGES_WITH_TESTS {
            assert_eq!(tests(&Tree::of(&[file, (page, "`lock::lost_reply_is_sent_again`\n")])).len(), 1);
        }
    }
}
