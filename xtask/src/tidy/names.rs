//! No crate, folder, file or module has a vague name.

use std::collections::BTreeSet;

use super::Breach;
use super::tree::Tree;

const VAGUE: [&str; 8] = ["util", "utils", "common", "helper", "helpers", "manager", "misc", "base"];

/// Names that fit every file and therefore describe none.
pub(super) fn names(tree: &Tree) -> Vec<Breach> {
    let mut breaches = BTreeSet::new();
    for (path, text) in tree.files() {
        let mut ends = path.match_indices('/').map(|(at, _)| at).collect::<Vec<_>>();
        ends.push(path.len());
        for end in ends {
            let name = path[..end].rsplit('/').next().unwrap_or_default();
            if let Some(word) = vague_part(name) {
                breaches.insert((
                    path[..end].to_owned(),
                    format!("`{word}` is vague: name it after what it does"),
                ));
            }
        }
        if path.rsplit('/').next() == Some("mod.rs") {
            breaches.insert((path.to_owned(), "write `foo.rs` beside `foo/`".to_owned()));
        }
        if path.ends_with(".rs") {
            for module in modules(text).filter(|module| vague_part(module).is_some()) {
                breaches.insert((
                    path.to_owned(),
                    format!("`mod {module}` is vague: name it after what it does"),
                ));
            }
        }
    }
    breaches.into_iter().map(|(path, why)| Breach::in_file(&path, why)).collect()
}

/// The vague part of a name, also as a part: `key_utils.rs`, `tenure-common`.
fn vague_part(name: &str) -> Option<&'static str> {
    let stem = name.split('.').find(|part| !part.is_empty())?;
    let is_in = |word: &&&str| stem.split(['_', '-']).any(|part| part.eq_ignore_ascii_case(word));
    VAGUE.iter().find(is_in).copied()
}

/// The names of the modules that a file declares.
fn modules(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) ")).unwrap_or(line);
        Some(line.strip_prefix("mod ")?.trim_end_matches([';', '{', ' ']))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names_pass() {
        let good = [
            "crates/tenure/src/base64.rs",
            "crates/tenure/src/store/memory.rs",
            "docs/uncommon.md",
            ".cargo/config.toml",
        ];
        let files: Vec<(&str, &str)> = good.iter().map(|path| (*path, "mod database;\n")).collect();
        assert_eq!(names(&Tree::of(&files)), []);
    }

    #[test]
    fn vague_name_is_found_at_every_level() {
        for word in VAGUE {
            let bad = [
                (format!("crates/tenure-{word}/src/lib.rs"), "//! A.\n".to_owned()),
                (format!("crates/tenure/src/{word}/a.rs"), "//! A.\n".to_owned()),
                (format!("crates/tenure/src/{word}.rs"), "//! A.\n".to_owned()),
                (format!("crates/tenure/src/key_{word}.rs"), "//! A.\n".to_owned()),
                ("crates/tenure/src/lib.rs".to_owned(), format!("//! A.\npub mod {word} {{\n}}\n")),
            ];
            for (path, text) in &bad {
                assert_eq!(names(&Tree::of(&[(path, text)])).len(), 1, "{path}");
            }
        }
    }

    #[test]
    fn mod_rs_is_found() {
        assert_eq!(names(&Tree::of(&[("crates/tenure/src/store/mod.rs", "//! A.\n")])).len(), 1);
    }
}
