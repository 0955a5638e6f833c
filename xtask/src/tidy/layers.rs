//! Allowed dependencies between crates. The table is the architecture; a new crate must be entered here first.

use super::tree::Tree;
use super::{Breach, Manifest};

/// A crate of the workspace, the crates of the workspace that it may use, and what its tests may use in addition.
struct Layer {
    name: &'static str,
    uses: &'static [&'static str],
    tests_use: &'static [&'static str],
}

const LAYERS: &[Layer] = &[
    Layer { name: "tenure-core", uses: &[], tests_use: &["tenure-fuzz"] },
    Layer { name: "tenure-etcd", uses: &[], tests_use: &["tenure-fixture", "tenure-fuzz"] },
    Layer {
        name: "tenure",
        uses: &["tenure-core", "tenure-etcd"],
        tests_use: &["tenure", "tenure-fixture", "tenure-fuzz"],
    },
    Layer {
        name: "tenure-cli",
        uses: &["tenure", "tenure-core", "tenure-etcd"],
        tests_use: &["tenure-fixture", "tenure-fuzz"],
    },
    Layer { name: "tenure-bench", uses: &["tenure", "tenure-core"], tests_use: &["tenure-fixture"] },
    Layer { name: "tenure-sim", uses: &["tenure", "tenure-core"], tests_use: &[] },
    Layer { name: "tenure-nemesis", uses: &["tenure", "tenure-core", "tenure-fixture"], tests_use: &[] },
    Layer { name: "tenure-fixture", uses: &[], tests_use: &[] },
    Layer { name: "tenure-fuzz", uses: &["tenure-core"], tests_use: &[] },
    Layer { name: "xtask", uses: &[], tests_use: &[] },
];

/// All that the core may use: no clock, no IO, no threads come with these.
const CORE_USES: [&str; 5] = ["bytes", "serde", "serde_json", "thiserror", "xxhash-rust"];

/// Crates, by the beginning of their name, and the one crate of the workspace that may name them.
const CONFINED: [(&str, &str, &str); 7] = [
    ("h2", "tenure-etcd", "the protocol stays behind our own client"),
    ("tonic", "tenure-etcd", "the protocol stays behind our own client"),
    ("prost", "tenure-etcd", "the protocol stays behind our own client"),
    ("rusqlite", "tenure", "the file engine is its only user"),
    ("redis", "tenure", "the Redis storage is its only user"),
    ("etcd-bin-vendored", "tenure-fixture", "tests get etcd from the fixture"),
    ("anyhow", "tenure-cli", "a library's errors are enums that callers can match"),
];

/// The benchmark's reference client speaks the protocol itself, because it must share nothing with the real one. It is not published.
const REFERENCE: (&str, [&str; 2]) = ("tenure-bench", ["tonic", "prost"]);

/// Dependencies between crates of the workspace.
pub(super) fn internal_dependencies(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for manifest in crates(tree) {
        let Some(layer) = LAYERS.iter().find(|layer| layer.name == manifest.name()) else {
            breaches.push(Breach::in_file(
                &manifest.path,
                "a crate that xtask/src/tidy/layers.rs does not know: enter it",
            ));
            continue;
        };
        for found in manifest.dependencies() {
            let is_ours = found.name == "xtask" || found.name.starts_with("tenure");
            let is_allowed = layer.uses.contains(&found.name.as_str())
                || (found.is_dev && layer.tests_use.contains(&found.name.as_str()));
            if is_ours && !is_allowed {
                let why = format!("{} must not depend on {}", layer.name, found.name);
                breaches.push(Breach::at(&manifest.path, found.line, why));
            }
        }
    }
    breaches
}

/// Dependencies of the core.
pub(super) fn core(tree: &Tree) -> Vec<Breach> {
    let core = crates(tree).into_iter().find(|manifest| manifest.name() == "tenure-core");
    let Some(core) = core else { return vec![Breach::in_file("crates/tenure-core", "does not exist")] };
    let found = core.dependencies().into_iter();
    let foreign = found.filter(|found| !found.is_dev && !CORE_USES.contains(&found.name.as_str()));
    foreign
        .map(|found| {
            Breach::at(&core.path, found.line, format!("the core must not depend on {}", found.name))
        })
        .collect()
}

