//! docs/modules.md: every source file with the first sentence of its `//!` lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::shell::XtaskError;

/// Where the list is kept.
pub(crate) const DOCUMENT: &str = "docs/modules.md";

/// The list, as the sources are now. Test modules are left out.
pub(crate) fn list(root: &Path) -> Result<String, XtaskError> {
    let crates = root.join("crates");
    let mut sources = BTreeMap::new();
    collect(&crates, "", &mut sources)
        .map_err(|error| XtaskError(format!("{} cannot be read: {error}", crates.display())))?;
    Ok(document(&sources))
}

/// Reads all files `<crate>/src/**.rs` below a folder.
fn collect(folder: &Path, prefix: &str, sources: &mut BTreeMap<String, String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let is_outside = prefix.matches('/').count() == 1 && !path.ends_with("/src");
        if entry.file_type()?.is_dir() {
            if !is_outside && !path.ends_with("/tests") {
                collect(&entry.path(), &format!("{path}/"), sources)?;
            }
        } else if !is_outside && path.ends_with(".rs") && !path.ends_with("/tests.rs") {
            sources.insert(path, std::fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}

/// The text of the document. A file `foo.rs` comes before the files of the folder `foo/`.
fn document(sources: &BTreeMap<String, String>) -> String {
    let mut text = String::from(
        "# Modules\n\nEvery source file and its first line, written by `cargo xtask fix`.\nARCHITECTURE.md explains how they work together.\n",
    );
    let mut crates: BTreeMap<&str, Vec<(&str, String)>> = BTreeMap::new();
    for (path, source) in sources {
        let Some((name, file)) = path.split_once("/src/") else { continue };
        crates.entry(name).or_default().push((file, first_sentence(source)));
    }
    for (name, mut files) in crates {
        files.sort_by_key(|(file, _)| file.strip_suffix(".rs").unwrap_or(file).to_owned());
        let _ = write!(text, "\n## {name}\n\n| file | contents |\n|---|---|\n");
        for (file, sentence) in files {
            let _ = writeln!(text, "| `{file}` | {} |", sentence.replace('|', "\\|"));
        }
    }
    text
}

/// The first sentence of the `//!` lines at the top.
fn first_sentence(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let paragraph: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ");
    match paragraph.find(". ") {
        Some(end) => paragraph[..=end].to_owned(),
        None => paragraph,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sentence_may_span_lines() {
        let source = "//! The queue of one\n//! lock. It is ordered.\n//!\n//! More.\n\nuse std;\n";
        assert_eq!(first_sentence(source), "The queue of one lock.");
        assert_eq!(first_sentence("//! A clock\n"), "A clock");
    }

    #[test]
    fn folder_follows_its_file() {
        let sources = ["a/src/lib.rs", "a/src/foo/bar.rs", "a/src/foo.rs", "a/src/foo_two.rs"];
        let sources = sources.map(|path| (path.to_owned(), "//! A | b.\n".to_owned())).into();
        let text = document(&sources);
        let order: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        assert_eq!(order, ["foo.rs", "foo/bar.rs", "foo_two.rs", "lib.rs"]);
        assert!(text.contains("## a\n") && text.contains("| A \\| b. |"), "{text}");
    }
}
