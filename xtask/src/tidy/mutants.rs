//! The list of mutants matches the tree: each change applies once, and each filter names a test that exists.
//!
//! A renamed file or test would otherwise break an entry without a failure until the list is run, which takes hours.

use super::Breach;
use super::test_list::tests;
use super::tree::Tree;
use crate::mutants::{LIST, parse};

/// Entries with a text that is not found once, and with a filter that names no test.
pub(super) fn entries(tree: &Tree) -> Vec<Breach> {
    let Some(list) = tree.text(LIST) else { return Vec::new() };
    let mutants = match parse(list) {
        Ok(mutants) => mutants,
        Err(why) => return vec![Breach::in_file(LIST, why)],
    };
    let tests = tests(tree);
    let mut breaches = Vec::new();
    for mutant in mutants {
        let mut wrong = |why: String| breaches.push(Breach::in_file(LIST, format!("{}: {why}", mutant.id)));
        match tree.text(&mutant.file) {
            None => wrong(format!("there is no file {}", mutant.file)),
            Some(text) => match mutant.apply(text) {
                Ok(changed) if changed == text => wrong("the change changes nothing".to_owned()),
                Ok(_) => {}
                Err(why) => wrong(format!("{}: {why}", mutant.file)),
            },
        }
        let terms = terms(&mutant.tests);
        if terms.is_empty() {
            wrong("`tests` needs a package(NAME) and then a test(NAME)".to_owned());
        }
        for (package, name) in terms {
            let is_match = |test: &&(String, String)| test.0 == package && test.1.contains(name);
            if tests.iter().find(is_match).is_none() {
                wrong(format!("no test of {package} has '{name}' in its name"));
            }
        }
    }
    breaches
}

/// What a filter selects: each `test(NAME)` with the `package(NAME)` before it.
fn terms(filter: &str) -> Vec<(&str, &str)> {
    let mut package = "";
    let mut terms = Vec::new();
    for part in filter.split_inclusive(')') {
        let Some((before, inside)) = part.rsplit_once('(') else { continue };
        let inside = inside.trim_end_matches(')');
        match before.trim_end().rsplit(|c: char| !c.is_alphanumeric()).next() {
            Some("package") => package = inside,
            Some("test") if !package.is_empty() => terms.push((package, inside)),
            _ => {}
        }
    }
    terms
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = "[[mutant]]\nid = \"A\"\nfile = \"crates/a/src/b.rs\"\nfind = \"one\"\nreplace = \"two\"\n\
        tests = \"package(a) & test(b::tests::first)\"\nabout = \"x\"\n";
    const SOURCE: &str = "fn one() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn first() {}\n}\n";

    fn breaches(entry: &str, source: &str) -> Vec<String> {
        let tree = Tree::of(&[(LIST, entry), ("crates/a/src/b.rs", source)]);
        entries(&tree).into_iter().map(|breach| breach.why).collect()
    }

    #[test]
    fn valid_entry_is_accepted() {
        assert_eq!(breaches(ENTRY, SOURCE), Vec::<String>::new());
    }

    #[test]
    fn renamed_file_test_or_text_is_found() {
        let moved = breaches(&ENTRY.replace("b.rs", "c.rs"), SOURCE);
        assert_eq!(moved, ["A: there is no file crates/a/src/c.rs"]);
        let renamed = breaches(ENTRY, &SOURCE.replace("fn first", "fn second"));
        assert_eq!(renamed, ["A: no test of a has 'b::tests::first' in its name"]);
        let helper = breaches(ENTRY, &SOURCE.replace("    #[test]\n", ""));
        assert_eq!(helper, renamed, "a function without the attribute is no test");
        let twice = breaches(ENTRY, &SOURCE.replace("{}\n#", "{ one }\n#"));
        assert_eq!(twice, ["A: crates/a/src/b.rs: `find` occurs 2 times, it has to occur once"]);
        assert_eq!(breaches(&ENTRY.replace("two", "one"), SOURCE), ["A: the change changes nothing"]);
    }

    #[test]
    fn filter_needs_package_and_test() {
        for filter in ["test(b::tests::first)", "package(a)"] {
            let entry = ENTRY.replace("package(a) & test(b::tests::first)", filter);
            assert_eq!(breaches(&entry, SOURCE), ["A: `tests` needs a package(NAME) and then a test(NAME)"]);
        }
        let two = "(package(a) & (test(b) | test(c))) | (package(d) & test(e))";
        assert_eq!(terms(two), [("a", "b"), ("a", "c"), ("d", "e")]);
    }

    #[test]
    fn tests_are_named_as_the_runner_does() {
        let made = "on_every_engine! {\n    one;\n}\n\nmod claims {\n    fn one() {}\n}\n#[tokio::test]\nasync fn two() {}\n";
        let nested = "mod a {\n    mod b {\n        #[test]\n        fn x() {}\n    }\n    #[test]\n    fn y() {}\n}\n#[test]\nfn z() {}\n";
        let tree = Tree::of(&[
            ("crates/t/tests/it/lock/waits.rs", made),
            ("crates/t/tests/it/main.rs", "#[test]\nfn m() {}\n"),
            ("crates/t/src/queue/tests.rs", nested),
        ]);
        let names: Vec<String> = tests(&tree).into_iter().map(|(_, name)| name).collect();
        assert_eq!(
            names,
            [
                "queue::tests::a::b::x",
                "queue::tests::a::y",
                "queue::tests::z",
                "lock::waits::one",
                "lock::waits::two",
                "m"
            ]
        );
    }
}
