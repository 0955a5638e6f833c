//! The part of a `Cargo.toml` that the rules need: sections, their keys, and dependencies.
//!
//! It reads lines, not TOML, because the manifests of the workspace have one key per line.

/// The keys of a manifest, with their section and line.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) path: String,
    entries: Vec<ManifestEntry>,
}

#[derive(Debug)]
struct ManifestEntry {
    section: String,
    key: String,
    value: String,
    line: usize,
}

/// One dependency of a manifest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dependency {
    /// The crate's real name, also where it is renamed.
    pub(super) name: String,
    /// Whether only tests and examples have it.
    pub(super) is_dev: bool,
    pub(super) line: usize,
}

impl Manifest {
    pub(super) fn parse(path: &str, text: &str) -> Manifest {
        let mut entries = Vec::new();
        let mut section = String::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix('[') {
                section = name.trim_start_matches('[').split(']').next().unwrap_or_default().to_owned();
                // An empty table is there too.
                entries.push(ManifestEntry {
                    section: section.clone(),
                    key: String::new(),
                    value: String::new(),
                    line: index + 1,
                });
            } else if let Some((key, value)) = line.split_once('=') {
                let key = key.trim().trim_matches('"').to_owned();
                entries.push(ManifestEntry {
                    section: section.clone(),
                    key,
                    value: value.trim().to_owned(),
                    line: index + 1,
                });
            }
        }
        Manifest { path: path.to_owned(), entries }
    }

    /// The keys of a section, in order.
    pub(super) fn keys(&self, section: &str) -> impl Iterator<Item = &str> {
        self.entries
            .iter()
            .filter(move |entry| entry.section == section && !entry.key.is_empty())
            .map(|entry| entry.key.as_str())
    }

    /// The value of a key, without quotes.
    pub(super) fn value(&self, section: &str, key: &str) -> Option<&str> {
        let entry = self.entries.iter().find(|entry| entry.section == section && entry.key == key)?;
        Some(entry.value.trim_matches('"'))
    }

    /// The package's name.
    pub(super) fn name(&self) -> &str {
        self.value("package", "name").unwrap_or_default()
    }

    /// Every dependency of every kind and target.
    pub(super) fn dependencies(&self) -> Vec<Dependency> {
        self.entries.iter().filter_map(ManifestEntry::dependency).collect()
    }

    /// The `[workspace.dependencies]` that name a version: name, version, line.
    pub(super) fn workspace_versions(&self) -> Vec<(&str, &str, usize)> {
        let entries = self.entries.iter().filter(|entry| entry.section == "workspace.dependencies");
        entries
            .filter_map(|entry| {
                Some((entry.key.as_str(), quoted_after(&entry.value, "version")?, entry.line))
            })
            .collect()
    }
}

impl ManifestEntry {
    fn dependency(&self) -> Option<Dependency> {
        if self.section.starts_with("workspace") {
            return None;
        }
        let dependency =
            |name: &str, is_dev| Some(Dependency { name: name.to_owned(), is_dev, line: self.line });
        for (kind, is_dev) in
            [("dev-dependencies", true), ("build-dependencies", false), ("dependencies", false)]
        {
            let in_kind = self.section == kind || self.section.ends_with(&format!(".{kind}"));
            if in_kind && !self.key.is_empty() {
                let key = self.key.split('.').next().unwrap_or_default();
                return dependency(quoted_after(&self.value, "package").unwrap_or(key), is_dev);
            }
            // `[dependencies.name]`, counted once, at its header.
            let table = self
                .section
                .split_once(&format!("{kind}."))
                .filter(|(before, _)| before.is_empty() || before.ends_with('.'));
            if let Some((_, name)) = table {
                return if self.key.is_empty() { dependency(name, is_dev) } else { None };
            }
        }
        None
    }
}

/// The quoted text after `key =` in an inline table.
fn quoted_after<'a>(value: &'a str, key: &str) -> Option<&'a str> {
    let rest = value.split_once(key)?.1.trim_start().strip_prefix('=')?;
    rest.split('"').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
[package]
name = "a"
version.workspace = true

[dependencies]
bytes.workspace = true
serde = { version = "1", features = ["derive"] }
renamed = { package = "real", version = "2" }
# tonic = "0"

[dev-dependencies]
proptest = "1"

[target.'cfg(unix)'.dependencies]
rustix = "1"

[dependencies.long]
version = "3"

[features]
default = ["x"]
x = []
"#;

    #[test]
    fn dependencies_of_every_spelling_are_found() {
        let manifest = Manifest::parse("Cargo.toml", TEXT);
        let found = manifest.dependencies();
        let names: Vec<(&str, bool)> =
            found.iter().map(|found| (found.name.as_str(), found.is_dev)).collect();
        let expected = [
            ("bytes", false),
            ("serde", false),
            ("real", false),
            ("proptest", true),
            ("rustix", false),
            ("long", false),
        ];
        assert_eq!(names, expected);
        assert_eq!(found[0].line, 7);
    }

    #[test]
    fn values_and_keys_are_found_by_section() {
        let manifest = Manifest::parse("Cargo.toml", TEXT);
        assert_eq!(manifest.name(), "a");
        assert_eq!(manifest.value("package", "version.workspace"), Some("true"));
        assert_eq!(manifest.keys("features").collect::<Vec<_>>(), ["default", "x"]);
        assert_eq!(manifest.value("package", "license.workspace"), None);
    }

    #[test]
    fn versions_in_the_workspace_table_are_found() {
        let text =
            "[workspace.dependencies]\na = { path = \"a\", version = \"0.1.0\" }\nb = { path = \"b\" }\n";
        assert_eq!(Manifest::parse("Cargo.toml", text).workspace_versions(), [("a", "0.1.0", 2)]);
    }
}