/// External crates that only one crate of the workspace may name, in manifests and in sources.
pub(super) fn confined(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for manifest in crates(tree) {
        let folder = manifest.path.trim_end_matches("Cargo.toml");
        let is_reference = |prefix: &str| manifest.name() == REFERENCE.0 && REFERENCE.1.contains(&prefix);
        let others =
            CONFINED.iter().filter(|(prefix, owner, _)| *owner != manifest.name() && !is_reference(prefix));
        for (prefix, owner, why) in others {
            let found = manifest.dependencies().into_iter().filter(|found| found.name.starts_with(prefix));
            breaches.extend(found.map(|found| {
                Breach::at(&manifest.path, found.line, format!("only {owner} names {}: {why}", found.name))
            }));
            if folder == "xtask/" {
                continue;
            }
            let path_start = format!("{}::", prefix.replace('-', "_"));
            for (path, text) in tree.ending(".rs").filter(|(path, _)| path.starts_with(folder)) {
                let lines = text
                    .lines()
                    .enumerate()
                    .filter(|(_, line)| super::sources::contains_identifier(line, &path_start));
                breaches.extend(lines.map(|(index, _)| {
                    Breach::at(path, index + 1, format!("only {owner} names {prefix}: {why}"))
                }));
            }
        }
    }
    breaches
}

/// The manifests of the workspace's crates; those under `fixtures/` are workspaces of their own.
pub(super) fn crates(tree: &Tree) -> Vec<Manifest> {
    let manifests = tree.ending("Cargo.toml");
    let members = manifests.filter(|(path, _)| *path == "xtask/Cargo.toml" || path.starts_with("crates/"));
    members.map(|(path, text)| Manifest::parse(path, text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, section: &str, dependency: &str) -> (String, String) {
        let folder = if name == "xtask" { "xtask".to_owned() } else { format!("crates/{name}") };
        let text = format!("[package]\nname = \"{name}\"\n\n[{section}]\n{dependency}.workspace = true\n");
        (format!("{folder}/Cargo.toml"), text)
    }

    fn breaches(rule: fn(&Tree) -> Vec<Breach>, name: &str, section: &str, dependency: &str) -> usize {
        let (path, text) = manifest(name, section, dependency);
        rule(&Tree::of(&[(&path, &text)])).len()
    }

    #[test]
    fn dependencies_go_downwards_only() {
        assert_eq!(breaches(internal_dependencies, "tenure", "dependencies", "tenure-core"), 0);
        assert_eq!(breaches(internal_dependencies, "tenure-etcd", "dev-dependencies", "tenure-fixture"), 0);
        for (name, section, dependency) in [
            ("tenure-etcd", "dependencies", "tenure-core"),
            ("tenure-etcd", "dev-dependencies", "tenure"),
            ("tenure-core", "dev-dependencies", "tenure"),
            ("tenure", "dependencies", "tenure-fixture"),
            ("tenure-fixture", "dependencies", "tenure-etcd"),
            ("xtask", "dependencies", "tenure-core"),
            ("xtask", "dev-dependencies", "tenure-fixture"),
            ("tenure-new", "dependencies", "bytes"),
        ] {
            assert_eq!(
                breaches(internal_dependencies, name, section, dependency),
                1,
                "{name} -> {dependency}"
            );
        }
    }

    #[test]
    fn core_allows_five_dependencies_outside_tests() {
        for allowed in CORE_USES {
            assert_eq!(breaches(core, "tenure-core", "dependencies", allowed), 0);
        }
        assert_eq!(breaches(core, "tenure-core", "dev-dependencies", "proptest"), 0);
        assert_eq!(breaches(core, "tenure-core", "dependencies", "tokio"), 1);
        assert_eq!(breaches(core, "tenure-core", "target.'cfg(unix)'.dependencies", "rustix"), 1);
        assert_eq!(
            breaches(core, "tenure", "dependencies", "tokio"),
            1,
            "without a core the rule checks nothing"
        );
    }

    #[test]
    fn protocols_and_engines_are_named_by_one_crate() {
        assert_eq!(breaches(confined, "tenure-etcd", "dependencies", "tonic-prost"), 0);
        assert_eq!(breaches(confined, "tenure", "dependencies", "rusqlite"), 0);
        assert_eq!(breaches(confined, "tenure-bench", "dependencies", "tonic-prost"), 0);
        assert_eq!(breaches(confined, "tenure-bench", "dependencies", "prost"), 0);
        for (name, dependency) in [
            ("tenure", "tonic"),
            ("tenure-cli", "prost"),
            ("tenure-cli", "rusqlite"),
            ("tenure-cli", "redis"),
            ("tenure-bench", "h2"),
            ("tenure-bench", "rusqlite"),
            ("tenure", "anyhow"),
            ("xtask", "tonic"),
        ] {
            assert_eq!(breaches(confined, name, "dev-dependencies", dependency), 1, "{name} -> {dependency}");
        }
    }

    #[test]
    fn protocol_named_in_source_is_found() {
        let (path, manifest) = manifest("tenure", "dependencies", "bytes");
        let with = |text| confined(&Tree::of(&[(&path, &manifest), ("crates/tenure/src/a.rs", text)])).len();
        assert_eq!(with("//! Not tonic itself, only its kind.\n"), 0);
        assert_eq!(with("//! A.\nuse tonic::Status;\n"), 1);
        assert_eq!(with("//! A.\nfn f() -> tonic::Code { my_tonic::x() }\n"), 1);
    }
}
