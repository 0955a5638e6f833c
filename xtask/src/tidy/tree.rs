//! The working tree as text in memory: the rules read it, and their tests construct small ones.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Folders without sources of the workspace.
const SKIPPED: [&str; 3] = ["target", ".git", "node_modules"];

/// All files by their path from the root, with `/` between folders.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads a folder and everything below; bytes that are not text are replaced.
    pub(super) fn load(root: &Path) -> io::Result<Tree> {
        let mut tree = Tree::default();
        tree.load_folder(root, "")?;
        Ok(tree)
    }

    fn load_folder(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if SKIPPED.contains(&name.as_str()) {
                continue;
            }
            let path = format!("{prefix}{name}");
            // A link is neither file nor folder: its target is in the tree already, or outside of it.
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.load_folder(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() {
                let text = String::from_utf8_lossy(&std::fs::read(entry.path())?).into_owned();
                self.files.insert(path, text);
            }
        }
        Ok(())
    }

    /// A tree for tests.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Every file, in order.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The files with this ending, such as `.rs`.
    pub(super) fn ending(&self, ending: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(move |(path, _)| path.ends_with(ending))
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_excludes_build_output() {
        let root = std::env::temp_dir().join(format!("tenure-tree-{}", std::process::id()));
        for folder in ["crates/a/src", "target/debug", ".cargo"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        for file in ["crates/a/src/lib.rs", "target/debug/x.rs", ".cargo/config.toml", "README.md"] {
            std::fs::write(root.join(file), file).unwrap();
        }
        std::fs::write(root.join("picture.png"), [0xff, 0x00]).unwrap();
        let tree = Tree::load(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        let paths: Vec<&str> = tree.files().map(|(path, _)| path).collect();
        assert_eq!(paths, [".cargo/config.toml", "README.md", "crates/a/src/lib.rs", "picture.png"]);
        assert_eq!(tree.text("README.md"), Some("README.md"));
    }
}
