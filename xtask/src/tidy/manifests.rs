//! One place for what all crates share: the workspace's manifest.

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

/// A forgotten number here would publish a crate that asks for the version before.
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
    fn a_crate_that_inherits_everything_passes_and_each_missing_line_is_found() {
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
    fn our_crates_are_asked_for_at_the_workspaces_version() {
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
