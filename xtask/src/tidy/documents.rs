//! Rules about the documents at the root and in docs/.

use super::tree::Tree;
use super::{Breach, Manifest};

const PRESENT: [&str; 8] = [
    "README.md",
    "ARCHITECTURE.md",
    "STYLE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "deny.toml",
];

/// The limit of lines for ARCHITECTURE.md: a longer overview is no overview.
const ARCHITECTURE_LINES_MAX: usize = 200;

/// Local folders; concatenated from halves, so that this file obeys its own rule.
const MACHINE_PATHS: [&str; 5] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
    concat!("/tmp/", "wt"),
];

/// The documents that a reader expects, and those that the licence requires.
pub(super) fn present(tree: &Tree) -> Vec<Breach> {
    let missing = PRESENT.iter().filter(|path| tree.text(path).is_none_or(|text| text.trim().is_empty()));
    missing.map(|path| Breach::in_file(path, "does not exist, or is empty")).collect()
}

/// Users copy the version from the README, so it must be the current one.
pub(super) fn readme_version(tree: &Tree) -> Vec<Breach> {
    let workspace = Manifest::parse("Cargo.toml", tree.text("Cargo.toml").unwrap_or_default());
    let version = workspace.value("workspace.package", "version").unwrap_or_default();
    let short = version.rsplit_once('.').map_or(version, |(short, _)| short);
    let readme = tree.text("README.md").unwrap_or_default();
    let mut breaches = Vec::new();
    let mut is_named = false;
    for (index, line) in readme.lines().enumerate() {
        let requirements =
            quoted_after(line, "tenure = \"").chain(quoted_after(line, "tenure = { version = \""));
        for named in requirements {
            is_named = true;
            if named != short && named != version {
                breaches.push(Breach::at(
                    "README.md",
                    index + 1,
                    format!("asks for tenure {named}; it is {short}"),
                ));
            }
        }
        for named in line.split("version ").skip(1).filter_map(full_version) {
            if named != version {
                breaches.push(Breach::at(
                    "README.md",
                    index + 1,
                    format!("speaks of version {named}; it is {version}"),
                ));
            }
        }
    }
    if !is_named {
        breaches.push(Breach::in_file("README.md", format!("has no line with `tenure = \"{short}\"`")));
    }
    breaches
}

/// A long overview is not read.
pub(super) fn architecture_length(tree: &Tree) -> Vec<Breach> {
    let lines = tree.text("ARCHITECTURE.md").unwrap_or_default().lines().count();
    if lines <= ARCHITECTURE_LINES_MAX {
        return Vec::new();
    }
    vec![Breach::in_file("ARCHITECTURE.md", format!("{lines} lines, at most {ARCHITECTURE_LINES_MAX}"))]
}

/// A local path in a document is wrong on every other host.
pub(super) fn machine_paths(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (path, text) in tree.ending(".md") {
        for (index, line) in text.lines().enumerate() {
            let found = MACHINE_PATHS.iter().filter(|place| names_folder(line, place));
            breaches.extend(
                found.map(|place| Breach::at(path, index + 1, format!("`{place}` is a path of one machine"))),
            );
        }
    }
    breaches
}

/// Whether a line has an absolute path that begins with `place`; `a/home/b` is another path.
fn names_folder(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '*'))
    })
}

fn quoted_after<'a>(line: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    line.split(start).skip(1).filter_map(|rest| rest.split('"').next())
}

/// `1.2.3` at the beginning of the text.
fn full_version(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let version = text[..end].trim_end_matches('.');
    (version.split('.').count() == 3 && version.split('.').all(|part| !part.is_empty())).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: (&str, &str) = ("Cargo.toml", "[workspace.package]\nversion = \"0.3.1\"\n");

    fn readme(text: &str) -> usize {
        readme_version(&Tree::of(&[WORKSPACE, ("README.md", text)])).len()
    }

    #[test]
    fn readme_shows_the_current_version() {
        assert_eq!(readme("tenure = \"0.3\"\nThis is version 0.3.1.\netcd from version 3.4 on\n"), 0);
        assert_eq!(readme("tenure = { version = \"0.3\", features = [] }\n"), 0);
        assert_eq!(readme("tenure = \"0.2\"\n"), 1);
        assert_eq!(readme("tenure = \"0.3\"\ntenure = \"0.2\"\n"), 1);
        assert_eq!(readme("tenure = \"0.3\"\nThis is version 0.3.0.\n"), 1);
        assert_eq!(readme("no version at all\n"), 1);
    }

    #[test]
    fn missing_or_empty_document_is_found() {
        let whole: Vec<(&str, &str)> = PRESENT.iter().map(|path| (*path, "text\n")).collect();
        assert_eq!(present(&Tree::of(&whole)), []);
        assert_eq!(present(&Tree::of(&whole[1..])).len(), 1);
        let mut empty = whole.clone();
        empty[5].1 = "\n";
        assert_eq!(present(&Tree::of(&empty)).len(), 1);
    }

    #[test]
    fn architecture_stays_below_its_limit() {
        let (short, long) = ("x\n".repeat(200), "x\n".repeat(201));
        assert_eq!(architecture_length(&Tree::of(&[("ARCHITECTURE.md", &short)])), []);
        assert_eq!(architecture_length(&Tree::of(&[("ARCHITECTURE.md", &long)])).len(), 1);
    }

    #[test]
    fn local_path_in_document_is_found() {
        for place in MACHINE_PATHS {
            let text = format!("see `{place}x` there\n");
            assert_eq!(machine_paths(&Tree::of(&[("docs/a.md", &text)])).len(), 1, "{place}");
            let relative = format!("see docs{place}x and ~{}\n", ".config/tenure");
            assert_eq!(machine_paths(&Tree::of(&[("docs/a.md", &relative)])), [], "{place}");
        }
    }
}
