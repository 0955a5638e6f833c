//! What all crates share is in the workspace's manifest.

use super::layers::crates;
use super::tree::Tree;
use super::{Breach, Manifest};

/// Section, key and value that every crate of the workspace has.
const INHERITED: [(&str, &str); 5] = [
    ("package", "version.workspace"),
    ("package", "edition.workspace"),
    ("package", "rust-version.workspace"),
    ("package", "license.workspace"),
    ("lints", "workspace"),
];

/// The crates that are published, each after those it depends on. All others have `publish = false`.
pub(crate) const PUBLISHED: [&str; 4] = ["tenure-core", "tenure-etcd", "tenure", "tenure-cli"];

/// Section and key that every published crate has, with a value of its own or inherited.
const SHOWN: [(&str, &str); 7] = [
    ("package", "description"),
    ("package", "repository"),
    ("package", "documentation"),
    ("package", "keywords"),
    ("package", "categories"),
    ("package", "include"),
    ("package.metadata.docs.rs", "all-features"),
];

/// A crate with its own version, edition or lints drifts away from the others.
pub(super) fn inherited(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for manifest in crates(tree) {
        for (section, key) in INHERITED {
            if manifest.value(section, key) != Some("true") {
                breaches.push(Breach::in_file(&manifest.path, format!("[{section}] needs `{key} = true`")));
            }
        }
    }
    breaches
}

/// An internal crate must not be published by accident; a published crate needs the fields that a registry shows.
pub(super) fn publishing(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for manifest in crates(tree) {
        let is_refused = manifest.value("package", "publish") == Some("false");
        if !PUBLISHED.contains(&manifest.name()) {
            if !is_refused {
                breaches.push(Breach::in_file(&manifest.path, "[package] needs `publish = false`"));
            }
            continue;
        }
        if is_refused {
            breaches.push(Breach::in_file(&manifest.path, "is published: remove `publish = false`"));
        }
        for (section, key) in SHOWN {
            let inherited = format!("{key}.workspace");
            let value = manifest.value(section, key).or_else(|| manifest.value(section, &inherited));
            if value.is_none_or(str::is_empty) {
                breaches.push(Breach::in_file(&manifest.path, format!("[{section}] needs `{key}`")));
            }
        }
    }
    breaches
}

/// A forgotten number would publish a crate that requires the previous version.
pub(super) fn versions(tree: &Tree) -> Vec<Breach> {
    let workspace = Manifest::parse("Cargo.toml", tree.text("Cargo.toml").unwrap_or_default());
    let Some(version) = workspace.value("workspace.package", "version") else {
        return vec![Breach::in_file("Cargo.toml", "[workspace.package] has no version")];
    };
    let ours = workspace.workspace_versions().into_iter().filter(|(name, _, _)| name.starts_with("tenure"));
    let stale = ours.filter(|(_, named, _)| *named != version);
    stale
        .map(|(name, named, line)| {
            Breach::at("Cargo.toml", line, format!("{name} is {version}, not {named}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[package]\nname = \"tenure\"\nversion.workspace = true\nedition.workspace = true\n\
        rust-version.workspace = true\nlicense.workspace = true\n\n[lints]\nworkspace = true\n";

    #[test]
    fn missing_inherited_line_is_found() {
        assert_eq!(inherited(&Tree::of(&[("crates/tenure/Cargo.toml", GOOD)])), []);
        for line in GOOD.lines().filter(|line| line.contains("workspace")) {
            let others: Vec<&str> = GOOD.lines().filter(|other| *other != line).collect();
            let text = others.join("\n");
            assert_eq!(inherited(&Tree::of(&[("crates/tenure/Cargo.toml", &text)])).len(), 1, "{line}");
        }
        let own = GOOD.replace("version.workspace = true\nedition", "version = \"0.2.0\"\nedition");
        assert_eq!(inherited(&Tree::of(&[("xtask/Cargo.toml", &own)])).len(), 1);
        let quiet = GOOD.replace("[lints]\nworkspace = true", "[lints]\nworkspace = false");
        assert_eq!(inherited(&Tree::of(&[("xtask/Cargo.toml", &quiet)])).len(), 1);
    }

    #[test]
    fn published_crate_needs_everything_that_is_shown() {
        let good = "[package]\nname = \"tenure\"\ndescription = \"d\"\nrepository.workspace = true\ndocumentation = \"u\"\n\
            keywords.workspace = true\ncategories = [\"database\"]\ninclude = [\"/src\"]\n\n[package.metadata.docs.rs]\nall-features = true\n";
        let found = |text: &str| publishing(&Tree::of(&[("crates/tenure/Cargo.toml", text)])).len();
        assert_eq!(found(good), 0);
        for (_, key) in SHOWN {
            let others: Vec<&str> = good.lines().filter(|line| !line.starts_with(key)).collect();
            assert_eq!(found(&others.join("\n")), 1, "{key}");
        }
        assert_eq!(found(&good.replace("[package]\n", "[package]\npublish = false\n")), 1);
    }

    #[test]
    fn other_crate_must_refuse_to_be_published() {
        let found = |text: &str| publishing(&Tree::of(&[("crates/tenure-sim/Cargo.toml", text)])).len();
        assert_eq!(found("[package]\nname = \"tenure-sim\"\npublish = false\n"), 0);
        assert_eq!(found("[package]\nname = \"tenure-sim\"\n"), 1);
    }

    #[test]
    fn internal_dependencies_use_the_workspace_version() {
        let text = |named: &str| {
            format!(
                "[workspace.package]\nversion = \"0.2.0\"\n\n[workspace.dependencies]\n\
                 tenure-core = {{ path = \"c\", version = \"{named}\" }}\ntonic = {{ version = \"0.14\" }}\n"
            )
        };
        assert_eq!(versions(&Tree::of(&[("Cargo.toml", &text("0.2.0"))])), []);
        assert_eq!(versions(&Tree::of(&[("Cargo.toml", &text("0.1.0"))])).len(), 1);
        assert_eq!(versions(&Tree::of(&[("Cargo.toml", "[workspace]\n")])).len(), 1);
    }
}
